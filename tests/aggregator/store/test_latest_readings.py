"""The latest reading of each device in the operators' file, from commits in any order."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import duckdb
import pytest

from gangline.aggregator.config import AggregatorConfig
from gangline.aggregator.ingest.frame_reader import read_frame
from gangline.aggregator.store import latest_tables
from gangline.aggregator.store.new_duckdb_file import NewFile
from gangline.aggregator.store.store import Store
from gangline.contract import frame as frames
from gangline.contract.block import Block
from tests.processes import GUARD_SECONDS

pytestmark = pytest.mark.usefixtures("operators_files")

SECOND_NS = 1_000_000_000
NOW_NS = 1_795_168_800 * SECOND_NS
_HOURS = "SELECT table_name FROM duckdb_tables() WHERE schema_name = 'hours'"


@dataclass
class Fleet:
    """A store whose clock and operators' file are driven by the test."""

    folder: Path
    now_ns: int = NOW_NS
    sequence: int = 0
    committed: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        config = AggregatorConfig(data=self.folder, commit_seconds=0.01, ops_seconds=3600.0)
        # Otherwise its thread writes the first file at some moment of the test.
        with mock.patch.object(Store, "_write_ops", lambda store: None):
            self.store = Store.open(self.folder, config, lambda: self.now_ns)

    def tell(
        self, host: str, values: dict[str, float], second: float = 0.0, table: str = "gpu_1s"
    ) -> None:
        """Commit a frame of *second* seconds after now."""
        block = Block(table, list(values))
        for row, value in enumerate(values.values()):
            block.put_float(0, row, value)
        self.sequence += 1
        at_ns = self.now_ns - NOW_NS + round((second + 1000) * SECOND_NS)
        stamp = frames.Stamp(b"r" * 16, b"b" * 16, self.sequence, at_ns, 0)
        self.committed.clear()
        offset_ns = NOW_NS - 1000 * SECOND_NS
        frame = read_frame(frames.encode(stamp, [block]))
        assert self.store.submit_frame(host, frame, offset_ns, lambda _: self.committed.set())
        assert self.committed.wait(GUARD_SECONDS)

    def latest(self) -> dict[tuple[str, str], float]:
        """Write the operators' file and read it."""
        self.store.write_ops()
        path = str(self.folder / "operators.duckdb")
        with duckdb.connect(path, read_only=True) as connection:
            rows = connection.execute("SELECT host, device, sm_clock_hertz FROM latest.gpu_1s")
            return {(host, device): value for host, device, value in rows.fetchall()}


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    test_fleet = Fleet(tmp_path)
    yield test_fleet
    test_fleet.store.close()


@pytest.mark.slow
def test_a_device_that_fell_silent_keeps_its_last_reading(fleet: Fleet) -> None:
    """The last reading of a host that has been dead for an hour is still in the file."""
    fleet.tell("a", {"G0": 1.0, "G1": 2.0})
    assert fleet.latest() == {("a", "G0"): 1.0, ("a", "G1"): 2.0}
    fleet.now_ns += 3600 * SECOND_NS
    fleet.tell("a", {"G1": 3.0})
    fleet.tell("b", {"G0": 4.0})
    assert fleet.latest() == {("a", "G0"): 1.0, ("a", "G1"): 3.0, ("b", "G0"): 4.0}
    fleet.now_ns += (latest_tables.LATEST_SECONDS_MAX - 60) * SECOND_NS
    assert fleet.latest() == {("a", "G1"): 3.0, ("b", "G0"): 4.0}


def test_tables_without_a_row_cost_nothing(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three statements on each of 62 tables, mostly empty, took half of the write time."""
    tables, run = list[str](), NewFile.run

    def record(self: NewFile, insert: str, columns: int) -> None:
        tables.append(insert.split()[2])
        run(self, insert, columns)

    def leave(live: duckdb.DuckDBPyConnection) -> None:
        """Only the previous file has the reading."""
        for (name,) in live.execute(_HOURS).fetchall():
            live.execute(f'DROP TABLE hours."{name}"')

    fleet.tell("a", {"G0": 1.0})
    fleet.latest()
    fleet.store.in_transaction(leave)
    with monkeypatch.context() as patch:
        patch.setattr(NewFile, "run", record)
        assert fleet.latest() == {("a", "G0"): 1.0}
    assert [table for table in tables if table.startswith("latest.")] == ["latest.gpu_1s"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "turns", [[[("a", 5), ("b", 1), ("a", 3)], [("a", 4), ("b", 2)], [("a", 6)]]]
)
def test_the_latest_is_the_latest_in_time(fleet: Fleet, turns: list[list[tuple[str, int]]]) -> None:
    """A backlog frame must not replace a later reading, of this file or the previous one."""
    newest = dict[tuple[str, str], float]()
    for turn in turns:
        for host, second in turn:
            fleet.tell(host, {"G0": float(second)}, second - 12.0)
            newest[host, "G0"] = max(newest.get((host, "G0"), -1.0), float(second))
        assert fleet.latest() == newest


@pytest.mark.slow
def test_a_reading_that_waited_long_for_its_commit_is_found(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk hung for 40 s: a link that went down meanwhile stayed up in the file."""
    fleet.tell("a", {"G0": 1.0})
    assert fleet.latest() == {("a", "G0"): 1.0}
    fleet.now_ns += 40 * SECOND_NS
    monkeypatch.setattr(Store, "lag_seconds", 39.0)  # the frame of second 2 waits
    assert fleet.latest() == {("a", "G0"): 1.0}
    monkeypatch.setattr(Store, "lag_seconds", 0.0)
    fleet.tell("a", {"G0": 2.0}, -38.0)
    fleet.now_ns += 5 * SECOND_NS
    assert fleet.latest() == {("a", "G0"): 2.0}


@pytest.mark.slow
def test_a_restart_finds_what_waited_for_a_commit(tmp_path: Path) -> None:
    """After a kill agents send uncommitted readings again, with their old times."""
    first = Fleet(tmp_path)
    first.tell("a", {"G0": 1.0})
    first.latest()
    first.store.close()
    again = Fleet(tmp_path, first.now_ns + 60 * SECOND_NS, sequence=1)
    again.tell("a", {"G0": 2.0}, -30.0)
    assert again.latest() == {("a", "G0"): 2.0}
    again.store.close()


@pytest.mark.slow
def test_a_host_that_invents_devices_is_cut(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a thousand processes on GPUs the file showed only old ones."""
    monkeypatch.setattr(latest_tables, "DEVICES_PER_HOST_MAX", 4)
    fleet.tell("b", {"G0": 0.5})
    for second in (1, 4, 7):
        fleet.now_ns += SECOND_NS
        fleet.tell("a", {f"P{second + n}": second + n / 10 for n in range(3)})
        latest = fleet.latest()
    assert latest.pop(("b", "G0")) == 0.5
    assert {("a", f"P{n}") for n in (7, 8, 9)} < set(latest) and len(latest) == 4
    assert latest["a", "P9"] == 7.2
    with duckdb.connect(str(fleet.folder / "operators.duckdb"), read_only=True) as connection:
        left_out = connection.execute("SELECT left_out FROM snapshot").fetchall()[0][0]
    assert left_out == ["latest.gpu_1s: of a no more than the 4 devices that were reported last"]


def test_a_file_before_that_cannot_be_read_is_none(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    """A previous file that was cut off, or of an earlier version, does not block the next one."""
    (fleet.folder / "operators.duckdb").write_bytes(b"no such thing")
    fleet.tell("a", {"G0": 1.0})
    assert fleet.latest() == {("a", "G0"): 1.0}
    assert "cannot be read" in caplog.text
