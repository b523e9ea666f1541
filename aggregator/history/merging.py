"""Rollups put together, in SQL: pieces of one minute (or hour) to one row, and the views that operators read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..store.layout import Column, typed_empty
from .rollup import Shapes, shapes

_KEYS: tuple[Column, ...] = (
    ("host", "VARCHAR"),
    ("device", "VARCHAR"),
    ("time", "TIMESTAMP"),
    ("first_time", "TIMESTAMP"),
    ("last_time", "TIMESTAMP"),
    ("readings_count", "UINTEGER"),
)
_WORD_MAX = 2**64 - 1


def rollup_columns(table: str) -> tuple[Column, ...]:
    """Return the columns of a rollup's file, as `rollup.roll` makes them."""
    spec = shapes(table)
    columns = list(_KEYS)
    for signal in spec.gauges:
        columns.append((f"{signal.column}_count", "UINTEGER"))
        columns += [(f"{signal.column}_{part}", "DOUBLE") for part in ("sum", "min", "max", "last")]
    for signal in spec.counters:
        parts = ("increase", "UBIGINT"), ("seconds", "DOUBLE"), ("last", "UBIGINT")
        columns += [(f"{signal.column}_{part}", kind) for part, kind in parts]
    for signal in spec.states:
        parts_of = ("min", "max", "last", *(("any",) if signal.unit == "flags" else ()))
        columns += [(f"{signal.column}_{part}", "UBIGINT") for part in parts_of]
    return tuple(columns)


def merged(table: str, sources: Iterable[str], bucket: str) -> str:
    """Return the query that makes one row of all pieces of a device and a *bucket* (minute, hour)."""
    spec = shapes(table)
    out = ["min(first_time) AS first_time", "max(last_time) AS last_time"]
    out.append("sum(readings_count)::UINTEGER AS readings_count")
    for signal in spec.gauges:
        c = signal.column
        out.append(f'sum("{c}_count")::UINTEGER AS "{c}_count"')
        out.append(f'sum("{c}_sum") AS "{c}_sum"')
        out += _extremes(c)
    for signal in spec.counters:
        c = signal.column
        total = f'if(sum("{c}_increase") > {_WORD_MAX}, {_WORD_MAX}, sum("{c}_increase"))::UBIGINT'
        out.append(f'{total} AS "{c}_increase"')
        out.append(f'sum("{c}_seconds") AS "{c}_seconds"')
        out.append(_last(c))
    out += _states(spec)
    return _grouped(table, sources, f"date_trunc('{bucket}', time)", out)


def rollup_view(table: str, sources: Mapping[str, object]) -> str:
    """Return the body of `rollups.TABLE_1m` or `_1h`: means and rates, a row per device and time."""
    spec = shapes(table)
    out = ["sum(readings_count)::UBIGINT AS readings_count"]
    for signal in spec.gauges:
        c = signal.column
        out.append(f'sum("{c}_sum") / nullif(sum("{c}_count"), 0) AS "{c}_mean"')
        out += _extremes(c)
        out.append(f'coalesce(sum("{c}_count"), 0)::UBIGINT AS "{c}_count"')
    for signal in spec.counters:
        c = signal.column
        out.append(f'sum("{c}_increase") AS "{c}_increase"')
        rate = f'sum("{c}_increase") / nullif(sum("{c}_seconds"), 0)'
        out.append(f'{rate} AS "{c}_rate"')
        out.append(_last(c))
    out += _states(spec)
    return _grouped(table, sources, "time", out)


def _extremes(column: str) -> list[str]:
    return [
        f'min("{column}_min") AS "{column}_min"',
        f'max("{column}_max") AS "{column}_max"',
        _last(column),
    ]


def _last(column: str) -> str:
    return f'arg_max("{column}_last", last_time) AS "{column}_last"'


def _states(spec: Shapes) -> list[str]:
    out: list[str] = []
    for signal in spec.states:
        out += _extremes(signal.column)
        if signal.unit == "flags":
            out.append(f'bit_or("{signal.column}_any") AS "{signal.column}_any"')
    return out


def _grouped(table: str, sources: Iterable[str], time: str, out: list[str]) -> str:
    parts = [typed_empty(rollup_columns(table)), *(f"SELECT * FROM {each}" for each in sources)]
    return (
        f"SELECT host, device, {time} AS time, {', '.join(out)} "
        f"FROM ({' UNION ALL BY NAME '.join(parts)}) GROUP BY ALL"
    )
