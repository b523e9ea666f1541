"""Schema of catalogue tables in DuckDB: columns, types, and the column of each signal id."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ...contract.signal import Kind, Signal
from ...contract.signals import TABLES

#: A column's name and its DuckDB type.
Column = tuple[str, str]

#: First columns of every table of readings.
KEYS: tuple[Column, ...] = (
    ("host", "VARCHAR"),
    ("device", "VARCHAR"),
    ("time", "TIMESTAMP"),
    ("boottime_ns", "UBIGINT"),
)

#: The table for signals that this version does not know: one row per value.
BY_NAME = "by_name"
BY_NAME_COLUMNS: tuple[Column, ...] = (
    ("host", "VARCHAR"),
    ("device", "VARCHAR"),
    ("time", "TIMESTAMP"),
    ("signal", "VARCHAR"),
    ("value", "DOUBLE"),
    ("raw", "UBIGINT"),
)


@dataclass(frozen=True, slots=True)
class Layout:
    """One catalogue table as a DuckDB table."""

    table: str
    signals: tuple[Signal, ...]
    index: dict[int, int]  # signal id -> position among the signals

    @property
    def columns(self) -> tuple[Column, ...]:
        """All columns, keys first."""
        return (*KEYS, *((signal.column, _type(signal)) for signal in self.signals))


def _type(signal: Signal) -> str:
    return "DOUBLE" if signal.kind is Kind.GAUGE else "UBIGINT"


def _layout(table: str, signals: tuple[Signal, ...]) -> Layout:
    return Layout(table, signals, {s.signal_id: index for index, s in enumerate(signals)})


#: Catalogue table -> layout.
LAYOUTS: dict[str, Layout] = {table: _layout(table, signals) for table, signals in TABLES.items()}

#: All tables of readings -> their columns.
COLUMNS: dict[str, tuple[Column, ...]] = {
    **{table: layout.columns for table, layout in LAYOUTS.items()},
    BY_NAME: BY_NAME_COLUMNS,
}


def typed_empty(columns: Iterable[Column]) -> str:
    """Return a SELECT with these columns and no rows."""
    nulls = ", ".join(f'NULL::{kind} AS "{name}"' for name, kind in columns)
    return f"SELECT {nulls} WHERE false"


def definitions(columns: Iterable[Column]) -> str:
    """Return the column definitions of a CREATE TABLE."""
    return ", ".join(f'"{name}" {kind}' for name, kind in columns)
