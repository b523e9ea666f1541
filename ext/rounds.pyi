"""Encodes rounds of turns as bytes, and decodes them; agent/sampler/messages.py has other messages.

A message starts with the size of its body (32 bits) and its kind (8 bits).
"""

from collections.abc import Callable, Sequence
from typing import Any

#: Kind of a message that is a round.
ROUND_KIND: int
#: Size of a message: 4,096 rows of 200 signals with names are far below it.
MESSAGE_BYTES_MAX: int
#: The usual value of *slow*.
NOBODY: frozenset[str]

class CodecError(ValueError):
    """A message is malformed or too long."""

class Writer:
    """The encoder: remembers which blocks the reader knows, and keeps their buffers in place."""

    def __init__(
        self,
        collectors: Sequence[str],
        shape_bytes: Callable[[Any], bytes],
        names_bytes: Callable[[frozenset[str]], bytes],
    ) -> None:
        """*collectors*: as the reader's, in order. *shape_bytes*: a block's rows and columns."""

    def encode(
        self,
        grid_ns: int,
        cpu_seconds: float,
        memory_bytes: int,
        dropped: int,
        turns: Sequence[tuple[int, tuple[Any, ...]]],
        slow: frozenset[str],
    ) -> bytes:
        """Return the message of a round. Raises CodecError if it is too long: then call `forget`.

        A turn is its start, and a result: collector, blocks, seconds, outcome and message.
        """

    def forget(self) -> None:
        """Encode all shapes again, because the last message was not sent."""

class Reader:
    """The decoder: splits a stream into messages. Each round refills the blocks of the last.

    Its buffer is free space for received bytes: a socket receives into it, then `came` is called.
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
        """*shapes*: named-tuple types of a round, of a timed turn, and of a turn.

        *shaped* creates a shape's block, given the limit of its cell bytes. *others* decodes
        messages that are not rounds.
        """

    def __buffer__(self, flags: int, /) -> memoryview: ...
    def came(self, count: int) -> bool:
        """Accept *count* received bytes. True: the buffer was filled, so more may wait."""

    @property
    def waiting(self) -> bool:
        """Whether a complete message waits."""

    def next(self) -> Any:
        """Return the next complete message, or None. After a CodecError the reader is unusable."""
