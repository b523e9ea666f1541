"""Opens the store: locks the folder, checks that the file is Gangline's, runs migrations."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import struct
import time
import uuid
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib import resources
from pathlib import Path
from shutil import rmtree
from typing import IO, Any

import duckdb
import pyarrow as pa

from .. import sql
from ..durable_file import replace_file, sync_folder
from ..rule_catalogue import faults_sql
from ..sql import quoted
from .live_tables import actions_sql

# ----------------------------------------------------------------------
# The head of a DuckDB file, read without DuckDB: which checkpoint, how long it must be.
#
# Layout (DuckDB's `main_header.hpp` and `database_header`): a block of 4096 bytes with "DUCK" at 8,
# then two of 4096 bytes of which the one with the higher iteration is in force. Little endian.

#: Bytes 8 to 12 of every DuckDB file.
MAGIC = b"DUCK"
#: The three blocks of the head; data begins here.
HEAD_BYTES = 12_288
#: After the checksum: iteration, first block of metadata, free list, blocks, bytes of a block.
_HEAD = struct.Struct("<8xQ8x8xQQ")


@dataclass(frozen=True, slots=True)
class Header:
    """What the head says; `size_bytes` is how long the file must be to hold what it promises."""

    #: Rises by one with each checkpoint; between two of them no block that is in force is written to.
    iteration: int
    size_bytes: int


def parse_header(head: bytes) -> Header | None:
    """Return what *head* (the first 12,288 bytes of a file) says; None when it is no DuckDB file's."""
    if len(head) < HEAD_BYTES or head[8:12] != MAGIC:
        return None
    newest = max(_HEAD.unpack_from(head, at) for at in (4096, 8192))
    iteration, blocks, block_bytes = newest
    return Header(iteration, HEAD_BYTES + blocks * block_bytes)


def read_header(path: Path) -> Header | None:
    """Read and parse. Raises OSError.

    Never of a file that this process has open in DuckDB: to close it would end DuckDB's lock (POSIX).
    """
    with open(path, "rb") as file:
        return parse_header(file.read(HEAD_BYTES))


def read_open_header(descriptor: int) -> Header | None:
    """The same from an open file, which stays open. Raises OSError."""
    return parse_header(os.pread(descriptor, HEAD_BYTES, 0))


STORE_FILE = "gangline.duckdb"
#: The store's version as a text beside it: a package that would go back past it is refused before it is unpacked, by a shell
#: that cannot open the store (packaging/scripts/functions.sh).
STORE_VERSION_FILE = "store_version"
#: A random identity. Backups do not contain the file, so a restored store has another identity.
IDENTITY_FILE = "store_identity"
LOCK_FILE = "lock"
JOURNAL_FILE = "events.journal"
#: Not `ops.duckdb`: DuckDB would name its catalog `ops`, and `ops.worst` would be ambiguous.
OPS_FILE = "operators.duckdb"
#: Where the chart puts the backup from before a migration; a restore leaves it in its place.
BACKUPS_FOLDER = "backups"
#: While a compacted file takes the place of the old one, that one is kept under this name.
BEFORE_SWAP = "gangline-before.duckdb"
#: A compacted file that is not in place yet.
COMPACTED_FILE = "compacted-new.duckdb"
#: Where `gangline admin verify` puts the copy that it reads.
VERIFY_SCRATCH_PREFIX = "gangline-verify-"
#: Hard links to Parquet files while they are copied, a folder for each process that copies.
BACKUP_HOLDS_FOLDER = "backup-holds"
#: A folder in which `gangline admin restore` puts what it has not put in its place yet.
RESTORE_FOLDER = "restoring"

#: The oldest DuckDB that can read a new file. Left to itself DuckDB writes for 0.10, where statistics take 3 kB of each
#: column, also of an empty one: 17 MB of an operators' file without a row. A file keeps the version that it was made with.
STORAGE_VERSION = "v1.2.0"
#: How every file of ours is opened. Left to itself DuckDB would keep up to 80 % of the machine's
#: memory full of pages; past the limit it spills to disk beside the file. One thread: a commit is too
#: small to share, and threads that wait for work cost a third of it.
#: Blocks of a new file: what was inserted since a checkpoint is in memory by blocks, of each column of each table at
#: least one. With DuckDB's own 256 KiB that is 280 MB for 33 hosts.
CONNECTION_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "default_block_size": 16_384,
    "storage_compatibility_version": STORAGE_VERSION,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "memory_limit": "384MB",
    "threads": 1,
}
#: What the names of the threads begin with that may be in DuckDB, or in the disk.
THREAD_NAME_PREFIX = "store-"
#: Where the store's connections put what memory has no room for.
SPILL_FOLDER = "spill"


class StoreError(Exception):
    """The store cannot be used; the words say why and what to do."""


@dataclass(frozen=True, slots=True)
class FolderLock:
    """A folder that is ours until `release`."""

    folder: Path
    file: IO[str]
    is_new: bool

    def release(self) -> None:
        """Let another have the folder."""
        self.file.close()

    def discard(self) -> None:
        """Release a folder that turned out not to be ours, and leave in it nothing of ours."""
        if self.is_new:
            with suppress(OSError):
                (self.folder / LOCK_FILE).unlink()
        self.file.close()


def lock_folder(folder: Path) -> FolderLock:
    """Make *folder* if need be and lock it for this process. Raises StoreError."""
    try:
        # Who may read it reads all: hosts, jobs, users, whatever login the service asks for.
        folder.mkdir(mode=0o750, parents=True, exist_ok=True)
        new = not (folder / LOCK_FILE).exists()
        lock = open(folder / LOCK_FILE, "a+", encoding="ascii")  # noqa: SIM115 - held while we live
    except OSError as error:
        raise StoreError(
            f"{error.filename or folder}: the data folder cannot be used: {error.strerror}"
            f"{_folder_remedy(error, folder)}"
        ) from error
    folder_lock = FolderLock(folder, lock, new)
    try:
        _lock(folder, lock)
    except StoreError:
        folder_lock.release()
        raise
    try:
        _write_pid(folder, lock)
    except StoreError:
        folder_lock.discard()
        raise
    return folder_lock


def _folder_remedy(error: OSError, folder: Path) -> str:
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"; it must belong to the user that the aggregator runs as (user id {os.geteuid()})"
    if error.errno == errno.EROFS:
        return "; remount it writable, or name another folder with --data"
    if error.errno == errno.ENOSPC:
        return "; free some space there: nothing was written"
    if error.errno in (errno.EISDIR, errno.ENOTDIR, errno.EEXIST):
        return f"; {LOCK_FILE} must be a file of Gangline's in existing folders: move away what is there"
    return ""


def _lock(folder: Path, lock: IO[str]) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.seek(0)
        owner = lock.read(64).strip() or "unknown"
        raise StoreError(
            f"{folder} is in use by another aggregator (process {owner}). Stop it, or name "
            "another folder with --data"
        ) from error
    if not _is_at(folder / LOCK_FILE, lock):
        raise StoreError(
            f"{folder}: another aggregator just tried to open it. Start this one again"
        )


def _is_at(path: Path, lock: IO[str]) -> bool:
    """Return whether *lock* is still the file at *path*: who was refused takes its own away again."""
    try:
        return os.path.samestat(os.fstat(lock.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _write_pid(folder: Path, lock: IO[str]) -> None:
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
    if (path.parent / RESTORE_FOLDER).exists():
        raise StoreError(
            f"{path.parent}: a restore into this folder has not ended; run it again: "
            f"gangline admin restore --from BACKUP --data {path.parent} --force"
        )
    if not path.exists():
        _create(path)
    truncation = check_file(path)
    try:
        connection = _connect(path)
    except StoreError as error:
        raise StoreError(f"{truncation}; {error}" if truncation else str(error)) from error
    try:
        if truncation and (table := _unreadable_table(connection)):
            raise StoreError(
                f"{truncation}, and {table} cannot be read: {damaged_store_advice(path)}"
            )
        _migrate(connection, path)
        note_store_version(path.parent, migrations()[-1][0])
    except BaseException:
        connection.close()
        raise
    return connection


def note_store_version(folder: Path, version: int) -> None:
    """Write the version of the store in *folder* beside it. Raises StoreError."""
    file = folder / STORE_VERSION_FILE
    text = f"{version}\n"
    try:
        if not file.exists() or file.read_text(errors="replace") != text:
            new = file.with_name(f"{STORE_VERSION_FILE}.new")
            new.write_text(text)
            new.replace(file)
    except OSError as error:
        raise StoreError(
            f"{file}: {cause(error, folder)}{_folder_remedy(error, folder)}"
        ) from error


def folder_identity(folder: Path) -> str:
    """Return the identity in *folder*; a missing or damaged one is created. Raises StoreError."""
    file = folder / IDENTITY_FILE
    try:
        found = file.read_bytes()[:64].decode("ascii", "replace").strip() if file.exists() else ""
        if not re.fullmatch(r"[0-9a-f]{16}", found):
            found = uuid.uuid4().hex[:16]
            replace_file(file, f"{found}\n".encode())
    except OSError as error:
        raise StoreError(
            f"{file}: {cause(error, folder)}{_folder_remedy(error, folder)}"
        ) from error
    return found


def _create(path: Path) -> None:
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


def remove_leftovers(folder: Path) -> None:
    """Remove what a compaction or a copy left in *folder* that was killed. Never raises."""
    for name in (BEFORE_SWAP, COMPACTED_FILE, f"{COMPACTED_FILE}.wal"):
        with suppress(OSError):
            (folder / name).unlink(missing_ok=True)
    for each in (folder / BACKUP_HOLDS_FOLDER, *folder.glob(f"{VERIFY_SCRATCH_PREFIX}*")):
        shutil.rmtree(each, ignore_errors=True)


def _connect(path: Path) -> duckdb.DuckDBPyConnection:
    try:
        # Named here: replaying a log may spill, and after that DuckDB takes no other folder.
        return duckdb.connect(
            str(path),
            config=CONNECTION_CONFIG | {"temp_directory": str(path.parent / SPILL_FOLDER)},
        )
    except duckdb.Error as error:
        reason = cause(error, path.parent)
        raise StoreError(
            f"{path}: DuckDB {duckdb.__version__} cannot open it: {reason}{_remedy(reason, path)}"
        ) from error


def _remedy(reason: str, path: Path) -> str:
    """Return what to do about a file that DuckDB does not open for these *reason*, "" when they say it."""
    wal = wal_of(path)
    if "WAL" in reason:
        return (
            f". Everything up to the last checkpoint is in {path.name} itself: restore a backup "
            f"({restore_command(path)}), or move {wal} away and start again, which loses what it holds "
            f"({wal.stat().st_size if wal.exists() else 0} bytes of the last readings)"
        )
    if any(sign in reason for sign in ("orrupt", "not a valid", "read enough", "checksum")):
        return f". It is damaged and unchanged: {damaged_store_advice(path)}"
    if "version number" in reason:
        return (
            ". It was written by a newer DuckDB, and is unchanged: install that one into this "
            "environment (pip install 'duckdb>=2,<3'), or restore an earlier backup: "
            f"{restore_command(path)}"
        )
    if "fsync" in reason or "nput/output" in reason:
        return disk_failure_advice(path.parent)
    if "ermission" in reason or "Read-only" in reason:
        return ". Give its folder to the user that the aggregator runs as (chown, or remount it writable)"
    return ""


def disk_failure_advice(folder: Path) -> str:
    """Return what to do about a disk that fails."""
    return (
        f". The disk under {folder} fails: see the kernel log (dmesg). All acknowledged data is "
        "there; start the aggregator again once the disk works, or restore a backup to another: "
        "gangline admin restore --from "
        "BACKUP --data OTHER"
    )


def restore_command(path: Path) -> str:
    """Return the command that puts a backup in the place of the store at *path*."""
    return f"gangline admin restore --from BACKUP --data {path.parent} --force"


def damaged_store_advice(path: Path) -> str:
    """Return what to do with a damaged store."""
    return (
        f"restore a backup ({restore_command(path)}), see what is readable "
        f"(gangline admin verify --data {path.parent}), or move it away to start with an empty "
        "store"
    )


def check_file(path: Path) -> str:
    """Return as text that the file is shorter than it says, "" when it is not.

    DuckDB would open it, and fail with the first reading that stood behind its end. Yet it need not be damaged: blocks
    at the end that were free when the disk failed were never written. Raises StoreError for a file that is not ours.
    """
    try:
        with open(path, "rb") as file:
            head = file.read(HEAD_BYTES)
        size = path.stat().st_size
    except OSError as error:
        raise StoreError(
            f"{path}: cannot be read: {error.strerror}. It must belong to the user that the aggregator "
            f"runs as (user id {os.geteuid()})"
        ) from error
    if len(head) >= 12 and head[8:12] != MAGIC:
        raise StoreError(
            f"{path} is not a DuckDB file, so it is not a Gangline store. It is unchanged: move "
            "it away, name another folder with --data, or restore a backup: "
            f"{restore_command(path)}"
        )
    found = parse_header(head)
    wanted = found.size_bytes if found else HEAD_BYTES
    if size >= wanted:
        return ""
    message = f"{path} was cut off: it has {size} bytes, and says that it has {wanted} (an incomplete copy, or a disk that lost its last writes)"
    if found is None:
        raise StoreError(f"{message}; it is unchanged: {damaged_store_advice(path)}")
    return message


def _unreadable_table(connection: duckdb.DuckDBPyConnection) -> str:
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


@cache
def migrations() -> tuple[tuple[int, str], ...]:
    """Return (version, SQL) of every `NNNN_name.sql`, in order. Read once a process."""
    found = []
    for entry in resources.files(sql).iterdir():
        number = re.match(r"(\d{4})_\w+\.sql$", entry.name)
        if number:
            found.append((int(number[1]), entry.read_text()))
    return tuple(sorted(found))


@cache
def script(name: str) -> str:
    """Return a file of `aggregator/sql`. Read once a process."""
    return (resources.files(sql) / name).read_text()


@cache
def ops_script() -> str:
    """Return what makes the schema `ops`: `ops_NN_subject.sql`, in the order of their numbers."""
    names = sorted(e.name for e in resources.files(sql).iterdir() if e.name.startswith("ops_"))
    return actions_sql() + faults_sql() + "".join(map(script, names))


def _migrate(connection: duckdb.DuckDBPyConnection, path: Path) -> None:
    have, known = _version(connection, path), migrations()
    newest = known[-1][0]
    if have > newest:
        raise StoreError(
            f"{path} is a store of version {have}, this gangline knows up to {newest}; "
            "it is unchanged: run the newer gangline, or name another folder with --data"
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
            "it is unchanged: move it away, or name another folder with --data"
        )
    connection.execute("BEGIN")
    connection.execute("CREATE TABLE gangline_store (schema_version INTEGER)")
    connection.execute("INSERT INTO gangline_store VALUES (0)")
    connection.execute("COMMIT")
    return 0


def _some(names: set[str]) -> str:
    first = sorted(names)[:3]
    return ", ".join(first) + (" and more" if len(names) > 3 else "")


# ----------------------------------------------------------------------
# How far the store had come when it last gave receipts, so that a file that lost its end is found
# out.
#
# DuckDB replays a WAL as far as it is whole, and takes one that it does not know for none: without
# a word. So after each commit 64 bytes are written beside it: which checkpoint the file stood at,
# how long the WAL was, how it began. Not synced: after `kill -9` it is right, after a power cut it
# may be of earlier, and then finds less. It never says more than was durable, for it is written
# after the commit.

MARK_FILE = "durable"
#: Of the WAL's beginning so much is compared.
_BEGIN_BYTES = 24
_MARK = struct.Struct(f"<QQQ{_BEGIN_BYTES}sI")


@dataclass(frozen=True, slots=True)
class DurabilityMark:
    """Where a store stood: its checkpoint, the WAL's length and beginning, and when (ns, wall)."""

    iteration: int
    wal_bytes: int
    written_ns: int
    wal_begin: bytes = b""

    def loss_message(
        self, found: Header | None, wal_bytes: int, wal_begin: bytes, path: Path
    ) -> str:
        """Return as text what is gone of a store that is found so, "" when nothing is known to be."""
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(self.written_ns // 1_000_000_000))
        until = f"when the last receipt was given ({when} UTC)"
        if found is None:
            return f"{path} is not there, but was {until}: all data stored before is gone"
        if found.iteration < self.iteration:
            return f"{path} is at checkpoint {found.iteration}, but was at {self.iteration} {until}: an older copy has replaced it, and the data stored since then is lost"
        if found.iteration > self.iteration:
            return ""
        wal = wal_of(path)
        if wal_bytes < self.wal_bytes:
            return (
                f"{wal} has {wal_bytes} bytes, and had {self.wal_bytes} {until}: its end was cut off, "
                "and the readings, scores and events there are lost"
            )
        if self.wal_bytes and wal_begin != self.wal_begin:
            return f"{wal} is not the one that was there {until}: the data of that one is lost"
        return ""


def encode_mark(mark: DurabilityMark) -> bytes:
    """Return *mark* as it is on disk."""
    body = _MARK.pack(mark.iteration, mark.wal_bytes, mark.written_ns, mark.wal_begin, 0)[:-4]
    return body + struct.pack("<I", zlib.crc32(body))


def parse_mark(data: bytes) -> DurabilityMark | None:
    """Return the mark, None when *data* is none (a write that was cut off, another version)."""
    if len(data) != _MARK.size:
        return None
    iteration, wal_bytes, at_ns, begin, crc = _MARK.unpack(data)
    if zlib.crc32(data[:-4]) != crc:
        return None
    return DurabilityMark(iteration, wal_bytes, at_ns, begin)


class MarkWriter:
    """Writes the mark of the store at *path*. Used by the writer thread only."""

    def __init__(self, path: Path) -> None:
        self._path, self._wal = path, wal_of(path)
        self._file = -1
        self._begin: tuple[int, bytes] = (-1, b"")

    def close(self) -> None:
        """Release the file, once DuckDB has: before, it would end DuckDB's lock (see `header.read_header`)."""
        if self._file >= 0:
            os.close(self._file)
        self._file, self._begin = -1, (-1, b"")

    def header(self) -> Header | None:
        """Return what the head of the file says now. Raises OSError."""
        if self._file < 0:
            self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        return read_open_header(self._file)

    def write(self, now_ns: int) -> None:
        """Note that all until now is durable. Never raises: on a disk that takes nothing the mark is of earlier."""
        with suppress(OSError):
            found, size = self.header(), size_of(self._wal)
            iteration = found.iteration if found else 0
            if size and self._begin[0] != iteration:
                self._begin = iteration, wal_beginning(self._wal)
            mark = DurabilityMark(iteration, size, now_ns, self._begin[1] if size else b"")
            _write_bytes(self._path.with_name(MARK_FILE), encode_mark(mark))


def wal_beginning(wal: Path) -> bytes:
    """Return how the WAL begins, padded."""
    with open(wal, "rb") as file:
        return file.read(_BEGIN_BYTES).ljust(_BEGIN_BYTES, b"\0")


def loss_message(path: Path) -> str:
    """Return as text what the store at *path* has lost since its mark; "" when nothing is known. Raises OSError."""
    try:
        mark = parse_mark(path.with_name(MARK_FILE).read_bytes())
    except FileNotFoundError:
        return ""
    if mark is None:
        return ""
    wal = wal_of(path)
    found = read_header(path) if path.exists() else None
    size = size_of(wal)
    return mark.loss_message(found, size, wal_beginning(wal) if size else b"", path)


def remove_mark(folder: Path) -> None:
    """Another file is about to take the place of the one that was marked."""
    (folder / MARK_FILE).unlink(missing_ok=True)


def _write_bytes(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        os.pwrite(descriptor, data, 0)
    finally:
        os.close(descriptor)


def size_of(path: Path) -> int:
    """Return the size of a file in bytes, 0 when it is not there."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


# ----------------------------------------------------------------------
# The scripts of views and macros (`ops`, `history`) in the live file: run only when what is there is
# not what they make.
#
# To run them takes more than all else at a start. The comment of a view `scripts_run`, made after
# them in the same transaction, is a digest of the scripts, of DuckDB's version, of what lies
# beneath and of what then stood: another version of ours, a view that somebody replaced by hand, or
# a table with other columns is found by it, and all is recreated.

DIGEST_VIEW = "scripts_run"
#: Of `readings` the comments alone: they say which columns (`live_tables.py`). What is in Parquet comes and goes.
_VIEWS = (
    "SELECT schema_name, view_name, comment, if(schema_name = 'readings', '', sql) FROM duckdb_views() "
    f"WHERE schema_name IN ('main', 'ops', 'history', 'readings') AND NOT internal AND view_name <> '{DIGEST_VIEW}'"
)
_MACROS = (
    "SELECT schema_name, function_name, parameters, comment, macro_definition "
    "FROM duckdb_functions() WHERE NOT internal"
)
_TABLES = "SELECT table_name, comment, sql FROM duckdb_tables() WHERE schema_name = 'main'"
_WORD = re.compile(r"\w+")
#: DuckDB writes the same text otherwise once it has read it from the file: other parentheses and quotes, another order
#: of names, a comma or nothing for these, and a row of names for a lambda's.
_IGNORED_WORDS = {"CROSS", "JOIN", "MATERIALIZED", "lambda", "row"}


def run_scripts(connection: duckdb.DuckDBPyConnection, scripts: Iterable[str]) -> bool:
    """Run the scripts if need be, in the transaction of the caller; say whether they were. Raises duckdb.Error."""
    text = ";\n".join(scripts)
    stored_digest = _stored_digest(connection)
    if stored_digest and stored_digest == _digest(connection, text):
        return False
    connection.execute(text)
    connection.execute(f"CREATE OR REPLACE VIEW {DIGEST_VIEW} AS SELECT 'its comment' AS digest")
    connection.execute(f"COMMENT ON VIEW {DIGEST_VIEW} IS '{_digest(connection, text)}'")
    return True


def _stored_digest(connection: duckdb.DuckDBPyConnection) -> str:
    found = connection.execute(
        "SELECT comment FROM duckdb_views() WHERE schema_name = 'main' AND view_name = ?",
        [DIGEST_VIEW],
    ).fetchall()
    return found[0][0] or "" if found else ""


def _digest(connection: duckdb.DuckDBPyConnection, text: str) -> str:
    """Return the digest of the scripts to run, and of those in the file."""
    existing = [
        (*names, sorted(word for word in _WORD.findall(sql or "") if word not in _IGNORED_WORDS))
        for query in (_VIEWS, _MACROS, _TABLES)
        for *names, sql in connection.execute(query).fetchall()
    ]
    content = duckdb.__version__, text, sorted(map(repr, existing))
    return sha256(repr(content).encode()).hexdigest()


# ----------------------------------------------------------------------
# A DuckDB file while it is made beside a service: what is in it is on disk, not in memory, before
# much more comes.
#
# In one transaction DuckDB would keep of every table what does not fill a row group: three times
# the file. Nobody sees the file before it is whole, so it is committed bit by bit.

#: When this many cells (8 bytes each) wait in memory they are committed.
CELLS_WAITING_MAX = 2_000_000
#: What the names of a row take beside its cells, in cells.
NAMES_CELLS = 8
#: For the pages of this file and of the one before. A checkpoint holds what waits and the row group that it continues:
#: with DuckDB's own size those of the widest tables alone are 80 MB. Full ones go to disk one by one.
_NEW_FILE_CONFIG = CONNECTION_CONFIG | {"memory_limit": "96MB", "write_buffer_row_group_count": 1}
ROW_GROUP_ROWS = 16_384


@dataclass(slots=True)
class NewFile:
    """A connection to the file. What it does comes after `begin`."""

    connection: duckdb.DuckDBPyConnection
    _uncommitted_cells: int = 0

    def insert(self, table: str, batches: Iterable[Any]) -> None:
        """Insert Arrow's record batches, each as it comes. Raises duckdb.Error."""
        for batch in batches:
            self.connection.register("new_rows", pa.Table.from_batches([batch]))
            try:
                self.run(f"INSERT INTO {table} BY NAME FROM new_rows", batch.num_columns)
            finally:
                self.connection.unregister("new_rows")

    def run(self, insert: str, columns: int) -> None:
        """Run a statement that inserts rows of this many columns, and commit when much waits. Raises duckdb.Error."""
        ((count,),) = self.connection.execute(insert).fetchall()
        self._uncommitted_cells += count * (columns + NAMES_CELLS)
        if self._uncommitted_cells >= CELLS_WAITING_MAX:
            self.checkpoint()
            self.begin()

    def begin(self) -> None:
        """Begin a transaction."""
        self.connection.execute("BEGIN")

    def checkpoint(self) -> None:
        """End the transaction, all in the file and none in a WAL. Raises duckdb.Error."""
        self.connection.execute("COMMIT")
        self.connection.execute("CHECKPOINT")
        self._uncommitted_cells = 0


@contextmanager
def new_file(path: Path) -> Iterator[NewFile]:
    """Yield the file at *path*, which is there or made; all is in it once it is left. Raises duckdb.Error."""
    spill = path.with_name(
        "spill-operators"
    )  # DuckDB's own choice would be in the working directory
    rmtree(spill, ignore_errors=True)  # of one that was killed
    connection = duckdb.connect(
        ":memory:", config=_NEW_FILE_CONFIG | {"temp_directory": str(spill)}
    )
    try:
        connection.execute(
            f"ATTACH {quoted(str(path))} AS operators (ROW_GROUP_SIZE {ROW_GROUP_ROWS})"
        )
        connection.execute("USE operators")
        made = NewFile(connection)
        yield made
        made.checkpoint()
    finally:
        connection.close()
