"""ScoreService: what any scheduler asks. Every answer comes from the last snapshot."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Protocol

import numpy as np
from google.protobuf.timestamp_pb2 import Timestamp

from ...fingerprints.wire import score_pb2
from ...fingerprints.wire.score_pb2_grpc import ScoreServiceServicer
from ..access.names import NAME_CHARACTERS_MAX
from ..fleet.sources import Source
from ..judgement import horizon
from ..judgement.columns import Columns
from ..judgement.gpus import Gpus
from ..judgement.judge import Judgement
from ..judgement.scoring import HORIZON_HOURS, scores_of
from ..refusals import Invalid, NotFound, NotReady, OutOfDate
from ..verdicts import SEVERITY, Evidence, GpuScore, HostScore, Snapshot, State
from .packed import packed
from .watching import Watching

PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX = 100, 1000
#: Snapshots that someone is paging through; a token of an older one has expired.
LISTINGS_MAX = 8
#: A scheduler may use an answer for so long.
VALID_SECONDS = 15
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
        self._made: dict[bool, tuple[Judgement, bytes]] = {}
        self._dictionary: tuple[tuple[str, ...], bytes] | None = None
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
        return message(snapshot, host, hours, full=_is_full(request.view), sources=sources)

    async def ListNodeScores(
        self, request: score_pb2.ListNodeScoresRequest, context: Any
    ) -> score_pb2.ListNodeScoresResponse:
        """Return a page of all nodes, worst first, but for simulated ones that have ended.

        Raises Invalid, NotReady.
        """
        size = request.page_size or PAGE_SIZE_DEFAULT
        if not 1 <= size <= PAGE_SIZE_MAX:
            raise Invalid(
                "page_size", f"{size}, expected 1 to {PAGE_SIZE_MAX}, or 0 for the default"
            )
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
            reply.node_scores.append(message(snapshot, host, hours, full=full, sources=sources))
        if at + size < len(order):
            self._listings[snapshot.version] = snapshot, order
            self._listings.move_to_end(snapshot.version)
            reply.next_page_token = f"{snapshot.version}-{at + size}"
        while len(self._listings) > LISTINGS_MAX:
            self._listings.popitem(last=False)
        return reply

    async def ScoreNodes(self, request: score_pb2.ScoreNodesRequest, context: Any) -> bytes:
        """Return packed columns; without a filter or a horizon, bytes made once per snapshot.

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
        if floor or request.node_bitmap or hours != HORIZON_HOURS:
            chosen = _selected(snapshot, request.node_bitmap)
            return _columns(snapshot, chosen, floor, hours, gpus=request.gpus)
        made = self._made.get(request.gpus)
        if made is None or made[0] is not snapshot:
            everyone = np.arange(len(snapshot.hosts), dtype=np.intp)
            reply = _columns(snapshot, everyone, 0.0, hours, gpus=request.gpus)
            made = self._made[request.gpus] = snapshot, reply
        return made[1]

    async def WatchNodeScores(
        self, request: score_pb2.WatchNodeScoresRequest, context: Any
    ) -> None:
        """Stream all nodes, then what changes, within a second. Raises Invalid, NotReady, TooMuch."""
        await self._watching.watch(request.bookmark, context.write)

    async def GetNodeDictionary(
        self, request: score_pb2.GetNodeDictionaryRequest, context: Any
    ) -> score_pb2.NodeDictionary | bytes:
        """Return all names; the position is the node index. Raises NotReady."""
        snapshot = self._snapshot()
        if request.gpus:
            names = [snapshot.gpus.names[at] for at in range(len(snapshot.gpus))]
            return score_pb2.NodeDictionary(
                version=snapshot.dictionary_version, names=snapshot.names, gpus=names
            )
        if self._dictionary is None or self._dictionary[0] is not snapshot.names:
            version = snapshot.dictionary_version
            reply = score_pb2.NodeDictionary(version=version, names=snapshot.names)
            self._dictionary = snapshot.names, reply.SerializeToString()
        return self._dictionary[1]

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


def node_of(name: str) -> str:
    """Return `a` of `nodes/a`. Raises Invalid for anything else."""
    collection, slash, node = name.partition("/")
    if collection != "nodes" or not slash or not 0 < len(node) <= NAME_CHARACTERS_MAX:
        most = f", NODE of at most {NAME_CHARACTERS_MAX} characters" if len(name) > 100 else ""
        raise Invalid("name", f"{name[:100]!r}, expected nodes/NODE{most}")
    return node


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


def message(
    snapshot: Judgement, host: HostScore, hours: float, *, full: bool, sources: tuple[Source, ...]
) -> score_pb2.NodeScore:
    """Return *host*, as it is over *hours*, for the wire; contributions and sources in the full view."""
    reply = score_pb2.NodeScore(
        node=f"nodes/{host.host}",
        score=host.score,
        score_lower=host.score_lower,
        score_upper=host.score_upper,
        state=_number(host.state),
        hazard_per_hour=host.hazard_per_hour,
        relative_speed=host.relative_speed,
        reason=_number(host.reason),
        reason_words=host.reason_words,
        clears_when=host.clears_when,
        simulated=host.simulated,
        hazard_lower=host.hazard_interval[0],
        hazard_upper=host.hazard_interval[1],
        relative_speed_lower=host.speed_lower,
        relative_speed_upper=host.speed_upper,
        hazard_model=host.inputs.model if host.inputs else "",
        compute_time=timestamp(snapshot.computed_ns),
        version=snapshot.version,
    )
    reply.horizon.FromNanoseconds(round(hours * 3600e9))
    if host.heard_ns:
        reply.data_age.FromNanoseconds(max(0, snapshot.computed_ns - host.heard_ns))
    if full:
        reply.contributions.extend(_contribution(e) for e in host.evidence)
        reply.gpus.extend(map(_gpu, snapshot.gpus.of(host.node_index)))
        reply.sources.extend(
            score_pb2.SourceOutcome(source=s.name, outcome=s.outcome_word, words=s.words)
            for s in sources
        )
    return reply


def _gpu(gpu: GpuScore) -> score_pb2.GpuScore:
    return score_pb2.GpuScore(
        gpu=gpu.gpu,
        state=_number(gpu.state),
        reason=_number(gpu.reason),
        hazard_per_hour=gpu.hazard_per_hour,
        hazard_lower=gpu.hazard_lower,
        hazard_upper=gpu.hazard_upper,
        relative_speed=gpu.relative_speed,
        relative_speed_lower=gpu.speed_lower,
        relative_speed_upper=gpu.speed_upper,
    )


def _contribution(evidence: Evidence) -> score_pb2.Contribution:
    return score_pb2.Contribution(
        signal=evidence.signal,
        device=evidence.device,
        value=evidence.value,
        unit=evidence.unit,
        normal=evidence.normal,
        log_hazard_delta=evidence.log_hazard_delta,
        relative_speed_factor=evidence.relative_speed_factor,
        score_delta=evidence.score_delta,
        reason=_number(evidence.reason),
        words=evidence.words,
        observe_time=timestamp(evidence.observed_ns),
        evidence_sql=evidence.sql,
    )


def _number(value: int) -> Any:
    """Return an enumerated value as protobuf takes it: its stubs know no IntEnum."""
    return value


def timestamp(time_ns: int) -> Timestamp:
    """Return nanoseconds since 1970 as a Timestamp."""
    return Timestamp(seconds=time_ns // 1_000_000_000, nanos=time_ns % 1_000_000_000)


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


def _columns(
    snapshot: Judgement,
    chosen: np.typing.NDArray[np.intp],
    floor: float,
    hours: float,
    *,
    gpus: bool,
) -> bytes:
    """Return a ScoreNodesResponse of the nodes *chosen*, over *hours*, serialised."""
    columns = snapshot.columns
    if hours != HORIZON_HOURS:
        hazards = columns.hazard_per_hour.astype(np.float64)
        columns = columns._replace(score=scores_of(hazards, hours).astype(np.float32))
    allowed = columns.allowed(floor)[chosen]
    reply = score_pb2.ScoreNodesResponse(
        dictionary_version=snapshot.dictionary_version,
        score_version=snapshot.version,
        state=columns.state[chosen].tobytes(),
        bucket=columns.bucket[chosen].tobytes(),
        reason=columns.reason[chosen].tobytes(),
        allowed_bitmap=np.packbits(allowed, bitorder="little").tobytes(),
        valid_until=timestamp(snapshot.computed_ns + VALID_SECONDS * 1_000_000_000),
        degraded=bool(snapshot.degraded_reason),
        degraded_reason=snapshot.degraded_reason,
    )
    reply.horizon.FromNanoseconds(round(hours * 3600e9))
    repeated: dict[str, np.typing.NDArray[Any]] = {
        "node_index": chosen,
        "score": columns.score[chosen],
        "hazard_per_hour": columns.hazard_per_hour[chosen],
        "relative_speed": columns.relative_speed[chosen],
    }
    if gpus:
        wanted = np.zeros(len(snapshot.hosts), dtype=bool)
        wanted[chosen] = True
        repeated |= _gpu_columns(reply, snapshot.gpus, np.flatnonzero(wanted[snapshot.gpus.host]))
    return reply.SerializeToString() + packed(score_pb2.ScoreNodesResponse, repeated)


def _gpu_columns(
    reply: score_pb2.ScoreNodesResponse, gpus: Gpus, rows: np.typing.NDArray[np.intp]
) -> dict[str, np.typing.NDArray[Any]]:
    """Put what is a byte a GPU into *reply*; return the other columns."""
    reply.gpu_state, reply.gpu_reason = gpus.state[rows].tobytes(), gpus.reason[rows].tobytes()
    return {
        "gpu_index": rows,
        "gpu_node_index": gpus.host[rows],
        "gpu_hazard_per_hour": gpus.hazard_per_hour[rows],
        "gpu_hazard_spread": gpus.hazard_spread[rows],
        "gpu_relative_speed": gpus.relative_speed[rows],
        "gpu_relative_speed_lower": gpus.speed_lower[rows],
        "gpu_relative_speed_upper": gpus.speed_upper[rows],
    }
