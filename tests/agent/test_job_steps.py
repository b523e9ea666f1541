# pyright: reportPossiblyUnboundVariable=false
"""The collector of reported steps: slots of real processes, and whatever a user can plant."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.agent.collector import NoData, run_collector
from gangline.agent.collectors import job_steps
from gangline.agent.collectors.job_steps import (
    DEAD_TURNS,
    SLOTS_MAX,
    SLOTS_PER_USER_MAX,
    Candidate,
    JobSteps,
    fair_choice,
)
from gangline.agent.hardware import step_slots
from gangline.agent.hardware.files import Roots
from gangline.agent.hardware.process_owner import Owner
from gangline.agent.hardware.step_slots import SlotHead
from gangline.contract.block import Block
from gangline.contract.signals import index_of
from tests.hosts.reading import StoppedClock

SECOND = 1_000_000_000
#: Holds a slot like `gangline.steps`, and writes the lines of its input into it.
HOLDER = """
import fcntl, os, struct, sys
path, rank, job = sys.argv[1:4]
file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
os.write(file, struct.pack("<8sIIii40s", b"GANGSTEP", 1, 1, int(rank), 4, job.encode()) + bytes(64))
print("ready", flush=True)
for line in sys.stdin:
    os.pwrite(file, struct.pack("<dddd", *map(float, line.split())), 64)
    print("written", flush=True)
"""


class Clock(StoppedClock):
    now_ns = 1000 * SECOND

    def boottime_ns(self) -> int:
        return self.now_ns


class Rank:
    def __init__(self, folder: Path, number: int, job: str = "", name: str = "") -> None:
        self.path = folder / (name or f"{1000 + number}-{number:x}")
        self.child = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(self.path), str(number), job],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.child.stdout
        assert self.child.stdout.readline() == "ready\n"

    def write(
        self, steps: float, last: float, squares: float = 0.0, begun: float | None = None
    ) -> None:
        assert self.child.stdin
        assert self.child.stdout
        self.child.stdin.write(f"{steps} {last} {squares} {steps if begun is None else begun}\n")
        self.child.stdin.flush()
        assert self.child.stdout.readline() == "written\n"

    def end(self) -> None:
        self.child.kill()
        with self.child:
            self.child.wait()


class RanksHost:
    """A host folder with two ranks of job 77."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "shm" / "gangline"
        self.folder.mkdir(parents=True)
        self.clock = Clock()
        self.collector = JobSteps(Roots(proc=root / "proc", dev=root), self.clock)
        self.ranks = [Rank(self.folder, number, "77") for number in range(2)]

    def write(self, steps: float = 5, last: float = 1.0, squares: float = 0.0) -> None:
        for rank in self.ranks:
            rank.write(steps, last, squares)

    def collect(self, turns: int = 1) -> Block:
        for _ in range(turns):
            self.clock.now_ns += SECOND
            [block] = self.collector.collect()
        return block


@pytest.fixture
def host(tmp_path: Path) -> Iterator[RanksHost]:
    host = RanksHost(tmp_path)
    yield host
    for rank in host.ranks:
        rank.end()


def cell(block: Block, row: int, name: str) -> float | None:
    column = index_of(f"step.{name}")
    value = dict(enumerate(value for _, value in block.values(row)))[column]
    return value


def test_step_time_and_spread_of_each_rank(host: RanksHost) -> None:
    """Ten steps of 100 ms, half of 80 and half of 120: mean 0.1, standard deviation 0.02."""
    for second in range(4):
        squares = 10 * second * (0.08**2 + 0.12**2) / 2
        host.write(1 + 10 * second, 5.0 + second, squares)
        block = host.collect()
    assert block.devices == ("77/0", "77/1")
    assert cell(block, 1, "step_seconds") == pytest.approx(0.1)
    assert cell(block, 1, "spread_seconds") == pytest.approx(0.02, rel=1e-3)
    assert cell(block, 1, "steps_count") == 31
    assert cell(block, 1, "rank_number") == 1
    assert cell(block, 1, "world_count") == 4
    assert cell(block, 1, "process_number") == host.ranks[1].child.pid
    assert cell(block, 1, "user_number") == os.geteuid()


def test_the_time_is_of_the_last_ten_seconds(host: RanksHost) -> None:
    """A job that became slow an hour ago must not show the mean of the day."""
    count = 0
    for second in range(40):
        count += 10 if second < 20 else 5
        host.ranks[0].write(count, 1.0 + second)
        block = host.collect()
    assert cell(block, 0, "step_seconds") == pytest.approx(0.2)


def test_a_step_longer_than_the_window_has_the_time_of_the_last(host: RanksHost) -> None:
    """A step of 20 s ends in one second of twenty: its time must be present in each second."""
    for number in range(1, 4):
        host.ranks[0].write(number, 20.0 * number)
        block = host.collect(20)
    assert cell(block, 0, "step_seconds") == pytest.approx(20.0)
    assert cell(block, 0, "since_seconds") == 19.0
    block = host.collect(60)
    assert cell(block, 0, "step_seconds") is None  # stopped
    assert cell(block, 0, "since_seconds") == 79.0


def test_a_torn_slot_is_read_again(host: RanksHost) -> None:
    """A read during a write could be a step of any length."""
    host.ranks[0].write(10, 5.0)
    host.collect()
    host.ranks[0].write(20, 1e9, 0, begun=11)
    block = host.collect()
    assert cell(block, 0, "steps_count") == 10
    host.ranks[0].write(20, 6.0)
    assert cell(host.collect(), 0, "steps_count") == 20


@pytest.mark.parametrize(
    "lie",
    [
        (20, 1e308, 1e308),
        (2.0**60, 6.0, 0),
        (3, 0, 7),
        (20, 5.0, -5),
        (20, float("nan"), 0),
        (float("inf"), 6.0, 0),
        (20, 6.0, 1e300),
    ],
)
def test_a_slot_that_lies(host: RanksHost, lie: tuple[float, float, float]) -> None:
    """Time that runs back, a count that falls, more than a day a step: the other rank is right."""
    for index, lying in enumerate(((10, 5.0), lie)):
        host.ranks[0].write(*lying)
        host.ranks[1].write(10 * (1 + index), 5.0 + index)
        block = host.collect()
    seconds = cell(block, 0, "step_seconds")
    assert seconds is None or 0 < seconds <= job_steps.STEP_SECONDS_MAX
    assert cell(block, 1, "step_seconds") == pytest.approx(0.1)


def test_the_control_group_names_the_job(host: RanksHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of job 9 that claims to be rank 0 of job 77 would have blamed a host of 77."""
    liar = Rank(host.folder, 0, "77", name="1-aaa")
    owners = {liar.child.pid: Owner("slurm", job_id="9")}
    monkeypatch.setattr(
        JobSteps, "_owner", lambda _, pid: owners.get(pid, Owner("slurm", job_id="77"))
    )
    try:
        for rank in (*host.ranks, liar):
            rank.write(1, 1.0)
        assert host.collect().devices == ("9/0", "77/0", "77/1")
    finally:
        liar.end()


def test_a_second_process_of_a_rank_does_not_count(host: RanksHost) -> None:
    """A later process cannot report for a rank whose process lives."""
    host.write()
    host.collect()
    later = Rank(host.folder, 1, "77", name="1-aaa")
    try:
        later.write(900, 1.0)
        block = host.collect(2)
        assert block.devices == ("77/0", "77/1")
        assert cell(block, 1, "steps_count") == 5
    finally:
        later.end()


def test_a_dead_process_is_out_at_once_and_its_slot_is_removed(host: RanksHost) -> None:
    """Killed jobs filled /dev/shm."""
    host.write()
    host.collect()
    host.ranks[0].end()
    assert host.collect().devices == ("77/1",)
    assert os.listdir(host.folder) == [host.ranks[1].path.name]


def test_planted_files_are_removed(host: RanksHost, tmp_path: Path) -> None:
    """A FIFO hung a reader; a link led to another user's file; a sparse terabyte was read."""
    target = tmp_path / "target"
    target.write_bytes(b"secret" * 100)
    os.mkfifo(host.folder / "1-1")
    (host.folder / "2-2").symlink_to(target)
    (host.folder / "3-3").write_bytes(b"")
    os.truncate(host.folder / "3-3", 1 << 40)
    (host.folder / "4-4").write_bytes(bytes(step_slots.SLOT_BYTES))
    (host.folder / "5-5").mkdir()
    (host.folder / "no name of a slot").write_text("")
    os.link(target, host.folder / "6-6")
    host.write()
    assert host.collect().devices == ("77/0", "77/1")
    host.collect(DEAD_TURNS + 10)
    assert sorted(os.listdir(host.folder)) == ["1000-0", "1001-1", "5-5"]
    assert target.read_bytes() == b"secret" * 100


def test_a_slot_cut_short_or_unlinked_under_the_reader(host: RanksHost) -> None:
    """A mapping of a truncated file ends the reader by SIGBUS."""
    host.write()
    host.collect()
    os.truncate(host.ranks[0].path, 0)
    host.ranks[1].path.unlink()
    assert host.collect().devices == ("77/0",)
    assert host.collector.access_error == ""


def test_too_many_slots_are_left_out(host: RanksHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """One user's ten thousand slots would have cost every host a second each second."""
    monkeypatch.setattr(job_steps, "SLOTS_PER_USER_MAX", 1)
    host.write()
    assert len(host.collect().devices) == 1
    assert "1 slots in /dev/shm/gangline are ignored" in host.collector.access_error
    assert len(os.listdir(host.folder)) == 2  # alive: not removed


def slot(user: int, started: float) -> Candidate:
    return Candidate(user, started, 1, SlotHead("", 0, 0))


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 400)), max_size=600),
    st.integers(0, 400),
)
def test_no_users_fill_the_slots_of_another(others: list[tuple[int, int]], started: int) -> None:
    """Four users with 64 slots each used the whole limit: an earlier job was not read."""
    live = {
        f"{user}-{number}": slot(user, started) for number, (user, started) in enumerate(others)
    }
    live |= {"honest": slot(99, started)}
    chosen = fair_choice(live)
    assert "honest" in chosen and len(chosen) <= SLOTS_MAX
    users = Counter(live[name].user_id for name in chosen)
    assert max(users.values()) <= SLOTS_PER_USER_MAX
    for name in live.keys() - chosen:  # skipped: one of its user's latest, and no user has two more
        user, at = live[name].user_id, live[name].started
        assert all(live[name].started <= at for name in chosen if live[name].user_id == user)
        assert users[user] == SLOTS_PER_USER_MAX or users[user] >= max(users.values()) - 1


def test_a_user_without_a_slot(host: RanksHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slots that were already open kept the table full, and new users got none."""
    monkeypatch.setattr(job_steps, "SLOTS_MAX", 1)
    host.write()
    proc = host.collector._roots.proc
    for rank, ticks in zip(host.ranks, (200, 100), strict=True):
        place = proc / str(rank.child.pid)
        place.mkdir(parents=True)
        (place / "stat").write_text(f"{rank.child.pid} (a) b) S" + " 0" * 18 + f" {ticks} 0")
    assert host.collect().devices == ("77/1",), "the process that began first"
    assert len(open_below(host.folder)) == 1


def test_junk_hides_no_slot_and_is_said(host: RanksHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """20,000 files of another user: no slot after them was read, without a message."""
    monkeypatch.setattr(job_steps, "NAMES_MAX", 20)
    host.write()
    for number in range(100):
        junk = host.folder / f"{number}-{number}"
        junk.write_bytes(bytes(step_slots.SLOT_BYTES))
        if os.geteuid() == 0:
            os.chown(junk, 12345, 12345)
    block = host.collect()
    assert "82 more files than the 20 that are looked at" in host.collector.access_error
    if os.geteuid() == 0:
        assert block.devices == ("77/0", "77/1")


def test_descriptors_are_given_back(host: RanksHost) -> None:
    """A leaked descriptor per job would end the agent within a month."""
    host.write()
    host.collect(3)
    assert len(open_below(host.folder)) == 2
    for rank in host.ranks:
        rank.end()
    host.collect()
    assert open_below(host.folder) == []


def open_below(folder: Path) -> list[str]:
    result = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            result.append(os.readlink(f"/proc/self/fd/{number}"))
    return [path for path in result if path.startswith(str(folder))]


def test_no_folder_and_a_folder_that_is_a_link(tmp_path: Path) -> None:
    (tmp_path / "shm").mkdir()
    collector = JobSteps(Roots(dev=tmp_path))
    with pytest.raises(NoData, match="install -d -m 1777"):
        collector.collect()
    (tmp_path / "shm" / "gangline").symlink_to(tmp_path)
    with pytest.raises(NoData, match="no folder"):
        collector.collect()


def test_a_missing_folder_is_only_looked_for_until_it_is_there(tmp_path: Path) -> None:
    """Hosts without such jobs paid for an exception each second."""
    collector = JobSteps(Roots(dev=tmp_path))
    assert not collector.skip(), "it has said nothing yet"
    for _ in range(2):
        with pytest.raises(NoData):
            collector.collect()
        assert [collector.skip() for _ in range(10)] == [True] * 9 + [False]
    with pytest.raises(NoData):
        collector.collect()
    (tmp_path / "shm" / "gangline").mkdir(parents=True)
    assert not collector.skip()
    assert collector.collect()
    assert not collector.skip(), "the folder is there"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it becomes two other users")
def test_an_unprivileged_agent_reads_other_users_slots(tmp_path: Path) -> None:
    """The agent owns the folder, and so may delete other users' files in it."""
    base = Path("/dev/shm") / f"test-{os.getpid()}-{time.monotonic_ns()}"
    folder = base / "shm" / "gangline"
    folder.mkdir(parents=True)
    folder.chmod(0o1777)
    os.chown(folder, 64001, 64001)
    train = f"import fcntl, os, struct, sys; os.setuid(64002); sys.argv = ['', {str(folder / '7-7')!r}, '0', '77']; exec({HOLDER!r})"
    child = subprocess.Popen(
        [sys.executable, "-c", train], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    collector = JobSteps(Roots(dev=base))
    try:
        assert child.stdin
        assert child.stdout
        assert child.stdout.readline() == "ready\n"
        child.stdin.write("5 1 0 5\n")
        child.stdin.flush()
        child.stdout.readline()
        os.seteuid(64001)
        try:
            [block] = collector.collect()
            assert (block.devices, cell(block, 0, "user_number")) == (("77/0",), 64002)
            child.stdin.close()  # ends without removing its slot
            child.wait()
            assert run_collector(collector, Clock()).blocks[0].devices == ()
            assert os.listdir(folder) == []
        finally:
            os.seteuid(0)
    finally:
        child.kill()
        with child:
            child.wait()
        for path in (folder, base / "shm", base):
            path.rmdir()
