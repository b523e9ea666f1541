"""GPU memory: bursts of repaired errors, lost data, rows that wait for their replacement or have none."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...verdicts import Reason, State
from .. import readings
from ..present import Present
from ..readings import Standing, above, counted_lately, equals, suspect, watch
from ..symptoms import Rule, Symptom, short

#: Corrected errors within about 10 s that are worth a look, and that make one wary. The median GPU
#: has none in its life; the tail is heavy, so that only a change of the rate counts.
BURST_ERRORS, STORM_ERRORS = 10.0, 60.0
#: The rate of 10 s over that of 10 minutes which is a change. One that goes on becomes what is usual within minutes: a
#: storm needs no change.
CHANGE_RATIO = 5.0
PER_TEN_SECONDS = "errors in 10 s"

ECC = Rule(
    "gpu.ecc_burst",
    State.WATCH,
    Reason.ECC_TREND,
    "no burst of corrected errors for 5 minutes",
    enter_seconds=2.0,
    leave_seconds=300.0,
    hazard_factor=5.0,
)
STORM_HAZARD_FACTOR = 50.0
LOST_DATA = Rule(
    "gpu.ecc_uncorrected",
    State.WATCH,
    Reason.ECC_TREND,
    "the GPU is reset, which sets its volatile error counters to zero",
    leave_seconds=5.0,
    hazard_factor=10.0,
)
#: Data that was lost so lately weighs more.
LOST_DATA_NOW_HAZARD_FACTOR, LOST_DATA_NOW_SECONDS = 100.0, 600.0
REMAP_PENDING = Rule(
    "gpu.remap_pending",
    State.WATCH,
    Reason.HBM_REMAP,
    "the GPU is reset, which replaces the row",
    leave_seconds=5.0,
    hazard_factor=5.0,
)
REMAP_FAILED = Rule(
    "gpu.remap_failed",
    State.UNHEALTHY,
    Reason.HBM_REMAP,
    "the GPU is replaced, or a reset shows that the remap took after all",
    leave_seconds=5.0,
    hazard_factor=2000.0,
)

RESET, REPLACED = "the GPU is reset, which repairs it", "the GPU is replaced"
CHANGES = "gpu_10s_changes"
#: What the driver says of a part's memory; the driver's own limits, so that each stands by itself.
BROKEN = (
    Standing(
        suspect("gpu.memory_unrepairable", Reason.HBM_REMAP, REPLACED, 50.0, leave_seconds=5.0),
        CHANGES, "unrepairable_memory_state", equals(1), "has memory that cannot be repaired",
    ),
    Standing(
        suspect("gpu.sram_threshold", Reason.ECC_TREND, REPLACED, 20.0, leave_seconds=5.0),
        CHANGES, "sram_threshold_exceeded_state", equals(1),
        "has more SRAM errors than NVIDIA's field diagnostic lets pass",
    ),
    Standing(
        watch("gpu.remap_exhausted", Reason.HBM_REMAP, REPLACED, 5.0, leave_seconds=5.0),
        CHANGES, "remap_banks_none_count", above(0.0),
        "has {value:.0f} memory banks with no spare row left: the next bad row there stays bad",
    ),
    Standing(
        watch("gpu.repair_pending", Reason.HBM_REMAP, RESET, 2.0, leave_seconds=5.0),
        CHANGES, "repair_channel_pending_state", equals(1),
        "has a memory channel to repair at its next reset",
    ),
    Standing(
        watch("gpu.repair_tpc_pending", Reason.ECC_TREND, RESET, 2.0, leave_seconds=5.0),
        CHANGES, "repair_tpc_pending_state", equals(1),
        "has a cluster of SMs to repair at its next reset",
    ),
    Standing(
        watch("gpu.retirement_pending", Reason.HBM_REMAP, RESET, 5.0, leave_seconds=5.0),
        CHANGES, "retirement_pending_state", equals(1),
        "has a memory page to take out at its next reset",
    ),
)  # fmt: skip


def broken_memory(present: Present) -> Iterator[Symptom]:
    """A GPU's driver says that its memory is broken, or due for repair."""
    yield from readings.standing(present, BROKEN)


def corrected_bursts(present: Present) -> Iterator[Symptom]:
    """A GPU repairs far more bit errors than it used to, or more than any should."""
    column = "ecc_corrected_volatile_errors"
    recent = present.recent("gpu_1s_changes", column)
    usual = present.rates("gpu_1s_changes", column, slow=True)
    changed = recent / 10.0 > CHANGE_RATIO * usual
    storms = recent >= STORM_ERRORS
    for row in np.flatnonzero(storms | ((recent >= BURST_ERRORS) & changed)).tolist():
        host, device = present.name("gpu_1s_changes", row)
        storm = bool(storms[row])
        yield Symptom(
            rule=ECC,
            host=host,
            device=device,
            signal="gpu.ecc_corrected_volatile_errors",
            value=round(float(recent[row]), 1),
            unit=PER_TEN_SECONDS,
            normal=f"below {BURST_ERRORS:.0f}; most GPUs have none in their life",
            words=f"{short(device)} repaired about {recent[row]:.0f} bit errors in the last 10 s",
            sql=present.sql_counted("gpu_1s_changes", row, column, PER_TEN_SECONDS, 10),
            state=State.SUSPECT if storm else None,
            hazard_factor=STORM_HAZARD_FACTOR if storm else 0.0,
        )


def lost_data(present: Present) -> Iterator[Symptom]:
    """A GPU met errors that it could not repair since its last reset."""
    column = "ecc_uncorrected_volatile_errors"
    errors = present.state("gpu_1s_changes", column)
    known = present.known("gpu_1s_changes", column)
    recent, _ = counted_lately(present, "gpu_1s_changes", column, 0.1, LOST_DATA_NOW_SECONDS)
    fresh = set(recent.tolist())
    for row in np.flatnonzero(known & (errors > 0) & (errors < 2**32 - 1)).tolist():
        host, device = present.name("gpu_1s_changes", row)
        now = row in fresh
        yield Symptom(
            rule=LOST_DATA,
            host=host,
            device=device,
            signal="gpu.ecc_uncorrected_volatile_errors",
            value=float(errors[row]),
            normal="0",
            words=f"{short(device)} lost data: memory errors that ECC could not repair, {errors[row]} "
            + ("in all, the last just now" if now else "since its last reset"),
            sql=present.sql("gpu_1s_changes", row, column, 600),
            state=State.SUSPECT if now else None,
            hazard_factor=LOST_DATA_NOW_HAZARD_FACTOR if now else 0.0,
        )


def remaps(present: Present) -> Iterator[Symptom]:
    """A row of memory waits for its replacement, or has found none."""
    for rule, column, words in (
        (REMAP_PENDING, "remap_pending_state", "has a memory row to replace at its next reset"),
        (REMAP_FAILED, "remap_failed_state", "has no spare memory row left to replace a bad one"),
    ):
        for row in np.flatnonzero(present.state("gpu_10s_changes", column) == 1).tolist():
            host, device = present.name("gpu_10s_changes", row)
            yield Symptom(
                rule=rule,
                host=host,
                device=device,
                signal=f"gpu.{column}",
                value=1.0,
                normal="0",
                words=f"{short(device)} {words}",
                sql=present.sql("gpu_10s_changes", row, column, 600),
            )
