"""Declarations as rows of the store: written on change, and read after a restart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from math import isnan
from typing import Any, NamedTuple

from duckdb import DuckDBPyConnection as Connection

from ..store.rows import table, time_us
from .expectations import ITEMS, TEXTS
from .host_placement import PLACE_FIELDS, HostPlacement, PlaceSource
from .loader import DeclaredFile
from .model import Declared, ExchangeRates
from .thresholds import THRESHOLDS

#: Versions with stored files, and the bytes of these files; the oldest are deleted first, but
#: never the version in force.
FILES_RETAINED_VERSIONS, FILES_RETAINED_BYTES_MAX = 20, 64 << 20
#: Versions that are reported.
VERSIONS_RETAINED = 1000

_WINDOWS = "hosts:str begins:time ends:time who:str why:str declared_in:str"
_OVERRIDES = (
    "what:str hosts:str since:time until:time who:str why:str declared_in:str rollout:float"
)
_EXPECTED = "name:str model:str hosts:str item:str value:str description:str declared_in:str"
_THRESHOLDS = (
    "name:str value:float default_value:float low:float high:float unit:str description:str rollout:float "
    "before_value:float"
)
_COSTS = "hosts:str price_per_gpu_hour:float preemptions_per_hour:float declared_in:str"
_TENANTS = " ".join(["tenant:str", *(f"{r.name}:float" for r in fields(ExchangeRates))])
_PLACES = "host:str field:str value:str source:str declared_in:str counts:bool"


class StoredVersion(NamedTuple):
    """The version that was last in force."""

    number: int
    hash: str
    taken_ns: int
    files: tuple[DeclaredFile, ...]


def put_version(
    connection: Connection, declared: Declared, files: Sequence[DeclaredFile], taken_ns: int
) -> None:
    """Write a version in force, replacing the stored declarations. Raises duckdb.Error."""
    number = declared.number
    for name in ("declared_versions", "declared_files"):
        connection.execute(f"DELETE FROM {name} WHERE number = ?", [number])
    version = [
        (number, declared.hash, time_us(taken_ns), list(declared.files), list(declared.notes))
    ]
    columns = "number:int hash:str taken:time files:texts notes:texts"
    _add(connection, "declared_versions", columns, version)
    texts = [(number, file.name, file.data.decode()) for file in files]
    _add(connection, "declared_files", "number:int file:str text:str", texts)
    connection.execute(
        "DELETE FROM declared_versions WHERE number <= ?", [number - VERSIONS_RETAINED]
    )
    connection.execute(
        "DELETE FROM declared_files WHERE number <> $1 AND (number <= $2 OR number IN ("
        "SELECT number FROM (SELECT number, sum(sum(strlen(text))) OVER (ORDER BY number DESC) AS bytes "
        "FROM declared_files GROUP BY number) WHERE bytes > $3))",
        [number, number - FILES_RETAINED_VERSIONS, FILES_RETAINED_BYTES_MAX],
    )
    _replace(connection, "declared_windows", _WINDOWS, windows(declared))
    _replace(connection, "declared_overrides", _OVERRIDES, overrides(declared))
    _replace(connection, "declared_expected", _EXPECTED, expectations(declared))
    _replace(connection, "declared_thresholds", _THRESHOLDS, thresholds(declared))
    _replace(connection, "declared_costs", _COSTS, costs(declared))
    _replace(connection, "declared_tenants", _TENANTS, tenants(declared))


def put_places(connection: Connection, declared: Declared) -> None:
    """Replace the stored locations of hosts. Raises duckdb.Error."""
    _replace(connection, "declared_places", _PLACES, places(declared))


def last_version(connection: Connection) -> StoredVersion | None:
    """Return the version last in force; None if there was none. Raises duckdb.Error."""
    newest = connection.execute(
        "SELECT number, hash, epoch_ns(taken) FROM declared_versions ORDER BY number DESC LIMIT 1"
    ).fetchone()
    if newest is None:
        return None
    rows = connection.execute(
        "SELECT file, text FROM declared_files WHERE number = ? ORDER BY file", [newest[0]]
    ).fetchall()
    files = tuple(DeclaredFile(name, text.encode()) for name, text in rows)
    return StoredVersion(int(newest[0]), str(newest[1]), int(newest[2]), files)


def reported_places(connection: Connection) -> dict[str, tuple[PlaceSource, ...]]:
    """Return the reported locations of hosts from a store or file. Raises duckdb.Error."""
    fields_by_source: dict[tuple[str, str], dict[str, Any]] = {}
    for host, source, field, value in connection.execute(
        "SELECT host, source, field, value FROM declared_places SEMI JOIN hosts USING (host) "
        # a later version may have more fields
        "WHERE source IN ('label', 'hardware') AND list_contains($1, field) "
        "ORDER BY source DESC",  # the highest priority first
        [list(PLACE_FIELDS)],
    ).fetchall():
        field_value = tuple(value.split()) if field == "rails" else value
        fields_by_source.setdefault((host, source), {})[field] = field_value
    sources: dict[str, tuple[PlaceSource, ...]] = {}
    for (host, source), place in fields_by_source.items():
        sources[host] = (*sources.get(host, ()), PlaceSource(source, "", HostPlacement(**place)))
    return sources


def windows(declared: Declared) -> list[tuple[Any, ...]]:
    """Return the rows of `declared_windows`."""
    return [
        (
            window.selection.description,
            time_us(window.begin_ns),
            time_us(window.end_ns),
            window.who,
            window.why,
            str(window.where),
        )
        for window in declared.windows
    ]


def overrides(declared: Declared) -> list[tuple[Any, ...]]:
    """Return the rows of `declared_overrides`."""
    return [
        (
            override.what, override.selection.description, time_us(override.since_ns), time_us(override.until_ns),
            override.who, override.why, str(override.where), override.rollout,
        )
        for override in declared.overrides
    ]  # fmt: skip


def expectations(declared: Declared) -> list[tuple[Any, ...]]:
    """Return the rows of `declared_expected`."""
    return [
        (
            expectation.name,
            expectation.model,
            expectation.selection.description if expectation.selection else "",
            item,
            value,
            description,
            str(expectation.where),
        )
        for expectation in declared.expectations
        for item, value, description in (
            *(
                (item, f"{value:g}", ITEMS[item].description)
                for item, value in expectation.items.items()
            ),
            *((item, " or ".join(value), TEXTS[item]) for item, value in expectation.texts.items()),
        )
    ]


def thresholds(declared: Declared) -> list[tuple[Any, ...]]:
    """Return the rows of `declared_thresholds`, with all thresholds."""
    return [
        (
            row.name,
            declared.threshold(row.name),
            row.default,
            row.low,
            row.high,
            row.unit,
            row.description,
            declared.rollouts[row.name].share if row.name in declared.rollouts else 1.0,
            declared.threshold(row.name, before=True),
        )
        for row in THRESHOLDS.values()
    ]


def costs(declared: Declared) -> list[tuple[Any, ...]]:
    """Return the rows of `declared_costs`."""
    return [
        (
            node_cost.selection.description, _known(node_cost.price_per_gpu_hour),
            _known(node_cost.preemptions_per_hour), str(node_cost.where),
        )
        for node_cost in declared.node_costs
    ]  # fmt: skip


def tenants(declared: Declared) -> list[tuple[Any, ...]]:
    """Return the rows of `declared_tenants`."""
    return [
        (name, *(_known(getattr(rates, rate_field.name)) for rate_field in fields(rates)))
        for name, rates in declared.tenants.items()
    ]


def _known(value: float) -> float | None:
    return None if isnan(value) else value


def places(declared: Declared) -> list[tuple[Any, ...]]:
    """Return the rows of `declared_places`."""
    return [
        row
        for host in declared.file_places.keys() | declared.reported_places.keys()
        for row in _place_rows(host, declared.place_sources(host))
    ]


def _place_rows(host: str, sources: Iterable[PlaceSource]) -> Iterable[tuple[Any, ...]]:
    counted: set[str] = set()
    for source in sources:
        for name in PLACE_FIELDS:
            if value := getattr(source.place, name):
                text = " ".join(value) if isinstance(value, tuple) else value
                yield host, name, text, source.source, source.where, name not in counted
                counted.add(name)


def _replace(connection: Connection, name: str, columns: str, rows: list[tuple[Any, ...]]) -> None:
    connection.execute(f"DELETE FROM {name}")
    _add(connection, name, columns, rows)


def _add(connection: Connection, name: str, columns: str, rows: list[tuple[Any, ...]]) -> None:
    connection.register("new_declared", table(columns, rows))
    try:
        connection.execute(f"INSERT INTO {name} BY NAME FROM new_declared")
    finally:
        connection.unregister("new_declared")
