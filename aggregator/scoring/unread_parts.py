"""What was found of a part that nothing reads any more: a missing reading does not clear a fault."""

from __future__ import annotations

from collections.abc import Container

import numpy as np

from ...contract.signal import Kind
from ...contract.signals import BY_NAME
from ..fleet.fleet import Fleet
from ..model import Reason
from .rule import RuleAndDevice, Symptom, TrackedSymptom, TrackedSymptoms
from .view import FleetView

#: What a GPU is made of: it is one's as long as its host lists the GPU.
OF_GPUS = ("gpu", "gpu_fabric", "nvlink", "c2c")
#: What comes and goes while a host is up, and is its host's only while the host lists it: mounts, interfaces, disks. Who
#: runs on a GPU, and what the agent says of its own collectors, is reported again or is over.
TRANSIENT_KINDS = ("net", "bond", "filesystem", "disk", "gpu_job", "probe", "collector")
#: Bonds are among the interfaces of an inventory.
LISTED_AS = {"bond": "net"}


def unread_symptoms(
    view: FleetView, host: int, tracked: TrackedSymptoms, shown: Container[RuleAndDevice]
) -> dict[RuleAndDevice, TrackedSymptom]:
    """Return what counts, is not *shown*, and is of a part whose readings stopped in this boot, or no longer have the signal.

    It was released for its repair, its driver hangs, its collector fails. One that the host no longer has lets go.
    """
    return {
        key: tracked_symptom
        for key, tracked_symptom in tracked.items()
        if tracked_symptom.active
        and key not in shown
        and _is_unread(view, host, tracked_symptom.worst)
    }


def _is_unread(view: FleetView, host: int, symptom: Symptom) -> bool:
    reason = symptom.rule.reason if symptom.reason is None else symptom.reason
    if not _is_read_of(view.fleet, host, symptom.device, symptom.signal, reason):
        return False
    signal = BY_NAME[symptom.signal]
    row = view.fleet.tables[signal.table].devices.find(host, symptom.device)
    if row >= 0:
        is_fresh = view.fresh_at(signal.table, np.array([row], dtype=np.intp))[0]
        if is_fresh and not _is_blank(view, symptom.signal, row):
            return False
    return view.fleet.was_read(host, symptom.device, symptom.signal)


def _is_blank(view: FleetView, name: str, row: int) -> bool:
    """Say whether the last reading of a row has no value of the signal *name*."""
    signal = BY_NAME[name]
    table = view.fleet.tables[signal.table]
    return signal.column in table.column and not table.known(signal.column)[row]


def _is_read_of(fleet: Fleet, host: int, device: str, name: str, reason: Reason) -> bool:
    """Say whether *name* is read of *device*, a part that *host* has.

    That nothing is read of it needs no reading: it ends where somebody says why.
    """
    signal = BY_NAME.get(name)
    if signal is None or signal.kind is Kind.EVENT or reason is Reason.BLIND:
        return False
    kind, listed = signal.device_kind, fleet.attributes[host]
    if kind in OF_GPUS:
        return ("gpu", device.partition("/")[0]) in listed
    listed_as = LISTED_AS.get(kind, kind)
    if any(each == listed_as for each, _ in listed):
        return (listed_as, device) in listed
    return kind not in TRANSIENT_KINDS
