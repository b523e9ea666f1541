"""ScoreService: scores for any scheduler, from the last snapshot, and watches of their changes."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import numpy as np

from ...contract.wire import score_pb2
from ...contract.wire.score_pb2_grpc import ScoreServiceServicer
from ...fingerprints.sensitivity import COMPONENTS, WorkloadNeeds
from ..arrays import Flags, Indexes, Times
from ..decisions.neighbors import NeighborPredictions
from ..errors import (
    CAPACITY_RETRY_SECONDS,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ServiceUnavailable,
)
from ..model import SEVERITY, HealthState, Snapshot
from ..scoring import recompute
from ..scoring.evaluate import Judgement
from ..scoring.score import HORIZON_HOURS
from ..scoring.score_columns import Columns
from ..scoring.score_rows import differs
from . import score_messages
from .caller_slots import CallerSlots
from .known_runs import similar_names, visible_name
from .score_messages import RequestedWorkload, packed
from .validation import node_of, page_size_of, span_seconds

log = logging.getLogger(__name__)

#: Interval of checks for a new snapshot while watches are open.
POLL_SECONDS = 0.1
#: Maximum versions between updates: a watch without any update is broken.
QUIET_VERSIONS = 10
WATCHERS_MAX = 1000
BOOKMARK_CHARACTERS_MAX = 64
#: Maximum cached updates. Each belongs to a version from which watchers continue.
UPDATES_MAX = 16

#: Maximum snapshots kept for paging; page tokens of older ones have expired.
LISTINGS_MAX = 8
#: Maximum horizons besides the default whose answers about all nodes are cached per snapshot.
HORIZONS_MAX = 8
#: Larger bitmaps are rejected as mistakes.
BITMAP_BYTES_MAX = 1 << 20
#: Length of a workload's name. Shares are floats, so that their sum may be slightly above 1.
WORKLOAD_CHARACTERS_MAX, SHARES_MAX = 512, 1.001
#: State -> its rank, worst first; state 0 (unspecified) is last.
_SEVERITY = np.array(
    [
        SEVERITY.index(HealthState(code)) if code else len(SEVERITY)
        for code in range(len(HealthState) + 1)
    ]
)


class ScoreChanges:
    """The changes since any version. `take` is called with each snapshot.

    Watchers wait for the next snapshot. The version of each node's last change is stored: eight
    bytes per node, enough for any watcher.
    """

    def __init__(self) -> None:
        self.latest: Judgement | None = None
        #: The last published columns; nodes without a relevant change keep their values.
        self._published = Columns.none()
        self._changed_in: Times = np.zeros(0, dtype=np.int64)
        self._first_version = 0
        #: The last snapshot with an update for watchers.
        self._last_announced: Judgement | None = None
        #: Version to continue from -> serialized update.
        self._updates: dict[int, bytes] = {}
        self._whole: tuple[Judgement, bytes] | None = None
        self._announced = asyncio.Event()

    def take(self, snapshot: Judgement) -> None:
        """Record the differences from the published columns; wake watchers if there are any."""
        if self.latest is snapshot:
            return
        before, self.latest = self.latest, snapshot
        if before is None or before.dictionary_version != snapshot.dictionary_version:
            self._begin(snapshot)
            return
        changed = _changed(self._published, snapshot.columns)
        self._published = self._published.followed_by(snapshot.columns, changed)
        known = self._changed_in.size
        self._changed_in = np.where(
            changed, snapshot.version, np.pad(self._changed_in, (0, changed.size - known))
        )
        assert self._last_announced is not None
        quiet_versions = snapshot.version - self._last_announced.version
        is_announced = changed.any() or before.degraded_reason != snapshot.degraded_reason
        if is_announced or quiet_versions >= QUIET_VERSIONS:
            self._announce(snapshot)

    def _begin(self, snapshot: Judgement) -> None:
        """Begin an epoch, without earlier changes."""
        self._published, self._first_version = snapshot.columns, snapshot.version
        self._changed_in = np.full(self._published.score.size, snapshot.version, dtype=np.int64)
        self._announce(snapshot)

    def _announce(self, snapshot: Judgement) -> None:
        self._last_announced = snapshot
        self._updates.clear()
        announced, self._announced = self._announced, asyncio.Event()
        announced.set()

    async def wait(self) -> None:
        """Return when there is an update."""
        await self._announced.wait()

    def whole(self) -> tuple[int, bytes]:
        """Return (version, update) with all nodes; serialized once per version."""
        assert self.latest is not None
        if self._whole is None or self._whole[0] is not self.latest:
            everyone = np.arange(self._published.score.size, dtype=np.intp)
            update = update_message(self.latest, self._published, everyone, whole=True)
            self._whole = self.latest, update
        return self.latest.version, self._whole[1]

    def since(self, version: int) -> tuple[int, bytes] | None:
        """Return (current version, update since *version*), or None if *version* is unknown.

        The update is empty without changes. It is serialized once for all watchers at *version*.
        """
        now = self._last_announced
        if (
            self.latest is None
            or now is None
            or not self._first_version <= version <= self.latest.version
        ):
            return None
        if version >= now.version:
            return version, b""
        update = self._updates.get(version)
        if update is None:
            nodes = np.flatnonzero(self._changed_in > version)
            update = update_message(now, self._published, nodes, whole=False)
            if len(self._updates) < UPDATES_MAX:
                self._updates[version] = update
        return now.version, update


class ScoreWatchers:
    """The watchers of a service, and the task that polls for them."""

    def __init__(self, snapshot: Callable[[], Judgement]) -> None:
        """*snapshot*: returns the last snapshot, or raises ServiceUnavailable."""
        self._snapshot, self._changes = snapshot, ScoreChanges()
        self._task: asyncio.Task[None] | None = None
        self._slots = CallerSlots()

    async def watch(self, bookmark: str, write: Callable[[bytes], Awaitable[object]]) -> None:
        """Write updates until the caller disconnects.

        Raises InvalidArgument, ServiceUnavailable, ResourceExhausted.
        """
        position = parse_bookmark(bookmark)
        snapshot = self._snapshot()
        reason = "too many watch already; end some, or ask ScoreNodes"
        with self._slots.slot(WATCHERS_MAX, reason, CAPACITY_RETRY_SECONDS):
            self._start_polling(snapshot)
            known = position[1] if position and position[0] == snapshot.dictionary_version else -1
            while True:
                changes = self._changes.since(known) if known >= 0 else None
                if changes is None:
                    known, update = self._changes.whole()
                    await write(update)
                    continue
                known, update = changes
                if update:
                    await write(update)
                else:
                    await self._changes.wait()

    def _start_polling(self, snapshot: Judgement) -> None:
        self._changes.take(snapshot)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._poll())

    async def _poll(self) -> None:
        while self._slots.count:
            try:
                self._changes.take(self._snapshot())
            except Exception:
                log.exception("a snapshot could not be sent to the watchers")
            await asyncio.sleep(POLL_SECONDS)


def parse_bookmark(bookmark: str) -> tuple[int, int] | None:
    """Return (epoch, version) of a bookmark, None if it is empty. Raises InvalidArgument."""
    if not bookmark:
        return None
    epoch, dash, version = bookmark.partition("-")
    if len(bookmark) > BOOKMARK_CHARACTERS_MAX or not (
        dash and epoch.isdecimal() and version.isdecimal()
    ):
        raise InvalidArgument(
            "bookmark", f"{bookmark[:64]!r}, expected bookmark of an update, or none"
        )
    return int(epoch), int(version)


def _changed(published: Columns, now: Columns) -> Flags:
    """Return which nodes differ from the published columns; new nodes do."""
    changed = np.ones(now.score.size, dtype=bool)
    known = published.score.size
    head = now.head(known)
    # A node's end and its bucket can change while its state stays the same.
    other = (published.ended != head.ended) | (published.bucket != head.bucket)
    changed[:known] = differs(published, head) | other
    return changed


def update_message(
    snapshot: Judgement, published: Columns, nodes: Indexes, *, whole: bool
) -> bytes:
    """Return the serialized update of *nodes*."""
    update = score_pb2.NodeScoresUpdate(
        snapshot=whole,
        bookmark=f"{snapshot.dictionary_version}-{snapshot.version}",
        dictionary_version=snapshot.dictionary_version,
        score_version=snapshot.version,
        state=published.state[nodes].tobytes(),
        bucket=published.bucket[nodes].tobytes(),
        reason=published.reason[nodes].tobytes(),
        ended=published.ended[nodes].tobytes(),
        degraded=bool(snapshot.degraded_reason),
        degraded_reason=snapshot.degraded_reason,
    )
    update.compute_time.FromNanoseconds(snapshot.computed_ns)
    repeated: dict[str, np.typing.NDArray[Any]] = {
        "node_index": nodes,
        "score": published.score[nodes],
        "hazard_per_hour": published.hazard_per_hour[nodes],
        "relative_speed": published.relative_speed[nodes],
    }
    return update.SerializeToString() + packed(score_pb2.NodeScoresUpdate, repeated)


class SnapshotSource(Protocol):
    """Source of the last snapshot, which is replaced as a whole; None while loading."""

    @property
    def snapshot(self) -> Snapshot | None: ...


class ScoreService(ScoreServiceServicer):
    """Coroutines of grpc.aio. A `ServiceError` becomes its status in the interceptor.

    Replies of type bytes are serialized already; `status.serialised` passes them unchanged.
    """

    def __init__(self, source: SnapshotSource, scores_port: Callable[[], int] = lambda: 0) -> None:
        """*scores_port*: returns the port for callers that poll; 0: this port."""
        self._source, self._scores_port = source, scores_port
        self._listings: OrderedDict[int, tuple[Judgement, list[int]]] = OrderedDict()
        #: Serialized answers about all nodes of this snapshot, by horizon and whether with GPUs.
        self._replies_of: Judgement | None = None
        self._replies: dict[tuple[float, bool], bytes] = {}
        #: The last request with a job: version of the snapshot, job, and its predictions.
        self._neighbors: tuple[int, str, NeighborPredictions] | None = None
        #: With GPU names or not -> (key, serialized dictionary); key: epoch, hosts, GPUs, port.
        self._dictionaries: dict[bool, tuple[tuple[int, int, int, int], bytes]] = {}
        self._watchers = ScoreWatchers(self._snapshot)

    async def GetNodeScore(
        self, request: score_pb2.GetNodeScoreRequest, context: Any
    ) -> score_pb2.NodeScore:
        """Return one node's score. Raises NotFound, InvalidArgument, ServiceUnavailable."""
        snapshot, hours = self._snapshot(), _hours(request)
        name = node_of(request.name)
        if name not in snapshot.names:
            raise NotFound(f"no node {name!r}: no host of that name has ever registered")
        index = snapshot.names.index(name)
        host = recompute.over_horizon(snapshot.hosts[index], hours)
        sources = snapshot.collector_statuses[index]
        return score_messages.score_message(
            snapshot, host, hours, full=_is_full(request.view), sources=sources
        )

    async def ListNodeScores(
        self, request: score_pb2.ListNodeScoresRequest, context: Any
    ) -> score_pb2.ListNodeScoresResponse:
        """Return a page of all nodes, worst first, without ended simulated nodes.

        Raises InvalidArgument, ServiceUnavailable.
        """
        size = page_size_of(request.page_size)
        full, hours = _is_full(request.view), _hours(request)
        snapshot, order, begin = self._listing(request.page_token)
        reply = score_pb2.ListNodeScoresResponse(
            version=snapshot.version,
            degraded=bool(snapshot.degraded_reason),
            degraded_reason=snapshot.degraded_reason,
            alarms=snapshot.alarms,
        )
        for index in order[begin : begin + size]:
            host = recompute.over_horizon(snapshot.hosts[index], hours)
            sources = snapshot.collector_statuses[index]
            reply.node_scores.append(
                score_messages.score_message(snapshot, host, hours, full=full, sources=sources)
            )
        if begin + size < len(order):
            self._listings[snapshot.version] = snapshot, order
            self._listings.move_to_end(snapshot.version)
            reply.next_page_token = f"{snapshot.version}-{begin + size}"
        while len(self._listings) > LISTINGS_MAX:
            self._listings.popitem(last=False)
        return reply

    async def ScoreNodes(self, request: score_pb2.ScoreNodesRequest, context: Any) -> bytes:
        """Return packed columns; without a filter, they are serialized once per snapshot.

        Raises FailedPrecondition for a dictionary of another epoch, InvalidArgument,
        ServiceUnavailable.
        """
        snapshot = self._snapshot()
        wanted = request.dictionary_version
        if wanted not in (0, snapshot.dictionary_version):
            raise FailedPrecondition(
                f"dictionary_version {wanted}: node indexes were renumbered, the version is now "
                f"{snapshot.dictionary_version}; call GetNodeDictionary again"
            )
        floor = request.score_floor
        if not 0.0 <= floor <= 1.0:  # also rejects NaN
            raise InvalidArgument("score_floor", f"{floor}, expected 0 to 1")
        hours = _hours(request)
        workload = (
            requested_workload(snapshot, request.workload) if request.HasField("workload") else None
        )
        if floor or request.node_bitmap or workload:
            chosen = _selected(snapshot, request.node_bitmap)
            return score_messages.columns_message(
                snapshot,
                chosen,
                floor,
                hours,
                gpus=request.gpus,
                workload=workload,
                neighbors=self._neighbors_of(snapshot, request.workload.job, chosen),
            )
        return self._of_all(snapshot, hours, gpus=request.gpus)

    def _neighbors_of(
        self, snapshot: Judgement, job: str, chosen: Indexes
    ) -> list[score_pb2.NodeNeighbors]:
        """Return the neighbors of *job* on the nodes *chosen*."""
        nodes = snapshot.residents.keys() | snapshot.slowed_by_neighbor.keys()
        if not job or not nodes:
            return []
        if self._neighbors is None or self._neighbors[:2] != (snapshot.version, job):
            self._neighbors = snapshot.version, job, NeighborPredictions(snapshot, job)
        shared = [node for node in chosen.tolist() if node in nodes]
        return score_messages.neighbors_messages(snapshot, job, shared, self._neighbors[2])

    def _of_all(self, snapshot: Judgement, hours: float, *, gpus: bool) -> bytes:
        if self._replies_of is not snapshot:
            self._replies_of, self._replies = snapshot, {}
        reply = self._replies.get((hours, gpus))
        if reply is None:
            everyone = np.arange(len(snapshot.hosts), dtype=np.intp)
            reply = score_messages.columns_message(snapshot, everyone, 0.0, hours, gpus=gpus)
            others = sum(known != HORIZON_HOURS for known, _ in self._replies)
            if hours == HORIZON_HOURS or others < HORIZONS_MAX:
                self._replies[hours, gpus] = reply
        return reply

    async def WatchNodeScores(
        self, request: score_pb2.WatchNodeScoresRequest, context: Any
    ) -> None:
        """Stream all nodes, then their changes within a second.

        Raises InvalidArgument, ServiceUnavailable, ResourceExhausted.
        """
        await self._watchers.watch(request.bookmark, context.write)

    async def GetNodeDictionary(
        self, request: score_pb2.GetNodeDictionaryRequest, context: Any
    ) -> bytes:
        """Return all names, by node index; serialized once until they change.

        Raises ServiceUnavailable.
        """
        snapshot = self._snapshot()
        counts = len(snapshot.names), len(snapshot.gpus)
        key = (snapshot.dictionary_version, *counts, self._scores_port())
        cached = self._dictionaries.get(request.gpus)
        if cached is None or cached[0] != key:
            reply = score_pb2.NodeDictionary(
                version=key[0], names=snapshot.names, scores_port=key[3]
            )
            if request.gpus:
                reply.gpus.extend(snapshot.gpus.names[index] for index in range(key[2]))
            cached = self._dictionaries[request.gpus] = key, reply.SerializeToString()
        return cached[1]

    def _snapshot(self) -> Judgement:
        snapshot = self._source.snapshot
        if not isinstance(snapshot, Judgement):
            raise ServiceUnavailable(
                "no snapshot yet: the first one comes within seconds of the start"
            )
        return snapshot

    def _listing(self, token: str) -> tuple[Judgement, list[int], int]:
        """Return (snapshot, node indexes worst first, page start). Raises InvalidArgument."""
        if not token:
            snapshot = self._snapshot()
            known = self._listings.get(snapshot.version)
            if known and known[0] is snapshot:
                return *known, 0
            return snapshot, worst_first(snapshot.columns), 0
        version, dash, begin = token.partition("-")
        if not (dash and version.isdecimal() and begin.isdecimal() and len(token) <= 40):
            raise InvalidArgument(
                "page_token", f"{token[:40]!r}, expected next_page_token of a reply"
            )
        listing = self._listings.get(int(version))
        if listing is None:
            raise InvalidArgument("page_token", f"{token!r} has expired. Start again without one")
        return *listing, int(begin)


def worst_first(columns: Columns) -> list[int]:
    """Return the indexes of the nodes to list, worst first, without ended ones."""
    listed = np.flatnonzero(~columns.ended)
    severity = _SEVERITY[columns.state[listed]]
    order = np.lexsort((-listed, columns.score[listed], severity))
    indexes: list[int] = listed[order].tolist()
    return indexes


def _is_full(view: int) -> bool:
    if view not in (score_pb2.VIEW_UNSPECIFIED, score_pb2.BASIC, score_pb2.FULL):
        raise InvalidArgument("view", f"{view}, expected BASIC or FULL")
    return view == score_pb2.FULL


def requested_workload(snapshot: Judgement, workload: score_pb2.Workload) -> RequestedWorkload:
    """Return the needs of a workload and their source. Raises InvalidArgument, NotFound."""
    by_shares = workload.HasField("shares")
    if bool(workload.job) == by_shares:
        raise InvalidArgument("workload", "expected either job or shares")
    if by_shares:
        return RequestedWorkload(_needs_of_shares(workload.shares), "shares of the request")
    if len(workload.job) > WORKLOAD_CHARACTERS_MAX:
        raise InvalidArgument(
            "workload.job",
            f"{len(workload.job)} characters, expected at most {WORKLOAD_CHARACTERS_MAX}",
        )
    known = snapshot.workloads
    visible = visible_name(workload.job, known.names)
    if visible is not None and (needs := known.find(visible)):
        return RequestedWorkload(*needs)
    near = similar_names(workload.job, known)
    hint = f"; did you mean {near}?" if near else "; ops.runs has those that are known"
    raise NotFound(f"no run of job {workload.job!r} is long enough to know what it needs{hint}")


def _needs_of_shares(shares: score_pb2.ComponentShares) -> WorkloadNeeds:
    values = tuple(float(getattr(shares, name)) for name in COMPONENTS)
    for name, value in zip(COMPONENTS, values, strict=True):
        if not 0.0 <= value <= 1.0:  # also rejects NaN
            raise InvalidArgument(f"workload.shares.{name}", f"{value:g}, expected 0 to 1")
    if not 0.0 < sum(values) <= SHARES_MAX:
        raise InvalidArgument(
            "workload.shares", f"together {sum(values):g}, expected more than 0, and at most 1"
        )
    # The request does not contain the use of components beyond the bound shares.
    return WorkloadNeeds(values, (0.0,) * len(COMPONENTS))


def _hours(
    request: score_pb2.GetNodeScoreRequest
    | score_pb2.ListNodeScoresRequest
    | score_pb2.ScoreNodesRequest,
) -> float:
    """Return the requested horizon, or the default. Raises InvalidArgument."""
    if not request.HasField("horizon"):
        return HORIZON_HOURS
    seconds = span_seconds("horizon", request.horizon)
    if not recompute.SECONDS_MIN <= seconds <= recompute.SECONDS_MAX:
        raise InvalidArgument(
            "horizon",
            f"{seconds:g} s, expected {recompute.SECONDS_MIN} to {recompute.SECONDS_MAX} (7 days), or none for "
            f"{HORIZON_HOURS:g} hours",
        )
    return seconds / 3600.0


def _selected(snapshot: Judgement, bitmap: bytes) -> np.typing.NDArray[np.intp]:
    """Return the node indexes in *bitmap*; all nodes if it is empty. Raises InvalidArgument."""
    count = len(snapshot.hosts)
    if not bitmap:
        return np.arange(count, dtype=np.intp)
    if len(bitmap) > BITMAP_BYTES_MAX:
        raise InvalidArgument("node_bitmap", f"{len(bitmap)} bytes, at most {BITMAP_BYTES_MAX}")
    bits = np.unpackbits(np.frombuffer(bitmap, dtype=np.uint8), bitorder="little")
    chosen = np.flatnonzero(bits)
    if chosen.size and chosen[-1] >= count:
        raise InvalidArgument(
            "node_bitmap", f"index {chosen[-1]} is set: there are {count} nodes, from 0"
        )
    return chosen
