"""Text diff between the declarations in force and another version."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from math import isnan
from typing import Any, NamedTuple

import duckdb

from ..store.rows import time_us
from .model import Declared
from .moments import format_time
from .rows import expectations as record_expected
from .rows import places
from .rows import thresholds as record_thresholds

#: Maximum lines shown of each kind.
LINES_MAX = 40

Row = tuple[Any, ...]

#: Kinds without a table in stores before version 20.
LATER_KINDS = frozenset({"cost", "tenant"})


class RowKind(NamedTuple):
    """Comparison and output of the rows of a kind."""

    name: str
    query: str  # its query in a store, with times as microseconds
    key_columns: (
        int  # number of first columns that identify the row; the next is its value; 0: all of them
    )


KINDS = (
    RowKind(
        "places",
        "SELECT host, field, value FROM declared_places WHERE source IN ('file', 'topograph') AND counts",
        2,
    ),
    RowKind("expected", "SELECT name, model, hosts, item, value FROM declared_expected", 4),
    RowKind(
        "maintenance",
        "SELECT hosts, epoch_us(begins), epoch_us(ends), who, why FROM declared_windows",
        0,
    ),
    RowKind(
        "overrides",
        "SELECT what, hosts, epoch_us(since), epoch_us(until), who, why, coalesce(rollout, 1) "
        "FROM declared_overrides",
        0,
    ),
    RowKind("thresholds", "SELECT name, value FROM declared_thresholds", 1),
    RowKind("roll-out of", "SELECT name, rollout FROM declared_thresholds WHERE rollout < 1", 1),
    RowKind(
        "not rolled out yet",
        "SELECT name, before_value FROM declared_thresholds WHERE rollout < 1",
        1,
    ),
    RowKind(
        "cost",
        "SELECT hosts, field, value FROM (UNPIVOT declared_costs ON price_per_gpu_hour, preemptions_per_hour "
        "INTO NAME field VALUE value)",
        2,
    ),
    RowKind(
        "tenant",
        "SELECT tenant, field, value FROM (UNPIVOT declared_tenants ON COLUMNS(* EXCLUDE tenant) "
        "INTO NAME field VALUE value)",
        2,
    ),
)
Rows = Mapping[str, set[Row]]


def declared_rows(declared: Declared) -> Rows:
    """Return the declarations in the form of `stored_rows`."""
    return {
        "places": {
            (host, field, value)
            for host, field, value, source, _, counts in places(declared)
            if counts and source in ("file", "topograph")
        },
        "expected": {row[:5] for row in record_expected(declared)},
        "maintenance": {
            (window.selection.description, time_us(window.begin_ns), time_us(window.end_ns), window.who, window.why)
            for window in declared.windows
        },
        "overrides": {
            (
                override.what, override.selection.description, time_us(override.since_ns), time_us(override.until_ns),
                override.who, override.why, override.rollout,
            )
            for override in declared.overrides
        },
        "cost": {
            (node_cost.selection.description, name, value)
            for node_cost in declared.node_costs
            for name in ("price_per_gpu_hour", "preemptions_per_hour")
            if not isnan(value := getattr(node_cost, name))
        },
        "tenant": {
            (tenant, rate_field.name, value)
            for tenant, rates in declared.tenants.items()
            for rate_field in fields(rates)
            if not isnan(value := getattr(rates, rate_field.name))
        },
        "thresholds": {row[:2] for row in record_thresholds(declared)},
        "roll-out of": {(name, rollout.share) for name, rollout in declared.rollouts.items()},
        "not rolled out yet": {(name, rollout.before) for name, rollout in declared.rollouts.items()},
    }  # fmt: skip


def stored_rows(connection: duckdb.DuckDBPyConnection) -> tuple[int, Rows]:
    """Return the number and the rows of a store's version in force. Raises duckdb.Error.

    An old store has no tables of LATER_KINDS.
    """
    newest = connection.execute("SELECT max(number) FROM declared_versions").fetchone()
    rows = dict[str, set[Row]]()
    for kind in KINDS:
        try:
            rows[kind.name] = set(connection.execute(kind.query).fetchall())
        except duckdb.CatalogException:
            if kind.name not in LATER_KINDS:
                raise
    return int(newest[0] or 0) if newest else 0, rows


def lines(before: Rows, after: Rows) -> Iterator[str]:
    """Yield added (+), removed (-) and changed (~) rows by kind, at most LINES_MAX of each."""
    for kind in KINDS:
        if kind.name not in before:
            if count := len(after[kind.name]):
                yield f"  {count:,} of {kind.name} are not compared with a store: see --against"
            continue
        kind_lines = list(_kind_lines(kind, before[kind.name], after[kind.name]))
        yield from kind_lines[:LINES_MAX]
        if len(kind_lines) > LINES_MAX:
            yield f"  and {len(kind_lines) - LINES_MAX:,} more of {kind.name}"


def _kind_lines(kind: RowKind, before: set[Row], after: set[Row]) -> Iterator[str]:
    if not kind.key_columns:
        yield from (f"+ {_row_text(kind.name, row)}" for row in sorted(after - before, key=str))
        yield from (f"- {_row_text(kind.name, row)}" for row in sorted(before - after, key=str))
        return
    old = {row[: kind.key_columns]: row[kind.key_columns] for row in before}
    new = {row[: kind.key_columns]: row[kind.key_columns] for row in after}
    for key in sorted(old.keys() | new.keys()):
        before_value, after_value = old.get(key), new.get(key)
        label = f"{kind.name}: {' '.join(part for part in key if part)}"
        if before_value is None:
            yield f"+ {label} = {_value_text(after_value)}"
        elif after_value is None:
            yield f"- {label} = {_value_text(before_value)}"
        elif before_value != after_value:
            yield f"~ {label}: {_value_text(before_value)} -> {_value_text(after_value)}"


def _value_text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _row_text(kind: str, row: Row) -> str:
    if kind == "maintenance":
        hosts, begin_us, end_us, who, why = row
        return (
            f"maintenance of {hosts}: {_time_text(begin_us)} to {_time_text(end_us)}, {why} ({who})"
        )
    what, hosts, since_us, until_us, who, why, rollout = row
    hosts += f" ({100 * rollout:g} % of them)" if rollout < 1 else ""
    since = f"from {_time_text(since_us)} " if since_us else ""
    return (
        f"override: {what} is noise on {hosts} {since}until {_time_text(until_us)}, {why} ({who})"
    )


def _time_text(at_us: int) -> str:
    return format_time(at_us * 1000)
