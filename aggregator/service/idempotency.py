"""Idempotent requests (AIP-155): a repeated request id gets an answer and changes nothing twice."""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from google.protobuf.message import Message

from ..errors import InvalidArgument
from ..principal import current_principal
from .validation import check_text

#: Limits of remembered answers: age, count and bytes; the oldest go first. A restart forgets them.
ANSWERS_SECONDS_MAX, ANSWERS_MAX, ANSWERS_BYTES_MAX = 600.0, 10_000, 16 << 20
ID_CHARACTERS_MAX = 64


class CachedReply(NamedTuple):
    """A request's digest and its serialized answer."""

    digest: bytes
    reply: bytes
    at_seconds: float


class IdempotencyCache:
    """Remembers the answers of a service. Belongs to the event loop."""

    def __init__(self, seconds: Callable[[], float] = time.monotonic) -> None:
        """*seconds*: a monotonic clock."""
        self._seconds = seconds
        self._known: OrderedDict[tuple[str, str, str], CachedReply] = OrderedDict()
        self._bytes = 0

    async def once(
        self,
        request: Any,
        context: Any,
        apply: Callable[[], Message],
        persisted: Callable[[], Awaitable[None]],
        preview: Callable[[], Message],
        current: Callable[[], Message] | None = None,
    ) -> bytes:
        """Return the answer of *apply*, or of *preview*, which has no effect, for `validate_only`.

        A repeated request gets its earlier answer, or *current*'s if given, because others may have
        changed the state since. *persisted* returns once the effect is on disk, and raises
        otherwise; a repeated request then waits only for that. Raises InvalidArgument if the id
        belongs to another request.
        """
        check_text("request_id", request.request_id, ID_CHARACTERS_MAX)
        if request.validate_only:
            return preview().SerializeToString()
        key = _key(request, context)
        before = self._cached_reply(key, request)
        if before is None:
            reply = apply().SerializeToString()
            self._store(key, request, reply)
        else:
            reply = before
        await persisted()
        return reply if before is None or current is None else current().SerializeToString()

    def has(self, request: Any, context: Any) -> bool:
        """Return whether *request* was applied before. Raises InvalidArgument."""
        return self._cached_reply(_key(request, context), request) is not None

    def _cached_reply(self, key: tuple[str, str, str], request: Any) -> bytes | None:
        self._evict()
        known = self._known.get(key)
        if known is None:
            return None
        if known.digest != _digest(request):
            ago = self._seconds() - known.at_seconds
            message = f"{request.request_id!r} was another request's {ago:.0f} s ago: use a new id for each request"
            raise InvalidArgument("request_id", message)
        return known.reply

    def _store(self, key: tuple[str, str, str], request: Any, reply: bytes) -> None:
        if not request.request_id:
            return
        self._known[key] = CachedReply(_digest(request), reply, self._seconds())
        self._bytes += len(reply)
        self._evict()

    def _evict(self) -> None:
        """Remove old answers and those beyond the limits, the oldest first."""
        until = self._seconds() - ANSWERS_SECONDS_MAX
        while self._known and (
            next(iter(self._known.values())).at_seconds < until
            or len(self._known) > ANSWERS_MAX
            or self._bytes > ANSWERS_BYTES_MAX
        ):
            _, old = self._known.popitem(last=False)
            self._bytes -= len(old.reply)


def _key(request: Any, context: Any) -> tuple[str, str, str]:
    """Return the key of a request; different callers may use the same id."""
    who = current_principal(context)
    return (
        str(who) if who.is_authenticated else "",
        request.DESCRIPTOR.full_name,
        request.request_id,
    )


def _digest(request: Message) -> bytes:
    return hashlib.sha256(request.SerializeToString(deterministic=True)).digest()
