"""Validates fields that several services share: limits, and messages that name the correct form."""

from __future__ import annotations

from collections.abc import Iterable
from math import nan
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from ..advisories.advisory_limits import SECOND_NS
from ..errors import InvalidArgument
from ..principal import NAME_CHARACTERS_MAX, Principal

ACTOR_CHARACTERS_MAX = 128
PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX = 100, 1000


def check_text(field: str, text: str, characters_max: int) -> None:
    """Raise InvalidArgument unless *text* is a single printable line within the limit."""
    if len(text) > characters_max:
        raise InvalidArgument(field, f"{len(text)} characters, at most {characters_max}")
    if not (text or "-").isprintable():
        raise InvalidArgument(field, "one line of printable characters")


def check_range(field: str, value: int, low: int, high: int) -> None:
    """Raise InvalidArgument for an integer outside its limits."""
    if not low <= value <= high:
        raise InvalidArgument(field, f"{value}, expected {low} to {high}")


def check_real(field: str, value: float, high: float) -> None:
    """Raise InvalidArgument unless *value* is a number from 0 to *high*."""
    if not 0.0 <= value <= high:  # also rejects NaN
        raise InvalidArgument(field, f"{value:g}, expected 0 to {high:g}")


def span_seconds(field: str, span: Duration) -> float:
    """Return *span* in seconds.

    Raises InvalidArgument for nanos out of range or of the other sign.
    """
    if abs(span.nanos) >= SECOND_NS or span.seconds * span.nanos < 0:
        message = f"{span.seconds} s and {span.nanos} ns, expected nanos from 0 to 999,999,999"
        raise InvalidArgument(field, message)
    return span.seconds + span.nanos / 1e9


def hours_of(field: str, message: Any, name: str, seconds_max: float) -> float:
    """Return a duration in hours; NaN if unset. Raises InvalidArgument."""
    if not message.HasField(name):
        return nan
    seconds = span_seconds(field, getattr(message, name))
    if not 0.0 <= seconds <= seconds_max:
        raise InvalidArgument(field, f"{seconds:.10g} s, expected 0 to {seconds_max:.0f}")
    return seconds / 3600.0


def time_ns_of(field: str, time: Timestamp) -> int:
    """Return a time in nanoseconds since 1970. Raises InvalidArgument."""
    if not 0 <= time.seconds < 1 << 33 or not 0 <= time.nanos < SECOND_NS:
        raise InvalidArgument(field, "expected a time from 1970 to 2242")
    return time.seconds * SECOND_NS + time.nanos


def actor_with_login(who: Principal, actor: str) -> str:
    """Return *actor* with its login: another login must not end its reports."""
    return (
        f"{who.role} {who.name}/{actor}"[:ACTOR_CHARACTERS_MAX] if who.is_authenticated else actor
    )


def check_unique(field: str, ones: Iterable[Message], key: str) -> None:
    """Raise InvalidArgument if two of *ones*, in *field*, have the same *key* but differ."""
    first: dict[str, tuple[int, Message]] = {}
    for index, item in enumerate(ones):
        name: str = getattr(item, key)
        before, known = first.setdefault(name, (index, item))
        if known != item:
            message = f"{name[:100]!r} is in {field}[{before}] too, with other values; send it once"
            raise InvalidArgument(f"{field}[{index}].{key}", message)


def node_of(name: str, field: str = "name") -> str:
    """Return `a` from `nodes/a`, the value of *field*. Raises InvalidArgument."""
    collection, slash, node = name.partition("/")
    good = 0 < len(node) <= NAME_CHARACTERS_MAX and node.isprintable()
    if collection != "nodes" or not slash or not good:
        length_hint = (
            f", NODE of at most {NAME_CHARACTERS_MAX} characters" if len(name) > 100 else ""
        )
        raise InvalidArgument(field, f"{name[:100]!r}, expected nodes/NODE{length_hint}")
    return node


def page_size_of(size: int) -> int:
    """Return the page size; the default for 0. Raises InvalidArgument."""
    if not 0 <= size <= PAGE_SIZE_MAX:
        raise InvalidArgument(
            "page_size", f"{size}, expected 1 to {PAGE_SIZE_MAX}, or 0 for the default"
        )
    return size or PAGE_SIZE_DEFAULT


def timestamp(time_ns: int) -> Timestamp:
    """Return nanoseconds since 1970 as a Timestamp."""
    return Timestamp(seconds=time_ns // 1_000_000_000, nanos=time_ns % 1_000_000_000)
