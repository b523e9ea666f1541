"""Consistent view of a store for a copy: the service holds checkpoints, or the store is stopped."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ....contract.durable_file import CopyError
from .. import duckdb_file, duckdb_header
from ..answer_journal import ANSWERS_FILE
from ..durability_mark import size_of
from ..store_folder import (
    JOURNAL_FILE,
    STORE_FILE,
    STORE_VERSION_FILE,
    StoreError,
    lock_folder,
    wal_of,
)

if TYPE_CHECKING:
    from ..store import Store
    from ..writer import Writer


@dataclass(frozen=True, slots=True)
class CheckpointHold:
    """State of the file when the hold began (wall ns), and both journals of that moment."""

    path: Path
    inode: int
    iteration: int
    wal_bytes: int
    wall_time_ns: int
    paused_microseconds: int
    journal: bytes
    answers: bytes

    def grown_bytes(self) -> int:
        """Return by how much the WAL has grown since then."""
        return size_of(wal_of(self.path)) - self.wal_bytes


@contextmanager
def hold_checkpoints(store: Store) -> Iterator[CheckpointHold]:
    """Prevent changes of the file until the context ends. Blocks for the running commit.

    Raises StoreError, ResourceExhausted.
    """
    checkpoint_hold = store.run_on_writer_thread(lambda writer: _hold(store, writer))
    try:
        yield checkpoint_hold
    finally:
        with suppress(StoreError):  # closing: the copy has ended
            store.run_on_writer_thread(lambda writer: writer.resume_checkpoints())


def _hold(store: Store, writer: Writer) -> CheckpointHold:
    begin = time.monotonic_ns()
    pinned = writer.hold_checkpoints()
    try:
        journal = store.journal_records()
        # No commit runs meanwhile, so each answer is in the file, in its WAL or in this journal.
        answers = _read_answers(pinned.path.parent)
        inode = os.stat(pinned.path).st_ino
    except BaseException:
        writer.resume_checkpoints()
        raise
    micros = (time.monotonic_ns() - begin) // 1000
    iteration = pinned.header.iteration if pinned.header else 0
    return CheckpointHold(
        pinned.path, inode, iteration, pinned.wal_bytes, time.time_ns(), micros, journal, answers
    )


def _read_answers(folder: Path) -> bytes:
    try:
        return (folder / ANSWERS_FILE).read_bytes()
    except FileNotFoundError:
        return b""


class FileChangedError(CopyError):
    """The file was changed while it was copied: the copy is useless, but a retry may succeed."""


@dataclass(frozen=True, slots=True)
class ConsistentView:
    """A store as of `as_of_ns` (wall): its file, the first `wal_bytes` of its WAL, and both
    journals.

    `is_running`: an aggregator uses it. `paused_microseconds`: time during which nothing was
    stored. `check` raises FileChangedError or CopyError if the copy made until now is inconsistent.
    """

    data: Path
    is_running: bool
    wal_bytes: int
    as_of_ns: int
    journal: bytes
    answers: bytes
    paused_microseconds: int
    check: Callable[[], None]

    @property
    def file(self) -> Path:
        """Return the path of the live file."""
        return self.data / STORE_FILE


@contextmanager
def open_stopped_store(data: Path) -> Iterator[ConsistentView]:
    """Yield the store in *data*, locked. Raises StoreError if in use, CopyError if missing."""
    if not (data / STORE_FILE).exists():
        raise CopyError(no_store_message(data))
    folder_lock = lock_folder(data)
    try:
        journal = b""
        with suppress(FileNotFoundError):
            journal = (data / JOURNAL_FILE).read_bytes()
        wal_bytes = size_of(wal_of(data / STORE_FILE))
        yield ConsistentView(
            data, False, wal_bytes, time.time_ns(), journal, _read_answers(data), 0,
            change_check(data / STORE_FILE),
        )  # fmt: skip
    except OSError as error:
        raise CopyError(f"{data}: {error.filename or ''}: {error.strerror}") from error
    finally:
        folder_lock.discard()


def change_check(file: Path) -> Callable[[], None]:
    """Return a check that raises FileChangedError once *file* had a checkpoint or was replaced."""

    def seen() -> tuple[int, duckdb_header.Header | None]:
        return file.stat().st_ino, duckdb_header.read_header(file)

    before = seen()

    def check() -> None:
        if seen() != before:
            raise FileChangedError(f"{file} was written to while it was copied")

    return check


def no_store_message(data: Path) -> str:
    """Return the message for a folder without a store."""
    return (
        f"{data} holds no store (there is no {STORE_FILE}): name the aggregator's folder with --data, "
        "as its setting `data` has it"
    )


def why_no_migration(data: Path) -> str:
    """Return why this version would not migrate the store in *data*; "" if it might.

    Reads `store_version`, because opening the store would migrate it. Raises CopyError.
    """
    if not (data / STORE_FILE).exists():
        return f"{data}: no store yet, nothing to back up"
    newest = duckdb_file.migrations()[-1][0]
    try:
        version = (data / STORE_VERSION_FILE).read_text(errors="replace")[:16].strip()
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise CopyError(f"{data / STORE_VERSION_FILE}: {error.strerror}") from error
    if version.isdecimal() and int(version) >= newest:
        return f"{data}: the store has version {version}, which this version does not migrate: no backup made"
    return ""


def in_use(data: Path) -> bool:
    """Return whether an aggregator, or another of these commands, has locked the folder."""
    try:
        lock_folder(data).discard()
    except StoreError:
        return True
    return False
