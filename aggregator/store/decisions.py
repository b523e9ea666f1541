"""Decisions about gangs in the store: written in batches, read one at a time, deleted by age and size.

The inputs of a decision are stored in parts, each once for all decisions that used it. The parts unused for longest are deleted
first; a decision without its parts stays, and is marked as not replayable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import pyarrow as pa
from duckdb import DuckDBPyConnection as Connection

from .decision_records import (
    ChoiceRecord,
    DecisionCommit,
    DecisionLimits,
    DecisionRecord,
    OptionSummary,
)
from .rows import table, time_us

#: Deletion by size continues to this share of the limit, so that not every commit deletes.
ROOM_RATIO = 0.95
#: Limit of the choices read for a decision.
CHOICES_MAX = 100

_DECISION_COLUMNS = (
    "decision:str time:time kind:str caller:str workload:str score_version:int dictionary_version:int gangline_version:str "
    "solve_seconds:float degraded:bool hosts:texts blockers:texts bytes:int replayable:bool"
)
_OPTIONS = pa.list_(
    pa.struct(
        [("what", pa.string()), ("nodes", pa.uint32())]
        + [(name, pa.float64()) for name in OptionSummary._fields[2:]]
    )
)


@dataclass(frozen=True, slots=True)
class DecisionRow:
    """A stored decision. *inputs*: None if a part was deleted."""

    record: DecisionRecord
    inputs: Mapping[str, bytes] | None
    choices: tuple[ChoiceRecord, ...]


def put_decisions(
    connection: Connection, commits: Sequence[DecisionCommit], limits: DecisionLimits
) -> list[str]:
    """Write *commits*, each decision and part once, and delete the excess over the byte limits.

    Return the digests of parts that were deleted, or that a decision needs and the store lacks:
    they should be sent again. Raises duckdb.Error.
    """
    parts = {digest: data for commit in commits for digest, data in commit.inputs.items()}
    decisions = {record.decision: record for commit in commits for record in commit.decisions}
    choices = {choice.reservation: choice for commit in commits for choice in commit.choices}
    used_us = {
        digest: time_us(record.time_ns) or 0
        for record in decisions.values()
        for digest in record.inputs
    }
    if limits.inputs_bytes_max:
        _put_inputs(connection, parts, used_us)
    stored = _stored(connection, "decision_inputs", "digest", list(used_us))
    known = _stored(connection, "decisions", "decision", list(decisions))
    new = [record for name, record in decisions.items() if name not in known]
    _put_new(connection, new, stored)
    _put_choices(connection, choices)
    dropped = _drop_inputs(connection, limits.inputs_bytes_max)
    _drop_decisions(connection, limits.bytes_max)
    return [*(used_us.keys() - stored), *dropped]


def drop_old_decisions(connection: Connection, before_ns: int) -> None:
    """Delete decisions before *before_ns*, their inputs and choices. Raises duckdb.Error."""
    since = [before_ns // 1000]
    for name in ("decisions", "decision_records", "decision_inputs", "decision_choices"):
        connection.execute(f"DELETE FROM {name} WHERE time < make_timestamp(?)", since)


def read_decision(connection: Connection, decision: str) -> DecisionRow | None:
    """Return the decision, None if it is not stored. Raises duckdb.Error."""
    row = connection.execute(
        "SELECT decision, epoch_ns(d.time), kind, caller, coalesce(workload, ''), score_version, dictionary_version, gangline_version, "
        "coalesce(solve_seconds, 'nan'::DOUBLE), degraded, hosts, blockers, replayable, r.request, r.answer, r.inputs "
        "FROM (FROM decisions WHERE decision = $1) AS d "
        "JOIN (FROM decision_records WHERE decision = $1) AS r USING (decision) LIMIT 1",
        [decision],
    ).fetchone()
    if row is None:
        return None
    *first, hosts, blockers, replayable, request, answer, digests = row
    record = DecisionRecord._make(
        [*first, (), tuple(hosts), tuple(blockers), bytes(request), bytes(answer), tuple(digests)]
    )
    inputs = None
    if replayable:
        rows = connection.execute(
            "SELECT digest, data FROM decision_inputs WHERE digest IN (SELECT unnest(?))", [digests]
        ).fetchall()
        inputs = {digest: bytes(data) for digest, data in rows}
    choices = connection.execute(
        "SELECT reservation, decision, option, owner, epoch_ns(time), epoch_ns(expires), nodes FROM decision_choices "
        f"WHERE decision = ? ORDER BY time DESC LIMIT {CHOICES_MAX}",
        [decision],
    ).fetchall()
    is_complete = inputs is not None and inputs.keys() >= set(digests)
    return DecisionRow(
        record, inputs if is_complete else None, tuple(map(ChoiceRecord._make, choices))
    )


def _put_inputs(
    connection: Connection, parts: Mapping[str, bytes], used_us: Mapping[str, int]
) -> None:
    known = _stored(connection, "decision_inputs", "digest", [*parts, *used_us])
    rows = [
        (digest, used_us.get(digest, 0), len(data), data)
        for digest, data in parts.items()
        if digest not in known
    ]
    _insert(connection, "decision_inputs", table("digest:str time:time bytes:int data:bytes", rows))
    if again := [(digest, time) for digest, time in used_us.items() if digest in known]:
        connection.register("used_again", table("digest:str time:time", again))
        try:
            connection.execute(
                "UPDATE decision_inputs AS i SET time = greatest(i.time, u.time) FROM used_again AS u "
                "WHERE i.digest = u.digest"
            )
        finally:
            connection.unregister("used_again")


def _put_new(connection: Connection, new: Sequence[DecisionRecord], stored: set[str]) -> None:
    rows = [
        (
            record.decision, time_us(record.time_ns), record.kind, record.caller, record.workload or None, record.score_version,
            record.dictionary_version, record.gangline_version, record.solve_seconds, record.degraded, list(record.hosts),
            list(record.blockers), record.size_bytes, stored.issuperset(record.inputs),
        )
        for record in new
    ]  # fmt: skip
    options = [[option._asdict() for option in record.options] for record in new]
    arrow = table(_DECISION_COLUMNS, rows).append_column(
        "options", pa.array(_without_nan(options), _OPTIONS)
    )
    _insert(connection, "decisions", arrow)
    _insert(
        connection,
        "decision_records",
        table(
            "decision:str time:time request:bytes answer:bytes inputs:texts",
            [
                (
                    record.decision,
                    time_us(record.time_ns),
                    record.request,
                    record.answer,
                    list(record.inputs),
                )
                for record in new
            ],
        ),
    )


def _put_choices(connection: Connection, choices: Mapping[str, ChoiceRecord]) -> None:
    # A reservation's first choice stays; repetitions and restarts change nothing.
    known = _stored(connection, "decision_choices", "reservation", list(choices))
    rows = [
        (*choice[:4], time_us(choice.time_ns), time_us(choice.expire_ns), choice.nodes)
        for name, choice in choices.items()
        if name not in known
    ]
    columns = "reservation:str decision:str option:int owner:str time:time expires:time nodes:int"
    _insert(connection, "decision_choices", table(columns, rows))


def _without_nan(options: list[list[dict[str, Any]]]) -> list[list[dict[str, Any]]]:
    return [
        [
            {
                name: value if isinstance(value, str) or isfinite(value) else None
                for name, value in option.items()
            }
            for option in decision_options
        ]
        for decision_options in options
    ]


def _drop_inputs(connection: Connection, bytes_max: int) -> list[str]:
    """Delete the parts unused for longest; mark decisions that used them as not replayable."""
    dropped = _oldest(connection, "decision_inputs", "digest", bytes_max)
    if dropped:
        connection.execute(
            "DELETE FROM decision_inputs WHERE digest IN (SELECT unnest(?))", [dropped]
        )
        connection.execute(
            "UPDATE decisions SET replayable = false WHERE replayable AND decision IN "
            "(SELECT decision FROM decision_records WHERE list_has_any(inputs, ?::VARCHAR[]))",
            [dropped],
        )
    return dropped


def _drop_decisions(connection: Connection, bytes_max: int) -> None:
    if dropped := _oldest(connection, "decisions", "decision", bytes_max):
        for name in ("decisions", "decision_records", "decision_choices"):
            connection.execute(
                f"DELETE FROM {name} WHERE decision IN (SELECT unnest(?))", [dropped]
            )


def _oldest(connection: Connection, name: str, key: str, bytes_max: int) -> list[str]:
    """Return the keys of the oldest rows beyond *bytes_max*, with a margin; none if within it."""
    ((total,),) = connection.execute(
        f"SELECT coalesce(sum(bytes), 0)::UBIGINT FROM {name}"
    ).fetchall()
    if total <= bytes_max:
        return []
    rows = connection.execute(
        f"SELECT {key} FROM (SELECT {key}, sum(bytes) OVER (ORDER BY time DESC, {key}) AS newer FROM {name}) "
        "WHERE newer > ?",
        [int(bytes_max * ROOM_RATIO)],
    ).fetchall()
    return [key_value for (key_value,) in rows]


def _stored(connection: Connection, name: str, key: str, wanted: Sequence[str]) -> set[str]:
    if not wanted:
        return set()
    rows = connection.execute(
        f"SELECT {key} FROM {name} WHERE {key} IN (SELECT unnest(?))", [list(wanted)]
    ).fetchall()
    return {key_value for (key_value,) in rows}


def _insert(connection: Connection, name: str, arrow: Any) -> None:
    if arrow.num_rows:
        connection.register("new_decisions", arrow)
        try:
            connection.execute(f"INSERT INTO {name} BY NAME FROM new_decisions")
        finally:
            connection.unregister("new_decisions")
