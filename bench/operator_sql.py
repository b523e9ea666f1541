"""What operators ask, over 80,000 GPUs: each view or macro against the best hand-written SQL over the same tables.

`python -m bench.operator_sql --rows 100000000` is the whole size (3 GB of disk, about ten minutes); `make bench` asks
a twelfth of it. Readings, scores and rollups are made in DuckDB; the operators' file is written by the store's own code.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import duckdb
import numpy as np
import pyarrow as pa

from gangline.aggregator.store.hours import PART_MINUTES, part_name
from gangline.aggregator.store.layout import LAYOUTS, definitions
from gangline.aggregator.store.opsfile import OpsFile, taken_is
from gangline.aggregator.store.writer import Writer
from gangline.fingerprints.catalogue import Kind, Signal

from .measure import HEADING, Result, percentile

GPUS, HOSTS = 80_000, 10_000
ROWS_DEFAULT = 8_000_000
LAST_S = 1_700_000_000
MINUTES = 1440
#: Beside GPUs: what a host of eight has by `gangline simulate`.
LINKS, OTHERS = 144, 72
#: Tables of such a host's GPUs and ports -> devices a host.
TABLES = {
    "gpu_1s": 8, "gpu_10s": 8, "gpu_60s": 8, "gpu_fast_1s": 8, "gpu_1s_changes": 8,
    "gpu_10s_changes": 8, "rdma_1s": 8, "rdma_10s": 8, "rdma_1s_changes": 8,
    "rdma_10s_changes": 8, "pcie_10s": 16, "pcie_10s_changes": 16, "host_1s": 1, "host_10s": 1,
    "collector_10s": 32, "nvlink_10s": 144, "nvlink_10s_changes": 144,
}  # fmt: skip
#: So long before its last reading the operators' file was written that the next one begins with.
FILES_SECONDS = 15
#: Readings of the last so many seconds there are of all tables: what the next file looks through.
READINGS_SECONDS = 2 * FILES_SECONDS
PART_SECONDS = PART_MINUTES * 60
#: Of so many GPUs there are minutes: what one's day costs does not hang on how many there are.
MINUTES_GPUS_MAX = 10_000
TICKS_AT_ONCE = 20
REPEATS = 7
#: How `gangline sql` opens a file.
CONFIG: dict[str, str | bool | int | float | list[str]] = {"memory_limit": "1GB", "threads": 2}

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


@dataclass(frozen=True)
class Asked:
    """A question, by view or macro and by hand."""

    name: str
    file: str
    view: str
    by_hand: str
    notes: str = ""


def run(seed: int, rows: int = ROWS_DEFAULT) -> list[Result]:
    """Return the ratios of all questions, and what the operators' file costs."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        _make_store(folder, seed, rows)
        written = _write_file(folder)
        device = _some_device(folder)
        return [*(_ask(folder, one, rows) for one in _questions(folder, device)), *written]


# -- what is asked -----------------------------------------------------------------------------------

_COLUMNS = ", ".join(f'"{name}"' for name, _ in LAYOUTS["gpu_1s"].columns)
_SIX = (
    "count(*) AS n, avg(sm_clock_hertz) / 1e6, min(sm_clock_hertz) / 1e6, avg(power_watts), "
    "max(temperature_celsius), avg(utilization_ratio)"
)
_WORST_BY_HAND = """
WITH last AS (SELECT host, max(time) AS time FROM scores GROUP BY host),
heard AS (
    SELECT host, max(time) AS time
    FROM (SELECT host, time FROM latest.host_1s UNION ALL SELECT host, time FROM latest.collector_10s)
    GROUP BY host
)
SELECT host, state, floor(score * 1e4) / 1e4 AS short, round(hazard_per_hour * 24, 4),
    round(relative_speed, 2), reason_words,
    date_diff('millisecond', greatest(s.heard, heard.time), taken) / 1000.0, h.simulated
FROM hosts AS h JOIN (SELECT scores.* FROM scores JOIN last USING (host, time)) AS s USING (host)
JOIN heard USING (host)
CROSS JOIN snapshot
WHERE NOT (h.simulated AND date_diff('second', greatest(s.heard, heard.time), taken) > 60)
ORDER BY list_position(['UNHEALTHY', 'SUSPECT', 'DEGRADED', 'STALE', 'WATCH', 'PROBATION', 'UNKNOWN',
    'MAINTENANCE', 'HEALTHY'], state), score, host LIMIT 20
"""


def _questions(folder: Path, device: str) -> list[Asked]:
    minutes = f"read_parquet('{folder}/minutes/*.parquet')"
    day = f"make_timestamp({(LAST_S - 86_400) * 1_000_000})"
    since = f"make_timestamp({(LAST_S - 300) * 1_000_000})"
    return [
        Asked(
            "latest of all", "operators.duckdb", f"SELECT {_COLUMNS} FROM latest.gpu_1s",
            f"SELECT {_COLUMNS} FROM latest.gpu_1s", "the operators' file has it as a table: the same query twice",
        ),
        Asked(
            "every GPU and what it is", "operators.duckdb", "FROM ops.gpus",
            "SELECT d.host, d.device, d.attributes['name'], g.sm_clock_hertz / 1e6, g.power_watts, "
            "g.temperature_celsius, g.utilization_ratio, g.clock_event_reasons_flags, g.processes_count, "
            "g.memory_used_bytes / 1e9, g.lost_state = 1, d.attributes['pci_address'] AS slot, "
            "coalesce(d.attributes['driver'], h.labels['nvidia_driver_version']), d.attributes['vbios'], "
            "d.attributes['serial'], g.time, h.simulated FROM devices AS d JOIN hosts AS h USING (host) "
            "LEFT JOIN latest.gpu_1s AS g USING (host, device) WHERE d.kind = 'gpu' "
            "ORDER BY d.host, slot, d.device",
        ),
        Asked(
            "latest of all, out of all readings", "gangline.duckdb",
            f"SELECT {_COLUMNS} FROM latest.gpu_1s",
            f"SELECT {', '.join(f'r.{c}' for c in _COLUMNS.split(', '))} FROM readings.gpu_1s AS r JOIN "
            "(SELECT host, device, max(time) AS time FROM readings.gpu_1s GROUP BY ALL) "
            "USING (host, device, time)",
            "after the service has ended; of the last second alone it would be a scan of one tick",
        ),
        Asked("worst twenty", "operators.duckdb", "FROM ops.worst(n := 20)", _WORST_BY_HAND, f"{HOSTS:,} hosts"),
        Asked(
            "one GPU's last day, by minute", "gangline.duckdb", f"FROM ops.gpu_minutes('{device}')",
            "SELECT time, host, sm_clock_hertz_mean / 1e6, sm_clock_hertz_min / 1e6, power_watts_mean, "
            "power_watts_max, temperature_celsius_max, utilization_ratio_mean, "
            "clock_event_reasons_flags_any, violation_thermal_nanoseconds_increase / 1e9, readings_count, "
            f"device FROM {minutes} WHERE device = '{device}' AND time > {day} ORDER BY time",
            f"of {MINUTES_GPUS_MAX:,} at most: 24 Parquet files, sorted by device",
        ),
        Asked(
            "five minutes, six aggregates over all", "gangline.duckdb", "FROM ops.window(minutes := 5)",
            f"SELECT {_SIX} FROM readings.gpu_1s WHERE time > {since}",
        ),
    ]  # fmt: skip


def _ask(folder: Path, one: Asked, rows: int) -> Result:
    with duckdb.connect(str(folder / one.file), read_only=True, config=CONFIG) as connection:
        counts = [connection.sql(q).to_arrow_table().num_rows for q in (one.view, one.by_hand)]
        assert counts[0] == counts[1] > 0, (one.name, counts)
        view, by_hand = _times(connection, (one.view, one.by_hand))
    notes = f"{rows / 1e6:.0f} M rows of gpu_1s, {counts[0]:,} rows out" + (
        one.notes and f"; {one.notes}"
    )
    return Result(f"SQL: {one.name}", view * 1e3, "ms CPU", "by hand", by_hand * 1e3, notes)


def _times(connection: Any, queries: Sequence[str]) -> list[float]:
    """Return the median seconds of CPU of each, asked in turn: a busy machine does not change them."""
    taken: list[list[float]] = [[] for _ in queries]
    for _ in range(REPEATS):
        for query, times in zip(queries, taken, strict=True):
            begin = time.process_time()
            connection.sql(query).to_arrow_table()
            times.append(time.process_time() - begin)
    return [statistics.median(times) for times in taken]


def _some_device(folder: Path) -> str:
    query = f"SELECT device FROM read_parquet('{folder}/minutes/*.parquet') LIMIT 1 OFFSET 2000"
    ((device,),) = duckdb.execute(query).fetchall()
    return str(device)


# -- the store ---------------------------------------------------------------------------------------


def _make_store(folder: Path, seed: int, rows: int) -> None:
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
    for kind, each, attributes in (
        ("nvlink", LINKS, link),
        ("other", OTHERS, "MAP {'numa_node': '0'}"),
    ):
        connection.execute(
            f"INSERT INTO devices SELECT format('gpu-{{:05d}}', i // {each}), '{kind}', '{kind}' || i % {each}, "
            f"{attributes} FROM range({HOSTS * each}) t(i)"
        )
    connection.execute(
        f"INSERT INTO scores SELECT {last} - to_seconds(300 * k + h % 300), format('gpu-{{:05d}}', h), h, false, "
        "1000 - k, 0.9 + random() / 10, 0.9, 1, if(random() < 0.01, 'SUSPECT', 'HEALTHY'), 0.0002, 0.99, 'NONE', "
        f"'', '', {last}, 28800 FROM range({HOSTS}) a(h), range(12) b(k)"
    )
    connection.execute(
        "INSERT INTO evidence SELECT time, host, version, 'gpu.sm_clock_hertz', '', 1.4e9, 'hertz', '', 0.5, 0.9, "
        "-0.01, 'STRAGGLER', 'words of a usual length that tell what is wrong', time, "
        "'SELECT * FROM readings.gpu_1s ORDER BY time' FROM scores WHERE node_index % 5 = 0"
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
        for at in range(begin, end + 1, TICKS_AT_ONCE):
            connection.execute(
                f"INSERT INTO {table} BY NAME SELECT host, device, make_timestamp(s * 1000000) AS time, "
                f"s::UBIGINT * 1000000 AS boottime_ns, {columns} "
                f"FROM (SELECT *, s - {first} AS second, hash(i * 100000 + s) AS x "
                f"FROM range({at}, {min(at + TICKS_AT_ONCE, end + 1)}) t(s), gpus)"
            )


def _make_table(connection: Any, table: str, at_s: int) -> str:
    """Make the table of the five minutes of *at_s*, as the store does; return its name."""
    name = f'hours."{table}__{part_name(at_s * 10**9)}"'
    connection.execute(f"CREATE TABLE {name} ({definitions(LAYOUTS[table].columns)})")
    return name


def _make_last(connection: Any, table: str, last: pa.Table) -> None:
    """Insert *last* as often as such a table is read in READINGS_SECONDS, the newest last."""
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
    """Write a day's minutes of so many GPUs, a file an hour, sorted by device and time."""
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


def _show(connection: Any, folder: Path) -> None:
    """Have the views show those minutes, and the present be the last reading: a store's start makes both anew."""
    for grain in ("1m", "1h"):
        view = f"rollups.gpu_1s_{grain} AS FROM read_parquet('{folder}/*.parquet')"
        connection.execute(f"CREATE OR REPLACE VIEW {view}")
    connection.execute(taken_is(LAST_S * 1_000_000))


# -- the operators' file -----------------------------------------------------------------------------


def _write_file(folder: Path) -> list[Result]:
    """Write the operators' file of such a fleet; return what that costs, and how long it held the GIL."""
    writer = Writer(folder / "gangline.duckdb", retention_hours=24, history_days=14)
    now_ns = LAST_S * 10**9 + 10**9 // 2
    file = OpsFile(folder, writer.cursor, 200_000)
    first = _cost(lambda: file.write(now_ns - FILES_SECONDS * 10**9))
    Path("/proc/self/clear_refs").write_text("5")  # the highest begins anew
    before = _memory_bytes("VmRSS")
    with _Gil() as gil:
        again = _cost(lambda: file.write(now_ns))
    taken = _memory_bytes("VmHWM") - before
    latest = _written(folder / "operators.duckdb")
    bare = _cost(lambda: _bare(folder / "bare.duckdb", latest))
    writer.transact(lambda connection: _show(connection, folder / "minutes"))
    writer.close()
    size = (folder / "operators.duckdb").stat().st_size / 1e6
    notes = (
        f"{HOSTS:,} hosts, {GPUS:,} GPUs, {HOSTS * (8 + LINKS + OTHERS):,} devices: {size:.0f} MB; with "
        f"the base of what stands {first:.1f} s; the GIL was waited for {gil.worst_ms:.0f} ms at most, p99 "
        f"{gil.p99_ms:.1f} ms"
    )
    what = "operators' file written anew, CPU"
    arrow = sum(table.nbytes for table in latest)
    return [
        Result(what, again, "s", "the same last readings alone by DuckDB", bare, notes),
        Result("memory while it is written, at most", taken / 1e6, "MB", "those readings in Arrow", arrow / 1e6),
    ]  # fmt: skip


def _last(table: str, each: int) -> pa.Table:
    """Return a reading of every device of *table*, as of LAST_S."""
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


def _written(path: Path) -> list[pa.Table]:
    """Return the latest readings that an operators' file has: of every device of every table."""
    found = []
    with duckdb.connect(str(path), read_only=True, config=CONFIG) as connection:
        for table, each in TABLES.items():
            found.append(connection.sql(f"FROM latest.{table}").to_arrow_table())
            assert found[-1].num_rows == HOSTS * each, (table, found[-1].num_rows)
    return found


def _bare(path: Path, latest: list[pa.Table]) -> None:
    """The floor: those tables straight from Arrow, without anything else."""
    with duckdb.connect(str(path), config={"threads": 1}) as connection:
        for at, arrow in enumerate(latest):
            connection.register("new_rows", arrow)
            connection.execute(f"CREATE TABLE t{at} AS FROM new_rows")
        connection.execute("CHECKPOINT")


def _memory_bytes(name: str) -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition(f"{name}:")[2].split()[0]) * 1024


def _cost(work: Any) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


class _Gil:
    """How late a thread that sleeps for a millisecond wakes: what ingest would see."""

    def __enter__(self) -> Self:
        self._going, self._late = True, [0.0]
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while self._going:
            begin = time.perf_counter()
            time.sleep(0.001)
            self._late.append(time.perf_counter() - begin - 0.001)

    def __exit__(self, *_: object) -> None:
        self._going = False
        self._thread.join()
        self.worst_ms, self.p99_ms = max(self._late) * 1e3, percentile(self._late, 0.99) * 1e3


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.operator_sql", description=__doc__)
    parser.add_argument(
        "--rows", type=int, default=ROWS_DEFAULT, help="of gpu_1s (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print(HEADING)
    print("\n".join(result.row() for result in run(options.seed, options.rows)))
