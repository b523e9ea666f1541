"""Buffers decisions in the answering process, and encodes them between calls.

No response waits for it. It is not a thread, because a computing Python thread can delay the event
loop by up to 5 ms for the GIL. The score process sends its batches to the aggregator
(`service/score_process.py`), whose `DecisionLog` passes all to the store. Decisions beyond the
buffer are dropped and counted.
"""

from __future__ import annotations

import asyncio
import json
import logging
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from mmap import mmap
from typing import Any

from ...contract.wire import decision_pb2
from ..arrays import Flags
from ..decisions.inputs import input_parts, neighbors_part, workload_part
from ..decisions.node_table import NeighborPrediction, NodeTable
from ..errors import PermissionDenied
from ..model import gangline_version
from ..principal import current_principal
from ..scoring.evaluate import Judgement
from ..store.decision_records import DecisionRecord, OptionSummary
from .decision_summary import HOSTS_MAX, kind_name, summary_of

log = logging.getLogger(__name__)

#: Maximum decisions waiting to be encoded, and their snapshots; further decisions are dropped.
DECISIONS_WAITING_MAX, SNAPSHOTS_WAITING_MAX = 1000, 8
#: Waiting decisions are encoded together after this time.
BATCH_SECONDS = 0.2
#: Maximum bytes of a batch; decisions beyond it are dropped.
BATCH_BYTES_MAX = 32 << 20
CALLER_CHARACTERS_MAX = 300
_SIZE = struct.Struct("<Q")
_PREFIXES: dict[int, str] = {
    decision_pb2.DECISION_PLACEMENT: "d",
    decision_pb2.DECISION_EVALUATION: "e",
    decision_pb2.DECISION_RESIZE: "s",
    decision_pb2.DECISION_RECOVERY: "r",
}


def decision_id(kind: int, request: Any, snapshot: Judgement) -> str:
    """Return a decision's id, the same for equal requests about the same snapshot."""
    digest = blake2b(request.SerializeToString(deterministic=True), digest_size=10)
    digest.update(f"{snapshot.dictionary_version}-{snapshot.version}".encode())
    return f"{_PREFIXES[kind]}{digest.hexdigest()}"


def answer_bytes(reply: Any) -> bytes:
    """Return the answer as stored: without the fields that differ in a replay."""
    if "solve_time" not in reply.DESCRIPTOR.fields_by_name:
        return bytes(reply.SerializeToString(deterministic=True))
    answer = type(reply)()
    answer.CopyFrom(reply)
    answer.ClearField("solve_time")
    return bytes(answer.SerializeToString(deterministic=True))


@dataclass(frozen=True, slots=True)
class DecisionAnswered:
    """An answered decision: messages that no longer change, and the snapshot."""

    kind: int
    time_ns: int
    caller: str
    request: Any
    reply: Any
    snapshot: Judgement
    excluded: Flags
    #: Predictions for the gang beside running jobs, by node index.
    neighbors: Mapping[int, NeighborPrediction]
    known_as: str  #: name of the run that the caller's `workload.job` is; "" without one


class DecisionRecorder:
    """Records decisions of a loop: `record` each, `run` until cancelled, then `flush`."""

    def __init__(
        self,
        deliver: Callable[[bytes, int], bool],
        wall_ns: Callable[[], int],
        announce: Callable[[int], None] = lambda _: None,
    ) -> None:
        """*deliver*: receives an encoded batch and its count, on the loop.

        It returns False if it refuses the batch.

        *announce*: called with the number of a batch when it begins, before its first decision is answered.
        """
        self._deliver, self._wall_ns, self._announce = deliver, wall_ns, announce
        self._waiting: list[DecisionAnswered] = []
        self._begun = 0
        #: Number of the batch that `deliver` receives, or received last.
        self.batch_number = 0
        self._snapshots: set[tuple[int, int]] = set()
        self._changed = asyncio.Event()
        self._lock = asyncio.Lock()
        self._parts = _SnapshotParts()
        #: Decisions dropped because the buffer or a batch was full, or encoding failed.
        self.dropped = 0

    def record(
        self,
        kind: int,
        request: Any,
        reply: Any,
        table: NodeTable,
        known_as: str = "",
    ) -> None:
        """Queue a decision, which must have its `decision_id`. Never raises or waits.

        *known_as*: name of the run that the caller's `workload.job` is.
        """
        snapshot = table.snapshot
        key = snapshot.dictionary_version, snapshot.version
        is_new = key not in self._snapshots
        if len(self._waiting) >= DECISIONS_WAITING_MAX or (
            is_new and len(self._snapshots) >= SNAPSHOTS_WAITING_MAX
        ):
            self.dropped += 1
            return
        self._snapshots.add(key)
        if not self._waiting:
            self._begun += 1
            self._announce(self._begun)
        self._waiting.append(
            DecisionAnswered(
                kind=kind,
                time_ns=self._wall_ns(),
                caller=_caller(),
                request=request,
                reply=reply,
                snapshot=snapshot,
                excluded=table.excluded,
                neighbors=table.neighbors,
                known_as=known_as,
            )
        )
        self._changed.set()

    async def run(self) -> None:
        """Deliver decisions in batches until cancelled."""
        while True:
            await self._changed.wait()
            await asyncio.sleep(BATCH_SECONDS)
            await self.flush()

    async def flush(self) -> None:
        """Deliver the waiting decisions. Never raises: failures are dropped, counted and logged."""
        async with self._lock:
            self._changed.clear()
            taken, self._waiting, self._snapshots = self._waiting, [], set()
            self.batch_number = self._begun
            if not taken:
                return
            try:
                encoded, count = await _encoded_batch(taken, self._parts)
            except Exception:
                log.exception("%d decisions cannot be encoded", len(taken))
                self.dropped += len(taken)
                self._parts.forget()
                return
            self.dropped += len(taken) - count
            if not self._deliver(encoded, count):
                self._parts.forget()

    def take_dropped(self) -> int:
        """Return the number dropped since the last call."""
        dropped, self.dropped = self.dropped, 0
        return dropped


class _SnapshotParts:
    """The input parts of the last snapshot: sent with its first batch, later named by digest."""

    def __init__(self) -> None:
        self._key: tuple[int, int, int] = (0, 0, 0)
        self._digests: tuple[str, ...] = ()

    async def of(
        self, snapshot: Judgement, excluded: Flags
    ) -> tuple[tuple[str, ...], dict[str, bytes]]:
        """Return the digests, and the parts that are not sent yet."""
        key = snapshot.dictionary_version, snapshot.version, id(excluded)
        parts: dict[str, bytes] = {}
        if key != self._key:
            for digest, part in input_parts(snapshot, excluded):
                parts[digest] = part
                await asyncio.sleep(0)  # let waiting calls run
            self._key, self._digests = key, tuple(parts)
        return self._digests, parts

    def forget(self) -> None:
        """Send the parts again: the receiver may not have them."""
        self._key = (0, 0, 0)


async def _encoded_batch(
    answered: Sequence[DecisionAnswered], snapshot_parts: _SnapshotParts
) -> tuple[bytes, int]:
    """Return a batch with the decisions that fit, and their count."""
    decisions: list[bytes] = []
    parts: dict[str, bytes] = {}
    left, count = BATCH_BYTES_MAX, 0
    for decision in answered:
        digests, new = await snapshot_parts.of(decision.snapshot, decision.excluded)
        if job := decision.request.gang.workload.job:
            digest, part = workload_part(decision.snapshot, job, decision.known_as)
            digests, new = (*digests, digest), {**new, digest: part}
        if decision.neighbors:
            digest, part = neighbors_part(decision.neighbors)
            digests, new = (*digests, digest), {**new, digest: part}
        encoded = _encoded_decision(_record_of(decision, digests))
        await asyncio.sleep(0)
        size = sum(map(len, encoded)) + sum(map(len, new.values()))
        if size > left:
            snapshot_parts.forget()
            continue
        left, count = left - size, count + 1
        decisions += encoded
        parts |= new
    return _joined(parts, decisions), count


def _record_of(answered: DecisionAnswered, inputs: tuple[str, ...]) -> DecisionRecord:
    reply, snapshot = answered.reply, answered.snapshot
    summary = summary_of(answered.kind, reply)
    has_time = answered.kind == decision_pb2.DECISION_PLACEMENT
    return DecisionRecord(
        decision=reply.decision_id,
        time_ns=answered.time_ns,
        kind=kind_name(answered.kind),
        caller=answered.caller,
        workload=answered.request.gang.workload.job,
        score_version=snapshot.version,
        dictionary_version=snapshot.dictionary_version,
        gangline_version=gangline_version(),
        solve_seconds=reply.solve_time.ToNanoseconds() / 1e9 if has_time else float("nan"),
        degraded=bool(snapshot.degraded_reason),
        options=summary.options,
        hosts=tuple(snapshot.names[node] for node in summary.nodes[:HOSTS_MAX]),
        blockers=summary.blockers,
        request=answered.request.SerializeToString(deterministic=True),
        answer=answer_bytes(reply),
        inputs=inputs,
    )


def encoded_batch(records: Sequence[DecisionRecord], parts: Mapping[str, bytes]) -> bytes:
    """Return decisions and inputs as bytes.

    Format: the count of input parts, each part after its digest, then per decision its columns as
    JSON, request and answer. A size precedes each piece.
    """
    return _joined(parts, [piece for record in records for piece in _encoded_decision(record)])


def _joined(parts: Mapping[str, bytes], decisions: Sequence[bytes]) -> bytes:
    pieces = [_SIZE.pack(len(parts))]
    for digest, part in parts.items():
        pieces += [*_sized(digest.encode()), *_sized(part)]
    return b"".join([*pieces, *decisions])


def _encoded_decision(record: DecisionRecord) -> list[bytes]:
    columns = {**record._asdict(), "options": [tuple(option) for option in record.options]}
    del columns["request"], columns["answer"]
    return [*_sized(json.dumps(columns).encode()), *_sized(record.request), *_sized(record.answer)]


def _sized(piece: bytes) -> tuple[bytes, bytes]:
    return _SIZE.pack(len(piece)), piece


def decoded_batch(encoded: bytes | mmap) -> tuple[list[DecisionRecord], dict[str, bytes]]:
    """Return the arguments of `encoded_batch`.

    Raises ValueError, KeyError, TypeError, struct.error.
    """
    view = memoryview(encoded)
    (count,) = _SIZE.unpack_from(view)
    pieces = list(_pieces(view, _SIZE.size))
    parts = {pieces[2 * index].decode(): pieces[2 * index + 1] for index in range(count)}
    records = [
        DecisionRecord(
            **{
                **columns,
                "options": tuple(OptionSummary(*option) for option in columns["options"]),
                "hosts": tuple(columns["hosts"]),
                "blockers": tuple(columns["blockers"]),
                "inputs": tuple(columns["inputs"]),
                "request": pieces[first + 1],
                "answer": pieces[first + 2],
            }
        )
        for first in range(2 * count, len(pieces), 3)
        if (columns := json.loads(pieces[first]))
    ]
    return records, parts


def _pieces(view: memoryview, offset: int) -> Iterator[bytes]:
    """Yield the pieces of *view* from *offset*, each preceded by its size. Raises ValueError."""
    while offset < view.nbytes:
        (size,) = _SIZE.unpack_from(view, offset)
        offset += _SIZE.size
        if size > view.nbytes - offset:
            raise ValueError(f"{size} bytes at {offset}, of {view.nbytes}")
        yield bytes(view[offset : offset + size])
        offset += size


def _caller() -> str:
    try:
        return str(current_principal(None))[:CALLER_CHARACTERS_MAX]
    except PermissionDenied:  # a call within the process, without a login
        return ""
