"""Parser of a DuckDB file's header: the checkpoint's iteration and the least size of a complete file.

The header (DuckDB, main_header.hpp) is little endian: a block of 4096
bytes with "DUCK" at 8, then two blocks of 4096 bytes; the higher iteration is valid.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path

#: Bytes 8 to 12 of every DuckDB file.
MAGIC = b"DUCK"
#: The three blocks of the header; data begins here.
HEAD_BYTES = 12_288
#: After the checksum: iteration, first block of metadata, free list, blocks, bytes of a block.
_HEAD = struct.Struct("<8xQ8x8xQQ")


@dataclass(frozen=True, slots=True)
class Header:
    """The valid header; `size_bytes` is the least size of a complete file."""

    #: Rises by 1 with each checkpoint; between checkpoints no block in use is overwritten.
    iteration: int
    size_bytes: int


def parse_header(head: bytes) -> Header | None:
    """Return the header in *head* (first 12,288 bytes of a file); None if it is not DuckDB's."""
    if len(head) < HEAD_BYTES or head[8:12] != MAGIC:
        return None
    newest = max(_HEAD.unpack_from(head, offset) for offset in (4096, 8192))
    iteration, blocks, block_bytes = newest
    return Header(iteration, HEAD_BYTES + blocks * block_bytes)


def read_header(path: Path) -> Header | None:
    """Read and parse the header of the file at *path*. Raises OSError.

    Do not call this for a file that this process has open in DuckDB: closing it would drop DuckDB's
    POSIX lock.
    """
    with open(path, "rb") as file:
        return parse_header(file.read(HEAD_BYTES))


def read_open_header(descriptor: int) -> Header | None:
    """Return the header of an open file, which stays open. Raises OSError."""
    return parse_header(os.pread(descriptor, HEAD_BYTES, 0))
