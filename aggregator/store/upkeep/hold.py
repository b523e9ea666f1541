"""The service's side of a backup: the store's file is held still while others copy it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..mark import size_of
from ..storefile import StoreError, wal_of

if TYPE_CHECKING:
    from ..store import Store
    from ..writer import Writer


@dataclass(frozen=True, slots=True)
class Holding:
    """Where the file stood when the hold began (wall ns), and the journal of that moment."""

    path: Path
    inode: int
    iteration: int
    wal_bytes: int
    wall_time_ns: int
    stood_still_microseconds: int
    journal: bytes

    def grown_bytes(self) -> int:
        """Return how much came into the WAL since."""
        return size_of(wal_of(self.path)) - self.wal_bytes


@contextmanager
def holding(store: Store) -> Iterator[Holding]:
    """Hold the file until the context ends. Blocks for the commit under way. Raises StoreError, TooMuch."""
    held_now = store.between_commits(lambda writer: _hold(store, writer))
    try:
        yield held_now
    finally:
        with suppress(StoreError):  # closing: nobody copies any more
            store.between_commits(lambda writer: writer.release())


def _hold(store: Store, writer: Writer) -> Holding:
    begin = time.monotonic_ns()
    held = writer.hold()
    try:
        journal = store.held_journal()
        inode = os.stat(held.path).st_ino
    except BaseException:
        writer.release()
        raise
    micros = (time.monotonic_ns() - begin) // 1000
    iteration = held.header.iteration if held.header else 0
    return Holding(held.path, inode, iteration, held.wal_bytes, time.time_ns(), micros, journal)
