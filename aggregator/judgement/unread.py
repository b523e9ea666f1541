"""What was found of a GPU that nothing reads any more: not looked at is not well."""

from __future__ import annotations

import numpy as np

from ...fingerprints.catalogue import BY_NAME, Kind
from ..fleet.fleet import Fleet
from ..verdicts import Evidence, Reason
from .hysteresis import Hold, Holds, Key
from .present import Present
from .symptoms import Symptom

#: What a GPU is made of. Who runs on it, and what it is asked, come and go.
KINDS = ("gpu", "gpu_fabric", "nvlink", "c2c")


def unread(present: Present, host: int, holds: Holds, shown: set[Key]) -> dict[Key, Hold]:
    """Return what counts, is not *shown*, and is of a GPU, or a part of one, whose readings stopped in this boot.

    It was released for its repair, its driver hangs, its collector fails. One that the host no longer has lets go.
    """
    return {
        key: hold
        for key, hold in holds.items()
        if hold.active and key not in shown and _is_unread(present, host, hold.worst)
    }


def _is_unread(present: Present, host: int, symptom: Symptom) -> bool:
    reason = symptom.rule.reason if symptom.reason is None else symptom.reason
    if not _is_of_gpu(present.fleet, host, symptom.device, symptom.signal, reason):
        return False
    table = BY_NAME[symptom.signal].table
    row = np.array([present.fleet.tables[table].devices.find(host, symptom.device)], dtype=np.intp)
    if row[0] < 0 or present.fresh_at(table, row)[0]:
        return False
    return was_read(present.fleet, host, symptom.device, symptom.signal)


def waits_for_reading(fleet: Fleet, host: int, evidence: Evidence) -> bool:
    """Say whether *evidence* of before our start is of a GPU that was not read since, nor in this boot."""
    one = evidence.device, evidence.signal
    return _is_of_gpu(fleet, host, *one, evidence.reason) and not was_read(fleet, host, *one)


def _is_of_gpu(fleet: Fleet, host: int, device: str, name: str, reason: Reason) -> bool:
    """Say whether *name* is read of *device*, a GPU that *host* has or a part of one.

    That nothing is read of it needs no reading: it ends where somebody says why.
    """
    signal = BY_NAME.get(name)
    is_read = signal is not None and signal.kind is not Kind.EVENT and signal.device_kind in KINDS
    gpu = device.partition("/")[0]
    return is_read and reason is not Reason.BLIND and ("gpu", gpu) in fleet.attributes[host]


def was_read(fleet: Fleet, host: int, device: str, name: str) -> bool:
    """Say whether the table of the signal *name* had readings of *device* in the boot that its host runs in."""
    rows = fleet.tables[BY_NAME[name].table]
    row = rows.devices.find(host, device)
    return row >= 0 and int(rows.boot[row]) == fleet.boot_of(host)
