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
from ...rule_catalogue import nvlink as rules
from .. import rule
from ..rule import Symptom, detects, threshold_symptom
from ..view import FleetView

#: After a boot they are trained when the Fabric Manager has started.
TRAINING_SECONDS = 300.0


@detects(*(row for row, _ in rules.DOWN), *rules.BIT_ERRORS, *rules.COUNTERS)
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
    for entry, flags_name in rules.DOWN:
        down = view.where(entry.table, entry.column, entry.condition)
        once_up: Flags = getattr(view.fleet.ever_up, flags_name)
        for row in down[once_up[down]].tolist():
            if _should_be_up(view, *view.name(entry.table, row)):
                symptom = threshold_symptom(view, entry, row, 0.0)
                left = _share_up(view, row, once_up) if entry.table == rules.CHANGES else 1.0
                yield replace(symptom, capacity_ratio=left)
    yield from rule.threshold_symptoms(view, rules.BIT_ERRORS)
    yield from rule.rate_symptoms(view, rules.COUNTERS)


def _share_up(view: FleetView, row: int, once_up: Flags) -> float:
    """Return how many of the links that its GPU had are up, as a share."""
    host, link = view.name(rules.CHANGES, row)
    devices, gpu = view.fleet.tables[rules.CHANGES].devices, link.partition("/")[0]
    links = [
        r for r in devices.rows_of(host) if once_up[r] and devices.names[r].partition("/")[0] == gpu
    ]
    state = view.state(rules.CHANGES, "link_state")
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
