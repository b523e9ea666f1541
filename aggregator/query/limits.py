"""What one query may take, and the messages between a query's process and whoever asked."""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

#: A longer statement is refused: nobody types it, and a parser's stack is finite.
SQL_BYTES_MAX = 256 << 10
#: A query that does not end when it is interrupted is killed after so long.
KILL_AFTER_SECONDS = 1.0
#: One message of an answer is no longer: with gRPC's own bytes it fits its default limit of 4 MiB.
PIECE_BYTES_MAX = (4 << 20) - (16 << 10)
#: Record batches are cut to about so many bytes, so that a reader shows the first rows early.
BATCH_BYTES = 1 << 20

#: A message: its kind, then its length in bytes.
HEAD = struct.Struct("<cI")
#: Kinds: the question; bytes of an Arrow IPC stream; the end of a good answer; the end of a bad one.
ASK, ARROW, SUMMARY, ERROR = b"q", b"a", b"s", b"e"
#: What an answer ends with when it is no good: kind of trouble -> see `trouble.py`.
REFUSED, MEMORY, TIME, NO_SNAPSHOT, FAILED = "refused", "memory", "time", "no snapshot", "failed"
#: What a process ends with that has no memory left to say so.
NO_MEMORY_STATUS = 77
#: A packet between a nursery and its owner is shorter than this.
PACKET_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True)
class Place:
    """Whose questions a nursery serves: the data folder, and what each process may take."""

    folder: Path
    memory_bytes_max: int
    threads: int

    def to_text(self) -> str:
        """Return what `from_text` reads."""
        return json.dumps({**asdict(self), "folder": str(self.folder)})

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Return what `to_text` wrote."""
        values = json.loads(text)
        return cls(**{**values, "folder": Path(values["folder"])})


@dataclass(frozen=True, slots=True)
class Question:
    """One statement and its limits; 0: without that limit."""

    sql: str
    seconds: float
    rows_max: int = 0
    bytes_max: int = 0
    compressed: bool = False


@dataclass(frozen=True, slots=True)
class Answered:
    """The end of a good answer. `taken_us`: as of when the snapshot is, microseconds since 1970."""

    rows: int
    size_bytes: int
    elapsed_seconds: float
    truncated_reason: str
    taken_us: int
    history_missing_reason: str


def message(kind: bytes, payload: bytes | memoryview) -> bytes:
    """Return one message."""
    return HEAD.pack(kind, len(payload)) + payload


def told(kind: bytes, value: Any) -> bytes:
    """Return a message of a dataclass or a dict."""
    plain = value if isinstance(value, dict) else asdict(value)
    return message(kind, json.dumps(plain).encode())


def too_long(seconds: float) -> str:
    """Return what to do about a question that took too long."""
    return (
        f"ran longer than {seconds:g} s and was cut off: ask for less (a host, a shorter time, a LIMIT), "
        "or for a rollup rather than raw readings"
    )


def too_much(memory_bytes_max: int) -> str:
    """Return what to do about a question that took too much."""
    size = memory_bytes_max / (1 << 30)
    said = f"{size:.3g} GB" if size >= 1 else f"{memory_bytes_max >> 20} MB"
    return (
        f"used more than {said} of memory, which it may not: ask for less (WHERE, fewer columns), or "
        "leave out what must hold all rows at once (ORDER BY without LIMIT, GROUP BY)"
    )
