"""Opening the store: the folder's lock, whether the file is ours, and its migrations."""

from __future__ import annotations

import fcntl
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import IO

import duckdb

from .. import sql
from .actions import actions_sql

FILE = "gangline.duckdb"
LOCK = "lock"
JOURNAL = "events.journal"
#: Not `ops.duckdb`: DuckDB would name its catalog `ops`, and `ops.worst` would be ambiguous.
OPS_FILE = "operators.duckdb"

#: Bytes 8 to 12 of every DuckDB file.
_MAGIC = b"DUCK"
#: How every file of ours is opened. Left to itself DuckDB would keep up to 80 % of the machine's
#: memory full of pages; past the limit it spills to disk beside the file. One thread: a commit is too
#: small to share, and threads that wait for work cost a third of it.
CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "memory_limit": "1GB",
    "threads": 1,
}


class StoreError(Exception):
    """The store cannot be used; the words say why and what to do."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A folder that is ours until `release`."""

    folder: Path
    lock: IO[str]
    new: bool

    def release(self) -> None:
        """Let another have the folder."""
        self.lock.close()

    def withdraw(self) -> None:
        """Let go of a folder that turned out not to be ours, and leave in it nothing of ours."""
        if self.new:
            with suppress(OSError):
                (self.folder / LOCK).unlink()
        self.lock.close()


def claim(folder: Path) -> Claim:
    """Make *folder* if need be and lock it for this process. Raises StoreError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        new = not (folder / LOCK).exists()
        lock = open(folder / LOCK, "a+", encoding="ascii")  # noqa: SIM115 - held while we live
    except OSError as error:
        raise StoreError(f"{folder}: the data folder cannot be used: {error.strerror}") from error
    claimed = Claim(folder, lock, new)
    try:
        _lock(folder, lock)
    except StoreError:
        claimed.release()
        raise
    try:
        _sign(folder, lock)
    except StoreError:
        claimed.withdraw()
        raise
    return claimed


def _lock(folder: Path, lock: IO[str]) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.seek(0)
        owner = lock.read(64).strip() or "unknown"
        raise StoreError(
            f"{folder} is in use by another aggregator (process {owner}); stop it, "
            "or give this one a folder of its own with --data"
        ) from error
    if not _is_at(folder / LOCK, lock):
        raise StoreError(f"{folder}: another aggregator was just refused it; start this one again")


def _is_at(path: Path, lock: IO[str]) -> bool:
    """Say whether *lock* is still the file at *path*: who was refused takes its own away again."""
    try:
        return os.path.samestat(os.fstat(lock.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _sign(folder: Path, lock: IO[str]) -> None:
    try:
        os.ftruncate(lock.fileno(), 0)
        os.write(lock.fileno(), f"{os.getpid()}\n".encode())
    except OSError as error:
        raise StoreError(f"{folder}: {cause(error, folder)}") from error


def cause(error: Exception, folder: Path) -> str:
    """Return in one line why the disk under *folder* did not take something."""
    text = str(error)
    if "No space left on device" in text:
        return f"no space left on {folder}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)


def open_store(path: Path) -> duckdb.DuckDBPyConnection:
    """Return a connection to the store at *path*, made or migrated as need be. Raises StoreError."""
    _check_magic(path)
    try:
        connection = duckdb.connect(str(path), config=CONFIG)
    except duckdb.Error as error:
        raise StoreError(
            f"{path}: DuckDB {duckdb.__version__} cannot open it: {cause(error, path.parent)}"
        ) from error
    try:
        _migrate(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _check_magic(path: Path) -> None:
    try:
        with open(path, "rb") as file:
            head = file.read(12)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror}") from error
    if head and head[8:] != _MAGIC:
        raise StoreError(
            f"{path} is not a DuckDB file, so it is not our store; it is left untouched: "
            "move it away, or name another folder with --data"
        )


def migrations() -> list[tuple[int, str]]:
    """Return (version, SQL) of every `NNNN_name.sql`, in order."""
    found = []
    for entry in resources.files(sql).iterdir():
        number = re.match(r"(\d{4})_\w+\.sql$", entry.name)
        if number:
            found.append((int(number[1]), entry.read_text()))
    return sorted(found)


def script(name: str) -> str:
    """Return a file of `aggregator/sql`."""
    return (resources.files(sql) / name).read_text()


def ops_script() -> str:
    """Return what makes the schema `ops`: `ops_NN_subject.sql`, in the order of their numbers."""
    names = sorted(e.name for e in resources.files(sql).iterdir() if e.name.startswith("ops_"))
    return actions_sql() + "".join(map(script, names))


def _migrate(connection: duckdb.DuckDBPyConnection, path: Path) -> None:
    have, known = _version(connection, path), migrations()
    newest = known[-1][0]
    if have > newest:
        raise StoreError(
            f"{path} is a store of version {have}, this gangline knows up to {newest}; "
            "it is left untouched: run the newer gangline, or name another folder with --data"
        )
    for version, text in known:
        if version > have:
            connection.execute("BEGIN")
            connection.execute(text)
            connection.execute("UPDATE gangline_store SET schema_version = ?", [version])
            connection.execute("COMMIT")
            connection.execute("CHECKPOINT")  # so that no WAL with an ALTER is ever replayed


def _version(connection: duckdb.DuckDBPyConnection, path: Path) -> int:
    tables = {
        name for (name,) in connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()
    }
    if "gangline_store" in tables:
        row = connection.execute("SELECT max(schema_version) FROM gangline_store").fetchone()
        return int(row[0]) if row and row[0] is not None else 0
    if tables:
        raise StoreError(
            f"{path} is a DuckDB file but not a Gangline store (it holds {_some(tables)}); "
            "it is left untouched: move it away, or name another folder with --data"
        )
    connection.execute("BEGIN")
    connection.execute("CREATE TABLE gangline_store (schema_version INTEGER)")
    connection.execute("INSERT INTO gangline_store VALUES (0)")
    connection.execute("COMMIT")
    return 0


def _some(names: set[str]) -> str:
    first = sorted(names)[:3]
    return ", ".join(first) + (" and more" if len(names) > 3 else "")
