"""Which scores are written: those that changed, and every host's every five minutes."""

from __future__ import annotations

import numpy as np

from ..fleet.arrays import Flags, Times
from ..judgement.columns import Columns, columns_of
from ..verdicts import HostScore, Snapshot

#: An unchanged score is written again after this long; hosts are spread over it by their index.
REPEAT_SECONDS = 300
#: What counts as a change.
SCORE_STEP = 0.005
SPEED_STEP = 0.02
HAZARD_STEP_RATIO = 0.10


class ScoreLog:
    """Remembers what was written of each host, by node index."""

    def __init__(self) -> None:
        self._columns = Columns.none()
        self._written_ns: Times = np.zeros(0, dtype=np.int64)

    def changed(self, snapshot: Snapshot) -> list[HostScore]:
        """Return the hosts to write now, and take them as written."""
        now = columns_of(snapshot)
        due = self._due(now, snapshot.computed_ns)
        written_ns = np.zeros(due.size, dtype=np.int64)
        written_ns[: self._written_ns.size] = self._written_ns
        self._written_ns = np.where(due, snapshot.computed_ns, written_ns)
        self._columns = self._columns.followed_by(now, due)
        return [snapshot.hosts[host] for host in np.flatnonzero(due).tolist()]

    def _due(self, now: Columns, now_ns: int) -> Flags:
        """Say which hosts are new, changed, or were last written in an earlier period of theirs."""
        due, known = np.ones(now.score.size, dtype=bool), self._written_ns.size
        spread = np.arange(known) % REPEAT_SECONDS
        before, after = (
            (time_ns // 1_000_000_000 + spread) // REPEAT_SECONDS
            for time_ns in (self._written_ns, np.int64(now_ns))
        )
        due[:known] = (before != after) | differs(self._columns, now.head(known))
        return due


def differs(before: Columns, now: Columns) -> Flags:
    """Say which hosts are other than *before* by more than noise."""
    other = (before.state != now.state) | (before.reason != now.reason)
    other |= before.simulated != now.simulated
    other |= np.isnan(before.relative_speed) != np.isnan(now.relative_speed)
    other |= np.abs(before.relative_speed - now.relative_speed) > SPEED_STEP
    other |= np.abs(before.score - now.score) > SCORE_STEP
    hazard = np.abs(before.hazard_per_hour - now.hazard_per_hour)
    return np.asarray(other | (hazard > HAZARD_STEP_RATIO * before.hazard_per_hour), dtype=bool)
