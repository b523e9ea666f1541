"""From Arrow to what people and programs read: rows of Python values, and a value as JSON knows it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute

Change = Callable[[Any], Any]


def rows(batches: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of record *batches*; maps are dicts, spans of time text, nanoseconds text."""
    for batch in batches:
        yield from zip(*map(values, batch.columns), strict=True)


def values(column: Any) -> list[Any]:
    """Return the values of an Arrow array."""
    kind = column.type
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return list(column.cast(pa.string()).to_pylist())
    change = _change(kind)
    plain = column.cast(_coarser(kind), safe=False) if _has_nanoseconds(kind) else column
    found: list[Any] = plain.to_pylist()
    return [None if one is None else change(one) for one in found] if change else found


def _change(kind: Any) -> Change | None:
    """Return what makes of a value of this type what is shown, None when it is that already."""
    if pa.types.is_interval(kind):
        return span
    if pa.types.is_map(kind):
        return dict
    if pa.types.is_struct(kind):
        inner = {field.name: _change(field.type) for field in kind}
        return lambda one: {name: _changed(inner[name], v) for name, v in one.items()}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        each = _change(kind.value_type)
        return (lambda one: [_changed(each, v) for v in one]) if each else None
    return None


def _changed(change: Change | None, value: Any) -> Any:
    return value if change is None or value is None else change(value)


def _has_nanoseconds(kind: Any) -> bool:
    return "[ns" in str(kind) and not pa.types.is_timestamp(kind)


def _coarser(kind: Any) -> Any:
    """Return the type with microseconds for nanoseconds, which Python's own times do not have."""
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if pa.types.is_time64(kind):
        return pa.time64("us")
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_coarser(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_coarser(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(_coarser(kind.key_type), _coarser(kind.item_type))
    return kind


def span(value: Any) -> str:
    """Return a span of time as DuckDB writes it: 2 months 1 day 03:00:00."""
    years, months = divmod(abs(value.months), 12)
    sign = "-" if value.months < 0 else ""
    parts = [
        f"{sign}{years} year{'s' * (years > 1)}" if years else "",
        f"{sign}{months} month{'s' * (months > 1)}" if months else "",
        f"{value.days} day{'s' * (abs(value.days) > 1)}" if value.days else "",
    ]
    seconds, nanoseconds = divmod(abs(value.nanoseconds), 10**9)
    if value.nanoseconds or not any(parts):
        fraction = f".{nanoseconds:09d}".rstrip("0") if nanoseconds else ""
        minus = "-" if value.nanoseconds < 0 else ""
        parts.append(
            f"{minus}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{fraction}"
        )
    return " ".join(filter(None, parts))


def plain(value: Any) -> Any:
    """Return *value* as JSON knows it; what JSON does not know, as text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value.hex() if isinstance(value, bytes) else str(value)
