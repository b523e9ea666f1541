"""Converts stored records (hosts, events, scores, findings and others) to Arrow tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import isnan
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa

from ...contract.signals import SIGNALS
from ...ext.intake import TIME_NS_MAX
from ..hazard.features import SCORE_FEATURE_NAMES
from ..model import Finding, HostScore, Snapshot
from .frame_rows import ForeignSignal
from .journal import StoredEvent

_MAP = pa.map_(pa.string(), pa.string())
_TYPES: dict[str, Any] = {
    "str": pa.string(),
    "bytes": pa.binary(),
    "int": pa.uint64(),
    "float": pa.float64(),
    "bool": pa.bool_(),
    "map": _MAP,
    "texts": pa.list_(pa.string()),
    "floats": pa.list_(pa.float64()),
    "counts": pa.list_(pa.uint32()),
    "figures": pa.map_(pa.string(), pa.float64()),
    "time": pa.timestamp("us"),
}
Row = tuple[Any, ...]

_SIGNAL_COLUMNS = (
    "signal_id:int name:str kind:str width_bits:int table_name:str unit:str description:str source:str "
    "known:bool"
)
_EVENT_COLUMNS = (
    "host:str event_id:str device_kind:str device:str name:str code:int message:str time:time "
    "boottime_ns:int received:time revision:int count:int last_time:time last_boottime_ns:int "
    "forms:texts forms_count:int process_id:int process_name:str attributes:map"
)


@dataclass(frozen=True, slots=True)
class HostRecord:
    """A host as it registered, with its devices: (kind, key, attributes)."""

    host: str
    node_index: int
    simulated: bool
    run_id: bytes
    boot_id: bytes
    agent_version: str
    address: str
    labels: dict[str, str]
    registered_ns: int
    devices: tuple[tuple[str, str, dict[str, str]], ...] = ()


def time_us(time_ns: int) -> int | None:
    """Return microseconds since 1970 for a TIMESTAMP; None for 0, which means never."""
    return min(time_ns, TIME_NS_MAX) // 1000 if time_ns else None


def table(columns: str, rows: Sequence[Row]) -> Any:
    """Return a `pyarrow.Table`; *columns* is `name:type name:type`."""
    names_and_types = [column.split(":") for column in columns.split()]
    by_column = list(zip(*rows, strict=True)) or [()] * len(names_and_types)
    arrays = [
        pa.array(values, _TYPES[kind], from_pandas=True)  # NaN becomes NULL
        for values, (_, kind) in zip(by_column, names_and_types, strict=True)
    ]
    return pa.table(arrays, names=[name for name, _ in names_and_types])


def replace_rows(
    connection: duckdb.DuckDBPyConnection,
    name: str,
    columns: str,
    rows: Iterable[Mapping[str, Any]],
    keys: Sequence[str] = (),
) -> None:
    """Insert *rows* into the table *name*, in place of the rows with the same *keys*; without keys, of all rows.

    *columns* is `name:type name:type`; times are in ns. Raises duckdb.Error.
    """
    kinds = [column.split(":") for column in columns.split()]
    cells = [
        tuple(time_us(row[key]) if kind == "time" else row[key] for key, kind in kinds)
        for row in rows
    ]
    same = " AND ".join(f"{name}.{key} = n.{key}" for key in keys)
    connection.register("new_rows", table(columns, cells))
    try:
        connection.execute(
            f"DELETE FROM {name} " + (f"USING new_rows AS n WHERE {same}" if keys else "")
        )
        connection.execute(f"INSERT INTO {name} BY NAME FROM new_rows")
    finally:
        connection.unregister("new_rows")


def hosts(records: Iterable[HostRecord]) -> Any:
    """Return rows of `hosts`."""
    return table(
        "host:str node_index:int simulated:bool run_id:bytes boot_id:bytes agent_version:str "
        "address:str labels:map registered:time",
        [
            (
                r.host, r.node_index, r.simulated, r.run_id, r.boot_id, r.agent_version,
                r.address, list(r.labels.items()), time_us(r.registered_ns),
            )
            for r in records
        ],
    )  # fmt: skip


def devices(records: Iterable[HostRecord]) -> Any:
    """Return rows of `devices`."""
    rows = [
        (record.host, kind, key, list(attributes.items()))
        for record in records
        for kind, key, attributes in record.devices
    ]
    return table("host:str kind:str device:str attributes:map", rows)


@cache
def signals() -> Any:
    """Return rows of `signals` for the catalogue."""
    return table(
        _SIGNAL_COLUMNS,
        [
            (
                s.signal_id,
                s.name,
                s.kind,
                s.width_bits,
                s.table,
                s.unit,
                s.description,
                s.source,
                True,
            )
            for s in SIGNALS
        ],
    )


def foreign_signals(foreign: dict[int, ForeignSignal]) -> Any:
    """Return rows of `signals` for signals that only agents know."""
    rows = [
        (number, f.name, "gauge" if f.is_float else "counter", 64, "by_name", "", "", "", False)
        for number, f in foreign.items()
    ]
    return table(_SIGNAL_COLUMNS, rows)


def events(stored: Iterable[StoredEvent]) -> Any:
    """Return rows of `events`: the highest revision of each event."""
    highest: dict[tuple[str, str], StoredEvent] = {}
    for stored_event in stored:
        key = stored_event.host, stored_event.event.event_id
        if key not in highest or highest[key].event.revision < stored_event.event.revision:
            highest[key] = stored_event
    return table(_EVENT_COLUMNS, [_event_row(stored_event) for stored_event in highest.values()])


def _event_row(s: StoredEvent) -> Row:
    event = s.event
    last_ns = max(event.last_boottime_ns, event.boottime_ns)
    last_time_ns = min(s.time_ns + last_ns - event.boottime_ns, max(s.received_ns, s.time_ns))
    return (
        s.host, event.event_id, event.device_kind, event.device, event.name, event.code,
        event.message, time_us(s.time_ns), event.boottime_ns, time_us(s.received_ns),
        event.revision, event.count or 1, time_us(last_time_ns), last_ns,
        list(event.forms), max(event.forms_count, len(event.forms)),
        event.process_id or None, event.process_name or None, list(event.attributes.items()),
    )  # fmt: skip


SnapshotScore = tuple[Snapshot, HostScore]
#: Time (ns), figure, value, description.
OwnHealthReading = tuple[int, str, float, str]


def snapshot_scores(snapshot: Snapshot, chosen: Iterable[HostScore]) -> list[SnapshotScore]:
    """Return *chosen* with a snapshot that has only the stored fields.

    Scores are pending while a disk is full, and would otherwise keep each second's scores of the
    whole fleet in memory (6 MB for 10,000 hosts).
    """
    head = Snapshot(snapshot.version, snapshot.computed_ns, snapshot.horizon_seconds, ())
    return [(head, score) for score in chosen]


class HostMemory(NamedTuple):
    """State that scoring keeps of a host.

    *body*: makes its JSON, called in the writer thread; None: no state.
    """

    host: str
    time_ns: int
    body: Callable[[], str] | None


def memories(hosts: Iterable[HostMemory]) -> Any:
    """Return rows of `judge_memory`."""
    return table(
        "host:str time:time body:str",
        [(host, time_us(time_ns), body()) for host, time_ns, body in hosts if body is not None],
    )


def scores(judged: Iterable[SnapshotScore]) -> Any:
    """Return rows of `scores`."""
    return table(
        "time:time host:str node_index:int simulated:bool version:int score:float "
        "score_lower:float score_upper:float state:str hazard_per_hour:float relative_speed:float "
        "reason:str reason_message:str clears_when:str last_seen:time horizon_seconds:float "
        "relative_speed_lower:float relative_speed_upper:float hazard_model:str log_hazard_base:float "
        "log_hazard_deltas:floats hazard_spread:float measured_speed:float speed_error:float "
        "relative_speed_factors:floats features:figures log_hazard_outcomes:float "
        "log_hazard_one_cause:float log_hazard_own_causes:float",
        [
            (
                time_us(s.computed_ns), h.host, h.node_index, h.simulated, s.version, h.score,
                h.score_lower, h.score_upper, h.state.name, h.hazard_per_hour, h.relative_speed,
                h.reason.name, h.reason_message, h.clears_when, time_us(h.last_received_ns), s.horizon_seconds,
                h.speed_lower, h.speed_upper, *_inputs(h),
            )
            for s, h in judged
        ],
    )  # fmt: skip


def _inputs(host: HostScore) -> Row:
    """Return the inputs of the score as columns of its row."""
    inputs = host.inputs
    if inputs is None:
        return (None,) * 11
    feature_values = zip(SCORE_FEATURE_NAMES, inputs.features, strict=False)
    return (
        inputs.model, inputs.log_hazard_base, [e.log_hazard_delta for e in host.evidence],
        inputs.hazard_spread, inputs.measured_speed, inputs.speed_error,
        [e.relative_speed_factor for e in host.evidence],
        [(name, None if isnan(value) else value) for name, value in feature_values],
        inputs.log_hazard_outcomes, inputs.log_hazard_one_cause, inputs.log_hazard_own_causes,
    )  # fmt: skip


def evidence(judged: Iterable[SnapshotScore]) -> Any:
    """Return rows of `evidence`."""
    return table(
        "time:time host:str version:int signal:str device:str value:float unit:str normal:str "
        "log_hazard_delta:float relative_speed_factor:float score_delta:float reason:str message:str "
        "observed:time sql:str gpu_state:str hazard_delta:float shared_count:int",
        [
            (
                time_us(s.computed_ns), h.host, s.version, e.signal, e.device, e.value, e.unit,
                e.normal, e.log_hazard_delta, e.relative_speed_factor, e.score_delta,
                e.reason.name, e.message, time_us(e.observed_ns), e.sql,
                e.gpu_state.name if e.gpu_state else None, e.hazard_delta, e.shared_count,
            )
            for s, h in judged
            for e in h.evidence
        ],
    )  # fmt: skip


def own_health(readings: Iterable[OwnHealthReading]) -> Any:
    """Return rows of `own_health`."""
    return table(
        "time:time figure:str value:float description:str",
        [(time_us(time_ns), *rest) for time_ns, *rest in readings],
    )


def findings(found: Iterable[Finding]) -> Any:
    """Return rows of `findings`."""
    return table(
        "host:str name:str subject:str message:str since:time cleared:time clears_when:str",
        [
            (
                f.host, f.name, f.subject, f.message, time_us(f.since_ns), time_us(f.cleared_ns),
                f.clears_when,
            )
            for f in found
        ],
    )  # fmt: skip


class ClockRecord(NamedTuple):
    """Deviation of a host's wall clock from the aggregator's."""

    host: str
    offset_seconds: float  # positive: ahead of the aggregator's
    error_seconds: float  # NaN: unknown
    measured_ns: int


def put_clocks(connection: duckdb.DuckDBPyConnection, records: Sequence[ClockRecord]) -> None:
    """Replace the stored clocks of the hosts in *records*. Raises duckdb.Error."""
    rows = [(r.host, r.offset_seconds, r.error_seconds, time_us(r.measured_ns)) for r in records]
    arrow = table("host:str offset_seconds:float error_seconds:float measured:time", rows)
    connection.register("new_clocks", arrow)
    try:
        connection.execute("DELETE FROM clocks USING new_clocks AS n WHERE clocks.host = n.host")
        connection.execute("INSERT INTO clocks BY NAME FROM new_clocks")
    finally:
        connection.unregister("new_clocks")
