"""The operators' file: always complete, renewed after any failure, and explicit about omissions."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from gangline.aggregator.scoring.evidence_sql import query_of
from gangline.aggregator.store import latest_tables, new_duckdb_file, snapshot_file
from gangline.aggregator.store.layout import LAYOUTS
from gangline.aggregator.store.queue import Pending
from gangline.aggregator.store.rows import HostRecord
from gangline.aggregator.store.snapshot_file import OpsFile
from gangline.aggregator.store.snapshot_refresh import pause_seconds
from gangline.aggregator.store.table_copies import COPIES, TableCopy
from gangline.aggregator.store.writer import Writer

pytestmark = pytest.mark.usefixtures("operators_files")

NOW_NS = 1_700_000_000 * 10**9
SECOND_NS = 10**9

_READER = """
import duckdb, sys, time
before, taken_at, end = 0, [], time.monotonic() + 60
while len(taken_at) < 15 or (len(set(taken_at)) < 2 and time.monotonic() < end):
    with duckdb.connect(sys.argv[1], read_only=True) as one:
        (taken,), = one.execute("SELECT epoch_us(taken) FROM snapshot").fetchall()
        (gpus, values), = one.execute("SELECT count(*), count(DISTINCT power_watts) FROM latest.gpu_1s").fetchall()
        (worst,), = one.execute("SELECT count(*) FROM ops.worst()").fetchall()
    assert (gpus, values, worst) == (500, 1, 1) and taken >= before, (gpus, values, worst, taken, before)
    before = taken
    taken_at.append(taken)
    print(taken, flush=True)
"""


class Live:
    """A live file without a service."""

    def __init__(self, folder: Path) -> None:
        self.writer = Writer(folder / "gangline.duckdb", retention_hours=24, history_days=14)
        self.file = OpsFile(folder, self.writer.cursor, 1000)
        self.folder, self.now_ns = folder, NOW_NS

    def register(self, host: str, gpus: int = 1) -> None:
        devices = tuple(("gpu", f"GPU-{host}-{n}", {"name": "H100"}) for n in range(gpus))
        record = HostRecord(host, 1, False, b"R" * 16, b"B" * 16, "", "", {}, self.now_ns, devices)
        self.writer.commit(Pending(hosts={host: record}), self.now_ns)

    def put(self, query: str) -> None:
        self.writer.transact(lambda connection: connection.execute(query) and None)

    def write(self, gpus: int = 0, watts: float = 1.0, after_seconds: int = 15) -> None:
        """Write the file after a reading of *gpus* GPUs."""
        self.now_ns += after_seconds * SECOND_NS
        if gpus:
            hour = 'hours."gpu_1s__2023111422"'
            self.put(f"CREATE TABLE IF NOT EXISTS {hour} AS FROM readings.gpu_1s LIMIT 0")
            self.put(
                f"INSERT INTO {hour} (host, device, time, power_watts) SELECT 'a', 'GPU-' || i, "
                f"make_timestamp({self.now_ns // 1000}), {watts} FROM range({gpus}) AS t(i)"
            )
        self.file.write(self.now_ns)

    def asked(self, query: str) -> list[Any]:
        with duckdb.connect(str(self.folder / "operators.duckdb"), read_only=True) as connection:
            return connection.execute(query).fetchall()

    def left_out(self) -> list[str]:
        ((omissions,),) = self.asked("SELECT left_out FROM snapshot")
        return list(omissions)


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    live_file = Live(tmp_path)
    yield live_file
    live_file.writer.close()


def test_whoever_opens_it_while_it_is_replaced_finds_it_whole(live: Live) -> None:
    """An operator's `duckdb -readonly` in another process, repeatedly, through many renewals."""
    live.register("a")
    live.write(500)
    before = duckdb.connect(str(live.folder / "operators.duckdb"), read_only=True)
    reader = subprocess.Popen(
        [sys.executable, "-c", _READER, str(live.folder / "operators.duckdb")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    written = 0
    while reader.poll() is None:
        written += 1
        live.write(500, float(written))
    out, err = reader.communicate()
    assert reader.returncode == 0, err
    assert len(set(out.split())) > 1 and written > 1
    # A reader of the previous file can continue.
    assert before.execute("SELECT any_value(power_watts) FROM latest.gpu_1s").fetchone() == (1.0,)
    before.close()


def test_a_file_without_readings_is_small(live: Live) -> None:
    """An empty store took 17.6 MB: DuckDB's default format takes 3 kB for each of 2,570 columns."""
    for _ in range(2):
        live.write()
        for name in ("operators.duckdb", "operators-base.duckdb"):
            assert (live.folder / name).stat().st_size < 3 << 20, name
    with duckdb.connect() as connection:
        connection.execute(f"ATTACH '{live.folder}/operators.duckdb' AS one (READ_ONLY)")
        ((tags,),) = connection.execute(
            "SELECT tags FROM duckdb_databases() WHERE database_name = 'one'"
        ).fetchall()
    assert tags["storage_version"].startswith("v1.2.0")


def test_devices_are_all_there_and_written_once(live: Live) -> None:
    """Two million devices were silently cut by a LIMIT, and written again every 15 s."""
    live.register("a", gpus=3)
    live.write()
    base = (live.folder / "operators-base.duckdb").stat()
    live.write()
    assert (live.folder / "operators-base.duckdb").stat().st_mtime_ns == base.st_mtime_ns
    live.register("b", gpus=2)
    live.write()
    assert live.asked("SELECT host, count(*) FROM devices GROUP BY host ORDER BY host") == [
        ("a", 3),
        ("b", 2),
    ]
    assert live.left_out() == []


def test_what_a_hazard_is_explained_by_is_there_after_months(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ "It returned from a fault 12 days ago" had a query without rows: the finding was cleared."""
    for table, columns, more_values, since, cleared in (
        ("findings", ", subject, message", ", '', 'stands'", 1, None),
        ("findings", ", subject, message", ", '', 'of now'", 3, 0),
        ("findings", ", subject, message", ", '', 'of late'", 13, 12),
        ("past_findings", "", "", 101, 100),
    ):
        ago = [f"make_timestamp({NOW_NS // 1000}) - to_days({days})" if days is not None else "NULL" for days in (since, cleared)]  # fmt: skip
        live.put(
            f"INSERT INTO {table} (host, name, since, cleared{columns}) SELECT 'a', 'gpu.xid', {ago[0]}, {ago[1]}{more_values}"
        )
    live.write()
    query = query_of("faults_ever", "a", NOW_NS)
    expected = [3, 13, 101]  # days ago: the active and the current fault overlap, so they are one
    assert [round(days) for *_, days in live.asked(query)] == expected
    with live.writer.cursor() as cursor:
        assert [round(days) for *_, days in cursor.execute(query).fetchall()] == expected
    assert live.asked("SELECT count(*) FROM ops.findings") == [(2,)]
    assert live.left_out() == []
    monkeypatch.setattr(
        snapshot_file, "CLEARED_FINDINGS", TableCopy("cleared_findings", 2, "cleared")
    )
    live.write(after_seconds=700)  # the base is rebuilt
    assert live.left_out() == ["cleared_findings: the newest 2 of 3 rows"]


def test_advice_is_there_for_as_long_as_is_said(live: Live) -> None:
    """An advisory with an active hold, and its regret, disappeared on the fifteenth day."""
    days_ago = f"make_timestamp({NOW_NS // 1000}) - to_days(days)"
    live.put(
        "INSERT INTO advisories (advisory, revision, time, state, shadow, waiting_gpu_hours, acting_gpu_hours) "
        f"SELECT 'a' || days, 1, {days_ago}, 'DONE', true, 5.0, 2.0 FROM (VALUES (20), (300), (500)) AS t(days)"
    )
    live.put(
        "INSERT INTO outcomes (time, outcome, advisory, lost_gpu_hours) "
        f"SELECT {days_ago}, 'o', 'a20', 12.0 FROM (VALUES (1)) AS t(days)"
    )
    live.put(
        "INSERT INTO advice_decisions (number, time, kind, shadow) "
        f"SELECT days, {days_ago}, 'HeldBack', true FROM (VALUES (20), (40)) AS t(days)"
    )
    live.register("a")  # expired rows are deleted
    live.write()
    assert live.asked("SELECT advisory FROM ops.advice ORDER BY advisory") == [("a20",), ("a300",)]
    assert live.asked("SELECT regret_gpu_hours FROM ops.outcomes") == [(10.0,)]
    assert live.asked("SELECT number FROM ops.advice_history") == [(20,)]
    assert live.asked("SELECT advisories FROM ops.advice_shadow") == [(1,), (0,)]


@pytest.mark.slow
def test_a_large_fleet_keeps_its_devices_for_a_minute(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10,000 hosts reconnect: their devices are not written again with each host."""
    monkeypatch.setattr(snapshot_file, "DEVICES_AT_ONCE", 1)
    live.register("a", gpus=3)
    live.write()
    live.register("b")
    live.write(after_seconds=15)
    assert live.asked("SELECT count(*) FROM devices") == [(3,)]
    assert live.asked("SELECT count(*) FROM hosts") == [(2,)]
    assert live.left_out() == ["devices: as they were 15 s before"]
    live.write(after_seconds=50)
    assert live.asked("SELECT count(*) FROM devices") == [(4,)] and live.left_out() == []


def test_what_there_is_no_room_for_is_said(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """A count over a silently cut table would be wrong: the file lists its omissions."""
    monkeypatch.setattr(latest_tables, "CELLS_MAX", 100)
    live.register("a", gpus=100)
    monkeypatch.setattr(
        snapshot_file, "COPIES", [c if c.table != "findings" else TableCopy("findings", 2, "since") for c in COPIES]
    )  # fmt: skip
    begin = f"make_timestamp({NOW_NS // 1000})"
    live.put(
        "INSERT INTO findings SELECT 'a', 'n' || i, '', '', "
        f"{begin} - to_seconds(i), NULL, '' FROM range(5) AS t(i)"
    )
    for table, each_ms in (("gpu_1s", 100), ("host_1s", 1)):
        live.put(f'CREATE TABLE hours."{table}__2023111422" AS FROM readings.{table} LIMIT 0')
        live.put(
            f"INSERT INTO hours.\"{table}__2023111422\" (host, device, time) SELECT 'a', 'd', "
            f"{begin} - to_milliseconds({each_ms} * i) FROM range(100_000) AS t(i)"
        )
    live.write(after_seconds=0)
    assert live.left_out() == [
        *(f"latest.{t}: all 100 rows" for t in LAYOUTS if latest_tables._kind(t) == "gpu"),
        "findings: the newest 2 of 5 rows",
        "readings.gpu_1s: all but the last 100 s of 300 s",
        "readings.host_1s: all, 1,000 rows are 1.0 s",
    ]
    assert live.asked("SELECT name FROM findings ORDER BY name") == [("n0",), ("n1",)]
    assert live.asked("SELECT count(*) FROM readings.gpu_1s") == [(1000,)]
    assert live.asked("SELECT count(*) FROM readings.host_1s") == [(0,)]


@pytest.mark.slow
def test_no_table_is_in_memory_whole(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """For 10,000 hosts with their links, writing the file doubled the aggregator's memory."""
    hosts, gpus, width = [f"h'{n:02}" for n in range(20)], 4, len(LAYOUTS["gpu_1s"].columns)
    monkeypatch.setattr(latest_tables, "CELLS_AT_ONCE", 10 * width)
    monkeypatch.setattr(new_duckdb_file, "CELLS_WAITING_MAX", 10 * width)
    pieces, put_down = list[int](), 0
    rows_since, checkpoint = (
        latest_tables.LatestTables._rows_since,
        new_duckdb_file.NewFile.checkpoint,
    )

    def spied(self: latest_tables.LatestTables, table: str, some: str) -> Any:
        rows = rows_since(self, table, some)
        pieces.append(rows.num_rows)
        return rows

    def counted(self: new_duckdb_file.NewFile) -> None:
        nonlocal put_down
        put_down += 1
        checkpoint(self)

    monkeypatch.setattr(latest_tables.LatestTables, "_rows_since", spied)
    monkeypatch.setattr(new_duckdb_file.NewFile, "checkpoint", counted)
    for host in hosts:
        live.register(host, gpus)
    expected = dict[str, float]()
    for turn, some in enumerate((["A", *hosts, "z"], hosts[::2])):  # two that never registered
        hour = 'hours."gpu_1s__2023111422"'
        live.put(f"CREATE TABLE IF NOT EXISTS {hour} AS FROM readings.gpu_1s LIMIT 0")
        live.now_ns += 60 * SECOND_NS
        for host in some:
            expected[host] = float(turn)
            values = ", ".join(
                f"($${host}$$, 'G{gpu}', make_timestamp({live.now_ns // 1000}), {turn})"
                for gpu in range(gpus)
            )
            live.put(f"INSERT INTO {hour} (host, device, time, power_watts) VALUES {values}")
        pieces.clear()
        live.write()
        rows = live.asked(
            "SELECT host, avg(power_watts), count(*) FROM latest.gpu_1s GROUP BY host"
        )
        assert sorted(rows) == [(host, watts, gpus) for host, watts in sorted(expected.items())]
        assert sum(pieces) == len(some) * gpus and max(pieces) <= 20
    assert live.left_out() == [] and put_down > 10


@pytest.mark.slow
def test_a_damaged_base_costs_one_renewal(live: Live) -> None:
    """A full disk truncated the base: the last file stays, and the next has a new base."""
    live.register("a")
    live.write(5)
    base = live.folder / "operators-base.duckdb"
    base.write_bytes(base.read_bytes()[:5000])
    with pytest.raises(duckdb.Error):
        live.write(6)
    assert live.asked("SELECT count(*) FROM latest.gpu_1s") == [(5,)]
    live.write(7)
    assert live.asked("SELECT count(*) FROM latest.gpu_1s") == [(7,)]
    assert not list(live.folder.glob("operators-new*"))


@pytest.mark.slow
def test_a_file_before_that_is_damaged_costs_one_renewal(live: Live) -> None:
    """A block was lost in a power failure, and no file was written until somebody deleted it."""
    live.register("a")
    live.write(500)
    path = live.folder / "operators.duckdb"
    with duckdb.connect(str(path), read_only=True) as connection:
        ((block,),) = connection.execute(
            "SELECT max(block_id) FROM pragma_storage_info('latest.gpu_1s') WHERE block_id >= 0"
        ).fetchall()
        ((size,),) = connection.execute("SELECT block_size FROM pragma_database_size()").fetchall()
    with path.open("r+b") as file:
        file.seek(3 * 4096 + block * size)
        file.write(bytes(size))
    with pytest.raises(OSError, match="the data that only it had is lost"):
        live.write(6)
    live.write(7)
    assert live.asked("SELECT count(*) FROM latest.gpu_1s") == [(500,)]
    assert not list(live.folder.glob("operators-new*"))


def test_what_has_no_room_in_memory_stays_in_the_data_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service ran in `/`, DuckDB tried to spill into `/.tmp`, and no file was written."""
    monkeypatch.setattr(
        new_duckdb_file,
        "_NEW_FILE_CONFIG",
        new_duckdb_file._NEW_FILE_CONFIG | {"memory_limit": "10MB"},
    )
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with new_duckdb_file.new_file(tmp_path / "new.duckdb") as file:
        file.connection.execute("CREATE TEMP TABLE much AS FROM range(3_000_000)")
        file.begin()
        assert list((tmp_path / "spill-operators").iterdir())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "new.duckdb"]
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize(
    ("took", "pause"), [(0.1, 14.9), (1.0, 14.0), (2.5, 17.5), (6.0, 24.0), (40.0, 0.0)]
)
def test_a_large_file_is_written_less_often(took: float, pause: float) -> None:
    """The file of 10,000 hosts takes seconds to write: a long period saves half of a processor."""
    assert pause_seconds(15.0, took) == pytest.approx(pause)
