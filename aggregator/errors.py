"""Errors for callers, each with its message; `service/status.py` maps each to a gRPC status."""

from __future__ import annotations

#: Retry delay while capacity must be freed by others: watchers, hosts, running work.
CAPACITY_RETRY_SECONDS = 60.0
#: Retry delay while the disk is behind.
DISK_RETRY_SECONDS = 5.0


class ServiceError(Exception):
    """Base of all errors with a message for the caller; none is an internal fault."""

    #: Seconds after which the caller should retry, if known.
    retry_seconds: float | None = None
    #: The invalid field of the request and what is wrong with it; "" if no field is invalid.
    field = ""
    field_message = ""


class InvalidArgument(ServiceError):
    """A field of the request is invalid. The message names the field, the value and the limit."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field, self.field_message = field, message


class AlreadyExists(ServiceError):
    """Another agent is registered under this name, until it has been silent."""


class PermissionDenied(ServiceError):
    """The caller may not do this; the message names the roles that may."""


class Unauthenticated(ServiceError):
    """The caller is unknown: it has no certificate or token, or an invalid one."""


class NoSession(ServiceError):
    """The call has no session, or an ended session: register again."""


class NotFound(ServiceError):
    """The named object does not exist."""


class FailedPrecondition(ServiceError):
    """The request is based on an outdated state (such as a dictionary's epoch): fetch it again."""


class AdviceFrozen(FailedPrecondition):
    """No advice is granted while the state of the fleet is in doubt."""


class InsufficientData(ServiceError):
    """The stored data does not suffice for the request; the message says how much is needed."""


class EtagMismatch(ServiceError):
    """The object has changed since the request's etag: read it again."""


class ResourceExhausted(ServiceError):
    """A limit on a number is reached: hosts, waiting events, calls of a caller. Retry later."""

    def __init__(self, message: str, retry_seconds: float) -> None:
        """*retry_seconds*: delay before a retry."""
        super().__init__(message)
        self.retry_seconds = retry_seconds


class DeadlineExceeded(ServiceError):
    """The work was stopped at its time limit."""


class ServiceUnavailable(ServiceError):
    """There is no snapshot yet, or the disk accepts no writes that must be durable. Retry later."""

    retry_seconds: float | None = DISK_RETRY_SECONDS


class StreamRefused(ServiceError):
    """Too many frames in a row were invalid; the stream is closed."""

    field = "frame"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.field_message = message


class StreamDesync(ServiceError):
    """The decoder's state no longer matches the stream: only a new stream helps."""
