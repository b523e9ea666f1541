"""Verifies a store by reading all of it: it opens, every block is readable, every frame is there once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import duckdb
from duckdb import DuckDBPyConnection as Connection

from ....contract.durable_file import CopyError
from ..duckdb_file import CONNECTION_CONFIG, migrations
from ..parquet import segment_files
from ..parquet.segment_files import RAW
from ..store_folder import cause
from . import backup_files
from .duplicate_readings import ReadingSource, find_duplicates

#: Called with the name of each table to read, its index, and their number.
StepCallback = Callable[[str, int, int], None]


@dataclass(slots=True)
class VerifyReport:
    """Results of reading the store. `problems` is empty for an intact store."""

    schema_version: int = 0
    tables: int = 0
    rows: int = 0
    frames: int = 0
    parquet_files: int = 0
    problems: list[str] = field(default_factory=list)


@contextmanager
def open_database(
    file: Path, *, read_only: bool, spill: Path | None = None, copy_of: Path | None = None
) -> Iterator[Connection]:
    """Yield a connection to a store's file. Raises CopyError about *copy_of*, if set."""
    # Set here: replaying a log may spill, and afterwards DuckDB accepts no other folder.
    config = (
        CONNECTION_CONFIG if spill is None else CONNECTION_CONFIG | {"temp_directory": str(spill)}
    )
    try:
        connection = duckdb.connect(str(file), read_only=read_only, config=config)
    except duckdb.Error as error:
        shown_path = copy_of or file
        reason = cause(error, file.parent).replace(str(file.parent), str(shown_path.parent))
        raise CopyError(
            f"{shown_path} does not open in DuckDB {duckdb.__version__}: {reason}"
        ) from error
    try:
        connection.execute("SET enable_progress_bar = false")
        yield connection
    finally:
        connection.close()


def schema_version(connection: Connection, file: Path) -> int:
    """Return the store's version. Raises CopyError if it is not Gangline's, or is too new."""
    try:
        version_rows = connection.execute(
            "SELECT max(schema_version) FROM gangline_store"
        ).fetchall()
    except duckdb.CatalogException as error:
        raise CopyError(f"{file} is a DuckDB file, but not a Gangline store") from error
    have, known = int(version_rows[0][0] or 0), migrations()[-1][0]
    if have > known:
        raise CopyError(
            f"{file} is a store of version {have}, this gangline knows up to {known}: use the newer one"
        )
    return have


def tables(connection: Connection) -> list[tuple[str, str]]:
    """Return (schema, table) of all tables, sorted."""
    rows: list[tuple[str, str]] = connection.execute(
        "SELECT schema_name, table_name FROM duckdb_tables() WHERE NOT internal "
        "AND database_name = current_database() ORDER BY ALL"
    ).fetchall()
    return rows


def schemas(connection: Connection) -> list[str]:
    """Return all schemas except DuckDB's own."""
    rows: list[tuple[str]] = connection.execute(
        "SELECT schema_name FROM duckdb_schemas() WHERE NOT internal "
        "AND database_name = current_database() ORDER BY ALL"
    ).fetchall()
    return [name for (name,) in rows]


def count_rows(connection: Connection) -> int:
    """Return the number of rows of all tables, from their metadata."""
    queries = [f"SELECT count(*) AS n FROM {qualified_name(*t)}" for t in tables(connection)]
    ((rows,),) = connection.execute(
        f"SELECT sum(n) FROM ({' UNION ALL '.join(queries)})"
    ).fetchall()
    return int(rows or 0)


def verify_store(
    file: Path, folder: Path, spill: Path, report_progress: StepCallback
) -> VerifyReport:
    """Read the store's *file* entirely, and its Parquet files in *folder*.

    Raises CopyError if the store does not open; the report lists other damage.
    """
    report = VerifyReport()
    with open_database(file, read_only=True, spill=spill) as connection:
        report.schema_version = schema_version(connection, file)
        names = tables(connection)
        for index, (schema, table) in enumerate(names):
            report_progress(f"{schema}.{table}", index, len(names))
            report.rows += _read_table(connection, schema, table, report)
        report.tables = len(names)
        _check_ledger(connection, report)
        for index, name in enumerate(paths := backup_files.files(folder)):
            report_progress(name, index, len(paths))
            report.rows += _read_parquet(connection, folder / name, report)
        report.parquet_files = len(paths)
        _check_recorded(connection, folder, report)
        _check_duplicates(connection, folder, report, report_progress)
    return report


def _read_table(connection: Connection, schema: str, table: str, report: VerifyReport) -> int:
    # Reading all columns of all rows makes DuckDB check each block's checksum.
    name = qualified_name(schema, table)
    try:
        ((rows, _),) = connection.execute(
            f"SELECT count(*), bit_xor(hash(one)) FROM {name} AS one"
        ).fetchall()
    except duckdb.Error as error:
        report.problems.append(f"{schema}.{table} cannot be read: {cause(error, Path())}")
        return 0
    return int(rows)


def _read_parquet(connection: Connection, path: Path, report: VerifyReport) -> int:
    try:
        ((rows, _),) = connection.execute(
            "SELECT count(*), bit_xor(hash(one)) FROM read_parquet(?) AS one", [str(path)]
        ).fetchall()
    except duckdb.Error as error:
        report.problems.append(f"{path} cannot be read: {cause(error, path.parent)}")
        return 0
    return int(rows)


def _check_ledger(connection: Connection, report: VerifyReport) -> None:
    """Check that ranges of received frames are valid and disjoint."""
    query = """
        SELECT
            coalesce(sum(last_sequence - first_sequence + 1), 0)::BIGINT,
            count(*) FILTER (last_sequence < first_sequence),
            count(*) FILTER (first_sequence <= before)
        FROM (
            SELECT *, max(last_sequence) OVER (
                PARTITION BY host, run_id ORDER BY first_sequence, last_sequence
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
            ) AS before FROM received
        )
    """
    try:
        ((frames, backwards, overlapping),) = connection.execute(query).fetchall()
    except duckdb.Error as error:
        report.problems.append(f"the ledger of frames cannot be read: {cause(error, Path())}")
        return
    report.frames = int(frames)
    if backwards or overlapping:
        report.problems.append(
            f"the ledger of frames has {backwards} ranges that end before they begin and "
            f"{overlapping} that overlap another: a frame was stored twice"
        )


def _check_duplicates(
    connection: Connection, folder: Path, report: VerifyReport, report_progress: StepCallback
) -> None:
    """Search for duplicate readings, and for hosts with readings but without a ledger entry."""
    known: set[str] | None = None
    with suppress(duckdb.Error):  # an unreadable ledger was reported before
        rows = connection.execute("SELECT DISTINCT host FROM received").fetchall()
        known = {host for (host,) in rows}
    live = [name for schema, name in tables(connection) if schema == "hours"]
    catalogue = {name.rpartition("__")[0] for name in live} | set(_recorded_tables(connection))
    for table in sorted(catalogue):
        sources = [
            *_live_sources(connection, table, live),
            *_parquet_sources(connection, folder, table),
        ]
        duplicates, unknown_hosts = 0, set[str]()
        for result in find_duplicates(connection, table, sources, report_progress):
            if isinstance(result, duckdb.Error):
                message = f"{table} cannot be searched for duplicates: {cause(result, Path())}"
                report.problems += [message] if message not in report.problems else []
                continue
            duplicates += result.rows
            unknown_hosts |= result.hosts - (result.hosts if known is None else known)
        if duplicates:
            report.problems.append(f"readings.{table}: {duplicates} rows are stored more than once")
        if unknown_hosts:
            report.problems.append(
                f"readings.{table}: rows of {len(unknown_hosts)} hosts whose frames are not in the "
                f"ledger, such as {min(unknown_hosts)}"
            )


def _live_sources(connection: Connection, table: str, live: list[str]) -> Iterator[ReadingSource]:
    """Yield the live tables with readings of *table*."""
    for name in live:
        if name.rpartition("__")[0] != table:
            continue
        with suppress(duckdb.Error):  # an unreadable table was reported before
            ((first_us, last_us, rows),) = connection.execute(
                f"SELECT epoch_us(min(time)), epoch_us(max(time)), count(*) FROM {qualified_name('hours', name)}"
            ).fetchall()
            if rows:
                yield ReadingSource(qualified_name("hours", name), False, first_us, last_us, rows)


def _parquet_sources(connection: Connection, folder: Path, table: str) -> Iterator[ReadingSource]:
    for segment in segment_files.recorded_segments(connection, table=table):
        if segment.grain == RAW and (folder / segment.path).exists():
            yield ReadingSource(
                str(folder / segment.path), True, segment.first_us, segment.last_us, segment.rows
            )


def recorded_paths(connection: Connection) -> set[str]:
    """Return the paths of all recorded Parquet files, except those marked for deletion."""
    if ("main", "segments") not in tables(connection):
        return set()
    rows = connection.execute("SELECT path FROM main.segments WHERE gone IS NULL").fetchall()
    return {path for (path,) in rows}


def _recorded_tables(connection: Connection) -> list[str]:
    if ("main", "segments") not in tables(connection):
        return []
    query = "SELECT DISTINCT table_name FROM main.segments WHERE gone IS NULL ORDER BY ALL"
    return [table for (table,) in connection.execute(query).fetchall()]


def _check_recorded(connection: Connection, folder: Path, report: VerifyReport) -> None:
    """Check that each recorded Parquet file exists and is unchanged."""
    for table in _recorded_tables(connection):
        for segment in segment_files.recorded_segments(connection, table=table):
            if reason := segment_files.damage(folder, segment):
                report.problems.append(f"{segment.path} {reason}")


def qualified_name(schema: str, table: str) -> str:
    """Return the quoted SQL name of a table."""
    return f"{quoted_identifier(schema)}.{quoted_identifier(table)}"


def quoted_identifier(name: str) -> str:
    """Return the quoted SQL name."""
    return '"' + name.replace('"', '""') + '"'
