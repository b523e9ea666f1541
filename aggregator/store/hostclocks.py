"""Hosts' clocks as they are stored: a row a host, the last one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import duckdb

from .records import table, time_us


class ClockRecord(NamedTuple):
    """A host's wall clock against ours."""

    host: str
    offset_seconds: float  # positive: ahead of ours
    error_seconds: float  # NaN: not known yet
    measured_ns: int


def put(connection: duckdb.DuckDBPyConnection, records: Sequence[ClockRecord]) -> None:
    """Write each host's clock in place of the one before. Raises duckdb.Error."""
    rows = [(r.host, r.offset_seconds, r.error_seconds, time_us(r.measured_ns)) for r in records]
    arrow = table("host:str offset_seconds:float error_seconds:float measured:time", rows)
    connection.register("new_clocks", arrow)
    try:
        connection.execute("DELETE FROM clocks USING new_clocks AS n WHERE clocks.host = n.host")
        connection.execute("INSERT INTO clocks BY NAME FROM new_clocks")
    finally:
        connection.unregister("new_clocks")
