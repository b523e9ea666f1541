"""Encodes the cells of a block compactly, and decodes them. Buffers in, bytes out; ValueError when sizes disagree."""

from collections.abc import Callable, Iterable

from typing_extensions import Buffer

from ..contract.block import Block

def packed_size(width: int, rows: int) -> int:
    """Return the bytes that *width* columns of *rows* rows take once packed."""

class Tables:
    """Makes frames of blocks; remembers what the bytes of each table have in common from one to the next."""

    def __init__(
        self, constant: Callable[[str, tuple[int, ...], tuple[str, ...]], tuple[bytes, bytes]]
    ) -> None:
        """*constant* returns what a table's bytes begin with, and its keys; what it raises goes through `take`."""

    def take(self, blocks: Iterable[Block]) -> int:
        """Take the blocks of the next frame; return how many bytes their tables will have."""

    def frame(self, header: bytes) -> bytes:
        """Return *header*, its checksum filled in, and the tables taken, each as a frame holds it: what it begins
        with, offset, rows and columns, keys, the packed cells."""

def unpack(packed: Buffer, cells: Buffer, valid: Buffer, width: int, rows: int) -> None:
    """Fill *cells* and *valid* from what `Tables.frame` packed."""

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
