"""What a store's file holds, read back whole: does it open, is every block there, is every frame there once."""

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
from ..duckdb_file import CONFIG, cause, migrations
from ..layout import BY_NAME
from ..parquet import segment_files
from ..parquet.parquet_worker import Range, ranges
from ..parquet.segment_files import RAW
from . import backup_files

# ----------------------------------------------------------------------
# Whether a reading is stored twice, looked for by spans of its time: a year takes no more memory
# than a day.
#
# A reading that is sent again has the same time wherever it lies, so that both fall into the same
# span; and the same host, so that a span with many readings is looked at by ranges of hosts: all at
# once would be sorted on the store's disk.

#: About so many readings are compared at a time, of at most so many files.
SPAN_ROWS, SPAN_SOURCES = 1_000_000, 200


class Source(NamedTuple):
    """Where readings lie: a table as SQL names it, or the path of a Parquet file. Times are its first and its last."""

    name: str
    is_file: bool
    first_us: int
    last_us: int
    rows: int


class Span(NamedTuple):
    """From `begin_us` until before `end_us` the readings, about `rows`, are in `sources`."""

    begin_us: int
    end_us: int
    sources: tuple[Source, ...]
    rows: float


class Doubles(NamedTuple):
    """What was found in one span; hosts are those with readings in it."""

    rows: int
    hosts: frozenset[str]


def spans(sources: Sequence[Source]) -> Iterator[Span]:
    """Yield spans that together hold all of *sources*, oldest first."""
    cuts = sorted({one.first_us for one in sources} | {one.last_us + 1 for one in sources})
    coming = sorted(sources, key=lambda one: one.first_us, reverse=True)
    active: list[Source] = []
    taken: dict[Source, None] = {}
    begin_us, rows = cuts[0] if cuts else 0, 0.0
    for cut_us, next_us in pairwise(cuts):  # between two of them nothing begins or ends
        active = [one for one in active if one.last_us >= cut_us]
        while coming and coming[-1].first_us <= cut_us:
            active.append(coming.pop())
        more = sum(one.rows * (next_us - cut_us) / _micros(one) for one in active)
        sources_count = len(taken.keys() | set(active))
        if taken and (rows + more > SPAN_ROWS or sources_count > SPAN_SOURCES):
            yield Span(begin_us, cut_us, tuple(taken), rows)
            taken, begin_us, rows = {}, cut_us, 0.0
        taken |= dict.fromkeys(active)
        rows += more
    if taken:
        yield Span(begin_us, cuts[-1], tuple(taken), rows)


def _micros(one: Source) -> int:
    return one.last_us - one.first_us + 1


def look(
    connection: duckdb.DuckDBPyConnection,
    table: str,
    sources: Sequence[Source],
    told: Callable[[str, int, int], None],
) -> Iterator[Doubles | duckdb.Error]:
    """Yield for each piece of *table* what was found, or why it could not be looked at."""
    all_spans = list(spans(sources))
    for at, span in enumerate(all_spans):
        told(f"doubles in {table}", at, len(all_spans))
        try:
            for hosts in _hosts(connection, table, span):
                query = _query(table, span, hosts)
                ((rows, names),) = connection.execute(query, hosts.parameters).fetchall()
                yield Doubles(int(rows), frozenset(names or ()))
        except duckdb.Error as error:
            yield error


def _hosts(connection: duckdb.DuckDBPyConnection, table: str, span: Span) -> list[Range]:
    """Return by which hosts the readings of a span are looked at: files are sorted by them."""
    everyone = Range(None, None, int(span.rows))
    if span.rows <= SPAN_ROWS:
        return [everyone]
    counts = connection.execute(
        f"SELECT host, count(*) FROM ({_readings('host', span, everyone)}) GROUP BY host ORDER BY host"
    ).fetchall()
    return ranges(counts, SPAN_ROWS)


def _readings(columns: str, span: Span, hosts: Range) -> str:
    of_time = f"time >= make_timestamp({span.begin_us}) AND time < make_timestamp({span.end_us})"
    names = [one.name for one in span.sources if not one.is_file]
    if files := ", ".join(sql_quoted(one.name) for one in span.sources if one.is_file):
        names.append(f"read_parquet([{files}], hive_partitioning = false)")
    everything = " UNION ALL ".join(
        f"SELECT {columns} FROM {name} WHERE {of_time}" for name in names
    )
    return f"SELECT * FROM ({everything}) WHERE {hosts.where}"


def _query(table: str, span: Span, hosts: Range) -> str:
    key = "host, device, time, " + ("signal" if table == BY_NAME else "boottime_ns")
    return (
        f"SELECT coalesce(sum(times - 1), 0)::BIGINT, list(DISTINCT host) "
        f"FROM (SELECT host, count(*) AS times FROM ({_readings(key, span, hosts)}) GROUP BY {key})"
    )


#: Told of each table that is read: its name, which of how many.
Told = Callable[[str, int, int], None]


@dataclass(slots=True)
class Found:
    """What reading back found. `wrong` is empty when all is well."""

    schema_version: int = 0
    tables: int = 0
    rows: int = 0
    frames: int = 0
    parquet_files: int = 0
    wrong: list[str] = field(default_factory=list[str])


@contextmanager
def opened(
    file: Path, *, read_only: bool, spill: Path | None = None, copy_of: Path | None = None
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield a connection to a store's file. Raises CopyError, with words on *copy_of* where that is what was copied."""
    # Named before it is opened: replaying a log may spill, and after that DuckDB takes no other folder.
    config = CONFIG if spill is None else CONFIG | {"temp_directory": str(spill)}
    try:
        connection = duckdb.connect(str(file), read_only=read_only, config=config)
    except duckdb.Error as error:
        named_so = copy_of or file
        words = cause(error, file.parent).replace(str(file.parent), str(named_so.parent))
        raise CopyError(
            f"{named_so} does not open in DuckDB {duckdb.__version__}: {words}"
        ) from error
    try:
        connection.execute("SET enable_progress_bar = false")
        yield connection
    finally:
        connection.close()


def schema_version(connection: duckdb.DuckDBPyConnection, file: Path) -> int:
    """Return the store's version. Raises CopyError when it is none of ours, or of a newer gangline."""
    try:
        found = connection.execute("SELECT max(schema_version) FROM gangline_store").fetchall()
    except duckdb.CatalogException as error:
        raise CopyError(f"{file} is a DuckDB file, but not a Gangline store") from error
    have, known = int(found[0][0] or 0), migrations()[-1][0]
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
    """Return all schemas but those that every DuckDB file has."""
    rows: list[tuple[str]] = connection.execute(
        "SELECT schema_name FROM duckdb_schemas() WHERE NOT internal "
        "AND database_name = current_database() ORDER BY ALL"
    ).fetchall()
    return [name for (name,) in rows]


def count(connection: duckdb.DuckDBPyConnection) -> int:
    """Return how many rows all tables have, by their metadata."""
    queries = [f"SELECT count(*) AS n FROM {named(*each)}" for each in tables(connection)]
    ((rows,),) = connection.execute(
        f"SELECT sum(n) FROM ({' UNION ALL '.join(queries)})"
    ).fetchall()
    return int(rows or 0)


def read_back(file: Path, folder: Path, spill: Path, told: Told) -> Found:
    """Read everything of the store's *file*, with its Parquet files in *folder*. Raises CopyError if it does not open."""
    found = Found()
    with opened(file, read_only=True, spill=spill) as connection:
        found.schema_version = schema_version(connection, file)
        names = tables(connection)
        for at, (schema, table) in enumerate(names):
            told(f"{schema}.{table}", at, len(names))
            found.rows += _read_table(connection, schema, table, found)
        found.tables = len(names)
        _ledger(connection, found)
        for at, each in enumerate(paths := backup_files.files(folder)):
            told(each, at, len(paths))
            found.rows += _read_parquet(connection, folder / each, found)
        found.parquet_files = len(paths)
        _recorded(connection, folder, found)
        _twice(connection, folder, found, told)
    return found


def _read_table(
    connection: duckdb.DuckDBPyConnection, schema: str, table: str, found: Found
) -> int:
    """Read all columns of all rows, so that the checksum of each block is looked at."""
    name = named(schema, table)
    try:
        ((rows, _),) = connection.execute(
            f"SELECT count(*), bit_xor(hash(one)) FROM {name} AS one"
        ).fetchall()
    except duckdb.Error as error:
        found.wrong.append(f"{schema}.{table} cannot be read: {cause(error, Path())}")
        return 0
    return int(rows)


def _read_parquet(connection: duckdb.DuckDBPyConnection, path: Path, found: Found) -> int:
    try:
        ((rows, _),) = connection.execute(
            "SELECT count(*), bit_xor(hash(one)) FROM read_parquet(?) AS one", [str(path)]
        ).fetchall()
    except duckdb.Error as error:
        found.wrong.append(f"{path} cannot be read: {cause(error, path.parent)}")
        return 0
    return int(rows)


def _ledger(connection: duckdb.DuckDBPyConnection, found: Found) -> None:
    """Look whether the ranges of received frames are whole, apart, and of hosts that are known."""
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
        found.wrong.append(f"the ledger of frames cannot be read: {cause(error, Path())}")
        return
    found.frames = int(frames)
    if backwards or overlapping:
        found.wrong.append(
            f"the ledger of frames has {backwards} ranges that end before they begin and "
            f"{overlapping} that overlap another: a frame was taken in twice"
        )


def _twice(connection: duckdb.DuckDBPyConnection, folder: Path, found: Found, told: Told) -> None:
    """Look for readings that are stored twice, and for hosts with readings that the ledger does not know."""
    known: set[str] | None = None
    with suppress(duckdb.Error):  # a ledger that cannot be read has been told of
        rows = connection.execute("SELECT DISTINCT host FROM received").fetchall()
        known = {host for (host,) in rows}
    live = [name for schema, name in tables(connection) if schema == "hours"]
    catalogue = {name.rpartition("__")[0] for name in live} | set(_recorded_tables(connection))
    for table in sorted(catalogue):
        sources = [*_live(connection, table, live), *_raw(connection, folder, table)]
        doubled, strangers = 0, set[str]()
        for each in look(connection, table, sources, told):
            if isinstance(each, duckdb.Error):
                words = f"{table} cannot be searched for doubles: {cause(each, Path())}"
                found.wrong += [words] if words not in found.wrong else []
                continue
            doubled += each.rows
            strangers |= each.hosts - (each.hosts if known is None else known)
        if doubled:
            found.wrong.append(f"readings.{table}: {doubled} rows are stored more than once")
        if strangers:
            found.wrong.append(
                f"readings.{table}: rows of {len(strangers)} hosts whose frames the ledger does not "
                f"know, such as {min(strangers)}"
            )


def _live(connection: duckdb.DuckDBPyConnection, table: str, live: list[str]) -> Iterator[Source]:
    """Yield the tables of hours that hold readings of *table*."""
    for name in live:
        if name.rpartition("__")[0] != table:
            continue
        with suppress(duckdb.Error):  # one that cannot be read has been told of
            ((first_us, last_us, rows),) = connection.execute(
                f"SELECT epoch_us(min(time)), epoch_us(max(time)), count(*) FROM {named('hours', name)}"
            ).fetchall()
            if rows:
                yield Source(named("hours", name), False, first_us, last_us, rows)


def _raw(connection: duckdb.DuckDBPyConnection, folder: Path, table: str) -> Iterator[Source]:
    """Yield the segments with readings of *table* that are there."""
    for one in segment_files.recorded(connection, table=table):
        if one.grain == RAW and (folder / one.path).exists():
            yield Source(str(folder / one.path), True, one.first_us, one.last_us, one.rows)


def recorded_paths(connection: duckdb.DuckDBPyConnection) -> set[str]:
    """Return the paths of all Parquet files that the store has on record, but those about to be unlinked."""
    if ("main", "segments") not in tables(connection):
        return set()
    rows = connection.execute("SELECT path FROM main.segments WHERE gone IS NULL").fetchall()
    return {path for (path,) in rows}


def _recorded_tables(connection: duckdb.DuckDBPyConnection) -> list[str]:
    if ("main", "segments") not in tables(connection):
        return []
    query = "SELECT DISTINCT table_name FROM main.segments WHERE gone IS NULL ORDER BY ALL"
    return [table for (table,) in connection.execute(query).fetchall()]


def _recorded(connection: duckdb.DuckDBPyConnection, folder: Path, found: Found) -> None:
    """Look whether each Parquet file that the store has on record is there, and what was written."""
    for table in _recorded_tables(connection):
        for one in segment_files.recorded(connection, table=table):
            if words := segment_files.damage(folder, one):
                found.wrong.append(f"{one.path} {words}")


def named(schema: str, table: str) -> str:
    """Return the name of a table as SQL wants it."""
    return f"{quoted(schema)}.{quoted(table)}"


def quoted(name: str) -> str:
    """Return a name as SQL wants it."""
    return '"' + name.replace('"', '""') + '"'
