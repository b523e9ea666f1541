"""Cells of a block as few bytes, and back. Buffers in, bytes out; ValueError when sizes disagree."""

from typing_extensions import Buffer

def packed_size(width: int, rows: int) -> int:
    """Return the bytes that *width* columns of *rows* rows take once packed."""

def pack(cells: Buffer, valid: Buffer, width: int, rows: int) -> bytes:
    """Return the packed cells. *cells*: 8 bytes a cell, column by column; *valid*: one byte a cell."""

def unpack(packed: Buffer, cells: Buffer, valid: Buffer, width: int, rows: int) -> None:
    """Fill *cells* and *valid* from what `pack` made."""

def changed_rows(
    cells: Buffer,
    valid: Buffer,
    cells_before: Buffer,
    valid_before: Buffer,
    width: int,
    rows: int,
) -> list[int]:
    """Return the rows in which a cell differs, or came, or went."""
