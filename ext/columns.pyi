"""Encodes a block's cells compactly, and decodes them. Raises ValueError if sizes disagree."""

from collections.abc import Callable, Iterable

from typing_extensions import Buffer

from ..contract.block import Block

def packed_size(width: int, rows: int) -> int:
    """Return the packed size of *width* columns of *rows* rows, in bytes."""

class Tables:
    """Builds frames from blocks; caches the constant bytes of each table."""

    def __init__(
        self, constant: Callable[[str, tuple[int, ...], tuple[str, ...]], tuple[bytes, bytes]]
    ) -> None:
        """*constant* returns a table's first bytes and its keys; `take` raises its exceptions."""

    def take(self, blocks: Iterable[Block]) -> int:
        """Take the blocks of the next frame; return the size of their tables in bytes."""

    def frame(self, header: bytes) -> bytes:
        """Return *header*, with its checksum filled in, and the taken tables.

        Each table: its constant first bytes, offset, rows and columns, keys, packed cells.
        """

def unpack(packed: Buffer, cells: Buffer, valid: Buffer, width: int, rows: int) -> None:
    """Fill *cells* and *valid* from a table packed by `Tables.frame`."""

def names(data: Buffer, at: int, count: int, bytes_max: int) -> tuple[tuple[str, ...], int]:
    """Return *count* names (a length byte, then UTF-8) and their end. Raises ValueError."""

def changed_rows(
    cells: Buffer, valid: Buffer, cells_before: Buffer, valid_before: Buffer, width: int, rows: int
) -> list[int]:
    """Return the rows in which a cell changed, appeared or disappeared."""
