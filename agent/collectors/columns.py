"""Which column of its table a signal is, looked up once."""

from __future__ import annotations

from ...fingerprints.catalogue import TABLES


def columns_of(*tables: str) -> dict[str, int]:
    """Return the column of each signal of the tables, by the signal's name. KeyError without one."""
    return {signal.name: i for table in tables for i, signal in enumerate(TABLES[table])}
