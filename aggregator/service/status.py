"""The table from exceptions to gRPC status, and the one place that applies it."""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import grpc
from google.protobuf.message import DecodeError, Message

from ...contract.wire import status_pb2
from ..auth.access import wrap_handler
from ..errors import (
    AlreadyExists,
    DeadlineExceeded,
    EtagMismatch,
    FailedPrecondition,
    InsufficientData,
    InvalidArgument,
    NoSession,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    ServiceError,
    ServiceUnavailable,
    StreamDesync,
    StreamRefused,
    Unauthenticated,
)
from ..metrics import CallCounters

log = logging.getLogger(__name__)

#: Exception -> status. Nothing else in the house speaks of status codes.
STATUS: dict[type[ServiceError], grpc.StatusCode] = {
    InvalidArgument: grpc.StatusCode.INVALID_ARGUMENT,
    AlreadyExists: grpc.StatusCode.ALREADY_EXISTS,
    Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    NoSession: grpc.StatusCode.UNAUTHENTICATED,
    PermissionDenied: grpc.StatusCode.PERMISSION_DENIED,
    NotFound: grpc.StatusCode.NOT_FOUND,
    FailedPrecondition: grpc.StatusCode.FAILED_PRECONDITION,
    InsufficientData: grpc.StatusCode.FAILED_PRECONDITION,
    EtagMismatch: grpc.StatusCode.ABORTED,
    ResourceExhausted: grpc.StatusCode.RESOURCE_EXHAUSTED,
    DeadlineExceeded: grpc.StatusCode.DEADLINE_EXCEEDED,
    ServiceUnavailable: grpc.StatusCode.UNAVAILABLE,
    StreamRefused: grpc.StatusCode.INVALID_ARGUMENT,
    StreamDesync: grpc.StatusCode.DATA_LOSS,
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


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Turns a ServiceError into its status and words, anything else into INTERNAL and a log entry.

    It is the first of the interceptors, so that it answers for the guard too.
    """

    def __init__(self, calls: CallCounters | None = None) -> None:
        """*calls*: where they are counted."""
        self._calls = calls or CallCounters()

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
            with_error_status, calls=self._calls, name=short_name(handler_call_details.method)
        )
        return wrap_handler(
            handler,
            answered,
            serialised(handler.response_serializer),
            deserialised(handler.request_deserializer),
        )


def pushback(seconds: float) -> Trailers:
    """Return the trailing metadata that tells when to try again (gRFC A6)."""
    return (("grpc-retry-pushback-ms", str(math.ceil(seconds * 1000))),)


class Malformed(NamedTuple):
    """A request that could not be read, and why; gRPC itself would log a traceback for each."""

    reason: str


def deserialised(
    deserializer: Callable[[bytes], Any] | None,
) -> Callable[[bytes], Any] | None:
    """Return *deserializer*, which returns `Malformed` instead of raising DecodeError."""
    if deserializer is None:
        return None

    def read(data: bytes) -> Any:
        try:
            return deserializer(data)
        except DecodeError as error:
            return Malformed(str(error))

    return read


def _readable(request: Any, name: str, context: Any) -> Any:
    """Return *request*, or its stream. Raises InvalidArgument for a malformed message, which the log has in a line."""
    if isinstance(request, Malformed):
        log.warning("%s of %s: a malformed request: %s", name, context.peer(), request.reason)
        message = f"a malformed protobuf message ({request.reason}); expected the request of {name}"
        raise InvalidArgument("request", message)
    return _readable_stream(request, name, context) if hasattr(request, "__aiter__") else request


async def _readable_stream(requests: Any, name: str, context: Any) -> AsyncIterator[Any]:
    async for request in requests:
        yield _readable(request, name, context)


def serialised(serializer: Callable[[Any], bytes] | None) -> Callable[[Any], bytes] | None:
    """Return *serializer*, but a reply that is bytes already (made once per snapshot) as it is."""
    if serializer is None:
        return None
    return lambda reply: reply if isinstance(reply, bytes) else serializer(reply)


def cut_utf8(message: str, bytes_max: int) -> str:
    """Return so much of *message* as fits into *bytes_max* of UTF-8."""
    return message.encode(errors="replace")[:bytes_max].decode(errors="ignore")


def short_name(method: str) -> str:
    """Return `ScoreService/ScoreNodes` of `/gangline.v1.ScoreService/ScoreNodes`."""
    return method.rpartition(".")[2]


def with_error_status(handler: Handler, calls: CallCounters, name: str) -> Handler:
    """Return *handler* with its exceptions answered by the table, and counted as those of *name*."""

    async def answered(request: Any, context: Any) -> Any:
        calls.started[name] += 1
        try:
            work = handler(_readable(request, name, context), context)
        except InvalidArgument as malformed:
            work = _raising(malformed)
        # gRPC keeps the exception of an abort, and with it this frame and its context, until the garbage collector
        # comes by: what a caller sent must not wait for that.
        del request
        try:
            return await work
        except ServiceError as service_error:
            message = cut_utf8(str(service_error), MESSAGE_BYTES_MAX)
            answer = STATUS[type(service_error)], message, details_of(service_error)
        except grpc.aio.AbortError:
            raise
        except Exception as error:
            log.exception("a call failed because of an internal error")
            answer = grpc.StatusCode.INTERNAL, f"internal error: {type(error).__name__}", ()
        calls.failed[name, answer[0].name] += 1
        await context.abort(*answer)

    return answered


async def _raising(error: ServiceError) -> None:
    raise error


def details_of(service_error: ServiceError) -> Trailers:
    """Return the trailing metadata of a refusal: which field is wrong, and, in both customary forms, when to come again."""
    details, seconds = list(_packed(service_error)), service_error.retry_seconds
    if not details:
        return ()
    code = STATUS[type(service_error)].value[0]
    again = pushback(seconds) if seconds else ()
    return (*again, (DETAILS_KEY, status_with(code, str(service_error), details)))


def _packed(service_error: ServiceError) -> Iterator[Detail]:
    if service_error.field:
        message = cut_utf8(service_error.field_message, DETAIL_BYTES_MAX)
        wrong = status_pb2.ErrorFieldViolation(field=service_error.field, description=message)
        yield BAD_REQUEST, status_pb2.ErrorBadRequest(field_violations=[wrong])
    if service_error.retry_seconds:
        retry = status_pb2.ErrorRetry()
        retry.retry_delay.FromNanoseconds(round(service_error.retry_seconds * 1e9))
        yield RETRY_INFO, retry


def status_with(code: int, message: str, details: Iterable[Detail]) -> bytes:
    """Return a google.rpc.Status with *details*, as gRPC carries it."""
    status = status_pb2.ErrorStatus(code=code, message=cut_utf8(message, DETAIL_BYTES_MAX))
    for kind, detail in details:
        status.details.add(type_url=kind, value=detail.SerializeToString())
    return status.SerializeToString()
