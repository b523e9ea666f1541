"""A closed store that has run for long: data age by the time that the aggregator ran, not by its wall clock."""

from __future__ import annotations

from pathlib import Path

import duckdb

from gangline.aggregator.store.store_folder import STORE_FILE


def set_run_time(folder: Path, since_us: int, until_us: int) -> None:
    """Write that the aggregator has run from *since_us* to *until_us*, microseconds of its wall clock."""
    with duckdb.connect(str(folder / STORE_FILE)) as base:
        base.execute("DELETE FROM run_time")
        base.execute(
            "INSERT INTO run_time VALUES (0, make_timestamp($since)), ($until - $since, make_timestamp($until))",
            {"since": since_us, "until": until_us},
        )
