"""What was found of a GPU that nothing reads any more: not looked at is not well."""

from __future__ import annotations

import numpy as np

from ...fingerprints.catalogue import BY_NAME, Kind
from ..verdicts import Reason
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
    gpu, signal = symptom.device.partition("/")[0], BY_NAME.get(symptom.signal)
    if signal is None or signal.kind is Kind.EVENT or signal.device_kind not in KINDS:
        return False
    reason = symptom.rule.reason if symptom.reason is None else symptom.reason
    if reason is Reason.BLIND or ("gpu", gpu) not in present.fleet.attributes[host]:
        return False  # that nothing is read is what it says, and ends where somebody says why
    return _stopped(present, host, symptom.device, signal.table)


def _stopped(present: Present, host: int, device: str, table: str) -> bool:
    """Say whether *table* had readings of *device* in this boot, and has none of now."""
    rows = present.fleet.tables[table]
    row = np.array([rows.devices.find(host, device)], dtype=np.intp)
    if row[0] < 0 or present.fresh_at(table, row)[0]:
        return False
    heard = rows.heard_at(row, present.fleet.boot, present.host_now_ns)
    return bool(np.isfinite(heard[0]))
