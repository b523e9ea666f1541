"""Hosts with hundreds of cores and ten thousand processes: the work of a turn stays small."""

from __future__ import annotations

import resource
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.agent.collectors import COLLECTORS, cpu
from gangline.agent.collectors.block_writer import block_of, put
from gangline.agent.collectors.counter_files import (
    CounterFileCollector,
    descriptors_max,
    open_files_max,
)
from gangline.agent.collectors.file_cache import DESCRIPTORS_SHARE, FileCache
from gangline.agent.collectors.host import HostTenSeconds
from gangline.agent.hardware import cpu_cores as cores
from gangline.agent.hardware import processes as tasks
from gangline.agent.hardware.files import Roots
from gangline.agent.hardware.processes import ProcessScanner, TaskStat
from gangline.contract.block import Block
from gangline.contract.signal import Pace
from tests.hosts.reading import rows_of


def write_process(proc: Path, number: int, state: str = "S", start: int = 5) -> None:
    folder = proc / str(number)
    folder.mkdir(exist_ok=True)
    fields = [1, number, number, 0, -1, 0, *[0] * 12, start, *[0] * 5]
    (folder / "stat").write_text(f"{number} (x) {state} {' '.join(map(str, fields))}\n")


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    count: Counter[int] = Counter()
    read_task = tasks.read_task

    def read(folder: Path, number: str) -> TaskStat | None:
        count[int(number)] += 1
        return read_task(folder, number)

    monkeypatch.setattr(tasks, "read_task", read)
    return count


def test_of_many_processes_a_part_is_read_in_a_turn(tmp_path: Path, reads: Counter[int]) -> None:
    """Ten thousand unchanged processes cost 110 ms of each ten seconds."""
    for number in range(1, 101):
        write_process(tmp_path, number)
    processes = ProcessScanner(tmp_path, 1000, 10)
    assert len(processes.read(lambda task: False)) == 100 == reads.total()  # all are new
    for turn in range(1, 11):
        assert len(processes.read(lambda task: False)) == 100
        assert reads.total() == 100 + 10 * turn
    assert set(reads.values()) == {2}  # each exactly once more


def test_who_is_urgent_or_new_is_read_at_once(tmp_path: Path, reads: Counter[int]) -> None:
    """A hanging rank must be seen in each turn, and an ended rank disappears."""
    for number in range(1, 51):
        write_process(tmp_path, number)
    processes = ProcessScanner(tmp_path, 1000, 5)
    processes.read(lambda task: task.is_blocked)
    write_process(tmp_path, 3, state="D")
    while not any(t.is_blocked for t in processes.read(lambda task: task.is_blocked)):
        assert reads[3] < 3  # within a round
    reads.clear()
    write_process(tmp_path, 99)
    (tmp_path / "50/stat").unlink()
    (tmp_path / "50").rmdir()
    result = {t.number for t in processes.read(lambda task: task.is_blocked)}
    assert reads[3] == reads[99] == 1 and 99 in result and 50 not in result
    assert processes.count == 50


def test_more_processes_than_are_looked_at_have_no_count(tmp_path: Path) -> None:
    """A fork bomb is not reported with the limit as its count."""
    for number in range(1, 6):
        write_process(tmp_path, number)
    processes = ProcessScanner(tmp_path, 4, 10)
    assert len(processes.read(lambda task: False)) == 4 and processes.count is None


@given(st.integers(0, 1000), st.integers(1, 64))
def test_what_is_spread_is_even_and_no_more(count: int, most: int) -> None:
    """The first cores of a host belong to one socket: a sample must include others."""
    files = [Path(str(n)) for n in range(count)]
    chosen = [int(p.name) for p in cores.spread(files, most)]
    assert len(chosen) <= most and bool(chosen) == bool(count)
    assert len({b - a for a, b in pairwise(chosen)}) <= 1
    if count:
        assert chosen[0] == 0 and count - chosen[-1] <= max(1, -(-count // most))


def test_changed_cores_have_new_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """512 cores: each minute the list of their files blocked the daemon's thread for 130 ms."""
    online = tmp_path / "sys/devices/system/cpu/online"
    online.parent.mkdir(parents=True)
    online.write_text("0-511\n")
    (tmp_path / "meminfo").write_text("MemTotal: 1 kB\n")
    looked: list[Path] = []

    def look(sys: Path) -> list[Path]:
        looked.append(sys)
        return []

    monkeypatch.setattr(cores, "core_throttle_files", look)
    collector = HostTenSeconds(Roots(tmp_path / "sys", tmp_path))
    for _ in range(20):
        collector.collect()
    assert len(looked) == 1
    online.write_text("0-510\n")
    collector.collect()
    assert len(looked) == 2


def test_the_frequencies_of_some_cores_stand_for_all(tmp_path: Path) -> None:
    """Each took 20 ms on an old kernel: 256 of them looked like a hung collector."""
    lines = "".join(f"cpu{n} 1 0 1 1 0 0 0 0 0 0\n" for n in range(200))
    (tmp_path / "stat").write_text(f"cpu 200 0 200 200 0 0 0 0 0 0\n{lines}")
    for n in range(200):
        folder = tmp_path / f"sys/devices/system/cpu/cpu{n}/cpufreq"
        folder.mkdir(parents=True)
        (folder / "scaling_cur_freq").write_text("2000000\n")
    (block,) = cpu.CpuMinute(Roots(tmp_path / "sys", tmp_path)).collect()
    known = [n for n, (_, v) in enumerate(rows_of(block)) if v and v["frequency_hertz"] == 2e9]
    assert known == list(range(0, 200, 4))


def test_all_collectors_together_stay_below_the_limit_of_descriptors() -> None:
    """There were more collectors than shares, and the spool could not be opened."""
    created = [make(Roots()) for name, make in COLLECTORS.items() if "gpu" not in name]
    paces = Counter(c.pace for c in created if isinstance(c, CounterFileCollector))
    remembered = [x for c in created for x in vars(c).values() if isinstance(x, FileCache)]
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    for soft in (1024, before[0]):
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, before[1]))
        kept = {pace: open_files_max(pace) for pace in Pace}
        total = sum(kept[pace] * count for pace, count in paces.items())
        total += len(remembered) * descriptors_max(DESCRIPTORS_SHARE)
        assert remembered and 0 < total < 0.9 * soft


def test_a_value_that_no_cell_holds_is_missing() -> None:
    """The sum of NFS calls of all kinds may exceed 64 bits; the turn must not fail."""
    block = Block("nfs_10s", ["/data"])
    put(block, "nfs.all_operations", 0, 1 << 64)
    put(block, "nfs.all_errors", 0, (1 << 64) - 1)
    put(block, "nfs.age_seconds", 0, 1 << 70)
    result = dict(rows_of(block))["/data"]
    assert result and result["all_operations"] is None
    assert (result["all_errors"], result["age_seconds"]) == ((1 << 64) - 1, float(1 << 70))
    assert block_of(block, ["/data"]) is block
    assert block_of(block, ["/data", "/home"]).devices == ("/data", "/home")
