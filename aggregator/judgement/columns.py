"""A snapshot as packed columns, made once per snapshot: what ScoreNodes answers with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..fleet.arrays import Bytes, Flags
from ..verdicts import HostScore, Snapshot, State
from .hosts import Hosts
from .rules.agent import NEW
from .rules.returned import RULE as RETURNED
from .scoring import scores_of

#: Four stable buckets for consumers that rank: raw scores herd everyone onto the same nodes. They
#: follow the state, which has hysteresis.
BUCKETS = {
    State.HEALTHY: 0,
    State.WATCH: 1,
    State.PROBATION: 2,
    State.STALE: 2,
    State.UNKNOWN: 2,
    State.DEGRADED: 2,
    State.SUSPECT: 3,
    State.UNHEALTHY: 3,
    State.MAINTENANCE: 3,
}
#: Evidence (signal, reason) of states that WATCH, of a better bucket, is told before: who ranks would prefer a host that is
#: just back, or was never heard, for a clock that is off as well.
BENEATH = {
    (RETURNED.name, RETURNED.reason): BUCKETS[RETURNED.state],
    ("telemetry", NEW.reason): BUCKETS[NEW.state],
}
#: Never allowed, whatever the floor.
EXCLUDED = (State.UNHEALTHY, State.MAINTENANCE)


class Columns(NamedTuple):
    """One value a node, by node index."""

    score: NDArray[np.float32]
    hazard_per_hour: NDArray[np.float32]
    relative_speed: NDArray[np.float32]
    state: Bytes
    bucket: Bytes
    reason: Bytes
    ended: Flags  # simulated hosts that are no longer there
    simulated: Flags

    @staticmethod
    def none() -> Columns:
        """Return the columns of no nodes."""
        return pack(())

    def head(self, count: int) -> Columns:
        """Return those of the first *count* nodes."""
        return Columns._make(column[:count] for column in self)

    def followed_by(self, now: Columns, changed: Flags) -> Columns:
        """Return *now*, but for nodes known here that have not *changed*."""
        known = self.score.size
        mixed: list[NDArray[Any]] = [column.copy() for column in now]
        unchanged = ~changed[:known]
        known_before: tuple[NDArray[Any], ...] = self
        for column, before in zip(mixed, known_before, strict=True):
            column[:known][unchanged] = before[unchanged]
        return Columns._make(mixed)

    def allowed(self, floor: float) -> NDArray[np.bool_]:
        """Say which nodes reach *floor*, are there, and are not out of the question."""
        excluded = np.isin(self.state, [int(s) for s in EXCLUDED])
        reach = self.score >= np.float32(floor)
        return np.asarray(reach & ~excluded & ~self.ended, dtype=bool)


def bucket_of(host: HostScore) -> int:
    """Return the bucket of *host*: its state's, or of what its evidence says beneath that."""
    beneath = (BENEATH.get((one.signal, one.reason), 0) for one in host.evidence)
    return max([BUCKETS[host.state], *beneath])


def pack(hosts: Sequence[HostScore], ended: Flags | None = None) -> Columns:
    """Return *hosts*, ordered by node index, as columns. *ended*: see `Present`; none by default."""
    count = len(hosts)
    hazards = np.fromiter((h.hazard_per_hour for h in hosts), np.float64, count)
    return Columns(
        score=np.fromiter((h.score for h in hosts), np.float32, count),
        hazard_per_hour=np.minimum(hazards, np.finfo(np.float32).max).astype(np.float32),
        relative_speed=np.fromiter((h.relative_speed for h in hosts), np.float32, count),
        state=np.fromiter((h.state for h in hosts), np.uint8, count),
        bucket=np.fromiter(map(bucket_of, hosts), np.uint8, count),
        reason=np.fromiter((h.reason for h in hosts), np.uint8, count),
        ended=np.zeros(count, dtype=bool) if ended is None else ended,
        simulated=np.fromiter((h.simulated for h in hosts), np.bool_, count),
    )


def pack_hosts(hosts: Hosts, ended: Flags) -> Columns:
    """Return the same of *hosts*, the well ones all at once."""
    subjects = hosts.subjects
    hazard = subjects.hazards_per_hour
    few = pack(list(hosts.told.values()))
    at = np.fromiter(hosts.told, np.intp, len(hosts.told))
    columns = Columns(
        score=scores_of(hazard).astype(np.float32),
        hazard_per_hour=hazard.astype(np.float32),
        relative_speed=subjects.relative_speed.astype(np.float32),
        state=np.full(len(hosts), State.HEALTHY, dtype=np.uint8),
        bucket=np.full(len(hosts), BUCKETS[State.HEALTHY], dtype=np.uint8),
        reason=np.zeros(len(hosts), dtype=np.uint8),
        ended=ended,
        simulated=subjects.simulated,
    )
    for name in ("score", "hazard_per_hour", "relative_speed", "state", "bucket", "reason"):
        getattr(columns, name)[at] = getattr(few, name)
    return columns


def columns_of(snapshot: Snapshot) -> Columns:
    """Return the columns of *snapshot*, those that it has or made from its hosts."""
    if isinstance(snapshot.hosts, Hosts) and (made := getattr(snapshot, "columns", None)):
        columns: Columns = made
        return columns
    ended = [not snapshot.lists(host) for host in snapshot.hosts]
    return pack(snapshot.hosts, np.array(ended, dtype=bool))
