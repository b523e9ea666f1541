"""Verifies a store by reading all of it: it opens, every block is readable, every frame is there once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import duckdb

from ...durable_file import CopyError
from ...sql import quoted as sql_quoted
from ..duckdb_file import CONNECTION_CONFIG, migrations
from ..layout import BY_NAME
from ..parquet import segment_files
from ..parquet.parquet_worker import HostRange, ranges
from ..parquet.segment_files import RAW
from ..store_folder import cause
from . import backup_files

# Duplicates are searched by spans of time, so that a year takes no more memory than a day. A frame
# that was resent has the same times and the same host, so duplicates fall into the same span. A
# span with many readings is searched by ranges of hosts, because sorting it at once would spill to
# the store's disk.

#: Approximate number of readings per span, and its maximum number of files.
SPAN_ROWS, SPAN_SOURCES = 1_000_000, 200


class ReadingSource(NamedTuple):
    """A table (SQL name) or Parquet file (path) with readings, and their first and last time."""

    name: str
    is_file: bool
    first_us: int
    last_us: int
    rows: int


class TimeSpan(NamedTuple):
    """Readings from `begin_us` until before `end_us`, about `rows`, in `sources`."""

    begin_us: int
    end_us: int
    sources: tuple[ReadingSource, ...]
    rows: float


class Duplicates(NamedTuple):
    """Duplicates found in a span, and all hosts with readings in it."""

    rows: int
    hosts: frozenset[str]


def spans(sources: Sequence[ReadingSource]) -> Iterator[TimeSpan]:
    """Yield spans that together cover *sources*, oldest first."""
    cuts = sorted(
        {source.first_us for source in sources} | {source.last_us + 1 for source in sources}
    )
    upcoming = sorted(sources, key=lambda source: source.first_us, reverse=True)
    active: list[ReadingSource] = []
    chosen: dict[ReadingSource, None] = {}
    begin_us, rows = cuts[0] if cuts else 0, 0.0
    for cut_us, next_us in pairwise(cuts):  # within each pair of cuts the sources are the same
        active = [source for source in active if source.last_us >= cut_us]
        while upcoming and upcoming[-1].first_us <= cut_us:
            active.append(upcoming.pop())
        more = sum(source.rows * (next_us - cut_us) / _duration_us(source) for source in active)
        sources_count = len(chosen.keys() | set(active))
        if chosen and (rows + more > SPAN_ROWS or sources_count > SPAN_SOURCES):
            yield TimeSpan(begin_us, cut_us, tuple(chosen), rows)
            chosen, begin_us, rows = {}, cut_us, 0.0
        chosen |= dict.fromkeys(active)
        rows += more
    if chosen:
        yield TimeSpan(begin_us, cuts[-1], tuple(chosen), rows)


def _duration_us(one: ReadingSource) -> int:
    return one.last_us - one.first_us + 1


def find_duplicates(
    connection: duckdb.DuckDBPyConnection,
    table: str,
    sources: Sequence[ReadingSource],
    report_progress: Callable[[str, int, int], None],
) -> Iterator[Duplicates | duckdb.Error]:
    """Yield the duplicates of each piece of *table*, or the error that prevented the search."""
    all_spans = list(spans(sources))
    for index, span in enumerate(all_spans):
        report_progress(f"doubles in {table}", index, len(all_spans))
        try:
            for hosts in _host_ranges(connection, table, span):
                query = _query(table, span, hosts)
                ((rows, names),) = connection.execute(query, hosts.parameters).fetchall()
                yield Duplicates(int(rows), frozenset(names or ()))
        except duckdb.Error as error:
            yield error


def _host_ranges(
    connection: duckdb.DuckDBPyConnection, table: str, span: TimeSpan
) -> list[HostRange]:
    """Return the ranges of hosts in which to search the span."""
    everyone = HostRange(None, None, int(span.rows))
    if span.rows <= SPAN_ROWS:
        return [everyone]
    counts = connection.execute(
        f"SELECT host, count(*) FROM ({_readings('host', span, everyone)}) GROUP BY host ORDER BY host"
    ).fetchall()
    return ranges(counts, SPAN_ROWS)


def _readings(columns: str, span: TimeSpan, hosts: HostRange) -> str:
    of_time = f"time >= make_timestamp({span.begin_us}) AND time < make_timestamp({span.end_us})"
    names = [source.name for source in span.sources if not source.is_file]
    if files := ", ".join(sql_quoted(source.name) for source in span.sources if source.is_file):
        names.append(f"read_parquet([{files}], hive_partitioning = false)")
    everything = " UNION ALL ".join(
        f"SELECT {columns} FROM {name} WHERE {of_time}" for name in names
    )
    return f"SELECT * FROM ({everything}) WHERE {hosts.where}"


def _query(table: str, span: TimeSpan, hosts: HostRange) -> str:
    key = "host, device, time, " + ("signal" if table == BY_NAME else "boottime_ns")
    return (
        f"SELECT coalesce(sum(times - 1), 0)::BIGINT, list(DISTINCT host) "
        f"FROM (SELECT host, count(*) AS times FROM ({_readings(key, span, hosts)}) GROUP BY {key})"
    )


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
    problems: list[str] = field(default_factory=list[str])


@contextmanager
def open_database(
    file: Path, *, read_only: bool, spill: Path | None = None, copy_of: Path | None = None
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield a connection to a store's file. Raises CopyError.

    *copy_of*: path to show in the message instead.
    """
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


def schema_version(connection: duckdb.DuckDBPyConnection, file: Path) -> int:
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


def tables(connection: duckdb.DuckDBPyConnection) -> list[tuple[str, str]]:
    """Return (schema, table) of all tables, sorted."""
    rows: list[tuple[str, str]] = connection.execute(
        "SELECT schema_name, table_name FROM duckdb_tables() WHERE NOT internal "
        "AND database_name = current_database() ORDER BY ALL"
    ).fetchall()
    return rows


def schemas(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """Return all schemas except DuckDB's own."""
    rows: list[tuple[str]] = connection.execute(
        "SELECT schema_name FROM duckdb_schemas() WHERE NOT internal "
        "AND database_name = current_database() ORDER BY ALL"
    ).fetchall()
    return [name for (name,) in rows]


def count_rows(connection: duckdb.DuckDBPyConnection) -> int:
    """Return the number of rows of all tables, from their metadata."""
    queries = [
        f"SELECT count(*) AS n FROM {qualified_name(*table)}" for table in tables(connection)
    ]
    ((rows,),) = connection.execute(
        f"SELECT sum(n) FROM ({' UNION ALL '.join(queries)})"
    ).fetchall()
    return int(rows or 0)


def verify_store(
    file: Path, folder: Path, spill: Path, report_progress: StepCallback
) -> VerifyReport:
    """Read the store's *file* entirely, and its Parquet files in *folder*.

    Raises CopyError if the store does not open.
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


def _read_table(
    connection: duckdb.DuckDBPyConnection, schema: str, table: str, report: VerifyReport
) -> int:
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


def _read_parquet(connection: duckdb.DuckDBPyConnection, path: Path, report: VerifyReport) -> int:
    try:
        ((rows, _),) = connection.execute(
            "SELECT count(*), bit_xor(hash(one)) FROM read_parquet(?) AS one", [str(path)]
        ).fetchall()
    except duckdb.Error as error:
        report.problems.append(f"{path} cannot be read: {cause(error, path.parent)}")
        return 0
    return int(rows)


def _check_ledger(connection: duckdb.DuckDBPyConnection, report: VerifyReport) -> None:
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
    connection: duckdb.DuckDBPyConnection,
    folder: Path,
    report: VerifyReport,
    report_progress: StepCallback,
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


def _live_sources(
    connection: duckdb.DuckDBPyConnection, table: str, live: list[str]
) -> Iterator[ReadingSource]:
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


def _parquet_sources(
    connection: duckdb.DuckDBPyConnection, folder: Path, table: str
) -> Iterator[ReadingSource]:
    for segment in segment_files.recorded_segments(connection, table=table):
        if segment.grain == RAW and (folder / segment.path).exists():
            yield ReadingSource(
                str(folder / segment.path), True, segment.first_us, segment.last_us, segment.rows
            )


def recorded_paths(connection: duckdb.DuckDBPyConnection) -> set[str]:
    """Return the paths of all recorded Parquet files, except those marked for deletion."""
    if ("main", "segments") not in tables(connection):
        return set()
    rows = connection.execute("SELECT path FROM main.segments WHERE gone IS NULL").fetchall()
    return {path for (path,) in rows}


def _recorded_tables(connection: duckdb.DuckDBPyConnection) -> list[str]:
    if ("main", "segments") not in tables(connection):
        return []
    query = "SELECT DISTINCT table_name FROM main.segments WHERE gone IS NULL ORDER BY ALL"
    return [table for (table,) in connection.execute(query).fetchall()]


def _check_recorded(
    connection: duckdb.DuckDBPyConnection, folder: Path, report: VerifyReport
) -> None:
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
