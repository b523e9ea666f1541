"""Scores as columns by node index, with buckets for consumers that rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..arrays import Bytes, Flags
from ..model import HealthState, HostScore, Snapshot
from ..rule_catalogue.agent import HOST_RETURNED as RETURNED
from ..rule_catalogue.agent import NEW
from ..rule_catalogue.gpu import UNREAD
from .results import Hosts
from .score import scores_of

#: Four stable buckets for consumers that rank: raw scores herd everyone onto the same nodes. The
#: buckets follow the state, which has hysteresis.
BUCKETS = {
    HealthState.HEALTHY: 0,
    HealthState.WATCH: 1,
    HealthState.PROBATION: 2,
    HealthState.STALE: 2,
    HealthState.UNKNOWN: 2,
    HealthState.DEGRADED: 2,
    HealthState.SUSPECT: 3,
    HealthState.UNHEALTHY: 3,
    HealthState.MAINTENANCE: 3,
}
#: A host without GPUs has the lowest hazard, since nothing on it can fail that a GPU job needs. A
#: consumer that ranks for such a job must see it behind every host with GPUs; for other work it is
#: allowed like any host.
BUCKET_WITHOUT_GPUS = 2
#: Evidence (signal, reason) -> bucket of states that WATCH hides although their bucket is worse:
#: else a host that just returned, or never reported, would rank better if its clock is off too.
HIDDEN_BUCKETS = {
    (RETURNED.name, RETURNED.reason): BUCKETS[RETURNED.state],
    ("telemetry", NEW.reason): BUCKETS[NEW.state],
    (UNREAD.name, UNREAD.reason): BUCKETS[UNREAD.state],
}
#: Never allowed, whatever the floor.
EXCLUDED = (HealthState.UNHEALTHY, HealthState.MAINTENANCE)


class Columns(NamedTuple):
    """One value per node, by node index."""

    score: NDArray[np.float32]
    hazard_per_hour: NDArray[np.float32]
    relative_speed: NDArray[np.float32]
    state: Bytes
    bucket: Bytes
    reason: Bytes
    ended: Flags  # simulated hosts that have ended
    simulated: Flags

    @staticmethod
    def none() -> Columns:
        """Return columns without nodes."""
        return pack(())

    def head(self, count: int) -> Columns:
        """Return the columns of the first *count* nodes."""
        return Columns._make(column[:count] for column in self)

    def followed_by(self, now: Columns, changed: Flags) -> Columns:
        """Return *now*, with the values of this object for known nodes that have not *changed*."""
        known = self.score.size
        mixed: list[NDArray[Any]] = [column.copy() for column in now]
        unchanged = ~changed[:known]
        known_before: tuple[NDArray[Any], ...] = self
        for column, before in zip(mixed, known_before, strict=True):
            column[:known][unchanged] = before[unchanged]
        return Columns._make(mixed)

    def allowed(self, floor: float) -> NDArray[np.bool_]:
        """Return which nodes reach *floor*, have not ended, and are in no excluded state."""
        excluded = np.isin(self.state, [int(s) for s in EXCLUDED])
        reach = self.score >= np.float32(floor)
        return reach & ~excluded & ~self.ended


def bucket_of(host: HostScore) -> int:
    """Return the bucket of *host*: the worst of its state's and those in its evidence."""
    hidden = (HIDDEN_BUCKETS.get((e.signal, e.reason), 0) for e in host.evidence)
    return max([BUCKETS[host.state], *hidden])


def pack(hosts: Sequence[HostScore], ended: Flags | None = None) -> Columns:
    """Return *hosts*, by node index, as columns. *ended*: see `FleetView`; default: none."""
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
    """Return the columns of *hosts*, with all healthy hosts at once."""
    host_inputs = hosts.inputs
    hazard = host_inputs.hazards_per_hour
    few = pack(list(hosts.computed_scores.values()))
    positions = np.fromiter(hosts.computed_scores, np.intp, len(hosts.computed_scores))
    columns = Columns(
        score=scores_of(hazard).astype(np.float32),
        hazard_per_hour=hazard.astype(np.float32),
        relative_speed=host_inputs.relative_speed.astype(np.float32),
        state=np.full(len(hosts), HealthState.HEALTHY, dtype=np.uint8),
        bucket=np.full(len(hosts), BUCKETS[HealthState.HEALTHY], dtype=np.uint8),
        reason=np.zeros(len(hosts), dtype=np.uint8),
        ended=ended,
        simulated=host_inputs.simulated,
    )
    for name in ("score", "hazard_per_hour", "relative_speed", "state", "bucket", "reason"):
        getattr(columns, name)[positions] = getattr(few, name)
    no_gpus = host_inputs.gpus == 0
    columns.bucket[no_gpus] = np.maximum(columns.bucket[no_gpus], BUCKET_WITHOUT_GPUS)
    return columns


def columns_of(snapshot: Snapshot) -> Columns:
    """Return the columns of *snapshot*: its own, or made from its hosts."""
    if isinstance(snapshot.hosts, Hosts) and (packed := getattr(snapshot, "columns", None)):
        columns: Columns = packed
        return columns
    ended = [not snapshot.is_listed(host) for host in snapshot.hosts]
    return pack(snapshot.hosts, np.array(ended, dtype=bool))
