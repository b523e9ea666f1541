"""An operator's queries: opens the snapshot file read-only, like `duckdb -readonly`, and runs
PER_SECOND queries.

python -m bench.load.asking FOLDER

Ends with its standard input; prints the number of answered queries.
"""

from __future__ import annotations

import select
import sys
from pathlib import Path

import duckdb

PER_SECOND = 4
QUESTIONS = (
    "FROM ops.worst(n := 20)",
    "FROM ops.freshness LIMIT 100",
    "SELECT state, count(*) FROM ops.hosts GROUP BY state",
    "FROM ops.findings LIMIT 100",
    "FROM ops.aggregator",
    "SELECT device, max(temperature_celsius), avg(power_watts) FROM readings.gpu_1s GROUP BY device",
    ("SELECT h.host, max(r.temperature_celsius) FROM ops.hosts AS h JOIN readings.gpu_1s AS r USING (host) "
    "GROUP BY h.host ORDER BY 2 DESC LIMIT 20"),
)  # fmt: skip


def main() -> int:
    """Run queries until standard input ends."""
    file, queries = Path(sys.argv[1]) / "operators.duckdb", 0
    while not select.select([sys.stdin], [], [], 1 / PER_SECOND)[0]:
        if not file.exists():
            continue
        with duckdb.connect(str(file), read_only=True, config={"threads": 1}) as base:
            base.execute(QUESTIONS[queries % len(QUESTIONS)]).fetchall()
        queries += 1
    print(queries)
    return 0


if __name__ == "__main__":
    sys.exit(main())
