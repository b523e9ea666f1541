"""DuckDB files: opens and migrates the store, detects lost data, runs scripts, writes new files."""

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

# Header of a DuckDB file (DuckDB's `main_header.hpp` and `database_header`), little endian: a block
# of 4096 bytes with "DUCK" at 8, then two blocks of 4096 bytes; the higher iteration is valid.

#: Bytes 8 to 12 of every DuckDB file.
MAGIC = b"DUCK"
#: The three blocks of the header; data begins here.
HEAD_BYTES = 12_288
#: After the checksum: iteration, first block of metadata, free list, blocks, bytes of a block.
_HEAD = struct.Struct("<8xQ8x8xQQ")


@dataclass(frozen=True, slots=True)
class Header:
    """The valid header; `size_bytes` is the least size of a complete file."""

    #: Rises by 1 with each checkpoint; between checkpoints no block in use is overwritten.
    iteration: int
    size_bytes: int


def parse_header(head: bytes) -> Header | None:
    """Return the header in *head* (first 12,288 bytes of a file); None if it is not DuckDB's."""
    if len(head) < HEAD_BYTES or head[8:12] != MAGIC:
        return None
    newest = max(_HEAD.unpack_from(head, offset) for offset in (4096, 8192))
    iteration, blocks, block_bytes = newest
    return Header(iteration, HEAD_BYTES + blocks * block_bytes)


def read_header(path: Path) -> Header | None:
    """Read and parse the header of the file at *path*. Raises OSError.

    Do not call this for a file that this process has open in DuckDB: closing it would drop DuckDB's
    POSIX lock.
    """
    with open(path, "rb") as file:
        return parse_header(file.read(HEAD_BYTES))


def read_open_header(descriptor: int) -> Header | None:
    """Return the header of an open file, which stays open. Raises OSError."""
    return parse_header(os.pread(descriptor, HEAD_BYTES, 0))


STORE_FILE = "gangline.duckdb"
#: The store's version as text: a shell script that cannot open the store refuses to unpack an older
#: package (packaging/scripts/functions.sh).
STORE_VERSION_FILE = "store_version"
#: A random identity. Backups omit this file, so a restored store has another identity.
IDENTITY_FILE = "store_identity"
LOCK_FILE = "lock"
JOURNAL_FILE = "events.journal"
#: Not `ops.duckdb`: DuckDB would name its catalog `ops`, and `ops.worst` would be ambiguous.
OPS_FILE = "operators.duckdb"
#: Folder of the chart's backup from before a migration; a restore does not move it.
BACKUPS_FOLDER = "backups"
#: Name of the old file while a compacted file replaces it.
BEFORE_SWAP = "gangline-before.duckdb"
#: A compacted file before it replaces the old one.
COMPACTED_FILE = "compacted-new.duckdb"
#: Folders with the copy that `gangline admin verify` reads.
VERIFY_SCRATCH_PREFIX = "gangline-verify-"
#: Hard links to Parquet files during a copy, a folder per copying process.
BACKUP_HOLDS_FOLDER = "backup-holds"
#: Files of `gangline admin restore` that are not in their final place yet.
RESTORE_FOLDER = "restoring"

#: The oldest DuckDB that can read a new file. By default DuckDB writes for 0.10, where statistics
#: take 3 kB per column, even if it is empty: 17 MB for an operators' file without a row. A file
#: keeps the version it was created with.
STORAGE_VERSION = "v1.2.0"
#: Configuration of every connection. By default DuckDB would fill up to 80 % of the machine's
#: memory with pages; past the limit it spills to disk. One thread: a commit is too small to share,
#: and idle threads cost a third of it.
#: Data inserted since a checkpoint is in memory by blocks, at least one per column of each table.
#: DuckDB's default of 256 KiB would take 280 MB for 33 hosts.
CONNECTION_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "default_block_size": 16_384,
    "storage_compatibility_version": STORAGE_VERSION,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "memory_limit": "384MB",
    "threads": 1,
}
#: Prefix of the names of threads that may block in DuckDB or on the disk.
THREAD_NAME_PREFIX = "store-"
#: Spill folder of the store's connections.
SPILL_FOLDER = "spill"


class StoreError(Exception):
    """The store cannot be used; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class FolderLock:
    """A folder that this process has locked until `release`."""

    folder: Path
    file: IO[str]
    is_new: bool

    def release(self) -> None:
        """Unlock the folder."""
        self.file.close()

    def discard(self) -> None:
        """Release the folder, and remove the lock file if this process created it."""
        if self.is_new:
            with suppress(OSError):
                (self.folder / LOCK_FILE).unlink()
        self.file.close()


def lock_folder(folder: Path) -> FolderLock:
    """Create *folder* if it is missing, and lock it for this process. Raises StoreError."""
    try:
        # A reader of the store sees hosts, jobs and users, even if the service requires a login.
        folder.mkdir(mode=0o750, parents=True, exist_ok=True)
        new = not (folder / LOCK_FILE).exists()
        lock = open(folder / LOCK_FILE, "a+", encoding="ascii")  # noqa: SIM115 - kept open
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
    # A process that was refused the lock removes the lock file that it had created.
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
    """Return in one line why writing under *folder* failed."""
    text = str(error)
    if "No space left on device" in text:
        return f"no space left on {folder}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)


def open_store(path: Path) -> duckdb.DuckDBPyConnection:
    """Return a connection to the store at *path*, after creating or migrating it. Raises
    StoreError.
    """
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
    """Write the store's version as text into *folder*. Raises StoreError."""
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
        identity = (
            file.read_bytes()[:64].decode("ascii", "replace").strip() if file.exists() else ""
        )
        if not re.fullmatch(r"[0-9a-f]{16}", identity):
            identity = uuid.uuid4().hex[:16]
            replace_file(file, f"{identity}\n".encode())
    except OSError as error:
        raise StoreError(
            f"{file}: {cause(error, folder)}{_folder_remedy(error, folder)}"
        ) from error
    return identity


def _create(path: Path) -> None:
    # Under another name, so that a kill leaves no incomplete store.
    new = path.with_name("gangline-new.duckdb")
    for leftover in (new, wal_of(new), wal_of(path)):  # a WAL without its file is useless
        leftover.unlink(missing_ok=True)
    connection = _connect(new)
    try:
        _migrate(connection, new)
    finally:
        connection.close()
    new.replace(path)
    sync_folder(path.parent)


def wal_of(path: Path) -> Path:
    """Return the path of the write-ahead log (WAL) of the file at *path*."""
    return path.with_name(path.name + ".wal")


def remove_leftovers(folder: Path) -> None:
    """Remove the files of a killed compaction or copy from *folder*. Never raises."""
    for name in (BEFORE_SWAP, COMPACTED_FILE, f"{COMPACTED_FILE}.wal"):
        with suppress(OSError):
            (folder / name).unlink(missing_ok=True)
    for scratch in (folder / BACKUP_HOLDS_FOLDER, *folder.glob(f"{VERIFY_SCRATCH_PREFIX}*")):
        shutil.rmtree(scratch, ignore_errors=True)


def _connect(path: Path) -> duckdb.DuckDBPyConnection:
    try:
        # Set here: replaying a log may spill, and afterwards DuckDB accepts no other folder.
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
    """Return the advice for DuckDB's error *reason*; "" if none is known."""
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
    """Return the advice for a failing disk."""
    return (
        f". The disk under {folder} fails: see the kernel log (dmesg). All acknowledged data is "
        "there; start the aggregator again once the disk works, or restore a backup to another: "
        "gangline admin restore --from "
        "BACKUP --data OTHER"
    )


def restore_command(path: Path) -> str:
    """Return the command that replaces the store at *path* with a backup."""
    return f"gangline admin restore --from BACKUP --data {path.parent} --force"


def damaged_store_advice(path: Path) -> str:
    """Return the advice for a damaged store."""
    return (
        f"restore a backup ({restore_command(path)}), see what is readable "
        f"(gangline admin verify --data {path.parent}), or move it away to start with an empty "
        "store"
    )


def check_file(path: Path) -> str:
    """Return a message if the file is shorter than its header says; "" otherwise.

    DuckDB would open it, and fail at the first missing block. It is not always damaged: free blocks
    at the end may never have been written when the disk failed. Raises StoreError for a file that
    is not Gangline's.
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
    header = parse_header(head)
    size_expected = header.size_bytes if header else HEAD_BYTES
    if size >= size_expected:
        return ""
    message = f"{path} was cut off: it has {size} bytes, and says that it has {size_expected} (an incomplete copy, or a disk that lost its last writes)"
    if header is None:
        raise StoreError(f"{message}; it is unchanged: {damaged_store_advice(path)}")
    return message


def _unreadable_table(connection: duckdb.DuckDBPyConnection) -> str:
    """Read every block; return the first table with an unreadable block, "" if there is none."""
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
    """Return (version, SQL) of every `NNNN_name.sql`, in order. Cached per process."""
    result = []
    for entry in resources.files(sql).iterdir():
        number = re.match(r"(\d{4})_\w+\.sql$", entry.name)
        if number:
            result.append((int(number[1]), entry.read_text()))
    return tuple(sorted(result))


@cache
def script(name: str) -> str:
    """Return the text of a file in `aggregator/sql`. Cached per process."""
    return (resources.files(sql) / name).read_text()


@cache
def ops_script() -> str:
    """Return the SQL of schema `ops`: all `ops_NN_subject.sql` in numeric order."""
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


# Durability mark, which detects a store file that lost its end. DuckDB replays a WAL up to its
# first incomplete record, and silently ignores a WAL that it does not recognize. Therefore, after
# each commit, the checkpoint's iteration and the length and first bytes of the WAL are written to a
# file of 64 bytes. It is not synced: after `kill -9` it is right, after a power cut it may be older
# and then detects less. It never claims more than was durable.
MARK_FILE = "durable"
#: Bytes compared at the beginning of the WAL.
_BEGIN_BYTES = 24
_MARK = struct.Struct(f"<QQQ{_BEGIN_BYTES}sI")


@dataclass(frozen=True, slots=True)
class DurabilityMark:
    """State of a store: iteration of its checkpoint, length and beginning of the WAL, wall time in
    ns.
    """

    iteration: int
    wal_bytes: int
    written_ns: int
    wal_begin: bytes = b""

    def loss_message(
        self, found: Header | None, wal_bytes: int, wal_begin: bytes, path: Path
    ) -> str:
        """Return a message about lost data; "" if no loss is known."""
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
    body = _MARK.pack(mark.iteration, mark.wal_bytes, mark.written_ns, mark.wal_begin, 0)[:-4]
    return body + struct.pack("<I", zlib.crc32(body))


def parse_mark(data: bytes) -> DurabilityMark | None:
    """Return the mark, None if *data* is incomplete, damaged or of another version."""
    if len(data) != _MARK.size:
        return None
    iteration, wal_bytes, written_ns, wal_begin, crc = _MARK.unpack(data)
    if zlib.crc32(data[:-4]) != crc:
        return None
    return DurabilityMark(iteration, wal_bytes, written_ns, wal_begin)


class MarkWriter:
    """Writes the mark of the store at *path*. Only the writer thread uses it."""

    def __init__(self, path: Path) -> None:
        self._path, self._wal = path, wal_of(path)
        self._file = -1
        self._begin: tuple[int, bytes] = (-1, b"")

    def close(self) -> None:
        """Close the file. Call this after DuckDB has closed its own: see `read_header`."""
        if self._file >= 0:
            os.close(self._file)
        self._file, self._begin = -1, (-1, b"")

    def header(self) -> Header | None:
        """Return the current header of the file. Raises OSError."""
        if self._file < 0:
            self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        return read_open_header(self._file)

    def write(self, now_ns: int) -> None:
        """Record that all data is durable at *now_ns*. Never raises: on a failing disk the old mark
        stays.
        """
        with suppress(OSError):
            header, size = self.header(), size_of(self._wal)
            iteration = header.iteration if header else 0
            if size and self._begin[0] != iteration:
                self._begin = iteration, wal_beginning(self._wal)
            mark = DurabilityMark(iteration, size, now_ns, self._begin[1] if size else b"")
            _write_bytes(self._path.with_name(MARK_FILE), encode_mark(mark))


def wal_beginning(wal: Path) -> bytes:
    """Return the first bytes of the WAL, padded."""
    with open(wal, "rb") as file:
        return file.read(_BEGIN_BYTES).ljust(_BEGIN_BYTES, b"\0")


def loss_message(path: Path) -> str:
    """Return a message about data lost since the mark; "" if no loss is known. Raises OSError."""
    try:
        mark = parse_mark(path.with_name(MARK_FILE).read_bytes())
    except FileNotFoundError:
        return ""
    if mark is None:
        return ""
    wal = wal_of(path)
    header = read_header(path) if path.exists() else None
    size = size_of(wal)
    return mark.loss_message(header, size, wal_beginning(wal) if size else b"", path)


def remove_mark(folder: Path) -> None:
    """Remove the mark before another file replaces the store."""
    (folder / MARK_FILE).unlink(missing_ok=True)


def _write_bytes(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        os.pwrite(descriptor, data, 0)
    finally:
        os.close(descriptor)


def size_of(path: Path) -> int:
    """Return the size of a file in bytes, 0 if it does not exist."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


# Views and macros (`ops`, `history`) of the live file. Running their scripts takes longer than the
# rest of a start. The comment of the view DIGEST_VIEW, created after them in the same transaction,
# is a digest of the scripts, DuckDB's version, the tables below and the resulting views and macros.
# After an update, a manual change of a view or a change of columns the digest differs, and
# everything is recreated.

DIGEST_VIEW = "scripts_run"
#: For `readings` only the comments, which name the columns (`live_tables.py`): the Parquet files
#: change often.
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
#: DuckDB changes a definition when it reads it back from the file: parentheses, quotes, the order
#: of names, a comma for these words, and `row` for `lambda`.
_IGNORED_WORDS = {"CROSS", "JOIN", "MATERIALIZED", "lambda", "row"}


def run_scripts(connection: duckdb.DuckDBPyConnection, scripts: Iterable[str]) -> bool:
    """Run the scripts in the caller's transaction if their digest changed; return whether they ran.

    Raises duckdb.Error.
    """
    text = ";\n".join(scripts)
    stored_digest = _stored_digest(connection)
    if stored_digest and stored_digest == _digest(connection, text):
        return False
    connection.execute(text)
    connection.execute(f"CREATE OR REPLACE VIEW {DIGEST_VIEW} AS SELECT 'its comment' AS digest")
    connection.execute(f"COMMENT ON VIEW {DIGEST_VIEW} IS '{_digest(connection, text)}'")
    return True


def _stored_digest(connection: duckdb.DuckDBPyConnection) -> str:
    rows = connection.execute(
        "SELECT comment FROM duckdb_views() WHERE schema_name = 'main' AND view_name = ?",
        [DIGEST_VIEW],
    ).fetchall()
    return rows[0][0] or "" if rows else ""


def _digest(connection: duckdb.DuckDBPyConnection, text: str) -> str:
    existing = [
        (*names, sorted(word for word in _WORD.findall(sql or "") if word not in _IGNORED_WORDS))
        for query in (_VIEWS, _MACROS, _TABLES)
        for *names, sql in connection.execute(query).fetchall()
    ]
    content = duckdb.__version__, text, sorted(map(repr, existing))
    return sha256(repr(content).encode()).hexdigest()


# A new DuckDB file, written beside a running service. In one transaction DuckDB would keep each
# table's incomplete row group in memory: three times the file. No reader sees the file before it is
# complete, so it is committed in steps.

#: Commit when this many cells of 8 bytes are pending.
CELLS_WAITING_MAX = 2_000_000
#: Memory of a row's names, in cells.
NAMES_CELLS = 8
#: Limit for the pages of this file and of the previous one. A checkpoint holds pending rows and the
#: row group that they continue: with DuckDB's default size those of the widest tables alone are 80
#: MB. Each full row group is written at once.
_NEW_FILE_CONFIG = CONNECTION_CONFIG | {"memory_limit": "96MB", "write_buffer_row_group_count": 1}
ROW_GROUP_ROWS = 16_384


@dataclass(slots=True)
class NewFile:
    """A connection to the file. Call `begin` before the first insert."""

    connection: duckdb.DuckDBPyConnection
    _uncommitted_cells: int = 0

    def insert(self, table: str, batches: Iterable[Any]) -> None:
        """Insert Arrow's record batches one at a time. Raises duckdb.Error."""
        for batch in batches:
            self.connection.register("new_rows", pa.Table.from_batches([batch]))
            try:
                self.run(f"INSERT INTO {table} BY NAME FROM new_rows", batch.num_columns)
            finally:
                self.connection.unregister("new_rows")

    def run(self, insert: str, columns: int) -> None:
        """Run an INSERT of rows with *columns* columns; commit at CELLS_WAITING_MAX. Raises
        duckdb.Error.
        """
        ((count,),) = self.connection.execute(insert).fetchall()
        self._uncommitted_cells += count * (columns + NAMES_CELLS)
        if self._uncommitted_cells >= CELLS_WAITING_MAX:
            self.checkpoint()
            self.begin()

    def begin(self) -> None:
        """Begin a transaction."""
        self.connection.execute("BEGIN")

    def checkpoint(self) -> None:
        """Commit, and move everything from the WAL to the file. Raises duckdb.Error."""
        self.connection.execute("COMMIT")
        self.connection.execute("CHECKPOINT")
        self._uncommitted_cells = 0


@contextmanager
def new_file(path: Path) -> Iterator[NewFile]:
    """Yield the new or existing file at *path*; it is complete on exit. Raises duckdb.Error."""
    # DuckDB's default would be in the working directory.
    spill = path.with_name("spill-operators")
    rmtree(spill, ignore_errors=True)  # left by a killed process
    connection = duckdb.connect(
        ":memory:", config=_NEW_FILE_CONFIG | {"temp_directory": str(spill)}
    )
    try:
        connection.execute(
            f"ATTACH {quoted(str(path))} AS operators (ROW_GROUP_SIZE {ROW_GROUP_ROWS})"
        )
        connection.execute("USE operators")
        file = NewFile(connection)
        yield file
        file.checkpoint()
    finally:
        connection.close()
