"""What is stored beside readings, as Arrow: hosts, devices, signals, events, scores, findings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any

import pyarrow as pa

from ...ext.intake import TIME_NS_MAX
from ...fingerprints.catalogue import SIGNALS
from ..judgement.features import NAMES
from ..verdicts import Finding, HostScore, Snapshot
from .gpustates import with_gpu_states
from .journal import StoredEvent
from .rows import Foreign

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
    "figures": pa.map_(pa.string(), pa.float64()),
    "time": pa.timestamp("us"),
}
Row = tuple[Any, ...]


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
    """Return a `pyarrow.Table`; *columns* reads `name:type name:type`."""
    names_and_types = [column.split(":") for column in columns.split()]
    by_column = list(zip(*rows, strict=True)) or [()] * len(names_and_types)
    arrays = [
        pa.array(values, _TYPES[kind], from_pandas=True)  # NaN: nothing is known, NULL
        for values, (_, kind) in zip(by_column, names_and_types, strict=True)
    ]
    return pa.table(arrays, names=[name for name, _ in names_and_types])


def hosts(records: Iterable[HostRecord]) -> Any:
    """Rows of `hosts`."""
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
    """Rows of `devices`."""
    return table(
        "host:str kind:str device:str attributes:map",
        [
            (record.host, kind, key, list(attributes.items()))
            for record in records
            for kind, key, attributes in record.devices
        ],
    )


_SIGNAL_COLUMNS = (
    "signal_id:int name:str kind:str width_bits:int table_name:str unit:str tells:str source:str "
    "known:bool"
)


def signals() -> Any:
    """Rows of `signals`: the catalogue."""
    return table(
        _SIGNAL_COLUMNS,
        [
            (s.signal_id, s.name, s.kind, s.width_bits, s.table, s.unit, s.tells, s.source, True)
            for s in SIGNALS
        ],
    )


def foreign_signals(foreign: dict[int, Foreign]) -> Any:
    """Rows of `signals`: what only agents know."""
    return table(
        _SIGNAL_COLUMNS,
        [
            (number, f.name, "gauge" if f.is_float else "counter", 64, "by_name", "", "", "", False)
            for number, f in foreign.items()
        ],
    )


def events(stored: Iterable[StoredEvent]) -> Any:
    """Rows of `events`, of each event its highest revision."""
    highest: dict[tuple[str, str], StoredEvent] = {}
    for one in stored:
        key = one.host, one.event.event_id
        if key not in highest or highest[key].event.revision < one.event.revision:
            highest[key] = one
    return table(_EVENT_COLUMNS, [_event_row(one) for one in highest.values()])


_EVENT_COLUMNS = (
    "host:str event_id:str device_kind:str device:str name:str code:int message:str time:time "
    "boottime_ns:int received:time revision:int count:int last_time:time last_boottime_ns:int "
    "forms:texts forms_count:int process_id:int process_name:str attributes:map"
)


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


ScoreOf = tuple[Snapshot, HostScore]
#: When (ns), figure, value, what it tells.
OwnReading = tuple[int, str, float, str]


def of_snapshot(snapshot: Snapshot, chosen: Iterable[HostScore]) -> list[ScoreOf]:
    """Return *chosen* with what is stored of their snapshot, and no more: while a disk is full they wait, and
    each second's judgement of a whole fleet would wait with them (6 MB of 10,000 hosts)."""
    head = Snapshot(snapshot.version, snapshot.computed_ns, snapshot.horizon_seconds, ())
    return [(head, one) for one in with_gpu_states(snapshot, chosen)]


def scores(judged: Iterable[ScoreOf]) -> Any:
    """Rows of `scores`."""
    return table(
        "time:time host:str node_index:int simulated:bool version:int score:float "
        "score_lower:float score_upper:float state:str hazard_per_hour:float relative_speed:float "
        "reason:str reason_words:str clears_when:str heard:time horizon_seconds:float "
        "relative_speed_lower:float relative_speed_upper:float hazard_model:str log_hazard_base:float "
        "log_hazard_deltas:floats hazard_spread:float measured_speed:float speed_error:float "
        "relative_speed_factors:floats features:figures log_hazard_outcomes:float",
        [
            (
                time_us(s.computed_ns), h.host, h.node_index, h.simulated, s.version, h.score,
                h.score_lower, h.score_upper, h.state.name, h.hazard_per_hour, h.relative_speed,
                h.reason.name, h.reason_words, h.clears_when, time_us(h.heard_ns), s.horizon_seconds,
                h.speed_lower, h.speed_upper, *_inputs(h),
            )
            for s, h in judged
        ],
    )  # fmt: skip


def _inputs(host: HostScore) -> Row:
    """Return what *host* was computed from, as its row bears it."""
    known = host.inputs
    if known is None:
        return (None,) * 9
    named = zip(NAMES, known.features, strict=False)
    return (
        known.model, known.log_hazard_base, [e.log_hazard_delta for e in host.evidence],
        known.hazard_spread, known.measured_speed, known.speed_error,
        [e.relative_speed_factor for e in host.evidence],
        [(name, None if isnan(value) else value) for name, value in named],
        known.log_hazard_outcomes,
    )  # fmt: skip


def evidence(judged: Iterable[ScoreOf]) -> Any:
    """Rows of `evidence`."""
    return table(
        "time:time host:str version:int signal:str device:str value:float unit:str normal:str "
        "log_hazard_delta:float relative_speed_factor:float score_delta:float reason:str words:str "
        "observed:time sql:str gpu_state:str",
        [
            (
                time_us(s.computed_ns), h.host, s.version, e.signal, e.device, e.value, e.unit,
                e.normal, e.log_hazard_delta, e.relative_speed_factor, e.score_delta,
                e.reason.name, e.words, time_us(e.observed_ns), e.sql,
                e.gpu_state.name if e.gpu_state else None,
            )
            for s, h in judged
            for e in h.evidence
        ],
    )  # fmt: skip


def own_health(readings: Iterable[OwnReading]) -> Any:
    """Rows of `own_health`."""
    return table(
        "time:time figure:str value:float tells:str",
        [(time_us(time_ns), *rest) for time_ns, *rest in readings],
    )


def findings(found: Iterable[Finding]) -> Any:
    """Rows of `findings`."""
    return table(
        "host:str name:str subject:str words:str since:time cleared:time clears_when:str",
        [
            (
                f.host, f.name, f.subject, f.words, time_us(f.since_ns), time_us(f.cleared_ns),
                f.clears_when,
            )
            for f in found
        ],
    )  # fmt: skip
