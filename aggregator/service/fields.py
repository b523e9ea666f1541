"""Fields that several services take, each with its limit, and words on what would be right."""

from __future__ import annotations

from google.protobuf.timestamp_pb2 import Timestamp

from ..access.caller import Caller
from ..advice.limits import SECOND_NS
from ..refusals import Invalid

ACTOR_CHARACTERS_MAX = 128


def bounded(field: str, text: str, characters_max: int) -> None:
    """Raise Invalid for a text that is too long, or is not one line."""
    if len(text) > characters_max:
        raise Invalid(field, f"{len(text)} characters, at most {characters_max}")
    if not (text or "-").isprintable():
        raise Invalid(field, "one line of printable characters")


def time_ns_of(field: str, time: Timestamp) -> int:
    """Return a time in nanoseconds since 1970. Raises Invalid."""
    if not 0 <= time.seconds < 1 << 33 or not 0 <= time.nanos < SECOND_NS:
        raise Invalid(field, "expected a time from 1970 to 2242")
    return time.seconds * SECOND_NS + time.nanos


def signed(who: Caller, actor: str) -> str:
    """Return *actor* with the login that it came by: another login does not end what it began."""
    return f"{who.role} {who.name}/{actor}"[:ACTOR_CHARACTERS_MAX] if who.known else actor
