"""The packer process is killed, hangs, or loses its aggregator: no reading is lost."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from gangline.aggregator import workers
from gangline.aggregator.store.parquet import worker_client
from gangline.aggregator.store.parquet.host_ranges import HostRange
from gangline.aggregator.store.parquet.worker_client import PackerError, PackerProcess
from tests.processes import GUARD_SECONDS

READINGS = "SELECT host, device, time, power_watts FROM readings.gpu_1s ORDER BY ALL"
SUMS = (
    "SELECT sum(readings_count), sum(violation_power_nanoseconds_increase) FROM rollups.gpu_1s_1m"
)


class Mortal(PackerProcess):
    """Get signal *number* before the next call of *doomed*."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, 1000, 64 << 20)
        self.number, self.doomed, self.seconds = int(signal.SIGKILL), "", 60.0
        self.asked, self.went_last, self.errors = list[str](), list[bool](), list[str]()

    def start(self) -> None:
        there = self.pid
        super().start()
        if self.pid != there:
            self.went_last.append(self.is_low_priority)

    def call(self, name: str, *arguments: Any, memory: int | None = None) -> Any:
        self.asked.append(name)
        if name == self.doomed:
            self.harm()
        try:
            return super().call(name, *arguments, memory=memory)
        except PackerError as error:
            self.errors.append(str(error))
            raise

    def harm(self) -> None:
        self.doomed = ""
        os.kill(self.pid, self.number)
        if self._worker is not None:
            self._worker.control.settimeout(self.seconds)


@pytest.fixture
def mortal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mortal]:
    """Return a packer of an empty folder.

    It has the lowest priority, so on a busy machine it starts and ends slowly.
    """
    monkeypatch.setattr(worker_client, "LOW_PRIORITY_ANSWER_SECONDS_MAX", 900.0)
    monkeypatch.setattr(workers, "GONE_SECONDS", 900.0)
    packer = Mortal(tmp_path / "data")
    yield packer
    packer.kill()
    packer.release()


@pytest.mark.slow
def test_killed_before_every_call(make_past: Any, tmp_path: Path, mortal: Mortal) -> None:
    """The out-of-memory killer ended it: five minutes were there twice, an hour was missing."""
    past = make_past(tmp_path / "data", packing=mortal).open()
    exporting = "begin", "readings", "end", "discard"
    merging = "ranges", "range", "write", "begin", "end", "discard"
    for half, names in enumerate((exporting, merging)):
        for number in range(half * 6, half * 6 + 6):
            values = {"power_watts": float(number), "violation_power_nanoseconds": number * 10**6}
            past.put(values=values, devices=("G0", "G1"))
            past.later(300)
        expected = past.ask(READINGS)
        for name in names:
            past.later(61)
            mortal.doomed = name
            past.history.turn(past.now_ns, 1e9)
            assert mortal.doomed == ""
            assert past.ask(READINGS) == expected
        assert past.live_tables() == []  # a `discard` that fails costs nothing
    past.later(61)
    past.turn()
    assert past.ask(SUMS) == [(24, 22 * 10**6)]
    segments = [file_name for file_name in past.files() if file_name.startswith("segments")]
    assert segments == ["segments/gpu_1s/2026112010/2026112010-0.parquet"]
    assert past.findings == [] and mortal.pid == 0
    past.close()


@pytest.mark.slow
def test_one_that_hangs_is_killed(make_past: Any, tmp_path: Path, mortal: Mortal) -> None:
    """An unresponsive disk blocked the packer, and history with it; or it got no CPU time."""
    past = make_past(tmp_path / "data", packing=mortal).open()
    past.put(values={"power_watts": 1.0})
    past.later(306)
    mortal.doomed, mortal.number, mortal.seconds = "readings", signal.SIGSTOP, 0.1
    past.turn()
    mortal.doomed = "readings"
    past.history.turn(past.now_ns, 1e9)
    assert "did not answer" in past.history.failing
    past.later(61)
    past.turn()
    assert past.live_tables() == [] and past.ask(READINGS)[0][3] == 1.0
    assert mortal.went_last == [True, False, False]
    past.later(300)
    past.put()
    past.later(306)
    past.turn()
    assert mortal.went_last[3:] == [True]
    past.close()


@pytest.mark.slow
def test_one_that_hangs_does_not_hold_up_a_stop(
    make_past: Any, tmp_path: Path, mortal: Mortal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C waited 15 minutes for a packer stopped between two of its pieces."""
    monkeypatch.setattr(workers, "END_SECONDS", 0.1)
    past = make_past(tmp_path / "data", packing=mortal).open()
    past.put(values={"power_watts": 1.0})
    past.later(306)
    while "readings" not in mortal.asked:
        past.history.turn(past.now_ns, 0.0)
    mortal.number, mortal.seconds = signal.SIGSTOP, 1.0
    mortal.harm()
    past.history.stop()
    assert mortal.pid == 0 and mortal.errors == ["the process that writes Parquet has ended"]
    assert past.files() == [] and past.ask(READINGS)[0][3] == 1.0
    past.store.close()


@pytest.mark.slow
@pytest.mark.parametrize(("seconds", "ranges", "last"), [(240, 2, True), (400, 3, False)])
def test_an_export_that_comes_during_a_merge(
    make_past: Any, tmp_path: Path, mortal: Mortal, seconds: int, ranges: int, last: bool
) -> None:
    """A large fleet's hour took over five minutes to merge: each export undid its progress.

    If an export is late, the packer gets normal priority; then the merge starts again.
    """
    past = make_past(tmp_path / "data", packing=mortal).open()
    for number in range(2):
        past.put(values={"power_watts": float(number)})
        past.later(306)
        past.turn()
    past.later(3060)
    past.put(values={"power_watts": 2.0})
    mortal.asked.clear()
    while "write" not in mortal.asked:
        past.history.turn(past.now_ns, 0.0)
    past.later(seconds)
    for _ in range(60):
        past.history.turn(past.now_ns, 0.0)
        assert past.history.failing == ""
    after = [name for name in mortal.asked[mortal.asked.index("write") + 1 :] if name != "discard"]
    assert after[:2] == ["begin", "readings"]
    assert mortal.asked.count("ranges") == ranges  # once for minutes, once for readings
    assert mortal.went_last == [True] * 3 + [False] * (not last)
    assert past.live_tables() == [] and len(past.ask(READINGS)) == 3
    past.close()


def test_a_packet_is_short_however_many_hosts_there_are(mortal: Mortal, tmp_path: Path) -> None:
    """An hour of 80,000 GPUs' links had 2,000 ranges, too many for a packet: no merge."""
    hosts = "(SELECT repeat('h', 60) || i AS host FROM range(3000) AS t(i))"
    (tmp_path / "data").mkdir()
    mortal.start()
    mortal.call("begin", "of", {}, {})
    assert mortal.call("ranges", "of", hosts, 1) == 3000
    assert mortal.call("range", "of", 2999)[2] == 1


def test_a_host_with_more_rows_than_a_piece_is_cut_between_its_devices(
    mortal: Mortal, tmp_path: Path
) -> None:
    """144 links have 207,360 minutes a day: DuckDB ran out of memory, and no day was merged."""
    rows = "SELECT 'h' || i % 3 AS host, 'd' || i // 3 % 4 AS device, i AS value FROM range(120) AS t(i)"
    source = f"({rows} UNION ALL SELECT 'small', 'd', -1)"
    (tmp_path / "data").mkdir()
    mortal.start()
    mortal.call("begin", "of", {}, {})
    host_ranges = [
        HostRange(*mortal.call("range", "of", number))
        for number in range(mortal.call("ranges", "of", source, 20))
    ]
    counted = [
        duckdb.execute(
            f"SELECT count(*) FROM {source} WHERE {host_range.where}", host_range.parameters
        ).fetchall()
        for host_range in host_ranges
    ]
    assert counted == [[(host_range.rows,)] for host_range in host_ranges]
    assert [host_range.rows for host_range in host_ranges] == [20] * 6 + [1]


@pytest.mark.slow
def test_its_words_when_it_cannot(mortal: Mortal, tmp_path: Path) -> None:
    """`failing` was "error": the full disk and the table were missing."""
    mortal.start()
    with pytest.raises(PackerError, match="nowhere"):
        mortal.call("ranges", "of", "read_parquet('nowhere.parquet')", 10)
    with pytest.raises(PackerError, match="of was started by a process that has ended"):
        mortal.call("end", "of")
    (tmp_path / "data").mkdir()
    (tmp_path / "data/segments").write_text("a file")
    with pytest.raises(PackerError, match="segments"):
        mortal.call("begin", "of", {"raw": "segments/gpu_1s/2026112010/202611201000-0.parquet"}, {})
    limits = Path(f"/proc/{mortal.pid}/limits").read_text()
    assert "Max address space         unlimited" not in limits
    assert os.getpriority(os.PRIO_PROCESS, mortal.pid) == 19
    mortal.release()
    mortal.is_behind = True
    mortal.start()
    mortal.call("discard", "of")  # its response shows that its priority is set
    assert os.getpriority(os.PRIO_PROCESS, mortal.pid) < 19
    mortal.release()
    with pytest.raises(PackerError, match="has ended"):
        mortal.call("end", "of")


def test_none_is_left_behind(tmp_path: Path) -> None:
    """kill -9 of the aggregator: its packer wrote beside the next aggregator's packer."""
    program = (
        "import sys, time; from pathlib import Path; from gangline.aggregator.store.parquet.worker_client import PackerProcess\n"
        "one = PackerProcess(Path(sys.argv[1]), 1000, 64 << 20); one.start(); one.call('discard', 'of')\n"
        "print(one.pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
    with os.fdopen(child) as child_file:
        assert select.select([child_file], [], [], GUARD_SECONDS)[0]
