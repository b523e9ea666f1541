"""ScoreService: scores for any scheduler. Every response comes from the last snapshot."""

from __future__ import annotations

import asyncio
import difflib
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import numpy as np

from ...contract.wire import score_pb2
from ...contract.wire.score_pb2_grpc import ScoreServiceServicer
from ...fingerprints.sensitivity import COMPONENTS, WorkloadNeeds
from ..counter_deltas import Flags, Indexes, Times
from ..errors import (
    CAPACITY_RETRY_SECONDS,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ServiceUnavailable,
)
from ..model import SEVERITY, HealthState, Snapshot
from ..scoring import score
from ..scoring.evaluate import Judgement
from ..scoring.results import Columns
from ..scoring.score import HORIZON_HOURS
from ..scoring.score_rows import differs
from . import score_messages
from .caller_slots import CallerSlots
from .score_messages import RequestedWorkload, packed
from .validation import node_of, page_size_of, span_seconds

# ----------------------------------------------------------------------
# Who watches scores: what changed from one snapshot to the next, serialised once for all of them.

log = logging.getLogger(__name__)

#: How often the snapshot is looked at while somebody watches.
POLL_SECONDS = 0.1
#: Without any change, a bookmark is sent after this many versions: a watch that hears nothing is broken.
QUIET_VERSIONS = 10
WATCHERS_MAX = 1000
BOOKMARK_CHARACTERS_MAX = 64
#: Watches continue from different versions, as fast as each reads: this many updates are kept for others at the same one.
UPDATES_MAX = 16


class ScoreChanges:
    """What changed since any version. `take` is called with each snapshot; watchers wait for the next.

    For each node the version of its last change is kept. That is enough for any watcher, however far behind, and
    takes eight bytes per node.
    """

    def __init__(self) -> None:
        self.latest: Judgement | None = None
        #: What watchers receive: anything without a change stays as it was.
        self._published = Columns.none()
        self._changed_in: Times = np.zeros(0, dtype=np.int64)
        self._first_version = 0
        self._last_announced: Judgement | None = (
            None  # the last snapshot that there was anything to tell of
        )
        self._updates: dict[int, bytes] = {}  # until it, by the version after which they continue
        self._whole: tuple[Judgement, bytes] | None = None
        self._announced = asyncio.Event()

    def take(self, snapshot: Judgement) -> None:
        """Note what differs from what watchers received; wake them if there is anything to send."""
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
        """Begin an epoch: what was before is not known."""
        self._published, self._first_version = snapshot.columns, snapshot.version
        self._changed_in = np.full(self._published.score.size, snapshot.version, dtype=np.int64)
        self._announce(snapshot)

    def _announce(self, snapshot: Judgement) -> None:
        self._last_announced = snapshot
        self._updates.clear()
        announced, self._announced = self._announced, asyncio.Event()
        announced.set()

    async def wait(self) -> None:
        """Return when there is news."""
        await self._announced.wait()

    def whole(self) -> tuple[int, bytes]:
        """Return (version, update) with all nodes, made once a version."""
        assert self.latest is not None
        if self._whole is None or self._whole[0] is not self.latest:
            everyone = np.arange(self._published.score.size, dtype=np.intp)
            update = update_message(self.latest, self._published, everyone, whole=True)
            self._whole = self.latest, update
        return self.latest.version, self._whole[1]

    def since(self, version: int) -> tuple[int, bytes] | None:
        """Return (version now, update since *version*, empty without news); None where that is not known.

        An update is made once for all who continue from one version.
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
    """All watchers of one service, and the one task that looks for them."""

    def __init__(self, snapshot: Callable[[], Judgement]) -> None:
        """*snapshot*: returns the last one, or raises ServiceUnavailable."""
        self._snapshot, self._changes = snapshot, ScoreChanges()
        self._task: asyncio.Task[None] | None = None
        self._slots = CallerSlots()

    async def watch(self, bookmark: str, write: Callable[[bytes], Awaitable[object]]) -> None:
        """Write updates until the caller is gone. Raises InvalidArgument, ServiceUnavailable, ResourceExhausted."""
        at = parse_bookmark(bookmark)
        snapshot = self._snapshot()
        reason = "too many watch already; end some, or ask ScoreNodes"
        with self._slots.slot(WATCHERS_MAX, reason, CAPACITY_RETRY_SECONDS):
            self._start_polling(snapshot)
            known = at[1] if at and at[0] == snapshot.dictionary_version else -1
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
    """Return (epoch, version) of a bookmark, None for the empty one. Raises InvalidArgument."""
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
    """Return which nodes differ from what was sent; new ones do."""
    changed = np.ones(now.score.size, dtype=bool)
    known = published.score.size
    head = now.head(known)
    # What is beneath a state has a say in the bucket, and comes and goes without it.
    other = (published.ended != head.ended) | (published.bucket != head.bucket)
    changed[:known] = differs(published, head) | other
    return changed


def update_message(
    snapshot: Judgement, published: Columns, nodes: Indexes, *, whole: bool
) -> bytes:
    """Return the update of *nodes*, serialised."""
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


#: Snapshots that someone is paging through; a token of an older one has expired.
LISTINGS_MAX = 8
#: Answers about all nodes for other horizons than the default: for this many, each is made once per snapshot.
HORIZONS_MAX = 8
#: A bitmap of more nodes than this is a mistake.
BITMAP_BYTES_MAX = 1 << 20
#: Of a workload's name. Shares are sent as floats, so that their sum may be a little above 1.
WORKLOAD_CHARACTERS_MAX, SHARES_MAX = 512, 1.001
#: State -> its place, worst first; of no state it is the last.
_SEVERITY = np.array(
    [
        SEVERITY.index(HealthState(code)) if code else len(SEVERITY)
        for code in range(len(HealthState) + 1)
    ]
)


class SnapshotSource(Protocol):
    """The last snapshot; swapped whole. None while loading."""

    @property
    def snapshot(self) -> Snapshot | None: ...


class ScoreService(ScoreServiceServicer):
    """Its calls, as coroutines of grpc.aio. A `ServiceError` becomes its status at the edge.

    A reply made of bytes is one that was serialised before; `errors.Errors` lets it pass as it is.
    """

    def __init__(self, source: SnapshotSource, scores_port: Callable[[], int] = lambda: 0) -> None:
        """*scores_port*: returns where callers that ask in a loop should ask; 0: here."""
        self._source, self._scores_port = source, scores_port
        self._listings: OrderedDict[int, tuple[Judgement, list[int]]] = OrderedDict()
        #: Of the last snapshot that was asked for: answers about all nodes, by horizon and whether with GPUs.
        self._replies_of: Judgement | None = None
        self._replies: dict[tuple[float, bool], bytes] = {}
        #: Names, whether with those of GPUs: of which epoch, how many nodes and GPUs, with which port; and as bytes.
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
        host, sources = (
            score.over_horizon(snapshot.hosts[index], hours),
            snapshot.collector_statuses[index],
        )
        return score_messages.score_message(
            snapshot, host, hours, full=_is_full(request.view), sources=sources
        )

    async def ListNodeScores(
        self, request: score_pb2.ListNodeScoresRequest, context: Any
    ) -> score_pb2.ListNodeScoresResponse:
        """Return a page of all nodes, worst first, but for simulated ones that have ended.

        Raises InvalidArgument, ServiceUnavailable.
        """
        size = page_size_of(request.page_size)
        full, hours = _is_full(request.view), _hours(request)
        snapshot, order, at = self._listing(request.page_token)
        reply = score_pb2.ListNodeScoresResponse(
            version=snapshot.version,
            degraded=bool(snapshot.degraded_reason),
            degraded_reason=snapshot.degraded_reason,
            alarms=snapshot.alarms,
        )
        for index in order[at : at + size]:
            host, sources = (
                score.over_horizon(snapshot.hosts[index], hours),
                snapshot.collector_statuses[index],
            )
            reply.node_scores.append(
                score_messages.score_message(snapshot, host, hours, full=full, sources=sources)
            )
        if at + size < len(order):
            self._listings[snapshot.version] = snapshot, order
            self._listings.move_to_end(snapshot.version)
            reply.next_page_token = f"{snapshot.version}-{at + size}"
        while len(self._listings) > LISTINGS_MAX:
            self._listings.popitem(last=False)
        return reply

    async def ScoreNodes(self, request: score_pb2.ScoreNodesRequest, context: Any) -> bytes:
        """Return packed columns; without a filter, bytes made once per snapshot.

        Raises FailedPrecondition for a dictionary of another epoch, InvalidArgument, ServiceUnavailable.
        """
        snapshot = self._snapshot()
        wanted = request.dictionary_version
        if wanted not in (0, snapshot.dictionary_version):
            raise FailedPrecondition(
                f"dictionary_version {wanted}: node indexes were renumbered, the version is now "
                f"{snapshot.dictionary_version}; call GetNodeDictionary again"
            )
        floor = request.score_floor
        if not 0.0 <= floor <= 1.0:  # also refuses NaN
            raise InvalidArgument("score_floor", f"{floor}, expected 0 to 1")
        hours = _hours(request)
        workload = (
            requested_workload(snapshot, request.workload) if request.HasField("workload") else None
        )
        if floor or request.node_bitmap or workload:
            chosen = _selected(snapshot, request.node_bitmap)
            return score_messages.columns_message(
                snapshot, chosen, floor, hours, gpus=request.gpus, workload=workload
            )
        return self._of_all(snapshot, hours, gpus=request.gpus)

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
        """Stream all nodes, then what changes, within a second. Raises InvalidArgument, ServiceUnavailable, ResourceExhausted."""
        await self._watchers.watch(request.bookmark, context.write)

    async def GetNodeDictionary(
        self, request: score_pb2.GetNodeDictionaryRequest, context: Any
    ) -> bytes:
        """Return all names; the position is the node index. Made once until there is another. Raises ServiceUnavailable."""
        snapshot = self._snapshot()
        key = (
            snapshot.dictionary_version, len(snapshot.names), len(snapshot.gpus), self._scores_port()
        )  # fmt: skip
        made = self._dictionaries.get(request.gpus)
        if made is None or made[0] != key:
            reply = score_pb2.NodeDictionary(
                version=key[0], names=snapshot.names, scores_port=key[3]
            )
            if request.gpus:
                reply.gpus.extend(snapshot.gpus.names[at] for at in range(key[2]))
            made = self._dictionaries[request.gpus] = key, reply.SerializeToString()
        return made[1]

    def _snapshot(self) -> Judgement:
        snapshot = self._source.snapshot
        if not isinstance(snapshot, Judgement):
            raise ServiceUnavailable(
                "no snapshot yet: the first one comes within seconds of the start"
            )
        return snapshot

    def _listing(self, token: str) -> tuple[Judgement, list[int], int]:
        """Return (snapshot, node indexes worst first, where the page begins)."""
        if not token:
            snapshot = self._snapshot()
            known = self._listings.get(snapshot.version)
            if known and known[0] is snapshot:
                return *known, 0
            return snapshot, worst_first(snapshot.columns), 0
        version, dash, at = token.partition("-")
        if not (dash and version.isdecimal() and at.isdecimal() and len(token) <= 40):
            raise InvalidArgument(
                "page_token", f"{token[:40]!r}, expected next_page_token of a reply"
            )
        listing = self._listings.get(int(version))
        if listing is None:
            raise InvalidArgument("page_token", f"{token!r} has expired. Start again without one")
        return *listing, int(at)


def worst_first(columns: Columns) -> list[int]:
    """Return the node indexes of all that must be listed."""
    listed = np.flatnonzero(~columns.ended)
    severity = _SEVERITY[columns.state[listed]]
    order = np.lexsort((-listed, columns.score[listed], severity))
    found: list[int] = listed[order].tolist()
    return found


def _is_full(view: int) -> bool:
    if view not in (score_pb2.VIEW_UNSPECIFIED, score_pb2.BASIC, score_pb2.FULL):
        raise InvalidArgument("view", f"{view}, expected BASIC or FULL")
    return view == score_pb2.FULL


def requested_workload(snapshot: Judgement, workload: score_pb2.Workload) -> RequestedWorkload:
    """Return what is known of a workload. Raises InvalidArgument, NotFound."""
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
    if found := known.find(workload.job):
        return RequestedWorkload(*found)
    near = difflib.get_close_matches(workload.job, known.names, 3, 0.6)
    hint = f"; did you mean {', '.join(near)}?" if near else "; ops.runs has those that are known"
    raise NotFound(f"no run of job {workload.job!r} is long enough to know what it needs{hint}")


def _needs_of_shares(shares: score_pb2.ComponentShares) -> WorkloadNeeds:
    values = tuple(float(getattr(shares, name)) for name in COMPONENTS)
    for name, value in zip(COMPONENTS, values, strict=True):
        if not 0.0 <= value <= 1.0:  # also refuses NaN
            raise InvalidArgument(f"workload.shares.{name}", f"{value:g}, expected 0 to 1")
    if not 0.0 < sum(values) <= SHARES_MAX:
        raise InvalidArgument(
            "workload.shares", f"together {sum(values):g}, expected more than 0, and at most 1"
        )
    # What a component is in use beside what is bound by it, the request does not say.
    return WorkloadNeeds(values, (0.0,) * len(COMPONENTS))


def _hours(
    request: score_pb2.GetNodeScoreRequest
    | score_pb2.ListNodeScoresRequest
    | score_pb2.ScoreNodesRequest,
) -> float:
    """Return the horizon that is asked for; the default for none. Raises InvalidArgument."""
    if not request.HasField("horizon"):
        return HORIZON_HOURS
    seconds = span_seconds("horizon", request.horizon)
    if not score.SECONDS_MIN <= seconds <= score.SECONDS_MAX:
        raise InvalidArgument(
            "horizon",
            f"{seconds:g} s, expected {score.SECONDS_MIN} to {score.SECONDS_MAX} (7 days), or none for "
            f"{HORIZON_HOURS:g} hours",
        )
    return seconds / 3600.0


def _selected(snapshot: Judgement, bitmap: bytes) -> np.typing.NDArray[np.intp]:
    """Return the node indexes that *bitmap* names; all for an empty one."""
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
