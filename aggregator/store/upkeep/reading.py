"""What a store's file holds, read back whole: does it open, is every block there, is every frame there once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import duckdb

from ...history import segments
from ...history.segments import RAW
from ..storefile import CONFIG, cause, migrations
from . import doubles, parquet
from .copying import CopyError
from .doubles import Source

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
        for at, each in enumerate(paths := parquet.files(folder)):
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
        for each in doubles.look(connection, table, sources, told):
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
    for one in segments.recorded(connection, table=table):
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
        for one in segments.recorded(connection, table=table):
            if words := segments.damage(folder, one):
                found.wrong.append(f"{one.path} {words}")


def named(schema: str, table: str) -> str:
    """Return the name of a table as SQL wants it."""
    return f"{quoted(schema)}.{quoted(table)}"


def quoted(name: str) -> str:
    """Return a name as SQL wants it."""
    return '"' + name.replace('"', '""') + '"'
