"""The one table from our exceptions to gRPC status, and the one place that applies it."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.any_pb2 import Any as Packed
from google.protobuf.duration_pb2 import Duration

from ..access.guard import around
from ..refusals import (
    DifferencesLost,
    Invalid,
    NameTaken,
    NoLogin,
    NoSession,
    NotAllowed,
    NotFound,
    NotReady,
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
    NoLogin: grpc.StatusCode.UNAUTHENTICATED,
    NoSession: grpc.StatusCode.UNAUTHENTICATED,
    NotAllowed: grpc.StatusCode.PERMISSION_DENIED,
    NotFound: grpc.StatusCode.NOT_FOUND,
    OutOfDate: grpc.StatusCode.FAILED_PRECONDITION,
    TooMuch: grpc.StatusCode.RESOURCE_EXHAUSTED,
    NotReady: grpc.StatusCode.UNAVAILABLE,
    StreamRefused: grpc.StatusCode.INVALID_ARGUMENT,
    DifferencesLost: grpc.StatusCode.DATA_LOSS,
}

#: Where gRPC carries a status with details (google.rpc.Status), and the detail that says when to try again.
DETAILS_KEY = "grpc-status-details-bin"
RETRY_INFO = "type.googleapis.com/google.rpc.RetryInfo"

Handler = Callable[[Any, Any], Awaitable[Any]]


Trailers = tuple[tuple[str, str | bytes], ...]


class Errors(grpc.aio.ServerInterceptor):
    """Turns a Refusal into its status and words, anything else into INTERNAL and a log entry.

    It is the first of the interceptors, so that it answers for the guard too.
    """

    async def intercept_service(
        self,
        continuation: Callable[[Any], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Return the handler, wrapped."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        return around(handler, translated, serialised(handler.response_serializer))


def pushback(seconds: float) -> Trailers:
    """Return the trailing metadata that tells when to try again (gRFC A6)."""
    return (("grpc-retry-pushback-ms", str(math.ceil(seconds * 1000))),)


def serialised(serializer: Callable[[Any], bytes] | None) -> Callable[[Any], bytes] | None:
    """Return *serializer*, but a reply that is bytes already (made once per snapshot) as it is."""
    if serializer is None:
        return None
    return lambda reply: reply if isinstance(reply, bytes) else serializer(reply)


def translated(handler: Handler) -> Handler:
    """Return *handler* with its exceptions answered by the table."""

    async def answered(request: Any, context: Any) -> Any:
        try:
            return await handler(request, context)
        except Refusal as refusal:
            await context.abort(STATUS[type(refusal)], str(refusal), _details(refusal))
        except grpc.aio.AbortError:
            raise
        except Exception as error:
            log.exception("a call failed for a reason that is ours")
            await context.abort(grpc.StatusCode.INTERNAL, f"internal error: {type(error).__name__}")

    return answered


def _details(refusal: Refusal) -> Trailers:
    """Return the trailing metadata of a refusal that says when to come again, in both customary forms."""
    seconds = refusal.retry_seconds
    if not seconds:
        return ()
    code = STATUS[type(refusal)].value[0]
    return (*pushback(seconds), (DETAILS_KEY, retry_status(code, str(refusal), seconds)))


def retry_status(code: int, words: str, seconds: float) -> bytes:
    """Return a google.rpc.Status (code = 1, message = 2, details = 3) with a RetryInfo (retry_delay = 1).

    Two messages of three fields, written here rather than with a library of two hundred.
    """
    delay = Duration()
    delay.FromNanoseconds(int(seconds * 1e9))
    packed = Packed(type_url=RETRY_INFO, value=_field(1, delay.SerializeToString()))
    message = _field(2, words.encode()[:1000])
    return b"\x08" + bytes([code]) + message + _field(3, packed.SerializeToString())


def _field(number: int, data: bytes) -> bytes:
    """Return a length-delimited field of protobuf's wire format."""
    length, varint = len(data), b""
    while length > 127:
        varint, length = varint + bytes([length & 127 | 128]), length >> 7
    return bytes([number << 3 | 2]) + varint + bytes([length]) + data
