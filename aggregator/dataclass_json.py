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
    return tuple(field.name for field in fields(kind))


def to_plain(value: Any) -> Any:
    """Convert *value*, of dataclasses, tuples, enums and numbers, to JSON-compatible objects."""
    kind: Any = type(value)
    if kind in _PLAIN:
        return value
    if hasattr(kind, "__dataclass_fields__"):
        return {name: to_plain(getattr(value, name)) for name in _names(kind)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple | list):
        return [to_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: to_plain(item) for key, item in value.items()}
    return value


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def from_plain(kind: Any, value: Any) -> Any:
    """Return a value of type *kind* from a result of `to_plain`, without unknown keys.

    Values that are already dataclasses stay. Raises TypeError, ValueError, AttributeError.
    """
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        if value is None:
            return None
        return from_plain(next(option for option in inner if option is not type(None)), value)
    if origin is tuple:
        return tuple(from_plain(inner[0], item) for item in value)
    if origin is dict:
        return {key: from_plain(inner[1], item) for key, item in value.items()}
    if is_dataclass(kind):
        if isinstance(value, typing.cast(type, kind)):
            return value
        hints = _hints(typing.cast(type, kind))
        given = {
            name: from_plain(hints[name], item) for name, item in value.items() if name in hints
        }
        return typing.cast(type, kind)(**given)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    return float(value) if kind is float else value
