"""ScoreService: what any scheduler asks. Every answer comes from the last snapshot."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Protocol

import numpy as np

from ...fingerprints.wire import score_pb2
from ...fingerprints.wire.score_pb2_grpc import ScoreServiceServicer
from ..judgement import horizon
from ..judgement.columns import Columns
from ..judgement.judge import Judgement
from ..judgement.scoring import HORIZON_HOURS
from ..refusals import Invalid, NotFound, NotReady, OutOfDate
from ..verdicts import SEVERITY, Snapshot, State
from . import scored
from .fields import node_of, page_size_of
from .watching import Watching

#: Snapshots that someone is paging through; a token of an older one has expired.
LISTINGS_MAX = 8
#: Answers about all nodes for other horizons than the default: of so many each is made once a snapshot.
HORIZONS_MAX = 8
#: A bitmap of more nodes than this is a mistake.
BITMAP_BYTES_MAX = 1 << 20
#: State -> its place, worst first; of no state it is the last.
_SEVERITY = np.array(
    [SEVERITY.index(State(code)) if code else len(SEVERITY) for code in range(len(State) + 1)]
)


class Holder(Protocol):
    """Where the last snapshot stands; swapped whole. None while loading."""

    @property
    def snapshot(self) -> Snapshot | None: ...


class ScoreService(ScoreServiceServicer):
    """Its calls, as coroutines of grpc.aio. A `Refusal` becomes its status at the edge.

    A reply made of bytes is one that was serialised before; `errors.Errors` lets it pass as it is.
    """

    def __init__(self, holder: Holder) -> None:
        self._holder = holder
        self._listings: OrderedDict[int, tuple[Judgement, list[int]]] = OrderedDict()
        #: Of the last snapshot that was asked for: answers about all nodes, by horizon and whether with GPUs.
        self._made_of: Judgement | None = None
        self._made: dict[tuple[float, bool], bytes] = {}
        #: Names, whether with those of GPUs: of how many nodes and GPUs of which epoch, and as bytes.
        self._names: dict[bool, tuple[tuple[int, int, int], bytes]] = {}
        self._watching = Watching(self._snapshot)

    async def GetNodeScore(
        self, request: score_pb2.GetNodeScoreRequest, context: Any
    ) -> score_pb2.NodeScore:
        """Return one node's score. Raises NotFound, Invalid, NotReady."""
        snapshot, hours = self._snapshot(), _hours(request)
        name = node_of(request.name)
        if name not in snapshot.names:
            raise NotFound(f"no node {name!r}: no host of that name has ever registered")
        index = snapshot.names.index(name)
        host, sources = horizon.over(snapshot.hosts[index], hours), snapshot.sources[index]
        return scored.message(snapshot, host, hours, full=_is_full(request.view), sources=sources)

    async def ListNodeScores(
        self, request: score_pb2.ListNodeScoresRequest, context: Any
    ) -> score_pb2.ListNodeScoresResponse:
        """Return a page of all nodes, worst first, but for simulated ones that have ended.

        Raises Invalid, NotReady.
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
            host, sources = horizon.over(snapshot.hosts[index], hours), snapshot.sources[index]
            reply.node_scores.append(
                scored.message(snapshot, host, hours, full=full, sources=sources)
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

        Raises OutOfDate for a dictionary of another epoch, Invalid, NotReady.
        """
        snapshot = self._snapshot()
        wanted = request.dictionary_version
        if wanted not in (0, snapshot.dictionary_version):
            raise OutOfDate(
                f"dictionary_version {wanted}: node indexes began anew, the version is now "
                f"{snapshot.dictionary_version}; call GetNodeDictionary again"
            )
        floor = request.score_floor
        if not 0.0 <= floor <= 1.0:  # also refuses NaN
            raise Invalid("score_floor", f"{floor}, expected 0 to 1")
        hours = _hours(request)
        if floor or request.node_bitmap:
            chosen = _selected(snapshot, request.node_bitmap)
            return scored.columns(snapshot, chosen, floor, hours, gpus=request.gpus)
        return self._of_all(snapshot, hours, gpus=request.gpus)

    def _of_all(self, snapshot: Judgement, hours: float, *, gpus: bool) -> bytes:
        if self._made_of is not snapshot:
            self._made_of, self._made = snapshot, {}
        reply = self._made.get((hours, gpus))
        if reply is None:
            everyone = np.arange(len(snapshot.hosts), dtype=np.intp)
            reply = scored.columns(snapshot, everyone, 0.0, hours, gpus=gpus)
            others = sum(known != HORIZON_HOURS for known, _ in self._made)
            if hours == HORIZON_HOURS or others < HORIZONS_MAX:
                self._made[hours, gpus] = reply
        return reply

    async def WatchNodeScores(
        self, request: score_pb2.WatchNodeScoresRequest, context: Any
    ) -> None:
        """Stream all nodes, then what changes, within a second. Raises Invalid, NotReady, TooMuch."""
        await self._watching.watch(request.bookmark, context.write)

    async def GetNodeDictionary(
        self, request: score_pb2.GetNodeDictionaryRequest, context: Any
    ) -> bytes:
        """Return all names; the position is the node index. Made once until there is another. Raises NotReady."""
        snapshot = self._snapshot()
        key = snapshot.dictionary_version, len(snapshot.names), len(snapshot.gpus)
        made = self._names.get(request.gpus)
        if made is None or made[0] != key:
            reply = score_pb2.NodeDictionary(version=key[0], names=snapshot.names)
            if request.gpus:
                reply.gpus.extend(snapshot.gpus.names[at] for at in range(key[2]))
            made = self._names[request.gpus] = key, reply.SerializeToString()
        return made[1]

    def _snapshot(self) -> Judgement:
        snapshot = self._holder.snapshot
        if not isinstance(snapshot, Judgement):
            raise NotReady("no snapshot yet: the first one comes within seconds of the start")
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
            raise Invalid("page_token", f"{token[:40]!r}, expected next_page_token of a reply")
        listing = self._listings.get(int(version))
        if listing is None:
            raise Invalid("page_token", f"{token!r} has expired: begin again without one")
        return *listing, int(at)


def worst_first(columns: Columns) -> list[int]:
    """Return the node indexes of all that are to be listed."""
    listed = np.flatnonzero(~columns.ended)
    severity = _SEVERITY[columns.state[listed]]
    order = np.lexsort((-listed, columns.score[listed], severity))
    found: list[int] = listed[order].tolist()
    return found


def _is_full(view: int) -> bool:
    if view not in (score_pb2.VIEW_UNSPECIFIED, score_pb2.BASIC, score_pb2.FULL):
        raise Invalid("view", f"{view}, expected BASIC or FULL")
    return view == score_pb2.FULL


def _hours(
    request: score_pb2.GetNodeScoreRequest
    | score_pb2.ListNodeScoresRequest
    | score_pb2.ScoreNodesRequest,
) -> float:
    """Return the horizon that is asked for; the default for none. Raises Invalid."""
    if not request.HasField("horizon"):
        return HORIZON_HOURS
    seconds = request.horizon.seconds + request.horizon.nanos / 1e9
    if not horizon.SECONDS_MIN <= seconds <= horizon.SECONDS_MAX:
        raise Invalid(
            "horizon",
            f"{seconds:g} s, expected {horizon.SECONDS_MIN} to {horizon.SECONDS_MAX} (7 days), or none for "
            f"{HORIZON_HOURS:g} hours",
        )
    return seconds / 3600.0


def _selected(snapshot: Judgement, bitmap: bytes) -> np.typing.NDArray[np.intp]:
    """Return the node indexes that *bitmap* names; all for an empty one."""
    count = len(snapshot.hosts)
    if not bitmap:
        return np.arange(count, dtype=np.intp)
    if len(bitmap) > BITMAP_BYTES_MAX:
        raise Invalid("node_bitmap", f"{len(bitmap)} bytes, at most {BITMAP_BYTES_MAX}")
    bits = np.unpackbits(np.frombuffer(bitmap, dtype=np.uint8), bitorder="little")
    chosen = np.flatnonzero(bits)
    if chosen.size and chosen[-1] >= count:
        raise Invalid("node_bitmap", f"index {chosen[-1]} is set: there are {count} nodes, from 0")
    return chosen
