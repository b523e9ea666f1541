"""NVLinks and links to a Grace CPU that went down or make errors, and GPUs whose fabric is not well.

Limits are assumed (no public rates are given for healthy links) and conservative: a link counts as down
only where it was up before, and errors only where they are far more than the peers'.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ...counter_deltas import Flags
from ...fleet.activity import UTILIZATION_MIN
from ...model import Reason
from .. import rule
from ..rule import (
    RateRule,
    Rule,
    Symptom,
    ThresholdRule,
    above,
    equals,
    suspect_rule,
    threshold_symptom,
    watch_rule,
)
from ..view import FleetView

REASON = Reason.NVLINK_ERRORS
CHANGES, C2C, FABRIC = "nvlink_10s_changes", "c2c_10s_changes", "gpu_fabric_1s_changes"
#: A link comes up again within seconds of a reset; after this long it is down.
DOWN_SECONDS = 20.0
#: After a boot they are trained when the Fabric Manager has started.
TRAINING_SECONDS = 300.0
#: Errors a second that are worth a look, and how many times the peers' they must be.
ERRORS_PER_SECOND, PEERS_RATIO = 1.0, 10.0
#: Errors left after correction on one bit of so many: the limit that Ethernet and InfiniBand call bad
#: is 1e-12 (IEEE 802.3); a healthy NVLink 5 reports 1.5e-254.
BIT_ERROR_RATIO = 1e-12
#: Registration with the fabric is over within seconds.
REGISTRATION_SECONDS = 300.0
QUIET = "no further one within 10 minutes"


def _down(name: str, factor: float) -> Rule:
    return suspect_rule(name, REASON, "the link is up for 60 s", factor, enter_seconds=DOWN_SECONDS)


def _noisy(name: str) -> Rule:
    clears = "less than one a second, or as many as its peers, for 5 minutes"
    return watch_rule(name, REASON, clears, 3.0, enter_seconds=15.0, leave_seconds=300.0)


#: (what, the table's flags of links that were up)
DOWN = (
    (ThresholdRule(_down("nvlink.down", 30.0), CHANGES, "link_state", equals(0), "NVLink is down", "1"),
     "nvlinks"),
    (ThresholdRule(_down("c2c.down", 30.0), C2C, "link_state", equals(0), "link to its CPU is down", "1"),
     "c2c_links"),
)  # fmt: skip
COUNTERS = (
    RateRule(
        suspect_rule("nvlink.recovery_failed", REASON, QUIET, 20.0, leave_seconds=300.0),
        CHANGES, "link_recovery_failed_events", "NVLink could not be recovered and was given up",
    ),
    RateRule(
        watch_rule("nvlink.recoveries", REASON, QUIET, 5.0, leave_seconds=300.0),
        CHANGES, "recovery_errors", "NVLink had to be trained again", 3.0,
    ),
    RateRule(
        watch_rule("nvlink.link_recoveries", REASON, QUIET, 5.0, leave_seconds=300.0),
        CHANGES, "link_recovery_events", "NVLink had to be recovered", 3.0,
    ),
    RateRule(
        _noisy("nvlink.crc"), CHANGES, "crc_errors", "NVLink checksum errors",
        ERRORS_PER_SECOND, True, PEERS_RATIO,
    ),
    RateRule(
        _noisy("nvlink.replays"), CHANGES, "replay_errors", "NVLink transmissions repeated",
        ERRORS_PER_SECOND, True, PEERS_RATIO,
    ),
    RateRule(
        _noisy("c2c.replays"), C2C, "replay_errors", "transmissions to its CPU repeated",
        ERRORS_PER_SECOND, True, PEERS_RATIO,
    ),
)  # fmt: skip
BIT_ERRORS = (
    ThresholdRule(
        watch_rule("nvlink.bit_errors", REASON, "its bit error ratio is below 1e-12 for 5 minutes", 3.0,
              enter_seconds=15.0, leave_seconds=300.0),
        CHANGES, "effective_bit_error_ratio", above(BIT_ERROR_RATIO),
        "NVLink has a bit error ratio of {value:.1e} after correction", "below 1e-12",
    ),
)  # fmt: skip


def _fabric(
    name: str, clears: str, factor: float, *, grave: bool = False, enter: float = 5.0
) -> Rule:
    make = suspect_rule if grave else watch_rule
    return make(f"gpu_fabric.{name}", REASON, clears, factor, enter_seconds=enter)


FABRICS = (
    ThresholdRule(
        _fabric("unregistered", "its registration is complete", 3.0, enter=REGISTRATION_SECONDS),
        FABRIC, "registration_state", equals(1, 2),
        "has not joined its NVLink fabric (registration state {value:.0f})", "3",
    ),
    ThresholdRule(
        _fabric("registration_failed", "its registration succeeds", 20.0, grave=True),
        FABRIC, "registration_status_code", above(0),
        "could not join its NVLink fabric (nvmlReturn {value:.0f})",
    ),
    ThresholdRule(
        _fabric("degraded", "the fabric's bandwidth is whole for 60 s", 5.0, grave=True),
        FABRIC, "degraded_bandwidth_state", equals(1), "has less NVLink bandwidth than it should",
    ),
    ThresholdRule(
        _fabric("route_unhealthy", "the route is healthy for 60 s", 20.0, grave=True),
        FABRIC, "route_unhealthy_state", equals(1), "has an unhealthy route in its NVLink fabric",
    ),
    ThresholdRule(
        _fabric("route_recovery", "no route is being recovered for 60 s", 5.0),
        FABRIC, "route_recovery_state", equals(1), "has a route of its NVLink fabric recovered",
    ),
    ThresholdRule(
        _fabric("access_timeout", "no access is being recovered for 60 s", 5.0),
        FABRIC, "access_timeout_recovery_state", equals(1),
        "recovers from an access over NVLink that timed out",
    ),
    ThresholdRule(
        _fabric("configuration", "the configuration is right", 3.0),
        FABRIC, "incorrect_configuration_code", above(1),
        "is configured wrongly for its NVLink fabric (code {value:.0f})", "1",
    ),
)  # fmt: skip


def links(view: FleetView) -> Iterator[Symptom]:
    """A link that was up is down, or makes errors as its peers do not.

    Links between AMD's GPUs (XGMI) stand in the same tables, and are called by their own name.
    The host's other GPUs step together with its own and wait for it: they are counted in words, and have no fault.
    """
    waiting: dict[int, list[str]] = {}
    for one in _links(view):
        if _is_xgmi(view, one.host, one.device):
            one = replace(one, message=one.message.replace("NVLink", "XGMI link"))
        if one.host not in waiting:
            waiting[one.host] = _waiting(view, one.host)
        gpu = one.device.partition("/")[0]
        others = len(waiting[one.host])
        if gpu.startswith("GPU-") and others and gpu not in waiting[one.host]:
            many = f"{others} other GPUs wait" if others > 1 else "other GPU waits"
            one = replace(one, message=f"{one.message}; its host's {many} for it meanwhile")
        yield one


def _is_xgmi(view: FleetView, host: int, link: str) -> bool:
    """Say whether a link is one of AMD's, by what the inventory says of its GPU."""
    attributes = view.fleet.attributes[host].get(("gpu", link.partition("/")[0]), {})
    return attributes.get("vendor", "") == "AMD"


def _links(view: FleetView) -> Iterator[Symptom]:
    for entry, flags_name in DOWN:
        down = view.where(entry.table, entry.column, entry.condition)
        once_up: Flags = getattr(view.fleet.ever_up, flags_name)
        for row in down[once_up[down]].tolist():
            if _should_be_up(view, *view.name(entry.table, row)):
                symptom = threshold_symptom(view, entry, row, 0.0)
                left = _share_up(view, row, once_up) if entry.table == CHANGES else 1.0
                yield replace(symptom, capacity_ratio=left)
    yield from rule.threshold_symptoms(view, BIT_ERRORS)
    yield from rule.rate_symptoms(view, COUNTERS)


def _share_up(view: FleetView, row: int, once_up: Flags) -> float:
    """Return how many of the links that its GPU had are up, as a share."""
    host, link = view.name(CHANGES, row)
    devices, gpu = view.fleet.tables[CHANGES].devices, link.partition("/")[0]
    links = [
        r for r in devices.rows_of(host) if once_up[r] and devices.names[r].partition("/")[0] == gpu
    ]
    state = view.state(CHANGES, "link_state")
    return sum(bool(state[r]) for r in links) / max(len(links), 1)


def _waiting(view: FleetView, host: int) -> list[str]:
    """Return the GPUs of *host* on which a kernel spins while it draws little."""
    fleet = view.fleet
    gpus = np.array(fleet.devices["gpu"].rows_of(host), dtype=np.intp)
    busy = view.gauge_at("gpu_1s", "utilization_ratio", gpus) >= UTILIZATION_MIN
    idle = ~fleet.activity.loaded[gpus]
    return [fleet.devices["gpu"].names[row] for row in gpus[busy & idle].tolist()]


def _should_be_up(view: FleetView, host: int, link: str) -> bool:
    """Say whether the host is not just booting, and the link's GPU not split.

    Under MIG a GPU has no peers (NVIDIA, MIG User Guide: no GPU-to-GPU P2P), and its links may be off.
    """
    if view.host_now_ns[host] < TRAINING_SECONDS * 1e9:
        return False
    gpu = view.fleet.devices["gpu"].find(host, link.partition("/")[0])
    return gpu < 0 or view.state("gpu_10s_changes", "mig_mode_state")[gpu] != 1


def fabric(view: FleetView) -> Iterator[Symptom]:
    """A GPU's place in its NVLink fabric is not what it should be."""
    yield from rule.threshold_symptoms(view, FABRICS)
