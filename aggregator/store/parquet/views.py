"""Views over the Parquet files: the same for the live file and for any other DuckDB.

Files are grouped by the day of arrival and by their columns, each group with the time span of its readings as a condition. So a
query for some minutes opens the files of one day, and plans over a few groups for any number of files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb

from ...model import DUPLICATE_GPU, GPU_RELEASED
from ...sql import quoted
from ..layout import COLUMNS, LAYOUTS, typed_empty
from . import segment_files
from .rollup import rollup_view
from .segment_files import HOUR, MINUTE, RAW, ParquetSegment, readable, recorded_segments

#: Readings so far from the hour in which they were received are late, and their files stand apart:
#: a day's span stays a day.
LATE_SECONDS = 3600
_EPOCH = datetime(1970, 1, 1)
#: Tables whose rollups the macros of `ops` read: DuckDB opens the files of such a view when a macro over it is made, so
#: one that is not there would keep the store from opening.
BOUND_AT_START = ("gpu_1s",)
_PARQUET = re.compile(r"'((?:[^']|'')+\.parquet)'")


def past_sources(folder: Path, found: Sequence[ParquetSegment]) -> dict[str, dict[str, str]]:
    """Return what follows FROM -> its columns, a group of files each."""
    groups: dict[tuple[str, bool, str], list[ParquetSegment]] = {}
    for one in found:
        key = one.bucket[:8], is_late(one), one.columns
        groups.setdefault(key, []).append(one)
    return {_source(folder, group): group[0].types for _, group in sorted(groups.items())}


def is_late(one: ParquetSegment) -> bool:
    """Return whether a file holds readings made long before or after they were received."""
    begin, end = span_us(one.bucket)
    slack = LATE_SECONDS * 1_000_000
    return one.first_us < begin - slack or one.last_us > end + slack


def span_us(bucket: str) -> tuple[int, int]:
    """Return when a bucket begins and ends, microseconds since 1970."""
    minute = bucket[10:12] or "00"
    hour = bucket[8:10] or "00"
    begin = datetime.strptime(bucket[:8] + hour + minute, "%Y%m%d%H%M").replace(tzinfo=UTC)
    begin_us = int(begin.timestamp()) * 1_000_000
    return begin_us, begin_us + {8: 86_400, 10: 3600, 12: 300}[len(bucket)] * 1_000_000


def _source(folder: Path, group: Iterable[ParquetSegment]) -> str:
    files = list(group)
    names = ", ".join(quoted(str(_place(folder, one))) for one in files)
    first, last = min(one.first_us for one in files), max(one.last_us for one in files)
    return (
        f"read_parquet([{names}]) "
        f"WHERE time >= TIMESTAMP '{_time(first)}' AND time <= TIMESTAMP '{_time(last)}'"
    )


def _place(folder: Path, one: ParquetSegment) -> Path:
    return (folder / one.path).absolute()


def _time(time_us: int) -> str:
    return (_EPOCH + timedelta(microseconds=time_us)).isoformat(" ")


# -- for anybody's DuckDB -----------------------------------------------------------------------------


def statements(folder: Path, tables: Sequence[str] = ()) -> list[str]:
    """Return the SQL that makes `past.TABLE`, `past.TABLE_1m` and `past.TABLE_1h` in any connection.

    One schema, and not `rollups`: the operators' file has the newest of these under that name.

    Over the files of the data folder alone, as its manifests tell of them; the views read these files
    until `GRACE_SECONDS` after the manifest has changed, so make them again for each query, or when one
    fails for a missing file. *tables* are the catalogue's names; none: all that have files.
    """
    made = ["CREATE SCHEMA IF NOT EXISTS past"]
    for table in tables or segment_files.manifest_tables(folder):
        found = segment_files.read_manifest(folder, table)
        raw = [one for one in found if one.grain == RAW]
        if raw or table in COLUMNS:
            made.append(f'CREATE OR REPLACE VIEW past."{table}" AS {past_view(folder, table, raw)}')
        made += rollup_views(folder, table, found, "past")
    return made


def past_view(folder: Path, table: str, raw: Sequence[ParquetSegment]) -> str:
    """Return the body of `past.TABLE`."""
    return union(columns_of(table, (one.types for one in raw)), past_sources(folder, raw))


def rollup_views(
    folder: Path, table: str, found: Sequence[ParquetSegment], schema: str = "rollups"
) -> list[str]:
    """Return the SQL that makes the two rollup views of *table*; none when it is not rolled up."""
    return [
        f'CREATE OR REPLACE VIEW {schema}."{table}_{grain}" AS {body}'
        for grain, body in _rollups(folder, table, found).items()
    ]


def repair_rollup_views(connection: duckdb.DuckDBPyConnection, folder: Path) -> None:
    """Make the rollup views that are not there, those of BOUND_AT_START that name other files than can be read, and all
    that name files of another folder: the store was restored here.

    Others that are not right `HistoryMaintenance` makes again: a fleet's year are too many files for each start to open.
    """
    view_files, here = _named_files(connection), f"{folder.absolute()}/"
    rolled = {one.table for grain in (MINUTE, HOUR) for one in recorded_segments(connection, grain)}
    for table in sorted(rolled | set(BOUND_AT_START)):
        named_files = [view_files.get(f"{table}_{grain}") for grain in (MINUTE, HOUR)]
        moved = any(not path.startswith(here) for paths in named_files for path in paths or ())
        if table not in BOUND_AT_START and None not in named_files and not moved:
            continue
        found = [
            one for one in recorded_segments(connection, table=table) if one.grain in (MINUTE, HOUR)
        ]
        found = readable(folder, found)
        of_grain = [{str(_place(folder, o)) for o in found if o.grain == g} for g in (MINUTE, HOUR)]
        if named_files != of_grain:
            for statement in rollup_views(folder, table, found):
                connection.execute(statement)


def _named_files(connection: duckdb.DuckDBPyConnection) -> dict[str, set[str]]:
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
    return {
        grain: rollup_view(
            table, past_sources(folder, [one for one in found if one.grain == grain])
        )
        for grain in (MINUTE, HOUR)
    }


def columns_of(table: str, sources: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return all columns of a view: the catalogue's, then what only other versions stored."""
    columns = dict(COLUMNS.get(table, ()))
    for types in sources:
        for name, kind in types.items():
            columns.setdefault(name, kind)
    return columns


def union(columns: Mapping[str, str], sources: Mapping[str, Mapping[str, str]]) -> str:
    """Return a query over *sources* (what follows FROM -> its columns) that has exactly *columns*."""
    parts = [typed_empty(columns.items())]
    for source, types in sources.items():
        other = [name for name, kind in types.items() if kind != columns[name]]
        casts = ", ".join(f'TRY_CAST("{name}" AS {columns[name]}) AS "{name}"' for name in other)
        parts.append(f"SELECT *{f' REPLACE ({casts})' if casts else ''} FROM {source}")
    return " UNION ALL BY NAME ".join(parts)


# ----------------------------------------------------------------------
# Where parts have been: a row per part, host and slot, from its first registration there to the
# last.
#
# A part is a device whose key goes with it (a GPU's UUID) and that says where it sits (its PCI
# address). A GPU that moved is followed by its key, a slot through all that sat in it, a renamed
# host by its parts.

#: Stints remembered of one host; beyond, those that ended longest ago go: a host may invent keys for ever.
STINTS_PER_HOST_MAX = 4096

#: What says where a part sits, the first that it has.
_SLOT = "coalesce(d.attributes['pci_address'], d.attributes['index'])"

#: Hosts with a GPU that another has too: whose it is, is open (`ingest/findings.py`), and it stays where it was.
_OPEN = f"SELECT subject FROM main.findings WHERE name = '{DUPLICATE_GPU}' AND cleared IS NULL"
#: When hosts last registered, or had a GPU let go to them by another.
_HOSTS = f"""
SELECT h.host, greatest(h.registered, max(f.cleared)) AS registered FROM main.hosts AS h LEFT JOIN main.findings AS f
ON f.subject = h.host AND f.name = '{DUPLICATE_GPU}' AND f.clears_when = '{GPU_RELEASED}'
WHERE h.registered IS NOT NULL GROUP BY h.host, h.registered
"""
#: Of what two hosts have, it is where it was registered last: after a restart all hosts are looked at, those too that
#: it left before they were switched off.
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


def registrations(cursor: duckdb.DuckDBPyConnection) -> dict[str, int]:
    """Return host -> when it last registered, or had its GPUs let go by another: microseconds since 1970."""
    rows: list[tuple[str, int]] = cursor.execute(
        f"SELECT host, epoch_us(registered) FROM ({_HOSTS})"
    ).fetchall()
    return dict(rows)


def newly_registered(known: Mapping[str, int], now: Mapping[str, int]) -> list[str]:
    """Return the hosts that registered since *known*."""
    return [host for host, time_us in now.items() if known.get(host) != time_us]


def track_parts(connection: duckdb.DuckDBPyConnection, hosts: list[str]) -> None:
    """Take what *hosts* registered with as where their parts are now. Within a transaction."""
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
