"""An XID 74 whose link came back: one that recovered is no fault, one whose counters go on rising is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...fingerprints.xid import Severity, Xid
from ..fleet.arrays import Indexes
from ..fleet.occurrences import Occurrence
from .present import Present

#: NVLINK_ERROR.
LINK_ERROR = 74
TABLE = "nvlink_10s_changes"
COUNTERS = (
    "crc_errors", "replay_errors", "recovery_errors", "link_recovery_events",
    "link_recovery_failed_events",
)  # fmt: skip
#: A counter's memory of ten minutes is below this when nothing counted for so long.
ONE_EVENT = 0.35
#: So long after its last line the link's counters have to stand still, and so long it is watched then (assumed).
QUIET_SECONDS, WATCHED_SECONDS = 600.0, 86_400.0
#: Its factor meanwhile, as that of a link that had to be trained again.
WATCH_FACTOR = 5.0
#: What travels on change is told anew within this time of an agent's first frame.
TOLD_SECONDS = 120.0
CLEARS = "its link stays up and counts no error for 24 hours, the GPU is reset, or the host boots"


def calmed(present: Present, record: Occurrence, row: Xid) -> Xid:
    """Return *row* of *record* as it weighs now: less where its link is up again and counts nothing."""
    age_seconds = (present.now_ns - record.last_time_ns) / 1e9
    is_ours = row.code == LINK_ERROR and row.severity is Severity.HAZARD
    if not is_ours or age_seconds < QUIET_SECONDS or not _is_well(present, record):
        return row
    if age_seconds < WATCHED_SECONDS:
        return replace(row, hazard_factor=WATCH_FACTOR, action="none")
    return replace(row, severity=Severity.IGNORE, hazard_factor=1.0, action="none")


def _is_well(present: Present, record: Occurrence) -> bool:
    """Say whether the link that *record* names, or where it names none each of its GPU's, is up and counts nothing."""
    rows = _links(present, record)
    heard_seconds = (present.now_ns - int(present.fleet.first_ns[record.host])) / 1e9
    if not rows.size or not present.fresh_at(TABLE, rows).all():
        return heard_seconds < TOLD_SECONDS  # nothing is known against it since our start
    table = present.fleet.tables[TABLE]
    if not (table.known("link_state")[rows] & (table.state("link_state")[rows] > 0)).all():
        return False
    known = [column for column in COUNTERS if table.known(column)[rows].all()]
    counting = (present.counting(TABLE, each, ONE_EVENT, slow=True)[0] for each in known)
    return bool(known) and not any(np.isin(rows, each).any() for each in counting)


def _links(present: Present, record: Occurrence) -> Indexes:
    devices = present.fleet.tables[TABLE].devices
    link = next((word for word in record.variant.split() if word.isdigit()), "")
    if link:
        row = devices.find(record.host, f"{record.device}/link{link}")
        return np.array([row] if row >= 0 else [], dtype=np.intp)
    of_gpu = f"{record.device}/link"
    rows = [row for row in devices.rows_of(record.host) if devices.names[row].startswith(of_gpu)]
    return np.array(rows, dtype=np.intp)
