"""Events, instructions and the memory as JSON, and back: a run can be stored and replayed."""

from __future__ import annotations

import json
import types
import typing
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any

from .events import Event, Instruction

EVENTS: dict[str, type[Event]] = {one.__name__: one for one in typing.get_args(Event)}


def plain(value: Any) -> Any:
    """Return *value*, of dataclasses, tuples, enums and numbers, as JSON can bear it."""
    if is_dataclass(value):
        return {one.name: plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple | list):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    return value


def to_json(one: Event | Instruction) -> str:
    """Return the body of *one*; its kind is the name of its class."""
    return json.dumps(plain(one), separators=(",", ":"))


def event_of(kind: str, body: str) -> Event:
    """Return the event that was stored. Raises ValueError where it is none of ours."""
    try:
        return typing.cast(Event, made(EVENTS[kind], json.loads(body)))
    except (KeyError, TypeError) as error:
        raise ValueError(f"event {kind!r}: not one of ours: {error}") from error


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def made(kind: Any, value: Any) -> Any:
    """Return *value*, as `plain` left it, as *kind*. Keys that this version does not know are dropped.

    Raises TypeError, KeyError, ValueError.
    """
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        if value is None:
            return None
        return made(next(one for one in inner if one is not type(None)), value)
    if origin is tuple:
        return tuple(made(inner[0], one) for one in value)
    if origin is dict:
        return {key: made(inner[1], one) for key, one in value.items()}
    if is_dataclass(kind):
        hints = _hints(typing.cast(type, kind))
        given = {name: made(hints[name], one) for name, one in value.items() if name in hints}
        return typing.cast(type, kind)(**given)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    return float(value) if kind is float else value
