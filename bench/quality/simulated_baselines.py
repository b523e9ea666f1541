"""Baselines simpler than the judge, over the same readings, to show the benefit of judging.

Each names hosts at one moment, from the same fleet, without any memory except the counters'.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from gangline.aggregator.arrays import Floats
from gangline.aggregator.fleet.activity import UTILIZATION_MIN
from gangline.aggregator.model import HealthState, Reason
from gangline.aggregator.rule_catalogue.faults import THRESHOLDS
from gangline.aggregator.scoring.detectors import row_detector
from gangline.aggregator.scoring.rules import events, fabric, gpu
from gangline.aggregator.scoring.view import FleetView

#: Host, source (a rule), device, state, reason.
Cry = tuple[str, str, str, HealthState, Reason]

#: Detectors of the policy table alone: codes, and states named by the driver or the kernel.
DETERMINISTIC = (
    events.active_xids, events.active_sxids, events.active_events, row_detector(THRESHOLDS["gpu.lost"]), gpu.recovery_actions,
    *(row_detector(THRESHOLDS[f"gpu.remap_{what}"]) for what in ("pending", "failed", "exhausted")), fabric.ports_down,
)  # fmt: skip
_GRAVE = (HealthState.SUSPECT, HealthState.UNHEALTHY)

#: DCGM's limits (dcgm_gpu_hardware_limits.h): replays a minute, CRC errors a second.
PCIE_REPLAYS_PER_MINUTE, NVLINK_CRC_PER_SECOND = 8.0, 100.0
#: A GPU below this share of the fleet's median clock is slow. The judge has the same limit, but also
#: considers why the clock is low.
SLOW_RATIO = 0.90


def policy_alone(present: FleetView) -> Iterator[Cry]:
    """Yield the deterministic faults of the policy table, at once and without any model."""
    for rule in DETERMINISTIC:
        for evidence in rule(present):
            if evidence.host_state in _GRAVE:
                yield _cry(present, evidence.host, "policy", evidence.device)


def thresholds(present: FleetView) -> Iterator[Cry]:
    """Yield GPUs beyond fixed limits, like a DCGM health check.

    The limits: any time limited by heat or power, memory errors and remaps, replays, NVLink errors.
    """
    counted = (
        ("gpu_1s", "violation_thermal_nanoseconds", 1.0),
        ("gpu_1s", "violation_power_nanoseconds", 1.0),
        ("gpu_1s_changes", "ecc_uncorrected_volatile_errors", 0.1),
        ("gpu_10s_changes", "pcie_replays_count", PCIE_REPLAYS_PER_MINUTE / 6.0),
        ("nvlink_10s_changes", "crc_errors", 10.0 * NVLINK_CRC_PER_SECOND),
        ("nvlink_10s_changes", "replay_errors", 0.1),
    )
    for table, column, minimum in counted:  # within about ten seconds
        rows, _ = present.counting(table, column, minimum)
        yield from _cries(present, table, rows.tolist())
    for column in ("remap_pending_state", "remap_failed_state"):
        rows = present.where("gpu_10s_changes", column, lambda cells: cells > 0)
        yield from _cries(present, "gpu_10s_changes", rows.tolist())
    lost = np.flatnonzero(present.state("gpu_1s", "lost_state") == 1)
    yield from _cries(present, "gpu_1s", lost.tolist())


def slow_clock(present: FleetView) -> Iterator[Cry]:
    """Yield busy GPUs with an SM clock below nine tenths of the fleet's median."""
    clock: Floats = present.gauge("gpu_1s", "sm_clock_hertz")
    busy = present.gauge("gpu_1s", "utilization_ratio") >= UTILIZATION_MIN
    if busy.any():
        slow = busy & (clock < SLOW_RATIO * np.nanmedian(clock[busy]))
        yield from _cries(present, "gpu_1s", np.flatnonzero(slow).tolist())


def _cries(present: FleetView, table: str, rows: list[int]) -> Iterator[Cry]:
    for row in rows:
        host, device = present.name(table, row)
        yield _cry(present, host, "threshold", device)


def _cry(present: FleetView, host: int, rule: str, device: str) -> Cry:
    return present.fleet.names[host], rule, device, HealthState.SUSPECT, Reason.NONE


#: Name -> baseline.
BASELINES: dict[str, Callable[[FleetView], Iterator[Cry]]] = {
    "policy table alone": policy_alone,
    "fixed limits": thresholds,
    "slow clock": slow_clock,
}
