"""Cells of a block as few bytes, and back. Buffers in, bytes out; ValueError when sizes disagree."""

from typing_extensions import Buffer

def packed_size(width: int, rows: int) -> int:
    """Return the bytes that *width* columns of *rows* rows take once packed."""

def append_table(
    out: bytearray,
    head: bytes,
    offset: int,
    keys: bytes,
    cells: Buffer,
    valid: Buffer,
    width: int,
    rows: int,
) -> None:
    """Append a table as a frame holds it: *head*, offset, rows and columns, *keys*, the packed cells."""

def unpack(packed: Buffer, cells: Buffer, valid: Buffer, width: int, rows: int) -> None:
    """Fill *cells* and *valid* from what `append_table` packed."""

def names(data: Buffer, at: int, count: int, bytes_max: int) -> tuple[tuple[str, ...], int]:
    """Return *count* names (a byte of length, then UTF-8) and where they end. ValueError."""

def changed_rows(
    cells: Buffer,
    valid: Buffer,
    cells_before: Buffer,
    valid_before: Buffer,
    width: int,
    rows: int,
) -> list[int]:
    """Return the rows in which a cell differs, or came, or went."""
