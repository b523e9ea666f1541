"""Opens, checks and migrates the DuckDB file of the store."""

from __future__ import annotations

import os
import re
from functools import cache
from importlib import resources
from pathlib import Path

import duckdb
from duckdb import DuckDBPyConnection as Connection

from ...contract.durable_file import sync_folder
from .. import sql
from ..rule_catalogue import faults_sql
from .duckdb_header import HEAD_BYTES, MAGIC, parse_header
from .live_tables import actions_sql
from .store_folder import RESTORE_FOLDER, StoreError, cause, note_store_version, wal_of

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


def open_store(path: Path) -> Connection:
    """Return a connection to the created or migrated store. Raises StoreError."""
    if (path.parent / RESTORE_FOLDER).exists():
        raise StoreError(
            f"{path.parent}: a restore into this folder has not ended; run it again: "
            f"gangline admin restore BACKUP --data {path.parent} --force"
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


def _connect(path: Path) -> Connection:
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
        "gangline admin restore "
        "BACKUP --data OTHER"
    )


def restore_command(path: Path) -> str:
    """Return the command that replaces the store at *path* with a backup."""
    return f"gangline admin restore BACKUP --data {path.parent} --force"


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


def _unreadable_table(connection: Connection) -> str:
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


def _migrate(connection: Connection, path: Path) -> None:
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


def _version(connection: Connection, path: Path) -> int:
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
