"""DecisionService: returns a stored decision with its inputs."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from ...contract.wire import decision_pb2 as wire
from ...contract.wire.decision_pb2_grpc import DecisionServiceServicer
from ..decisions.inputs import InputsError, decompressed
from ..errors import InvalidArgument, NotFound, ServiceUnavailable
from ..store.decision_records import ChoiceRecord
from ..store.decisions import DecisionRow, read_decision
from ..store.store import Store
from .decision_log import DecisionLog
from .decision_summary import kind_of

_ID = re.compile(r"[a-z][0-9a-f]{20}")
ID_FORM = "a letter and 20 hexadecimal digits, as decision_id of an answer"

#: Maximum wait for the decisions that the score process has not sent yet. The caller waits 20 s.
SETTLE_SECONDS_MAX = 10.0
#: Commits after which a decision that was answered before the call is stored. Two, because the score process's message
#: that a batch has begun may arrive just after the call.
COMMITS = 2


class DecisionService(DecisionServiceServicer):
    """Coroutine of grpc.aio. A `ServiceError` becomes its status in the interceptor."""

    def __init__(self, decisions: DecisionLog, store: Store) -> None:
        self._decisions, self._store = decisions, store
        self._lock = asyncio.Lock()

    async def GetDecision(
        self, request: wire.GetDecisionRequest, context: Any
    ) -> wire.StoredDecision:
        """Return a decision. Raises InvalidArgument, NotFound, ServiceUnavailable."""
        name = check_decision_id("decision_id", request.decision_id)
        row = await self._read_alone(name)
        for _ in range(COMMITS):
            if row is not None:
                break
            await self._decisions.settle(SETTLE_SECONDS_MAX)
            await asyncio.to_thread(self._store.run_on_writer_thread, lambda _: None)
            row = await self._read_alone(name)
        if row is None and (reason := self._store.failing):
            raise ServiceUnavailable(f"decision {name} may be waiting to be stored: {reason}")
        if row is None:
            raise NotFound(
                f"no decision {name!r} is stored: it is older than decisions_days, was deleted "
                "because decisions took too much space, or belongs to a WatchPlan; ops.decisions lists "
                "the stored ones"
            )
        try:
            return _message(row, with_inputs=not request.without_inputs)
        except InputsError as error:
            raise ServiceUnavailable(f"decision {name} is damaged: {error}") from error

    async def _read_alone(self, name: str) -> DecisionRow | None:
        async with (
            self._lock
        ):  # one read at a time: a decision may be large, and there is a single reader
            return await asyncio.to_thread(self._read, name)

    def _read(self, name: str) -> DecisionRow | None:
        with self._store.reading() as cursor:
            return read_decision(cursor, name)


def check_decision_id(field: str, text: str) -> str:
    """Return *text*. Raises InvalidArgument if it cannot be a decision's id."""
    if not _ID.fullmatch(text):
        raise InvalidArgument(field, f"{text[:100]!r}, expected {ID_FORM}")
    return text


def _message(row: DecisionRow, *, with_inputs: bool) -> wire.StoredDecision:
    record = row.record
    kind: Any = kind_of(record.kind)
    message = wire.StoredDecision(
        decision_id=record.decision, kind=kind, caller=record.caller, score_version=record.score_version,
        dictionary_version=record.dictionary_version, gangline_version=record.gangline_version,
        request=decompressed(record.request), answer=decompressed(record.answer),
        choices=[_choice(choice) for choice in row.choices], hosts=record.hosts,
    )  # fmt: skip
    message.time.FromNanoseconds(record.time_ns)
    if record.solve_seconds == record.solve_seconds:
        message.solve_time.FromNanoseconds(round(record.solve_seconds * 1e9))
    if row.inputs is None:
        message.not_replayable = "its inputs are no longer stored, or never were: the newest of all decisions are kept, up to 1 GiB"
    elif with_inputs:
        for digest in record.inputs:
            message.inputs.add(digest=digest, data=row.inputs[digest])
    return message


def _choice(choice: ChoiceRecord) -> wire.DecisionChoice:
    message = wire.DecisionChoice(
        option=choice.option, reservation=choice.reservation, owner=choice.owner, nodes=choice.nodes
    )
    message.time.FromNanoseconds(choice.time_ns)
    message.expire_time.FromNanoseconds(choice.expire_ns)
    return message
