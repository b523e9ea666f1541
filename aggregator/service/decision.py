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
from .decision_recorder import BATCH_SECONDS
from .decision_summary import kind_of

_ID = re.compile(r"[a-z][0-9a-f]{20}")
ID_FORM = "a letter and 20 hexadecimal digits, as decision_id of an answer"

#: How often a decision that is not stored yet is looked for, a batch's time apart.
ATTEMPTS_MAX = 10
#: After this many attempts the commit that was running and the next one are over.
COMMITS = 2


class DecisionService(DecisionServiceServicer):
    """Its call, as a coroutine of grpc.aio. A `ServiceError` becomes its status at the edge."""

    def __init__(self, decisions: DecisionLog, store: Store) -> None:
        self._decisions, self._store = decisions, store
        self._lock = asyncio.Lock()

    async def GetDecision(
        self, request: wire.GetDecisionRequest, context: Any
    ) -> wire.StoredDecision:
        """Return one. Raises InvalidArgument, NotFound, ServiceUnavailable."""
        name = check_decision_id("decision_id", request.decision_id)
        found = await self._read_alone(name)
        attempts, is_pending = 0, True
        while found is None and attempts < (ATTEMPTS_MAX if is_pending else COMMITS):
            # It may be on its way: from the score process, from here, or in the commit after the one that runs.
            if attempts >= COMMITS:
                await asyncio.sleep(BATCH_SECONDS)
            await self._decisions.settle()
            await asyncio.to_thread(self._store.run_on_writer_thread, lambda _: None)
            is_pending, attempts = self._decisions.is_pending, attempts + 1
            found = await self._read_alone(name)
        if found is None:
            raise NotFound(
                f"no decision {name!r} is stored: it is older than decisions_days, was deleted "
                "because of decisions_bytes_max, or belongs to a WatchPlan; ops.decisions lists "
                "the stored ones"
            )
        try:
            return _message(found, with_inputs=not request.without_inputs)
        except InputsError as error:
            raise ServiceUnavailable(f"decision {name} is damaged: {error}") from error

    async def _read_alone(self, name: str) -> DecisionRow | None:
        async with self._lock:  # one at a time: what is read may be large, and the reader is one
            return await asyncio.to_thread(self._read, name)

    def _read(self, name: str) -> DecisionRow | None:
        with self._store.reading() as cursor:
            return read_decision(cursor, name)


def check_decision_id(field: str, text: str) -> str:
    """Return *text*. Raises InvalidArgument where no decision can have such an id."""
    if not _ID.fullmatch(text):
        raise InvalidArgument(field, f"{text[:100]!r}, expected {ID_FORM}")
    return text


def _message(row: DecisionRow, *, with_inputs: bool) -> wire.StoredDecision:
    one = row.record
    kind: Any = kind_of(one.kind)
    message = wire.StoredDecision(
        decision_id=one.decision, kind=kind, caller=one.caller, score_version=one.score_version,
        dictionary_version=one.dictionary_version, gangline_version=one.gangline_version,
        request=decompressed(one.request), answer=decompressed(one.answer),
        choices=[_choice(choice) for choice in row.choices], hosts=one.hosts,
    )  # fmt: skip
    message.time.FromNanoseconds(one.time_ns)
    if one.solve_seconds == one.solve_seconds:
        message.solve_time.FromNanoseconds(round(one.solve_seconds * 1e9))
    if row.inputs is None:
        message.not_replayable = (
            "its inputs are no longer stored, or never were: decision_inputs_bytes_max limits them"
        )
    elif with_inputs:
        for digest in one.inputs:
            message.inputs.add(digest=digest, data=row.inputs[digest])
    return message


def _choice(one: ChoiceRecord) -> wire.DecisionChoice:
    message = wire.DecisionChoice(
        option=one.option, reservation=one.reservation, owner=one.owner, nodes=one.nodes
    )
    message.time.FromNanoseconds(one.time_ns)
    message.expire_time.FromNanoseconds(one.expire_ns)
    return message
