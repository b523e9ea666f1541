"""Builds a store of 80,000 GPUs as of LAST_S for the query benchmarks, in DuckDB, without frames."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gangline.aggregator.store.layout import LAYOUTS, definitions
from gangline.aggregator.store.live_tables import PART_MINUTES, part_name
from gangline.aggregator.store.writer import Writer
from gangline.contract.signal import Kind, Signal

GPUS, HOSTS = 80_000, 10_000
LAST_S = 1_700_000_000
MINUTES = 1440
#: Other devices of a host of eight GPUs in `gangline simulate`.
LINKS, OTHERS = 144, 72
#: Tables of such a host's GPUs and ports -> devices a host.
TABLES = {
    "gpu_1s": 8, "gpu_10s": 8, "gpu_60s": 8, "gpu_fast_1s": 8, "gpu_fast_10s": 8, "gpu_1s_changes": 8,
    "gpu_10s_changes": 8, "rdma_1s": 8, "rdma_10s": 8, "rdma_1s_changes": 8,
    "rdma_10s_changes": 8, "pcie_10s": 16, "pcie_10s_changes": 16, "host_1s": 1, "host_10s": 1,
    "collector_10s": 32, "nvlink_10s": 144, "nvlink_10s_changes": 144,
}  # fmt: skip
#: Seconds before the last reading at which the previous operators' file was written.
FILES_SECONDS = 15
#: All tables have the readings of this period, which the next file searches.
READINGS_SECONDS = 2 * FILES_SECONDS
PART_SECONDS = PART_MINUTES * 60
#: Number of GPUs with minutes: the cost of the day of one GPU does not depend on it.
MINUTES_GPUS_MAX = 10_000
TICKS_AT_ONCE = 20

_HOST = "format('gpu-{:05d}', i // 8)"
_DEVICE = "format('GPU-{:08x}-1111-2222-3333-{:012x}', hash(i) % 4294967296, i)"
_VALUES = {
    "sm_clock_hertz": "1.755e9 + 1.5e7 * (x % 5)",
    "power_watts": "500 + (x % 1000) / 10",
    "temperature_celsius": "60 + x % 9",
    "memory_temperature_celsius": "70 + x % 9",
    "utilization_ratio": "1.0 - (x % 7) / 100",
    "energy_joules": "1e9 + 550 * second + i",
}


def make_store(folder: Path, seed: int, rows: int) -> None:
    """Build it in *folder*, with *rows* of gpu_1s; its minutes in `minutes/`."""
    writer = Writer(folder / "gangline.duckdb", retention_hours=24, history_days=14)
    with writer.cursor() as connection:
        connection.execute("SET memory_limit = '4GB'; SET threads = 2")
        connection.execute(f"SELECT setseed({seed % 1000 / 1000})")
        _make_records(connection)
        _make_readings(connection, rows // GPUS)
        for table, each in TABLES.items():
            if table != "gpu_1s":
                _make_last(connection, table, _last(table, each))
        _make_minutes(connection, folder / "minutes", min(MINUTES_GPUS_MAX, rows // MINUTES))
        connection.execute("CHECKPOINT")
    writer.close()


def _make_records(connection: Any) -> None:
    last = f"make_timestamp({LAST_S * 1_000_000})"
    connection.execute(
        f"INSERT INTO hosts BY NAME SELECT format('gpu-{{:05d}}', h) AS host, h AS node_index, false AS simulated, "
        f"'0.2' AS agent_version, MAP {{'kernel': '6.8'}} AS labels, {last} AS registered FROM range({HOSTS}) t(h)"
    )
    board = (
        "MAP {'name': 'NVIDIA H100 80GB HBM3', 'serial': i::VARCHAR, 'pci_address': '0000:1b:00.0', "
        "'vbios': '96.00.99.00.01', 'driver': '580.65.06', 'architecture': 'Hopper', 'numa_node': '0', "
        "'board_part_number': '692-2G520-0200-000', 'gsp_firmware': '580.65.06', 'ecc_mode': '1'}"
    )
    connection.execute(
        f"INSERT INTO devices SELECT {_HOST}, 'gpu', {_DEVICE}, {board} FROM range({GPUS}) t(i)"
    )
    link = "MAP {'active': '1', 'remote_kind': 'switch', 'remote_pci_address': '0000:07:00.0'}"
    for kind, count, attributes in (
        ("nvlink", LINKS, link),
        ("other", OTHERS, "MAP {'numa_node': '0'}"),
    ):
        connection.execute(
            f"INSERT INTO devices SELECT format('gpu-{{:05d}}', i // {count}), '{kind}', '{kind}' || i % {count}, "
            f"{attributes} FROM range({HOSTS * count}) t(i)"
        )
    connection.execute(
        f"INSERT INTO scores BY NAME SELECT {last} - to_seconds(300 * k + h % 300) AS time, "
        "format('gpu-{:05d}', h) AS host, h AS node_index, false AS simulated, 1000 - k AS version, "
        "0.9 + random() / 10 AS score, 0.9 AS score_lower, 1 AS score_upper, "
        "if(random() < 0.01, 'SUSPECT', 'HEALTHY') AS state, 0.0002 AS hazard_per_hour, 0.99 AS relative_speed, "
        f"'NONE' AS reason, '' AS reason_message, '' AS clears_when, {last} AS last_seen, 28800 AS horizon_seconds, "
        "3 AS hazard_spread, ln(0.000181) AS log_hazard_base, 0.99 AS measured_speed, 0.01 AS speed_error "
        f"FROM range({HOSTS}) a(h), range(12) b(k)"
    )
    connection.execute(
        "INSERT INTO evidence BY NAME SELECT time, host, version, 'gpu.sm_clock_hertz' AS signal, "
        f"{_DEVICE} AS device, 1.4e9 AS value, 'hertz' AS unit, '' AS normal, 0.5 AS log_hazard_delta, "
        "0.0001 AS hazard_delta, 1 AS shared_count, "
        "0.9 AS relative_speed_factor, -0.01 AS score_delta, 'STRAGGLER' AS reason, "
        "'words of a usual length that tell what is wrong' AS message, time AS observed, "
        "'SELECT * FROM readings.gpu_1s ORDER BY time' AS sql, 'DEGRADED' AS gpu_state "
        "FROM (SELECT *, node_index::BIGINT * 8 AS i FROM scores) WHERE node_index % 5 = 0"
    )


def _make_readings(connection: Any, ticks: int) -> None:
    """Insert *ticks* seconds of all GPUs, in the order of time, into tables of five minutes each."""
    columns = ", ".join(
        f'{_value(signal)} AS "{signal.column}"' for signal in LAYOUTS["gpu_1s"].signals
    )
    connection.execute(
        f"CREATE TEMP TABLE gpus AS SELECT {_HOST} AS host, {_DEVICE} AS device, i FROM range({GPUS}) t(i)"
    )
    first, last = LAST_S - ticks + 1, LAST_S
    for part in range(first // PART_SECONDS * PART_SECONDS, last + 1, PART_SECONDS):
        table = _make_table(connection, "gpu_1s", part)
        begin, end = max(first, part), min(last, part + PART_SECONDS - 1)
        for index in range(begin, end + 1, TICKS_AT_ONCE):
            connection.execute(
                f"INSERT INTO {table} BY NAME SELECT host, device, make_timestamp(s * 1000000) AS time, "
                f"s::UBIGINT * 1000000 AS boottime_ns, {columns} "
                f"FROM (SELECT *, s - {first} AS second, hash(i * 100000 + s) AS x "
                f"FROM range({index}, {min(index + TICKS_AT_ONCE, end + 1)}) t(s), gpus)"
            )


def _make_table(connection: Any, table: str, at_s: int) -> str:
    """Create the table of the five minutes of *at_s*, as the store does; return its name."""
    name = f'hours."{table}__{part_name(at_s * 10**9)}"'
    connection.execute(f"CREATE TABLE {name} ({definitions(LAYOUTS[table].columns)})")
    return name


def _make_last(connection: Any, table: str, last: pa.Table) -> None:
    """Insert *last* once per period of its table in READINGS_SECONDS, the newest last."""
    name = _make_table(connection, table, LAST_S)
    period = int(table.split("_")[-1][:-1]) if not table.endswith("_changes") else READINGS_SECONDS
    connection.register("last", last)
    for ago in reversed(range(0, READINGS_SECONDS, period)):
        connection.execute(
            f"INSERT INTO {name} SELECT * REPLACE (time - to_seconds({ago}) AS time) FROM last"
        )
    connection.unregister("last")


def _value(signal: Signal) -> str:
    if signal.kind is Kind.GAUGE:
        return f"({_VALUES.get(signal.column, '(x % 100)')})::DOUBLE"
    return "(1000000 * second + 3 * i)::UBIGINT" if signal.kind is Kind.COUNTER else "0::UBIGINT"


def _make_minutes(connection: Any, folder: Path, gpus: int) -> None:
    """Write a day's minutes of *gpus* GPUs, a file per hour, sorted by device and time."""
    folder.mkdir()
    for hour in range(24):
        first = LAST_S // 3600 * 3600 - (23 - hour) * 3600
        connection.execute(
            f"COPY (SELECT host, device, make_timestamp(({first} + minute * 60) * 1000000) AS time, "
            "60::UBIGINT AS readings_count, 1.755e9 + 1e6 * (x % 30) AS sm_clock_hertz_mean, "
            "1.74e9 AS sm_clock_hertz_min, 500 + (x % 1000) / 10 AS power_watts_mean, "
            "600.0 + x % 9 AS power_watts_max, 60.0 + x % 9 AS temperature_celsius_max, "
            "1.0 - (x % 7) / 100 AS utilization_ratio_mean, 0::UBIGINT AS clock_event_reasons_flags_any, "
            "0::UBIGINT AS violation_thermal_nanoseconds_increase "
            f"FROM (SELECT *, hash(i * 1440 + minute) AS x FROM (SELECT * FROM gpus WHERE i < {gpus}), "
            f"range(60) m(minute)) ORDER BY device, minute) TO '{folder}/{hour:02}.parquet' (COMPRESSION zstd)"
        )


def _last(table: str, each: int) -> pa.Table:
    layout, count = LAYOUTS[table], HOSTS * each
    source = np.random.default_rng(len(table))
    columns = {
        "host": pa.array([f"gpu-{n // each:05d}" for n in range(count)]),
        "device": pa.array([f"{table}-{n}" for n in range(count)]),
        "time": pa.array(np.full(count, LAST_S * 10**6), pa.timestamp("us")),
        "boottime_ns": pa.array(np.ones(count, np.uint64)),
    }
    for signal in layout.signals:
        cells = source.integers(0, 1 << 20, count, np.uint64)
        if table.endswith("_changes"):
            cells[source.random(count) < 0.95] = 0
        gauge = signal.kind is Kind.GAUGE
        columns[signal.column] = pa.array(np.round(cells / 64, 1) if gauge else cells)
    return pa.table(columns)
