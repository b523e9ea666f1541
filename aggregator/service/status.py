"""The one table from our exceptions to gRPC status, and the one place that applies it."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial
from typing import Any

import grpc
from google.protobuf.message import Message

from ...contract.wire import status_pb2
from ..auth.access import around
from ..errors import (
    Changed,
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
    TookTooLong,
    TooLittle,
    TooMuch,
)
from ..metrics import Calls

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
    TooLittle: grpc.StatusCode.FAILED_PRECONDITION,
    Changed: grpc.StatusCode.ABORTED,
    TooMuch: grpc.StatusCode.RESOURCE_EXHAUSTED,
    TookTooLong: grpc.StatusCode.DEADLINE_EXCEEDED,
    NotReady: grpc.StatusCode.UNAVAILABLE,
    StreamRefused: grpc.StatusCode.INVALID_ARGUMENT,
    DifferencesLost: grpc.StatusCode.DATA_LOSS,
}

#: Where gRPC carries a status with details (google.rpc.Status), and the kinds of them: which field, and when again.
DETAILS_KEY = "grpc-status-details-bin"
BAD_REQUEST = "type.googleapis.com/google.rpc.BadRequest"
RETRY_INFO = "type.googleapis.com/google.rpc.RetryInfo"
#: Of an answer's words, and of those in its details, in UTF-8: clients refuse trailers of more than 8 KiB in all.
MESSAGE_BYTES_MAX, DETAIL_BYTES_MAX = 1800, 900

Handler = Callable[[Any, Any], Awaitable[Any]]


Trailers = tuple[tuple[str, str | bytes], ...]
Detail = tuple[str, Message]


class Errors(grpc.aio.ServerInterceptor):
    """Turns a Refusal into its status and words, anything else into INTERNAL and a log entry.

    It is the first of the interceptors, so that it answers for the guard too.
    """

    def __init__(self, calls: Calls | None = None) -> None:
        """*calls*: where they are counted."""
        self._calls = calls or Calls()

    async def intercept_service(
        self,
        continuation: Callable[[Any], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Return the handler, wrapped."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        answered = partial(
            translated, calls=self._calls, name=short_name(handler_call_details.method)
        )
        return around(handler, answered, serialised(handler.response_serializer))


def pushback(seconds: float) -> Trailers:
    """Return the trailing metadata that tells when to try again (gRFC A6)."""
    return (("grpc-retry-pushback-ms", str(math.ceil(seconds * 1000))),)


def serialised(serializer: Callable[[Any], bytes] | None) -> Callable[[Any], bytes] | None:
    """Return *serializer*, but a reply that is bytes already (made once per snapshot) as it is."""
    if serializer is None:
        return None
    return lambda reply: reply if isinstance(reply, bytes) else serializer(reply)


def cut(words: str, bytes_max: int) -> str:
    """Return so much of *words* as fits into *bytes_max* of UTF-8."""
    return words.encode(errors="replace")[:bytes_max].decode(errors="ignore")


def short_name(method: str) -> str:
    """Return `ScoreService/ScoreNodes` of `/gangline.v1.ScoreService/ScoreNodes`."""
    return method.rpartition(".")[2]


def translated(handler: Handler, calls: Calls, name: str) -> Handler:
    """Return *handler* with its exceptions answered by the table, and counted as those of *name*."""

    async def answered(request: Any, context: Any) -> Any:
        calls.begun[name] += 1
        work = handler(request, context)
        # gRPC keeps the exception of an abort, and with it this frame and its context, until the garbage collector
        # comes by: what a caller sent must not wait for that.
        del request
        try:
            return await work
        except Refusal as refusal:
            words = cut(str(refusal), MESSAGE_BYTES_MAX)
            answer = STATUS[type(refusal)], words, details_of(refusal)
        except grpc.aio.AbortError:
            raise
        except Exception as error:
            log.exception("a call failed for a reason that is ours")
            answer = grpc.StatusCode.INTERNAL, f"internal error: {type(error).__name__}", ()
        calls.failed[name, answer[0].name] += 1
        await context.abort(*answer)

    return answered


def details_of(refusal: Refusal) -> Trailers:
    """Return the trailing metadata of a refusal: which field is wrong, and, in both customary forms, when to come again."""
    details, seconds = list(_packed(refusal)), refusal.retry_seconds
    if not details:
        return ()
    code = STATUS[type(refusal)].value[0]
    again = pushback(seconds) if seconds else ()
    return (*again, (DETAILS_KEY, status_with(code, str(refusal), details)))


def _packed(refusal: Refusal) -> Iterator[Detail]:
    if refusal.field:
        words = cut(refusal.field_words, DETAIL_BYTES_MAX)
        wrong = status_pb2.ErrorFieldViolation(field=refusal.field, description=words)
        yield BAD_REQUEST, status_pb2.ErrorBadRequest(field_violations=[wrong])
    if refusal.retry_seconds:
        retry = status_pb2.ErrorRetry()
        retry.retry_delay.FromNanoseconds(round(refusal.retry_seconds * 1e9))
        yield RETRY_INFO, retry


def status_with(code: int, words: str, details: Iterable[Detail]) -> bytes:
    """Return a google.rpc.Status with *details*, as gRPC carries it."""
    status = status_pb2.ErrorStatus(code=code, message=cut(words, DETAIL_BYTES_MAX))
    for kind, detail in details:
        status.details.add(type_url=kind, value=detail.SerializeToString())
    return status.SerializeToString()
