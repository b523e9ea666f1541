"""What the aggregator says no to. Each carries its words; `service/status.py` gives each its status."""

from __future__ import annotations


class Refusal(Exception):
    """The base of all: an answer in words for the other side, not a fault of ours."""

    #: When the other side is to try again, where we know it.
    retry_seconds: float | None = None
    #: The field of the request that is not what it may be, and what of it is wrong; "" where it is none of them.
    field = ""
    field_words = ""


class Invalid(Refusal):
    """A request's field is not what it may be. The words name the field, the value and the limit."""

    def __init__(self, field: str, words: str) -> None:
        super().__init__(f"{field}: {words}")
        self.field, self.field_words = field, words


class NameTaken(Refusal):
    """Another agent speaks under this name; it stays until it has been silent."""


class NotAllowed(Refusal):
    """Not by this caller: the words say by whom."""


class NoLogin(Refusal):
    """Nobody knows who calls: no certificate and no token, or one that no longer holds."""


class NoSession(Refusal):
    """The call carries no session, or one that has ended: register again."""


class NotFound(Refusal):
    """There is no such host."""


class OutOfDate(Refusal):
    """What the request builds on (a dictionary's epoch) is of the past: fetch it again."""


class TooLittle(Refusal):
    """What is on record is not enough for what is asked; the words say how much is."""


class Changed(Refusal):
    """It is not any more what the request speaks of (its etag): look again."""


#: Room that others have to make: a place among watchers, hosts that are forgotten, an end of what runs.
ROOM_SECONDS = 60.0
#: The disk is behind: it may have caught up.
BEHIND_SECONDS = 5.0


class TooMuch(Refusal):
    """A limit on how many is reached: hosts, events that wait, calls of one caller. Later may help."""

    def __init__(self, words: str, retry_seconds: float) -> None:
        """*retry_seconds*: when it may be tried again."""
        super().__init__(words)
        self.retry_seconds = retry_seconds


class TookTooLong(Refusal):
    """Cut off at the limit of time."""


class NotReady(Refusal):
    """Nothing to answer with yet, or the disk does not take what must be durable first. Later will help."""

    retry_seconds: float | None = BEHIND_SECONDS


class StreamRefused(Refusal):
    """So many frames in a row were bad that nothing good is to be expected of this stream."""

    field = "frame"

    def __init__(self, words: str) -> None:
        super().__init__(words)
        self.field_words = words


class DifferencesLost(Refusal):
    """What a stream remembers no longer fits what it sends: only a new stream helps."""
