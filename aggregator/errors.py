"""Errors that the aggregator raises for a caller, each with its message; `service/status.py` maps each to a gRPC status."""

from __future__ import annotations


class ServiceError(Exception):
    """The base of all: an answer as text for the other side, not a fault of ours."""

    #: When the other side is to try again, where we know it.
    retry_seconds: float | None = None
    #: The invalid field of the request and what is wrong with it; "" if no field is invalid.
    field = ""
    field_message = ""


class InvalidArgument(ServiceError):
    """A request's field is not what it may be. The words name the field, the value and the limit."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field, self.field_message = field, message


class AlreadyExists(ServiceError):
    """Another agent speaks under this name; it stays until it has been silent."""


class PermissionDenied(ServiceError):
    """Not by this caller: the words say by whom."""


class Unauthenticated(ServiceError):
    """Nobody knows who calls: no certificate and no token, or one that no longer holds."""


class NoSession(ServiceError):
    """The call carries no session, or one that has ended: register again."""


class NotFound(ServiceError):
    """There is no such host."""


class FailedPrecondition(ServiceError):
    """What the request builds on (a dictionary's epoch) is of the past: fetch it again."""


class InsufficientData(ServiceError):
    """What is on record is not enough for what is asked; the words say how much is."""


class EtagMismatch(ServiceError):
    """It is not any more what the request speaks of (its etag): look again."""


#: Room that others have to make: a place among watchers, hosts that are forgotten, an end of what runs.
CAPACITY_RETRY_SECONDS = 60.0
#: The disk is behind: it may have caught up.
DISK_RETRY_SECONDS = 5.0


class ResourceExhausted(ServiceError):
    """A limit on how many is reached: hosts, events that wait, calls of one caller. Later may help."""

    def __init__(self, message: str, retry_seconds: float) -> None:
        """*retry_seconds*: when it may be tried again."""
        super().__init__(message)
        self.retry_seconds = retry_seconds


class DeadlineExceeded(ServiceError):
    """Cut off at the limit of time."""


class ServiceUnavailable(ServiceError):
    """Nothing to answer with yet, or the disk does not take what must be durable first. Later will help."""

    retry_seconds: float | None = DISK_RETRY_SECONDS


class StreamRefused(ServiceError):
    """So many frames in a row were bad that nothing good must be expected of this stream."""

    field = "frame"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.field_message = message


class StreamDesync(ServiceError):
    """What a stream remembers no longer fits what it sends: only a new stream helps."""
