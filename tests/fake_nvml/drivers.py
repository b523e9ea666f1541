"""Each driver's meaning of fields 251 to 273: the same throttling, under the ids of the driver.

Ids by version: nvidia-ml-py 12.550.52, 12.570.86, 12.575.51, 13.580.65, 13.580.126 and 13.590.48.
The fields between the three counters are the settings of power smoothing, with typical values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.fake_nvml.scenario import Gpu, Steps

SECOND = 1_000_000_000
#: The three fields that moved, in the order of their ids, with the bit of the clock event reasons.
CAUSES = {"sw_thermal": 0x20, "hw_thermal": 0x40, "hw_power_brake": 0x80}
#: Full version -> first id of the three; 0: that driver does not have them.
COUNTERS_AT = {
    "550.54.15": 0,
    "570.86.15": 0,
    "575.51.03": 251,
    "580.65.06": 251,
    "580.126.09": 269,
    "590.48.01": 269,
}
#: The same -> first id of the 18 settings of power smoothing; 0: none.
SETTINGS_AT = {
    "550.54.15": 0,
    "570.86.15": 251,
    "575.51.03": 256,
    "580.65.06": 256,
    "580.126.09": 251,
    "590.48.01": 251,
}
#: NVML_FI_PWR_SMOOTHING_*, in order of their ids: defaults, and an operator's settings while it is
#: hot.
SETTINGS = (
    (0, 1), (0, 2), (0, 1), (700_000, 650_000), (200_000, 300_000), (90, 80), (20, 30), (99, 98), (5, 5),
    (25, 75), (5_000, 1_000_000), (5_000, 900_000), (2_000, 30_000), (0, 4), (0, 75), (0, 1_000_000),
    (0, 900_000), (0, 30_000),
)  # fmt: skip


@dataclass(frozen=True)
class Throttling:
    """Throttling of a GPU, step by step: the sampled flags, and each cause's nanoseconds."""

    flags: tuple[int, ...]
    counters: dict[str, tuple[int, ...]]


def throttling(steps: int, *, begin: Sequence[int] = (6, 20, 34), last: int = 8) -> Throttling:
    """Return a course in which each cause throttles for *last* steps, 0.9 of the time."""
    flags, counters = [0x4] * steps, {}
    for (cause, flag), first in zip(CAUSES.items(), begin, strict=True):
        held, total = [], 0
        for step in range(steps):
            inside = first <= step < first + last
            flags[step] |= flag * inside
            ends = step in (first, first + last)
            total += SECOND * 45 // 100 if ends else SECOND * 9 // 10 if inside else 0
            held.append(total)
        counters[cause] = tuple(held)
    return Throttling(tuple(flags), counters)


def behave_as(gpu: Gpu, version: str, course: Throttling, *, set_at: int = 10) -> Gpu:
    """Give *gpu* the fields of driver *version* over *course*; other settings from *set_at*."""
    for number in range(251, 274):
        gpu.fields.pop(number, None)
    steps = len(course.flags)
    gpu.values["event_reasons"] = course.flags
    if SETTINGS_AT[version]:
        for i, (before, after) in enumerate(SETTINGS):
            values: Steps = [before if step < set_at else after for step in range(steps)]
            gpu.fields[SETTINGS_AT[version] + i] = ("ull", values)
    if COUNTERS_AT[version]:
        for i, cause in enumerate(CAUSES):
            gpu.fields[COUNTERS_AT[version] + i] = ("ull", course.counters[cause])
    return gpu
