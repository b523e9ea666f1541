"""Operators' queries over 80,000 GPUs: each view or macro against the best hand-written SQL over the same tables.

`python -m bench.operator_sql --rows 100000000` is the whole size (3 GB of disk, about ten minutes); `make bench` asks
a twelfth of it. Readings, scores and rollups are made in DuckDB; the operators' file is written by the store's own code.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from gangline.aggregator.store.layout import LAYOUTS

from .fleet_store import GPUS, HOSTS, LAST_S, MINUTES_GPUS_MAX, make_store
from .measure import HEADING, Result
from .operators_file import CONFIG, write_file

ROWS_DEFAULT = 8_000_000
REPEATS = 7

_COLUMNS = ", ".join(f'"{name}"' for name, _ in LAYOUTS["gpu_1s"].columns)
_SIX = (
    "count(*) AS n, avg(sm_clock_hertz) / 1e6, min(sm_clock_hertz) / 1e6, avg(power_watts), "
    "max(temperature_celsius), avg(utilization_ratio)"
)
_WORST_BY_HAND = """
WITH last AS (SELECT host, max(time) AS time FROM scores GROUP BY host),
last_seen AS (
    SELECT host, max(time) AS time
    FROM (SELECT host, time FROM latest.host_1s UNION ALL SELECT host, time FROM latest.collector_10s)
    GROUP BY host
)
SELECT host, state, floor(score * 1e4) / 1e4 AS short, round(hazard_per_hour * 24, 4),
    round(relative_speed, 2), reason_message,
    date_diff('millisecond', greatest(s.last_seen, last_seen.time), taken) / 1000.0, h.simulated
FROM hosts AS h JOIN (SELECT scores.* FROM scores JOIN last USING (host, time)) AS s USING (host)
JOIN last_seen USING (host)
CROSS JOIN snapshot
WHERE NOT (h.simulated AND date_diff('second', greatest(s.last_seen, last_seen.time), taken) > 60)
ORDER BY list_position(['UNHEALTHY', 'SUSPECT', 'DEGRADED', 'STALE', 'WATCH', 'PROBATION', 'UNKNOWN',
    'MAINTENANCE', 'HEALTHY'], state), score, host LIMIT 20
"""
_GPU_SCORES_BY_HAND = """
WITH last AS (SELECT host, max(time) AS time FROM scores GROUP BY host),
told AS (
    SELECT host, device, exp(sum(log_hazard_delta) FILTER (hazard_delta IS NULL)) AS factor,
        sum(hazard_delta) FILTER (shared_count = 1) AS added, min(relative_speed_factor) AS speed,
        any_value(gpu_state) AS state, any_value(reason) AS reason, any_value(message) AS message, count(*) AS n
    FROM evidence JOIN last USING (host, time) GROUP BY host, device
)
SELECT host, device, coalesce(t.state, 'HEALTHY') AS state, exp(-8 * hazard), exp(-8 * 3 * hazard), exp(-8 / 3 * hazard),
    hazard, hazard / 3, hazard * 3, speed, speed - 1.645 * speed_error, speed + 1.645 * speed_error, t.reason, t.message,
    coalesce(t.n, 0), g.time, s.time, simulated
FROM (
    SELECT d.host, d.device, s.time, s.simulated, s.speed_error, t,
        exp(log_hazard_base) * (2.2e-5 / (8 * 2.2e-5 + 5e-6) + coalesce(t.factor, 1) - 1) + coalesce(t.added, 0) AS hazard, t.speed
    FROM devices AS d JOIN (SELECT scores.* FROM scores JOIN last USING (host, time)) AS s USING (host)
    LEFT JOIN told AS t USING (host, device) WHERE d.kind = 'gpu'
) AS s LEFT JOIN latest.gpu_1s AS g USING (host, device)
ORDER BY list_position(['UNHEALTHY', 'SUSPECT', 'DEGRADED', 'STALE', 'WATCH', 'PROBATION', 'UNKNOWN',
    'MAINTENANCE', 'HEALTHY'], coalesce(t.state, 'HEALTHY')), hazard DESC, host, device
"""


@dataclass(frozen=True)
class QueryCase:
    """A query by view or macro, and its hand-written equivalent."""

    name: str
    file: str
    view: str
    by_hand: str
    notes: str = ""


def run(seed: int, rows: int = ROWS_DEFAULT) -> list[Result]:
    """Return the ratios of all queries, and the cost of the operators' file."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        make_store(folder, seed, rows)
        written = write_file(folder)
        device = _some_device(folder)
        return [
            *(_ask(folder, question, rows) for question in _questions(folder, device)),
            *written,
        ]


def _questions(folder: Path, device: str) -> list[QueryCase]:
    minutes = f"read_parquet('{folder}/minutes/*.parquet')"
    day = f"make_timestamp({(LAST_S - 86_400) * 1_000_000})"
    since = f"make_timestamp({(LAST_S - 300) * 1_000_000})"
    return [
        QueryCase(
            "latest of all", "operators.duckdb", f"SELECT {_COLUMNS} FROM latest.gpu_1s",
            f"SELECT {_COLUMNS} FROM latest.gpu_1s", "the operators' file has it as a table: the same query twice",
        ),
        QueryCase(
            "every GPU with its description", "operators.duckdb", "FROM ops.gpus",
            "SELECT d.host, d.device, d.attributes['name'], g.sm_clock_hertz / 1e6, g.power_watts, "
            "g.temperature_celsius, g.utilization_ratio, g.clock_event_reasons_flags, g.processes_count, "
            "g.memory_used_bytes / 1e9, g.lost_state = 1, d.attributes['pci_address'] AS slot, "
            "coalesce(d.attributes['driver'], h.labels['nvidia_driver_version']), d.attributes['vbios'], "
            "d.attributes['serial'], g.time, h.simulated FROM devices AS d JOIN hosts AS h USING (host) "
            "LEFT JOIN latest.gpu_1s AS g USING (host, device) WHERE d.kind = 'gpu' "
            "ORDER BY d.host, slot, d.device",
        ),
        QueryCase(
            "latest of all, out of all readings", "gangline.duckdb",
            f"SELECT {_COLUMNS} FROM latest.gpu_1s",
            f"SELECT {', '.join(f'r.{c}' for c in _COLUMNS.split(', '))} FROM readings.gpu_1s AS r JOIN "
            "(SELECT host, device, max(time) AS time FROM readings.gpu_1s GROUP BY ALL) "
            "USING (host, device, time)",
            "after the service has ended; of the last second alone it would be a scan of one tick",
        ),
        QueryCase("every GPU's score", "operators.duckdb", "FROM ops.gpu_scores", _GPU_SCORES_BY_HAND, f"{GPUS:,} GPUs"),
        QueryCase("worst twenty", "operators.duckdb", "FROM ops.worst(n := 20)", _WORST_BY_HAND, f"{HOSTS:,} hosts"),
        QueryCase(
            "one GPU's last day, by minute", "gangline.duckdb", f"FROM ops.gpu_minutes('{device}')",
            "SELECT time, host, sm_clock_hertz_mean / 1e6, sm_clock_hertz_min / 1e6, power_watts_mean, "
            "power_watts_max, temperature_celsius_max, utilization_ratio_mean, "
            "clock_event_reasons_flags_any, violation_thermal_nanoseconds_increase / 1e9, readings_count, "
            f"device FROM {minutes} WHERE device = '{device}' AND time > {day} ORDER BY time",
            f"of {MINUTES_GPUS_MAX:,} at most: 24 Parquet files, sorted by device",
        ),
        QueryCase(
            "five minutes, six aggregates over all", "gangline.duckdb", "FROM ops.window(minutes := 5)",
            f"SELECT {_SIX} FROM readings.gpu_1s WHERE time > {since}",
        ),
    ]  # fmt: skip


def _ask(folder: Path, one: QueryCase, rows: int) -> Result:
    with duckdb.connect(str(folder / one.file), read_only=True, config=CONFIG) as connection:
        counts = [connection.sql(q).to_arrow_table().num_rows for q in (one.view, one.by_hand)]
        assert counts[0] == counts[1] > 0, (one.name, counts)
        view, by_hand = _times(connection, (one.view, one.by_hand))
    notes = f"{rows / 1e6:.0f} M rows of gpu_1s, {counts[0]:,} rows out" + (
        one.notes and f"; {one.notes}"
    )
    return Result(f"SQL: {one.name}", view * 1e3, "ms CPU", "by hand", by_hand * 1e3, notes)


def _times(connection: Any, queries: Sequence[str]) -> list[float]:
    """Return the median CPU seconds of each query; queries alternate, so that load affects all
    equally.
    """
    durations: list[list[float]] = [[] for _ in queries]
    for _ in range(REPEATS):
        for query, times in zip(queries, durations, strict=True):
            begin = time.process_time()
            connection.sql(query).to_arrow_table()
            times.append(time.process_time() - begin)
    return [statistics.median(times) for times in durations]


def _some_device(folder: Path) -> str:
    query = f"SELECT device FROM read_parquet('{folder}/minutes/*.parquet') LIMIT 1 OFFSET 2000"
    ((device,),) = duckdb.execute(query).fetchall()
    return str(device)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.operator_sql", description=__doc__)
    parser.add_argument(
        "--rows", type=int, default=ROWS_DEFAULT, help="of gpu_1s (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print(HEADING)
    print("\n".join(result.row() for result in run(options.seed, options.rows)))
