"""Opening the store: the folder's lock, whether the file is ours, and its migrations."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
from contextlib import suppress
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import IO

import duckdb

from .. import sql
from . import header
from .actions import actions_sql
from .folder import sync_folder

FILE = "gangline.duckdb"
LOCK = "lock"
JOURNAL = "events.journal"
#: Not `ops.duckdb`: DuckDB would name its catalog `ops`, and `ops.worst` would be ambiguous.
OPS_FILE = "operators.duckdb"
#: While a compacted file takes the place of the old one, that one is kept under this name.
BEFORE_SWAP = "gangline-before.duckdb"
#: A compacted file that is not in place yet.
COMPACTED = "compacted-new.duckdb"
#: Where `gangline admin verify` puts the copy that it reads.
SCRATCH = "gangline-verify-"
#: Hard links to Parquet files while they are copied, a folder for each process that copies.
HOLDS = "backup-holds"
#: A folder in which `gangline admin restore` puts what it has not put in its place yet.
RESTORING = "restoring"

#: How every file of ours is opened. Left to itself DuckDB would keep up to 80 % of the machine's
#: memory full of pages; past the limit it spills to disk beside the file. One thread: a commit is too
#: small to share, and threads that wait for work cost a third of it.
CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "memory_limit": "384MB",
    "threads": 1,
}
#: What the names of the threads begin with that may be in DuckDB, or in the disk.
THREADS = "store-"
#: Where the store's connections put what memory has no room for.
SPILL = "spill"


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
        # Who may read it reads all: hosts, jobs, users, whatever login the service asks for.
        folder.mkdir(mode=0o750, parents=True, exist_ok=True)
        new = not (folder / LOCK).exists()
        lock = open(folder / LOCK, "a+", encoding="ascii")  # noqa: SIM115 - held while we live
    except OSError as error:
        raise StoreError(
            f"{error.filename or folder}: the data folder cannot be used: {error.strerror}"
            f"{_folder_remedy(error, folder)}"
        ) from error
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


def _folder_remedy(error: OSError, folder: Path) -> str:
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"; it must belong to the user that the aggregator runs as (user id {os.geteuid()})"
    if error.errno == errno.EROFS:
        return "; remount it writable, or name another folder with --data"
    if error.errno == errno.ENOSPC:
        return "; make room there: nothing was written"
    if error.errno in (errno.EISDIR, errno.ENOTDIR, errno.EEXIST):
        return f"; {LOCK} must be a file of ours, and all above it folders: move away what is there"
    return ""


def _lock(folder: Path, lock: IO[str]) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.seek(0)
        owner = lock.read(64).strip() or "unknown"
        raise StoreError(
            f"{folder} is in use by another aggregator (process {owner}); stop it, "
            "or name another folder with --data"
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
        raise StoreError(
            f"{folder}: {cause(error, folder)}{_folder_remedy(error, folder)}"
        ) from error


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
    if (path.parent / RESTORING).exists():
        raise StoreError(
            f"{path.parent}: a restore into this folder has not ended; run it again: "
            f"gangline admin restore --from BACKUP --data {path.parent} --force"
        )
    if not path.exists():
        _make(path)
    short = check_file(path)
    try:
        connection = _connect(path)
    except StoreError as error:
        raise StoreError(f"{short}; {error}" if short else str(error)) from error
    try:
        if short and (table := _unreadable(connection)):
            raise StoreError(f"{short}, and {table} cannot be read: {damaged_words(path)}")
        _migrate(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _make(path: Path) -> None:
    """Make an empty store under another name, so that a kill meanwhile leaves no half of one."""
    new = path.with_name("gangline-new.duckdb")
    for each in (new, wal_of(new), wal_of(path)):  # a WAL without its file is of nobody
        each.unlink(missing_ok=True)
    connection = _connect(new)
    try:
        _migrate(connection, new)
    finally:
        connection.close()
    new.replace(path)
    sync_folder(path.parent)


def wal_of(path: Path) -> Path:
    """Return where DuckDB keeps the log of the file at *path*."""
    return path.with_name(path.name + ".wal")


def sweep(folder: Path) -> None:
    """Remove what a compaction or a copy left in *folder* that was killed. Never raises."""
    for name in (BEFORE_SWAP, COMPACTED, f"{COMPACTED}.wal"):
        with suppress(OSError):
            (folder / name).unlink(missing_ok=True)
    for each in (folder / HOLDS, *folder.glob(f"{SCRATCH}*")):
        shutil.rmtree(each, ignore_errors=True)


def _connect(path: Path) -> duckdb.DuckDBPyConnection:
    try:
        # Named here: replaying a log may spill, and after that DuckDB takes no other folder.
        return duckdb.connect(
            str(path), config=CONFIG | {"temp_directory": str(path.parent / SPILL)}
        )
    except duckdb.Error as error:
        words = cause(error, path.parent)
        raise StoreError(
            f"{path}: DuckDB {duckdb.__version__} cannot open it: {words}{_remedy(words, path)}"
        ) from error


def _remedy(words: str, path: Path) -> str:
    """Return what to do about a file that DuckDB does not open for these *words*, "" when they say it."""
    wal = wal_of(path)
    if "WAL" in words:
        return (
            f". Everything up to the last checkpoint is in {path.name} itself: restore a backup "
            f"({restore_words(path)}), or move {wal} away and start again, which loses what it holds "
            f"({wal.stat().st_size if wal.exists() else 0} bytes of the last readings)"
        )
    if any(sign in words for sign in ("orrupt", "not a valid", "read enough", "checksum")):
        return f". It is damaged and left as it is: {damaged_words(path)}"
    if "version number" in words:
        return (
            ". It was written by a newer DuckDB, and is left untouched: install that one into this "
            f"environment (pip install 'duckdb>=2,<3'), or restore a backup from before: {restore_words(path)}"
        )
    if "fsync" in words or "nput/output" in words:
        return disk_words(path.parent)
    if "ermission" in words or "Read-only" in words:
        return ". Give its folder to the user that the aggregator runs as (chown, or remount it writable)"
    return ""


def disk_words(folder: Path) -> str:
    """Return what to do about a disk that fails."""
    return (
        f". The disk under {folder} fails: see the kernel's log (dmesg). What was receipted before is there; start "
        f"this one again once the disk is well, or restore a backup to another: gangline admin restore --from "
        "BACKUP --data OTHER"
    )


def restore_words(path: Path) -> str:
    """Return the command that puts a backup in the place of the store at *path*."""
    return f"gangline admin restore --from BACKUP --data {path.parent} --force"


def damaged_words(path: Path) -> str:
    """Return what to do with a damaged store."""
    return (
        f"restore a backup ({restore_words(path)}), see what is readable "
        f"(gangline admin verify --data {path.parent}), or move it away to begin with an empty store"
    )


def check_file(path: Path) -> str:
    """Return in words that the file is shorter than it says, "" when it is not.

    DuckDB would open it, and fail with the first reading that stood behind its end. Yet it need not be damaged: blocks
    at the end that were free when the disk failed were never written. Raises StoreError for a file that is not ours.
    """
    try:
        with open(path, "rb") as file:
            head = file.read(header.HEAD_BYTES)
        size = path.stat().st_size
    except OSError as error:
        raise StoreError(
            f"{path}: cannot be read: {error.strerror}. It must belong to the user that the aggregator "
            f"runs as (user id {os.geteuid()})"
        ) from error
    if len(head) >= 12 and head[8:12] != header.MAGIC:
        raise StoreError(
            f"{path} is not a DuckDB file, so it is not our store; it is left untouched: "
            f"move it away, name another folder with --data, or restore a backup: {restore_words(path)}"
        )
    found = header.parse(head)
    wanted = found.size_bytes if found else header.HEAD_BYTES
    if size >= wanted:
        return ""
    words = (
        f"{path} was cut off: it has {size} bytes, and says that it has {wanted} (a copy that did not "
        "end, or a disk that lost its last writes)"
    )
    if found is None:
        raise StoreError(f"{words}; it is left untouched: {damaged_words(path)}")
    return words


def _unreadable(connection: duckdb.DuckDBPyConnection) -> str:
    """Read every block; return the name of the first table that has one that cannot be read, "" when all can."""
    names = connection.execute("SELECT schema_name, table_name FROM duckdb_tables()").fetchall()
    for schema, table in names:
        try:
            connection.execute(
                f'SELECT bit_xor(hash(one)) FROM "{schema}"."{table}" AS one'
            ).fetchall()
        except duckdb.Error:
            return f"{schema}.{table}"
    return ""


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
