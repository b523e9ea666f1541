"""Views over the Parquet files, for the live file and any other DuckDB; locations of parts.

Files are grouped by the day of arrival and by their columns, each group with the time span of its readings as a condition. So a
query for some minutes opens the files of one day, and plans over a few groups for any number of files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from duckdb import DuckDBPyConnection as Connection

from ...model import DUPLICATE_GPU, GPU_RELEASED
from ...sql import quoted
from ..layout import COLUMNS, LAYOUTS, typed_empty
from . import segment_files
from .rollup import rollup_view
from .segment_files import HOUR, MINUTE, RAW, ParquetSegment, readable, recorded_segments

#: Readings this long before or after the hour in which they were received are late. Their files
#: form separate groups, so that the time span of other groups stays a day.
LATE_SECONDS = 3600
_EPOCH = datetime(1970, 1, 1)
#: Tables whose rollups the macros of `ops` read. DuckDB opens the files of such a view when it
#: creates the macro, so a missing file would prevent a start.
BOUND_AT_START = ("gpu_1s",)
_PARQUET = re.compile(r"'((?:[^']|'')+\.parquet)'")

#: Rows kept per host; the oldest are deleted, as a host may report any number of keys.
STINTS_PER_HOST_MAX = 4096
#: Slot of a part: the first of these attributes that it has.
_SLOT = "coalesce(d.attributes['pci_address'], d.attributes['index'])"
#: Hosts with a GPU that another host reports: its owner is undecided, and its row stays.
_OPEN = f"SELECT subject FROM main.findings WHERE name = '{DUPLICATE_GPU}' AND cleared IS NULL"
#: Time of each host's last registration, or of the end of a duplicate in its favor.
_HOSTS = f"""
SELECT h.host, greatest(h.registered, max(f.cleared)) AS registered FROM main.hosts AS h LEFT JOIN main.findings AS f
ON f.subject = h.host AND f.name = '{DUPLICATE_GPU}' AND f.clears_when = '{GPU_RELEASED}'
WHERE h.registered IS NOT NULL GROUP BY h.host, h.registered
"""
#: A part of two hosts belongs to the one that registered last: after a restart all hosts are
#: examined, including those that lost the part before they were switched off.
_NOW = f"""
SELECT DISTINCT ON (d.kind, d.device) d.kind, d.device, d.host, {_SLOT} AS slot, h.registered
FROM main.devices AS d JOIN ({_HOSTS}) AS h USING (host)
WHERE d.host IN (SELECT unnest($hosts)) AND {_SLOT} IS NOT NULL AND {_SLOT} <> d.device
    AND NOT (d.host IN ({_OPEN}) AND EXISTS (FROM main.parts AS p
        WHERE p.present AND p.kind = d.kind AND p.device = d.device AND p.host <> d.host))
    AND NOT EXISTS (FROM main.parts AS p WHERE p.present AND p.kind = d.kind AND p.device = d.device
        AND p.host <> d.host AND p.last_seen > h.registered)
ORDER BY h.registered DESC
"""
_SAME = "p.kind = n.kind AND p.device = n.device AND p.host = n.host AND p.slot = n.slot"
_NOT_THERE_NOW = f"""
UPDATE main.parts AS p SET present = false
WHERE present AND p.host IN (SELECT unnest($hosts)) AND NOT EXISTS (FROM parts_now AS n WHERE {_SAME})
"""
_ELSEWHERE_NOW = """
UPDATE main.parts AS p SET present = false WHERE present AND EXISTS (
    FROM parts_now AS n WHERE p.kind = n.kind AND p.device = n.device AND p.host <> n.host)
"""
_STILL_THERE = f"""
UPDATE main.parts AS p SET last_seen = n.registered FROM parts_now AS n WHERE p.present AND {_SAME}
"""
_NEW = f"""
INSERT INTO main.parts
SELECT n.kind, n.device, n.host, n.slot, n.registered, n.registered, true FROM parts_now AS n
WHERE NOT EXISTS (FROM main.parts AS p WHERE p.present AND {_SAME})
"""


def past_sources(folder: Path, found: Sequence[ParquetSegment]) -> dict[str, dict[str, str]]:
    """Return SQL after FROM -> its columns, for each group of files."""
    groups: dict[tuple[str, bool, str], list[ParquetSegment]] = {}
    for segment in found:
        key = segment.bucket[:8], is_late(segment), segment.columns
        groups.setdefault(key, []).append(segment)
    return {_source(folder, group): group[0].types for _, group in sorted(groups.items())}


def is_late(one: ParquetSegment) -> bool:
    """Return whether a file has readings made long before or after they were received."""
    begin, end = span_us(one.bucket)
    slack = LATE_SECONDS * 1_000_000
    return one.first_us < begin - slack or one.last_us > end + slack


def span_us(bucket: str) -> tuple[int, int]:
    """Return the beginning and end of a bucket, microseconds since 1970."""
    minute = bucket[10:12] or "00"
    hour = bucket[8:10] or "00"
    begin = datetime.strptime(bucket[:8] + hour + minute, "%Y%m%d%H%M").replace(tzinfo=UTC)
    begin_us = int(begin.timestamp()) * 1_000_000
    return begin_us, begin_us + {8: 86_400, 10: 3600, 12: 300}[len(bucket)] * 1_000_000


def _source(folder: Path, group: Iterable[ParquetSegment]) -> str:
    files = list(group)
    names = ", ".join(quoted(str(_place(folder, segment))) for segment in files)
    first = min(segment.first_us for segment in files)
    last = max(segment.last_us for segment in files)
    return (
        f"read_parquet([{names}]) "
        f"WHERE time >= TIMESTAMP '{_time(first)}' AND time <= TIMESTAMP '{_time(last)}'"
    )


def _place(folder: Path, one: ParquetSegment) -> Path:
    return (folder / one.path).absolute()


def _time(time_us: int) -> str:
    return (_EPOCH + timedelta(microseconds=time_us)).isoformat(" ")


def statements(folder: Path, tables: Sequence[str] = ()) -> list[str]:
    """Return the SQL that creates `past.TABLE`, `past.TABLE_1m` and `past.TABLE_1h` in any
    connection.

    All are in one schema instead of `rollups`, because the operators' file has recent rollups under
    that name. The views read the files that the manifests list now, which exist until
    `GRACE_SECONDS` after the manifest changes: recreate them for each query, or when a file is
    missing. *tables*: names in the catalogue; empty: all that have files.
    """
    sql = ["CREATE SCHEMA IF NOT EXISTS past"]
    for table in tables or segment_files.manifest_tables(folder):
        segments = segment_files.read_manifest(folder, table)
        raw = [segment for segment in segments if segment.grain == RAW]
        if raw or table in COLUMNS:
            sql.append(f'CREATE OR REPLACE VIEW past."{table}" AS {past_view(folder, table, raw)}')
        sql += rollup_views(folder, table, segments, "past")
    return sql


def past_view(folder: Path, table: str, raw: Sequence[ParquetSegment]) -> str:
    """Return the body of `past.TABLE`."""
    return union(columns_of(table, (segment.types for segment in raw)), past_sources(folder, raw))


def rollup_views(
    folder: Path, table: str, found: Sequence[ParquetSegment], schema: str = "rollups"
) -> list[str]:
    """Return the SQL that creates the two rollup views of *table*; none if it is not rolled up."""
    return [
        f'CREATE OR REPLACE VIEW {schema}."{table}_{grain}" AS {body}'
        for grain, body in _rollups(folder, table, found).items()
    ]


def repair_rollup_views(connection: Connection, folder: Path) -> None:
    """Recreate rollup views that are missing, that are in BOUND_AT_START and outdated, or that name
    files of another folder because the store was restored.

    `HistoryMaintenance` recreates other outdated views: checking all files of a large fleet's year
    would delay each start.
    """
    view_files, folder_prefix = _named_files(connection), f"{folder.absolute()}/"
    rolled = {
        segment.table
        for grain in (MINUTE, HOUR)
        for segment in recorded_segments(connection, grain)
    }
    for table in sorted(rolled | set(BOUND_AT_START)):
        named_files = [view_files.get(f"{table}_{grain}") for grain in (MINUTE, HOUR)]
        moved = any(
            not path.startswith(folder_prefix) for paths in named_files for path in paths or ()
        )
        if table not in BOUND_AT_START and None not in named_files and not moved:
            continue
        segments = [
            segment
            for segment in recorded_segments(connection, table=table)
            if segment.grain in (MINUTE, HOUR)
        ]
        segments = readable(folder, segments)
        readable_files = [
            {str(_place(folder, segment)) for segment in segments if segment.grain == grain}
            for grain in (MINUTE, HOUR)
        ]
        if named_files != readable_files:
            for statement in rollup_views(folder, table, segments):
                connection.execute(statement)


def _named_files(connection: Connection) -> dict[str, set[str]]:
    """Return view of `rollups` -> the files that it reads."""
    rows = connection.execute(
        "SELECT view_name, sql FROM duckdb_views() WHERE schema_name = 'rollups'"
    ).fetchall()
    return {
        name: {path.replace("''", "'") for path in _PARQUET.findall(text)} for name, text in rows
    }


def _rollups(folder: Path, table: str, found: Sequence[ParquetSegment]) -> dict[str, str]:
    """Return grain -> body of the view."""
    if table not in LAYOUTS:
        return {}
    segments = {grain: [s for s in found if s.grain == grain] for grain in (MINUTE, HOUR)}
    return {g: rollup_view(table, past_sources(folder, of)) for g, of in segments.items()}


def columns_of(table: str, sources: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return all columns of a view: the catalogue's, then those stored by other versions."""
    columns = dict(COLUMNS.get(table, ()))
    for types in sources:
        for name, kind in types.items():
            columns.setdefault(name, kind)
    return columns


def union(columns: Mapping[str, str], sources: Mapping[str, Mapping[str, str]]) -> str:
    """Return a query with *columns* over *sources* (SQL after FROM -> its columns)."""
    parts = [typed_empty(columns.items())]
    for source, types in sources.items():
        other = [name for name, kind in types.items() if kind != columns[name]]
        casts = ", ".join(f'TRY_CAST("{name}" AS {columns[name]}) AS "{name}"' for name in other)
        parts.append(f"SELECT *{f' REPLACE ({casts})' if casts else ''} FROM {source}")
    return " UNION ALL BY NAME ".join(parts)


# Locations of parts: a row per part, host and slot, from the first registration there to the last.
# A part is a device with a permanent key (a GPU's UUID) and a slot (its PCI address). Rows show
# where a GPU has been, which parts a slot had, and that a host was renamed.


def registrations(cursor: Connection) -> dict[str, int]:
    """Return host -> its last registration, or later release of a GPU: microseconds since 1970."""
    rows: list[tuple[str, int]] = cursor.execute(
        f"SELECT host, epoch_us(registered) FROM ({_HOSTS})"
    ).fetchall()
    return dict(rows)


def newly_registered(known: Mapping[str, int], now: Mapping[str, int]) -> list[str]:
    """Return the hosts that registered since *known*."""
    return [host for host, time_us in now.items() if known.get(host) != time_us]


def track_parts(connection: Connection, hosts: list[str]) -> None:
    """Record the registered devices of *hosts* as present. Call this in a transaction."""
    connection.execute(f"CREATE OR REPLACE TEMP TABLE parts_now AS {_NOW}", {"hosts": hosts})
    connection.execute(_NOT_THERE_NOW, {"hosts": hosts})
    connection.execute(_ELSEWHERE_NOW)
    connection.execute(_STILL_THERE)
    connection.execute(_NEW)
    connection.execute(
        "DELETE FROM main.parts WHERE rowid IN (SELECT rowid FROM main.parts WHERE host IN "
        "(SELECT unnest($hosts)) QUALIFY row_number() OVER (PARTITION BY host ORDER BY present DESC, "
        f"last_seen DESC) > {STINTS_PER_HOST_MAX})",
        {"hosts": hosts},
    )
    connection.execute("DROP TABLE parts_now")
