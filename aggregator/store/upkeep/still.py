"""A store that stands still for a while, so that its files can be copied: a stopped one, or one that is held."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from .. import header
from ..mark import size_of
from ..storefile import FILE, JOURNAL, StoreError, claim, wal_of
from .copying import CopyError


class MovedError(CopyError):
    """The file was changed while it was copied: the copy is none, another try may be."""


@dataclass(frozen=True, slots=True)
class Still:
    """A store as of `as_of_ns` (wall): its file, the first `wal_bytes` of its WAL, and the journal.

    `held`: by an aggregator that runs. `stood_still_microseconds`: for so long nothing was stored. `check` raises MovedError or CopyError when
    what was copied until now is not whole.
    """

    data: Path
    held: bool
    wal_bytes: int
    as_of_ns: int
    journal: bytes
    stood_still_microseconds: int
    check: Callable[[], None]

    @property
    def file(self) -> Path:
        """The live file."""
        return self.data / FILE


@contextmanager
def stopped(data: Path) -> Iterator[Still]:
    """Yield the store in *data*, which no aggregator may have, and keep it from starting meanwhile.

    Raises StoreError when one has it, CopyError when there is no store.
    """
    if not (data / FILE).exists():
        raise CopyError(no_store(data))
    claimed = claim(data)
    try:
        journal = b""
        with suppress(FileNotFoundError):
            journal = (data / JOURNAL).read_bytes()
        wal_bytes = size_of(wal_of(data / FILE))
        yield Still(data, False, wal_bytes, time.time_ns(), journal, 0, unmoved(data / FILE))
    except OSError as error:
        raise CopyError(f"{data}: {error.filename or ''}: {error.strerror}") from error
    finally:
        claimed.withdraw()


def unmoved(file: Path) -> Callable[[], None]:
    """Return what raises MovedError once a checkpoint has changed *file* since now, or another is in its place."""

    def seen() -> tuple[int, header.Header | None]:
        return file.stat().st_ino, header.read(file)

    before = seen()

    def check() -> None:
        if seen() != before:
            raise MovedError(f"{file} was written to while it was copied")

    return check


def no_store(data: Path) -> str:
    """Return what to say of a folder without a store."""
    return (
        f"{data} holds no store (there is no {FILE}): name the aggregator's folder with --data, "
        "as its setting `data` has it"
    )


def in_use(data: Path) -> bool:
    """Say whether an aggregator (or another of these commands) has the folder now."""
    try:
        claim(data).withdraw()
    except StoreError:
        return True
    return False
