"""Lines of the amdgpu driver that have weight: RAS errors, queues that hang, resets, GPUs off the bus.

Formats of drivers/gpu/drm/amd/amdgpu: amdgpu_ras.c (`N [new ]uncorrectable hardware errors detected in umc block`),
amdgpu_ras_eeprom.c (thresholds of bad pages), amdgpu_job.c (`ring R timeout`), amdgpu_device.c (`GPU reset begin!`,
`GPU reset(N) failed`, `GPU reset end with ret`), amdgpu_reset.c and nbio_*.c; of before Linux 6.9 DRM's own prefix.
"""

from __future__ import annotations

from .record import BDF, ParsedLine, rule

RAS_ERROR, HANG, RESET, OFF_BUS = "gpu.ras_error", "gpu.hang", "gpu.reset", "gpu.lost"
#: Codes of RAS_ERROR.
CORRECTED, UNCORRECTED, DEFERRED, REPLACE = range(4)
#: Code of HANG of a queue that came back without a reset, and of RESET of one that failed.
RECOVERED, FAILED = 1, 1

_KINDS = {"correctable": CORRECTED, "uncorrectable": UNCORRECTED, "deferred": DEFERRED}
#: `amdgpu 0000:c3:00.0: amdgpu: {12}` and what varies of it: the second word, and the number of the RAS event.
_PREFIX = rf"amdgpu (?P<pci>{BDF}): (?:amdgpu: )?(?:\[drm\] )?(?:\{{\d{{1,20}}\}})?"


def _without_counts(parsed: ParsedLine) -> ParsedLine | None:
    """A line that says that there are no errors says nothing."""
    errors = parsed.attributes.get("errors", "")
    return None if errors.strip("0") == "" and errors else parsed


AMDGPU_RULES = (
    # Newer drivers follow it by a line of totals since the driver loaded, which is no new error.
    rule(
        RAS_ERROR,
        "hardware errors detected in",
        rf"{_PREFIX}(?:socket: (?P<socket>\d+),? ?(?:die: (?P<die>\d+),? )?)?(?P<errors>\d{{1,19}}) (?:new )?"
        r"(?P<kind>correctable|uncorrectable|deferred) hardware errors detected in (?!total)(?P<block>\w{1,32}) block",
        codes=("kind", _KINDS),
        scope="block",
        finish=_without_counts,
    ),
    rule(
        RAS_ERROR,
        "uncorrectable hardware error",
        rf"{_PREFIX}(?:RAS event of type (?P<event>\w{{1,64}}) detected|"
        r"uncorrectable hardware error\s?\((?P<source>\w{1,64})\) detected)",
        code=UNCORRECTED,
    ),
    rule(
        RAS_ERROR,
        "threshold",
        rf"{_PREFIX}(?:RAS records:(?P<records>\d{{1,9}}) exceed threshold:|"
        r"Saved bad pages ?\(?(?P<pages>\d{1,9})\)? reaches threshold)",
        code=REPLACE,
    ),
    rule(
        HANG,
        "timeout",
        rf"{_PREFIX}ring (?P<ring>[\w.]{{1,32}}) timeout, but soft recovered",
        code=RECOVERED,
        scope="ring",
    ),
    rule(
        HANG,
        "timeout",
        rf"{_PREFIX}ring (?P<ring>[\w.]{{1,32}}) timeout, signaled seq=",
        scope="ring",
    ),
    # The scheduler of compute queues: HIP programs have no ring of their own.
    rule(
        HANG,
        "HWS",
        rf"{_PREFIX}(?:HWS hang|HIQ MQD's queue_doorbell_id0 is not 0, Queue preemption time out)",
    ),
    rule(
        RESET,
        "GPU reset",
        rf"{_PREFIX}GPU reset(?:\(\d{{1,9}}\) failed| end with ret = (?P<error>-\d{{1,5}}))",
        code=FAILED,
    ),
    rule(RESET, "GPU reset", rf"{_PREFIX}GPU reset begin!"),
    rule(OFF_BUS, "device lost from bus", rf"{_PREFIX}device lost from bus"),
)
