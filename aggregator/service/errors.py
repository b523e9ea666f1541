"""The one table from our exceptions to gRPC status, and the one place that applies it."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from ..refusals import (
    DifferencesLost,
    Invalid,
    NameTaken,
    NoSession,
    NotAllowed,
    NotFound,
    NotReady,
    NotYet,
    OutOfDate,
    Refusal,
    StreamRefused,
    TooMuch,
)

log = logging.getLogger(__name__)

#: Exception -> status. Nothing else in the house speaks of status codes.
STATUS: dict[type[Refusal], grpc.StatusCode] = {
    Invalid: grpc.StatusCode.INVALID_ARGUMENT,
    NameTaken: grpc.StatusCode.ALREADY_EXISTS,
    NoSession: grpc.StatusCode.UNAUTHENTICATED,
    NotAllowed: grpc.StatusCode.PERMISSION_DENIED,
    NotFound: grpc.StatusCode.NOT_FOUND,
    OutOfDate: grpc.StatusCode.FAILED_PRECONDITION,
    TooMuch: grpc.StatusCode.RESOURCE_EXHAUSTED,
    NotYet: grpc.StatusCode.RESOURCE_EXHAUSTED,
    NotReady: grpc.StatusCode.UNAVAILABLE,
    StreamRefused: grpc.StatusCode.INVALID_ARGUMENT,
    DifferencesLost: grpc.StatusCode.DATA_LOSS,
}

#: Calls of these services pass the table; health and reflection answer for themselves.
OURS = "/gangline."

Handler = Callable[[Any, Any], Awaitable[Any]]


class Errors(grpc.aio.ServerInterceptor):
    """Turns a Refusal into its status and words, anything else into INTERNAL and a log entry.

    Our handlers are coroutines (a stream's writes through its context), so that one wrapper fits all.
    """

    async def intercept_service(
        self,
        continuation: Callable[[Any], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Return the handler, wrapped when it is ours."""
        handler = await continuation(handler_call_details)
        if handler is None or not handler_call_details.method.startswith(OURS):
            return handler
        kind = "stream_stream" if handler.request_streaming else "unary_unary"
        make = getattr(grpc, f"{kind}_rpc_method_handler")
        return make(
            translated(getattr(handler, kind)),
            request_deserializer=handler.request_deserializer,
            response_serializer=serialised(handler.response_serializer),
        )


def pushback(seconds: float) -> tuple[tuple[str, str], ...]:
    """Return the trailing metadata that tells when to try again (gRFC A6)."""
    return (("grpc-retry-pushback-ms", str(math.ceil(seconds * 1000))),)


def serialised(serializer: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    """Return *serializer*, but a reply that is bytes already (made once per snapshot) as it is."""
    return lambda reply: reply if isinstance(reply, bytes) else serializer(reply)


def translated(handler: Handler) -> Handler:
    """Return *handler* with its exceptions answered by the table."""

    async def answered(request: Any, context: Any) -> Any:
        try:
            return await handler(request, context)
        except Refusal as refusal:
            trailers = () if refusal.retry_seconds is None else pushback(refusal.retry_seconds)
            await context.abort(STATUS[type(refusal)], str(refusal), trailers)
        except grpc.aio.AbortError:
            raise
        except Exception as error:
            log.exception("a call failed for a reason that is ours")
            await context.abort(grpc.StatusCode.INTERNAL, f"internal error: {type(error).__name__}")

    return answered
