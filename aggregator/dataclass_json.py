"""Converts dataclasses, tuples, enums and numbers to JSON and back, for state kept across restarts."""

from __future__ import annotations

import types
import typing
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any

_PLAIN = frozenset((str, int, float, bool, type(None)))


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(one.name for one in fields(kind))


def to_plain(value: Any) -> Any:
    """Return *value*, of dataclasses, tuples, enums and numbers, as JSON can bear it."""
    kind: Any = type(value)
    if kind in _PLAIN:
        return value
    if hasattr(kind, "__dataclass_fields__"):
        return {name: to_plain(getattr(value, name)) for name in _names(kind)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple | list):
        return [to_plain(one) for one in value]
    if isinstance(value, dict):
        return {key: to_plain(one) for key, one in value.items()}
    return value


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def from_plain(kind: Any, value: Any) -> Any:
    """Return *value*, as `to_plain` left it, as *kind*; what is of it already stays. Keys that this version does not know are dropped.

    Raises TypeError, KeyError, ValueError.
    """
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        if value is None:
            return None
        return from_plain(next(one for one in inner if one is not type(None)), value)
    if origin is tuple:
        return tuple(from_plain(inner[0], one) for one in value)
    if origin is dict:
        return {key: from_plain(inner[1], one) for key, one in value.items()}
    if is_dataclass(kind):
        if isinstance(value, typing.cast(type, kind)):
            return value
        hints = _hints(typing.cast(type, kind))
        given = {name: from_plain(hints[name], one) for name, one in value.items() if name in hints}
        return typing.cast(type, kind)(**given)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    return float(value) if kind is float else value
