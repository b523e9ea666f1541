"""Encodes rounds of turns as bytes, and decodes them; agent/sampler/messages.py has the rare messages.
A message begins with the bytes of its
body in 32 bits, and its kind in 8."""

from collections.abc import Callable, Sequence
from typing import Any

#: The kind of message that is a round.
ROUND_KIND: int
#: Of one message: 4,096 rows of 200 signals and their names stay far below it.
MESSAGE_BYTES_MAX: int
#: Who is slow, as a rule.
NOBODY: frozenset[str]

class CodecError(ValueError):
    """What came is not what the other side of this house says."""

class Writer:
    """Remembers which blocks the reader knows. While it does, they keep their memory where it is."""

    def __init__(
        self,
        collectors: Sequence[str],
        shape_bytes: Callable[[Any], bytes],
        names_bytes: Callable[[frozenset[str]], bytes],
    ) -> None:
        """*collectors*: the same names in the same order as the reader's. *shape_bytes*: a block's rows and columns."""

    def encode(
        self,
        grid_ns: int,
        cpu_seconds: float,
        memory_bytes: int,
        dropped: int,
        turns: Sequence[tuple[int, tuple[Any, ...]]],
        slow: frozenset[str],
    ) -> bytes:
        """Return the message of a round. Raises CodecError when it is too long for one: `forget` then.

        A turn: when it began, and its collector, blocks, seconds, outcome and words.
        """

    def forget(self) -> None:
        """The last message was not sent: tell all shapes again."""

class Reader:
    """Cuts a stream of bytes into messages. The blocks of a round are refilled by the next.

    As a buffer it is the room for what comes: a socket receives into it, and `came` is told how much.
    """

    def __init__(
        self,
        collectors: Sequence[str],
        outcomes: Sequence[int],
        shapes: tuple[type, type, type],
        shaped: Callable[[bytes, int], Any],
        names_of: Callable[[bytes], frozenset[str]],
        others: Callable[[int, bytes], Any],
    ) -> None:
        """*shapes*: named tuples of a round, of when a turn began and the turn, and of a turn. *shaped* makes the block
        of a shape, given too how many bytes of cells may follow. *others*: what a message is that is no round."""

    def __buffer__(self, flags: int, /) -> memoryview: ...
    def came(self, count: int) -> bool:
        """Take this many bytes of the room. True: they fill it, there may be more."""

    @property
    def waiting(self) -> bool:
        """Whether a whole message waits."""

    def next(self) -> Any:
        """Return the next whole message, or None. Raises CodecError, after which nothing is of use."""
