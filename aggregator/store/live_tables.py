"""Recent readings in the live file: a table per catalogue table and five minutes, and views.

The five minutes are those of the commit, so a closed table stays closed however late a reading comes. A closed table is exported
to Parquet (`parquet/export.py`) and dropped; a DELETE would not free the file's space.

`live.X` is in this file, `past.X` in Parquet, and `readings.X` is both. Only the first two are recreated when tables or files
change, so a commit never touches a Parquet file. Each view has a digest of its definition as its comment, so that a start
recreates only outdated ones. Replacing a view removes its comment.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import duckdb
from duckdb import DuckDBPyConnection as Connection

from ...contract.faults.policy import PolicyRow
from ...contract.faults.table import builtin
from ...contract.signals import FORMER_TABLES
from ...contract.xid.policy import policy, sxid_policy
from ..sql import quoted
from .layout import COLUMNS, definitions
from .parquet import segment_files
from .parquet.segment_files import ParquetSegment
from .parquet.views import columns_of, past_sources, union

_CURRENT_NAMES = {name: former for former, name in FORMER_TABLES.items()}
#: Ten digits: an hourly table of an older version.
_NAME = re.compile(r"(?P<table>\w+?)__(?P<part>\d{10}(\d\d)?)$")
HOUR_NS = 3600 * 1_000_000_000
PART_MINUTES = 5

#: Column name -> DuckDB type, in order.
Types = dict[str, str]

_COLUMNS = "name, signal, code, action, scope, severity, clears, source"
_COMMENT = "what the policy says to do about a code or a reading, from contract/xid/xid.toml, sxid.toml, policy.toml; code is NULL if any code matches: FROM ops.actions WHERE signal = ''gpu.xid'' AND code = 95"


def hour_name(now_ns: int) -> str:
    """Return the UTC hour as it is in names: 2026112010."""
    return time.strftime("%Y%m%d%H", time.gmtime(now_ns // 1_000_000_000))


def part_name(now_ns: int) -> str:
    """Return the UTC five minutes as they are in table names: 202611201005."""
    utc = time.gmtime(now_ns // 1_000_000_000)
    return f"{time.strftime('%Y%m%d%H', utc)}{utc.tm_min // PART_MINUTES * PART_MINUTES:02}"


class LiveTables:
    """The live tables of a store. Used only by the writer thread, within its transactions."""

    def __init__(self, connection: Connection, folder: Path) -> None:
        self._connection = connection
        self._folder = folder
        self._current_part = ""
        self._ready: set[str] = set()
        self._parts: dict[str, dict[str, Types]] = {}  # table -> five minutes -> columns
        self._segments: dict[str, list[ParquetSegment]] = {}  # table -> its Parquet files
        # Table -> hash of the recorded Parquet files when they were read.
        self._table_hashes: dict[str, int] = {}
        self._view_digests = _stored_view_digests(connection)  # view -> digest of its definition

    def reload(self) -> None:
        """Read the existing tables and files, and recreate outdated views."""
        self._current_part, self._ready = "", set()
        self._read_parts()
        self._read_segments()
        for table in [*self._parts, *(self._segments.keys() - self._parts.keys())]:
            self._make_views(table)

    def _read_segments(self) -> None:
        hashes = segment_files.table_hashes(self._connection)
        for table in self._table_hashes.keys() | hashes.keys():
            if hashes.get(table) != self._table_hashes.get(table):
                segments = segment_files.recorded_segments(self._connection, "raw", table)
                self._segments[table] = segment_files.readable(self._folder, segments)
        self._table_hashes = hashes

    def _read_parts(self) -> None:
        # One query for all: for a single table DuckDB also examines the columns of all tables.
        self._parts = {table: {} for table in COLUMNS}
        rows: list[tuple[str, str, str]] = self._connection.execute(
            "SELECT table_name, column_name, data_type FROM duckdb_columns() "
            "WHERE schema_name = 'hours' ORDER BY table_name, column_index"
        ).fetchall()
        for name, columns in groupby(rows, itemgetter(0)):
            match = _NAME.fullmatch(name)
            if match:
                types = {column: kind for _, column, kind in columns}
                self._parts.setdefault(match["table"], {})[match["part"]] = types

    def table_for(self, table: str, now_ns: int) -> str:
        """Return *table*'s live table for the five minutes of *now_ns*, created if missing."""
        part = part_name(now_ns)
        if part != self._current_part:
            self._current_part, self._ready = part, set()
        name = f'hours."{table}__{part}"'
        if table not in self._ready:
            self._create_table(table, part, name)
            self._ready.add(table)
        return name

    def _create_table(self, table: str, part: str, name: str) -> None:
        columns = COLUMNS[table]
        if part not in self._parts[table]:
            self._connection.execute(f"CREATE TABLE {name} ({definitions(columns)})")
            self._parts[table][part] = dict(columns)
            self._make_views(table)
            return
        types = self._parts[table][part]
        missing = [column for column in columns if column[0] not in types]
        for column, kind in missing:  # an upgrade within the five minutes
            self._connection.execute(f'ALTER TABLE {name} ADD COLUMN "{column}" {kind}')
            types[column] = kind

    def drop_before(self, oldest_ns: int) -> int:
        """Drop tables received before the hour of *oldest_ns*; return their number."""
        limit, dropped = hour_name(oldest_ns), 0
        for table, parts in self._parts.items():
            old = sorted(part for part in parts if part[:10] < limit)
            for part in old:
                del parts[part]
            if old:
                for changed in {table, FORMER_TABLES.get(table, table)}:
                    self._make_views(changed)
            for part in old:
                self._connection.execute(f'DROP TABLE hours."{table}__{part}"')
            dropped += len(old)
        return dropped

    def _make_views(self, table: str) -> None:
        names = [table, _CURRENT_NAMES.get(table, "")]  # a table may have been renamed
        live = {
            f'hours."{name}__{part}"': types
            for name in names
            for part, types in sorted(self._parts.get(name, {}).items())
        }
        past = [segment for name in names for segment in self._segments.get(name, ())]
        columns = columns_of(table, [*live.values(), *(segment.types for segment in past)])
        if not columns:  # a table of another version without remaining rows
            self._drop_views(table)
            return
        self._make_view(f'live."{table}"', union(columns, live))
        self._make_view(f'past."{table}"', union(columns, past_sources(self._folder, past)))
        both = f'FROM live."{table}" UNION ALL FROM past."{table}"'
        self._make_view(f'readings."{table}"', both, str(columns))
        if table in COLUMNS:
            self._make_view(f'latest."{table}"', _latest(table), str(columns))

    def _make_view(self, view: str, body: str, made_of: str = "") -> None:
        digest = sha256(f"{duckdb.__version__} {body} {made_of}".encode()).hexdigest()
        if self._view_digests.get(view) != digest:
            self._connection.execute(f"CREATE OR REPLACE VIEW {view} AS {body}")
            self._connection.execute(f"COMMENT ON VIEW {view} IS '{digest}'")
            self._view_digests[view] = digest

    def _drop_views(self, table: str) -> None:
        for schema in ("latest", "readings", "past", "live"):
            self._connection.execute(f'DROP VIEW IF EXISTS {schema}."{table}"')
            self._view_digests.pop(f'{schema}."{table}"', None)


def _stored_view_digests(connection: Connection) -> dict[str, str]:
    rows: list[tuple[str, str]] = connection.execute(
        """SELECT schema_name || '."' || view_name || '"', comment FROM duckdb_views() """
        "WHERE schema_name IN ('live', 'past', 'readings', 'latest') AND comment IS NOT NULL"
    ).fetchall()
    return dict(rows)


def _latest(table: str) -> str:
    key = "host, device, signal" if table == "by_name" else "host, device"
    # By a join: row_number() over all columns of all readings takes ten times as long. Among
    # readings of the same time, the first is taken whole.
    return (
        f'SELECT {key}, first(COLUMNS(r.* EXCLUDE ({key}))) FROM readings."{table}" AS r '
        f'JOIN (SELECT {key}, max(time) AS time FROM readings."{table}" GROUP BY ALL) '
        f"USING ({key}, time) GROUP BY {key}"
    )


#: name, signal, code (None: any), action, scope, severity, clears, source
Action = tuple[str, str, int | None, str, str, str, str, str]


def actions() -> Iterator[Action]:
    """Yield each row of the policies that has an action."""
    for signal, rows in (("gpu.xid", policy()), ("nvswitch.sxid", sxid_policy())):
        source = f"{signal.partition('.')[2]}.toml"
        for code, policy_row in rows.items():
            policy_fields = (
                policy_row.action,
                policy_row.scope,
                str(policy_row.severity),
                str(policy_row.clears),
            )
            yield policy_row.name, signal, code, *policy_fields, source
    for row in builtin().rows:
        for exact in _codes(row) if row.action else ():
            policy_fields = row.action, row.scope, str(row.severity), str(row.clears)
            yield row.name, row.evidence_signal, exact, *policy_fields, "policy.toml"


def _codes(row: PolicyRow) -> tuple[int | None, ...]:
    """Return the codes or values that *row* matches; (None,) for any."""
    exact = row.when and row.when[0].compare in ("==", "in") and not row.when[0].other
    codes = tuple(map(int, row.when[0].values)) if exact else row.codes
    return codes or (None,)


@cache
def actions_sql() -> str:
    """Return the statements that create `ops.actions`."""
    rows = ",\n".join(f"({', '.join(map(_literal, row))})" for row in actions())
    return (
        f"CREATE OR REPLACE VIEW ops.actions AS FROM (VALUES\n{rows}\n) AS t({_COLUMNS});\n"
        f"COMMENT ON VIEW ops.actions IS '{_COMMENT}';\n"
    )


def _literal(value: object) -> str:
    if value is None:
        return "NULL"
    return str(value) if isinstance(value, int) else quoted(str(value))
