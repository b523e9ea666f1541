"""Requests that come again under one id (AIP-155) are answered, and change nothing twice."""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from google.protobuf.message import Message

from ..auth.principal import caller
from ..errors import Invalid
from .validation import bounded

#: What was answered is remembered for so long, and so much of it, the newest: until a restart, at most.
ANSWERS_SECONDS_MAX, ANSWERS_MAX, ANSWERS_BYTES_MAX = 600.0, 10_000, 16 << 20
ID_CHARACTERS_MAX = 64


class Answered(NamedTuple):
    """A request that had an id, by its digest, and its answer, serialised."""

    digest: bytes
    reply: bytes
    at_seconds: float


class Answers:
    """Of one service. Belongs to the loop."""

    def __init__(self, seconds: Callable[[], float] = time.monotonic) -> None:
        """*seconds*: a steady clock."""
        self._seconds = seconds
        self._known: OrderedDict[tuple[str, str, str], Answered] = OrderedDict()
        self._bytes = 0

    async def once(
        self,
        request: Any,
        context: Any,
        take: Callable[[], Message],
        kept: Callable[[], Awaitable[None]],
        would: Callable[[], Message],
        now: Callable[[], Message] | None = None,
    ) -> bytes:
        """Return the answer of *take*, whose effect is at once; of *would*, which has none, if only that is asked for.

        A request that came before has its answer of then; that of *now*, where others may have changed since what its
        sender would act on. *kept* returns once the effect is on disk, and raises where it is not: who asks again then
        waits for that only. Raises Invalid for the id of another request.
        """
        bounded("request_id", request.request_id, ID_CHARACTERS_MAX)
        if request.validate_only:
            return would().SerializeToString()
        key = _key(request, context)
        before = self._before(key, request)
        if before is None:
            reply = take().SerializeToString()
            self._keep(key, request, reply)
        else:
            reply = before
        await kept()
        return reply if before is None or now is None else now().SerializeToString()

    def has(self, request: Any, context: Any) -> bool:
        """Say whether *request* was taken before, so that nothing is to be made ready for it. Raises Invalid."""
        return self._before(_key(request, context), request) is not None

    def _before(self, key: tuple[str, str, str], request: Any) -> bytes | None:
        self._forget()
        known = self._known.get(key)
        if known is None:
            return None
        if known.digest != _digest(request):
            ago = self._seconds() - known.at_seconds
            words = (
                f"{request.request_id!r} was another request's {ago:.0f} s ago: each has its own"
            )
            raise Invalid("request_id", words)
        return known.reply

    def _keep(self, key: tuple[str, str, str], request: Any, reply: bytes) -> None:
        if not request.request_id:
            return
        self._known[key] = Answered(_digest(request), reply, self._seconds())
        self._bytes += len(reply)
        self._forget()

    def _forget(self) -> None:
        """Forget what is too old, or too much, the oldest first."""
        until = self._seconds() - ANSWERS_SECONDS_MAX
        while self._known and (
            next(iter(self._known.values())).at_seconds < until
            or len(self._known) > ANSWERS_MAX
            or self._bytes > ANSWERS_BYTES_MAX
        ):
            _, old = self._known.popitem(last=False)
            self._bytes -= len(old.reply)


def _key(request: Any, context: Any) -> tuple[str, str, str]:
    """Return by what a request is known: another caller's id is another."""
    who = caller(context)
    return str(who) if who.known else "", request.DESCRIPTOR.full_name, request.request_id


def _digest(request: Message) -> bytes:
    return hashlib.sha256(request.SerializeToString(deterministic=True)).digest()
