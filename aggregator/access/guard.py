"""The interceptor that every call of every service passes: who is it, may it, and is it too much?"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import grpc

from ..refusals import NoLogin, NotAllowed, Refusal
from .caller import GIVEN, Caller, answer_for
from .methods import OPEN, roles_of

if TYPE_CHECKING:
    from .door import Door

Behaviour = Callable[[Any, Any], Awaitable[Any]]
#: Told of a call that its caller's role may not make: who, gRPC's name of the peer, the request.
Denied = Callable[["Caller", str, Any], Awaitable[None]]
#: How gRPC names a handler, by (does the request stream, does the response).
KINDS = {
    (False, False): "unary_unary",
    (False, True): "unary_stream",
    (True, False): "stream_unary",
    (True, True): "stream_stream",
}


def around(
    handler: Any,
    wrap: Callable[[Behaviour], Behaviour],
    serializer: Callable[[Any], bytes] | None = None,
) -> Any:
    """Return *handler* with its behaviour wrapped, and *serializer* in its own one's stead if given.

    A behaviour that yields becomes one that writes through its context, so that one wrapper fits all four kinds.
    """
    kind = KINDS[bool(handler.request_streaming), bool(handler.response_streaming)]
    make = getattr(grpc, f"{kind}_rpc_method_handler")
    return make(
        wrap(_writing(getattr(handler, kind))),
        request_deserializer=handler.request_deserializer,
        response_serializer=serializer or handler.response_serializer,
    )


def _writing(behaviour: Any) -> Behaviour:
    if not inspect.isasyncgenfunction(behaviour):
        return behaviour  # type: ignore[no-any-return]
    yielding: Callable[[Any, Any], AsyncIterator[Any]] = behaviour

    async def written(request: Any, context: Any) -> None:
        async for reply in yielding(request, context):
            await context.write(reply)

    return written


class Guard(grpc.aio.ServerInterceptor):
    """Lets a call in, or raises the Refusal that `service/errors.py` turns into a status."""

    def __init__(
        self, door: Door, *, by_token: bool = False, denied: Mapping[str, Denied] | None = None
    ) -> None:
        """*by_token*: no certificate is asked for on its port. *denied*: by method, who is to hear of calls of a wrong
        role; not of each of a caller that is refused again and again."""
        self._door, self._by_token, self._denied = door, by_token, denied or {}

    async def intercept_service(
        self,
        continuation: Callable[[Any], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Return the handler behind a check; where a token settles it, before a message is read."""
        handler = await continuation(handler_call_details)
        method: Any = handler_call_details.method
        roles = roles_of(method)
        if handler is None or roles is OPEN:
            return handler
        try:
            metadata = handler_call_details.invocation_metadata or ()
            shown = self._door.login.by_token(metadata, needed=self._by_token)
        except Refusal as refusal:
            return self._refusing(refusal)

        def wrap(behaviour: Behaviour) -> Behaviour:
            async def answered(request: Any, context: Any) -> Any:
                caller, peer = shown, context.peer()
                try:
                    caller = caller or self._door.login.by_connection(context, peer)
                    if caller.role not in roles:
                        allowed = ", ".join(one for one in GIVEN if one in roles) or "nobody"
                        raise NotAllowed(f"{caller} may not call {method}: it is for {allowed}")
                    self._door.count(caller, request)
                except Refusal as refusal:
                    held = await self._door.hold(caller, peer)
                    tell = self._denied.get(method) if isinstance(refusal, NotAllowed) else None
                    if tell is not None and caller is not None and not held:
                        await tell(caller, peer, request)
                    raise
                answer_for(caller)
                return await self._door.calls.answer(
                    caller, peer, lambda: behaviour(request, context)
                )

            return answered

        return around(handler, wrap)

    def _refusing(self, refusal: Refusal) -> Any:
        """Return a handler that refuses without reading: of a call with one message gRPC would else read it whole first."""

        async def refuse(request: Any, context: Any) -> None:
            await self._door.hold(None, context.peer())
            raise refusal

        return grpc.stream_stream_rpc_method_handler(refuse)


class Calls:
    """The calls being answered, by caller: counted, and ended when the login they came by ends."""

    def __init__(self) -> None:
        self._running: dict[asyncio.Task[Any], Caller] = {}
        self._of: dict[tuple[str, str], int] = {}
        self._ended: set[asyncio.Task[Any]] = set()
        #: Connections by gRPC's peer -> who has proved itself on it.
        self.peers: dict[str, Caller] = {}

    def of(self, caller: Caller) -> int:
        """Return how many calls of *caller* are being answered."""
        return self._of.get((caller.role, caller.name), 0)

    def __len__(self) -> int:
        return len(self._running)

    async def answer(self, caller: Caller, peer: str, work: Callable[[], Awaitable[Any]]) -> Any:
        """Return what *work* comes to. Raises NoLogin when the caller's login ended meanwhile."""
        task = asyncio.current_task()
        assert task is not None  # gRPC answers each call in a task of its own
        key = caller.role, caller.name
        count = self._of.get(key, 0)
        if caller.known:
            self.peers[peer] = caller
        self._of[key], self._running[task] = count + 1, caller
        try:
            return await work()
        except asyncio.CancelledError:
            if task not in self._ended:
                raise
            task.uncancel()
            raise NoLogin(f"the login of {caller} no longer holds: log in anew") from None
        finally:
            self._ended.discard(task)
            del self._running[task]
            self._of[key] -= 1
            if not self._of[key]:
                del self._of[key]

    def end_all(self, ends: Callable[[Caller], bool]) -> int:
        """End the calls of callers for which *ends* says so, with words; return how many."""
        over = [task for task, caller in self._running.items() if ends(caller)]
        for task in over:
            if task not in self._ended:
                self._ended.add(task)
                task.cancel()
        return len(over)
