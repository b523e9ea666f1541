"""The table from exceptions to gRPC status, and the interceptor that applies it."""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc
from google.protobuf.message import DecodeError, Message

from ...contract.wire import status_pb2
from .. import errors
from ..auth.access import wrap_handler
from ..auth.limits import peer_address
from ..metrics import CallCounters
from ..principal import NAME_CHARACTERS_MAX
from ..store.store_folder import StoreError

if TYPE_CHECKING:
    from ..ingest.agent_refusals import AgentRefusals

log = logging.getLogger(__name__)

#: Exception -> status. No other module uses status codes for errors.
STATUS: dict[type[errors.ServiceError], grpc.StatusCode] = {
    errors.InvalidArgument: grpc.StatusCode.INVALID_ARGUMENT,
    errors.AlreadyExists: grpc.StatusCode.ALREADY_EXISTS,
    errors.Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    errors.NoSession: grpc.StatusCode.UNAUTHENTICATED,
    errors.PermissionDenied: grpc.StatusCode.PERMISSION_DENIED,
    errors.NotFound: grpc.StatusCode.NOT_FOUND,
    errors.AdviceFrozen: grpc.StatusCode.FAILED_PRECONDITION,
    errors.FailedPrecondition: grpc.StatusCode.FAILED_PRECONDITION,
    errors.InsufficientData: grpc.StatusCode.FAILED_PRECONDITION,
    errors.EtagMismatch: grpc.StatusCode.ABORTED,
    errors.ResourceExhausted: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.DeadlineExceeded: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.ServiceUnavailable: grpc.StatusCode.UNAVAILABLE,
    errors.StreamRefused: grpc.StatusCode.INVALID_ARGUMENT,
    errors.StreamDesync: grpc.StatusCode.DATA_LOSS,
}

#: Trailer for a google.rpc.Status, and its details: invalid field, and retry delay.
DETAILS_KEY = "grpc-status-details-bin"
BAD_REQUEST = "type.googleapis.com/google.rpc.BadRequest"
RETRY_INFO = "type.googleapis.com/google.rpc.RetryInfo"
#: Maximum UTF-8 bytes of a message and of its details: clients refuse trailers above 8 KiB in all.
MESSAGE_BYTES_MAX, DETAIL_BYTES_MAX = 1800, 900

#: Beginning of the short names of the agents' methods.
AGENT_SERVICE = "TelemetryService/"

Handler = Callable[[Any, Any], Awaitable[Any]]


Trailers = tuple[tuple[str, str | bytes], ...]
Detail = tuple[str, Message]


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Turns a ServiceError into its status, other exceptions into INTERNAL and a log entry.

    It is the first interceptor, so that it also answers for the login check.
    """

    def __init__(
        self, calls: CallCounters | None = None, refusals: AgentRefusals | None = None
    ) -> None:
        """*calls*: counters of calls and failures. *refusals*: gets refused calls of agents."""
        self._calls, self._refusals = calls or CallCounters(), refusals

    async def intercept_service(
        self,
        continuation: Callable[[Any], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Return the wrapped handler."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        name = short_name(handler_call_details.method)
        is_agent = name.startswith(AGENT_SERVICE)
        answered = partial(
            with_error_status, calls=self._calls, name=name,
            refusals=self._refusals if is_agent else None,
        )  # fmt: skip
        serializer = serialised(handler.response_serializer)
        deserializer = deserialised(handler.request_deserializer)
        return wrap_handler(handler, answered, serializer, deserializer)


def pushback(seconds: float) -> Trailers:
    """Return the trailing metadata with the retry delay (gRFC A6)."""
    return (("grpc-retry-pushback-ms", str(math.ceil(seconds * 1000))),)


class Malformed(NamedTuple):
    """A request that could not be parsed; gRPC itself would log a traceback for each."""

    reason: str


def deserialised(deserializer: Callable[[bytes], Any] | None) -> Callable[[bytes], Any] | None:
    """Wrap *deserializer* to return `Malformed` instead of raising DecodeError."""
    if deserializer is None:
        return None

    def read(data: bytes) -> Any:
        try:
            return deserializer(data)
        except DecodeError as error:
            return Malformed(str(error))

    return read


def _readable(request: Any, name: str, context: Any) -> Any:
    """Return *request*, or its checked stream. Raises InvalidArgument if malformed."""
    if isinstance(request, Malformed):
        log.warning("%s of %s: a malformed request: %s", name, context.peer(), request.reason)
        message = f"a malformed protobuf message ({request.reason}); expected the request of {name}"
        raise errors.InvalidArgument("request", message)
    return _readable_stream(request, name, context) if hasattr(request, "__aiter__") else request


async def _readable_stream(requests: Any, name: str, context: Any) -> AsyncIterator[Any]:
    async for request in requests:
        yield _readable(request, name, context)


def serialised(serializer: Callable[[Any], bytes] | None) -> Callable[[Any], bytes] | None:
    """Wrap *serializer* to pass replies that are already bytes (serialized once per snapshot)."""
    if serializer is None:
        return None
    return lambda reply: reply if isinstance(reply, bytes) else serializer(reply)


def cut_utf8(message: str, bytes_max: int) -> str:
    """Return the start of *message* that fits into *bytes_max* bytes of UTF-8."""
    return message.encode(errors="replace")[:bytes_max].decode(errors="ignore")


def short_name(method: str) -> str:
    """Return `ScoreService/ScoreNodes` from `/gangline.v1.ScoreService/ScoreNodes`."""
    return method.rpartition(".")[2]


def with_error_status(
    handler: Handler, calls: CallCounters, name: str, refusals: AgentRefusals | None = None
) -> Handler:
    """Wrap *handler*: its exceptions become statuses, and its calls are counted as *name*."""

    async def answered(request: Any, context: Any) -> Any:
        calls.started[name] += 1
        peer = peer_address(context.peer()) if refusals else None
        node = str(getattr(request, "node", ""))[: NAME_CHARACTERS_MAX + 1]
        agent = name, node, peer[0] if peer else "an unknown address"
        try:
            work = handler(_readable(request, name, context), context)
        except errors.InvalidArgument as malformed:
            work = _raising(malformed)
        # gRPC keeps an abort's exception, and with it this frame, until the garbage collector runs:
        # release the request now.
        del request
        try:
            result = await work
            if refusals:
                refusals.accept(*agent)
            return result
        except errors.ServiceError as service_error:
            if refusals:
                refusals.refuse(*agent, service_error)
            message = cut_utf8(str(service_error), MESSAGE_BYTES_MAX)
            answer = STATUS[type(service_error)], message, details_of(service_error)
        except grpc.aio.AbortError:
            raise
        except StoreError as error:
            answer = grpc.StatusCode.UNAVAILABLE, cut_utf8(str(error), MESSAGE_BYTES_MAX), ()
        except Exception as error:
            log.exception("a call failed because of an internal error")
            answer = grpc.StatusCode.INTERNAL, f"internal error: {type(error).__name__}", ()
        calls.failed[name, answer[0].name] += 1
        await context.abort(*answer)

    return answered


async def _raising(error: errors.ServiceError) -> None:
    raise error


def details_of(service_error: errors.ServiceError) -> Trailers:
    """Return the trailers of an error: the invalid field, and the retry delay in both forms."""
    details, seconds = list(_packed(service_error)), service_error.retry_seconds
    if not details:
        return ()
    code = STATUS[type(service_error)].value[0]
    again = pushback(seconds) if seconds else ()
    return (*again, (DETAILS_KEY, status_with(code, str(service_error), details)))


def _packed(service_error: errors.ServiceError) -> Iterator[Detail]:
    if service_error.field:
        message = cut_utf8(service_error.field_message, DETAIL_BYTES_MAX)
        wrong = status_pb2.ErrorFieldViolation(field=service_error.field, description=message)
        yield BAD_REQUEST, status_pb2.ErrorBadRequest(field_violations=[wrong])
    if service_error.retry_seconds:
        retry = status_pb2.ErrorRetry()
        retry.retry_delay.FromNanoseconds(round(service_error.retry_seconds * 1e9))
        yield RETRY_INFO, retry


def status_with(code: int, message: str, details: Iterable[Detail]) -> bytes:
    """Return a serialized google.rpc.Status with *details*."""
    status = status_pb2.ErrorStatus(code=code, message=cut_utf8(message, DETAIL_BYTES_MAX))
    for kind, detail in details:
        status.details.add(type_url=kind, value=detail.SerializeToString())
    return status.SerializeToString()
