"""The head of a DuckDB file, read without DuckDB: which checkpoint, how long it must be.

Layout (DuckDB's `main_header.hpp` and `database_header`): a block of 4096 bytes with "DUCK" at 8, then two of 4096 bytes
of which the one with the higher iteration is in force. Little endian.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path

#: Bytes 8 to 12 of every DuckDB file.
MAGIC = b"DUCK"
#: The three blocks of the head; data begins here.
HEAD_BYTES = 12_288
#: After the checksum: iteration, first block of metadata, free list, blocks, bytes of a block.
_HEAD = struct.Struct("<8xQ8x8xQQ")


@dataclass(frozen=True, slots=True)
class Header:
    """What the head says; `size_bytes` is how long the file must be to hold what it promises."""

    #: Rises by one with each checkpoint; between two of them no block that is in force is written to.
    iteration: int
    size_bytes: int


def parse(head: bytes) -> Header | None:
    """Return what *head* (the first 12,288 bytes of a file) says; None when it is no DuckDB file's."""
    if len(head) < HEAD_BYTES or head[8:12] != MAGIC:
        return None
    newest = max(_HEAD.unpack_from(head, at) for at in (4096, 8192))
    iteration, blocks, block_bytes = newest
    return Header(iteration, HEAD_BYTES + blocks * block_bytes)


def read(path: Path) -> Header | None:
    """Read and parse. Raises OSError.

    Never of a file that this process has open in DuckDB: to close it would end DuckDB's lock (POSIX).
    """
    with open(path, "rb") as file:
        return parse(file.read(HEAD_BYTES))


def read_descriptor(descriptor: int) -> Header | None:
    """The same from an open file, which stays open. Raises OSError."""
    return parse(os.pread(descriptor, HEAD_BYTES, 0))
