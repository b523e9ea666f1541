"""Tasks in uninterruptible wait: /proc as folders, and real processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.agent.collector import CollectOutcome, run_collector
from gangline.agent.collectors import tasks as collector_of_tasks
from gangline.agent.collectors.tasks import BlockedTasks, BlockedTimes
from gangline.agent.hardware import processes
from gangline.agent.hardware.files import Roots
from gangline.agent.hardware.processes import TaskStat
from tests import hosts
from tests.hosts.reading import StoppedClock, rows_of
from tests.processes import GUARD_SECONDS


def stat(number: int, name: str, state: str = "S", start: int = 5, flags: int = 0) -> str:
    fields = [1, number, number, 0, -1, flags, *[0] * 12, start, *[0] * 5]
    return f"{number} ({name}) {state} {' '.join(map(str, fields))}\n"


def blocked(number: int, start: int = 5) -> TaskStat:
    return TaskStat(number, start, "D", "x", False)


def row(collector: BlockedTasks) -> dict[str, float | int | None]:
    values = dict(rows_of(collector.collect()[0]))["host"]
    assert values is not None
    return values


@given(
    st.text(max_size=15),
    st.sampled_from("RSDZTtXI"),
    st.integers(1, 1 << 22),
    st.integers(0, 1 << 62),
)
def test_a_task_may_name_itself_as_it_likes(name: str, state: str, number: int, start: int) -> None:
    """A process named itself `x) R 1 1 1 (`: it was counted as running while it hung."""
    task = processes.parse_task(stat(number, name, state, start).encode(errors="replace"))
    assert task is not None
    assert (task.number, task.state, task.start_ticks) == (number, state, start)
    assert not task.is_kernel


@given(
    st.binary(max_size=120)
    | st.lists(
        st.sampled_from(
            [b"1 (", b")", b" D ", b" 0", b" -1", b" 99999999999999999999", b"\xff", b"\n"]
        ),
        max_size=40,
    ).map(b"".join)
)
def test_no_text_is_a_task_that_it_does_not_say(data: bytes) -> None:
    """A file cut off because its process ended, and arbitrary data."""
    task = processes.parse_task(data)
    if task is not None:
        assert len(task.state) == 1 and 0 <= task.number < 1 << 64
        assert data.startswith(str(task.number).encode()) or not data[:1].isdigit()
        assert b")" in data


def test_a_text_without_a_name_is_no_task() -> None:
    """Without the name the fields were read from the beginning: state `1`, of another process."""
    assert processes.parse_task(b"1 (" + b" 7" * 30) is None


def test_a_thread_of_the_kernel_is_known_by_its_flag() -> None:
    """By its name alone any process could hide among kworkers."""
    assert processes.parse_task(stat(7, "kworker/0:1", "D", flags=0x04208060).encode()) == TaskStat(
        7, 5, "D", "kworker/0:1", True
    )
    own = processes.parse_task(Path("/proc/self/stat").read_bytes())
    assert own and own.number == os.getpid() and not own.is_kernel
    assert own.start_seconds <= float(Path("/proc/uptime").read_text().split()[0])


@given(st.lists(st.tuples(st.integers(0, 100), st.sets(st.integers(1, 4))), max_size=30))
def test_a_task_is_blocked_since_it_was_first_seen_so(looks: list[tuple[int, set[int]]]) -> None:
    """A task that left the wait and entered another starts at 0; time never runs backwards."""
    since = BlockedTimes()
    began: dict[int, int] = {}
    now = 0
    for step, numbers in looks:
        now += step
        began = {n: began.get(n, now) for n in numbers}
        result = since.observe([blocked(n) for n in numbers], now)
        assert result == {(n, 5): now - began[n] for n in numbers}


def test_a_number_that_is_another_task_now_begins_anew() -> None:
    """PIDs are reused: a new process was reported as hung for the days of its predecessor."""
    since = BlockedTimes()
    since.observe([blocked(9, start=5)], 10.0)
    assert since.observe([blocked(9, start=600)], 70.0) == {(9, 600): 0.0}


def test_a_blocked_thread_of_a_gpu_process(tmp_path: Path) -> None:
    """The main thread slept, another hung in the driver: the job stopped and no process was in D."""
    host = hosts.unpack("h100-ib", tmp_path)
    collector = BlockedTasks(host.roots)
    first = row(collector)
    assert (first["blocked_count"], first["blocked_kernel_count"]) == (0, 1)
    assert (first["blocked_gpu_count"], first["gpu_holders_count"]) == (1, 1)
    (host.roots.proc / "uptime").write_text("864090.25 1.0\n")
    second = row(collector)
    assert second["blocked_gpu_longest_seconds"] == 90
    assert second["blocked_longest_seconds"] == 90  # not the kernel's own
    thread = host.roots.proc / "4242/task/4250/stat"
    thread.write_text(thread.read_text().replace(" D ", " S "))
    third = row(collector)
    assert (third["blocked_gpu_count"], third["blocked_gpu_longest_seconds"]) == (0, 0)


def test_a_process_that_opens_the_gpu_later_is_found_within_the_minute(tmp_path: Path) -> None:
    """CUDA is initialized after minutes of imports; the descriptors had been read before."""
    host = hosts.unpack("h100-ib", tmp_path)
    collector = BlockedTasks(host.roots)
    row(collector)
    folder = host.roots.proc / "902/fd"
    folder.mkdir()
    (folder / "3").symlink_to("/dev/nvidia-uvm")  # of all GPUs, and also held by monitors
    (folder / "4").symlink_to("/dev/nvidia0")
    assert [row(collector)["gpu_holders_count"] for _ in range(6)][-1] == 2
    shutil.rmtree(host.roots.proc / "4242")
    assert row(collector)["gpu_holders_count"] == 1


def test_a_killed_process_that_the_driver_holds_fast_has_the_gpu_still(tmp_path: Path) -> None:
    """Its last close never returned: the GPU was reported free, the next job failed."""
    host = hosts.unpack("h100-ib", tmp_path)
    collector = BlockedTasks(host.roots)
    row(collector)
    (host.roots.proc / "4242/fd/7").unlink()
    seen = [row(collector) for _ in range(15)]
    assert [values["blocked_gpu_count"] for values in seen] == [1] * 15
    # the process itself closed it, and continues
    (host.roots.proc / "4242/fd/0").symlink_to("/dev/null")
    assert [row(collector)["blocked_gpu_count"] for _ in range(6)][-1] == 0


def test_a_host_without_gpu_looks_at_no_descriptor(tmp_path: Path) -> None:
    """Descriptors are not needed on such a host, and the collector is not blind."""
    host = hosts.unpack("h100-ib", tmp_path)
    (host.roots.dev / "nvidia0").unlink()
    collector = BlockedTasks(host.roots)
    values = row(collector)
    assert values["gpu_holders_count"] is values["blocked_gpu_count"] is None
    assert collector.access_error == ""


def test_processes_of_others_are_blind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without CAP_SYS_PTRACE an agent saw no GPU process, and reported that none hung."""
    host = hosts.unpack("h100-ib", tmp_path)

    def refuse(folder: Path, prefix: str, links_max: int) -> bool:
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(processes, "has_open_device", refuse)
    turn = run_collector(BlockedTasks(host.roots), StoppedClock())
    assert turn.outcome is CollectOutcome.BLIND and "CAP_SYS_PTRACE" in turn.message
    values = dict(rows_of(turn.blocks[0]))["host"]
    assert values and values["blocked_gpu_count"] is None and values["processes_count"] == 7


def test_a_proc_that_hides_processes_is_blind(tmp_path: Path) -> None:
    """hidepid=invisible: only the agent itself was visible, and the host had one process."""
    host = hosts.unpack("h100-ib", tmp_path)
    shutil.rmtree(host.roots.proc / "1")
    turn = run_collector(BlockedTasks(host.roots), StoppedClock())
    assert turn.outcome is CollectOutcome.BLIND and "hidepid" in turn.message
    values = dict(rows_of(turn.blocks[0]))["host"]
    assert values and values["processes_count"] is None


def test_more_processes_than_are_looked_at(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A fork bomb: the turn still ends, and reports no wrong number."""
    monkeypatch.setattr(collector_of_tasks, "PROCESSES_MAX", 3)
    host = hosts.unpack("h100-ib", tmp_path)
    (host.roots.dev / "nvidia0").unlink()
    values = row(BlockedTasks(host.roots))
    assert values["processes_count"] is values["blocked_count"] is None
    assert len(processes.task_numbers(host.roots.proc, 3)) == 4


def until(condition: Callable[[], bool]) -> None:
    """Wait for *condition*, yielding the processor. Raises AssertionError after GUARD_SECONDS."""
    deadline = time.monotonic() + GUARD_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        os.sched_yield()


def test_a_real_process_in_uninterruptible_wait(tmp_path: Path) -> None:
    """The kernel holds a parent until its vfork child execs or ends."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler here")
    source, program = tmp_path / "held.c", tmp_path / "held"
    source.write_text(
        "#include <unistd.h>\nint main(void) { char c; if (vfork() == 0) { read(0, &c, 1); _exit(0); } "
        "return 0; }\n"
    )
    subprocess.run([compiler, "-w", "-o", program, source], check=True, timeout=GUARD_SECONDS)
    collector = BlockedTasks(Roots(dev=tmp_path))
    with subprocess.Popen([program], stdin=subprocess.PIPE) as held:
        assert held.stdin
        folder = Path(f"/proc/{held.pid}")
        until(
            lambda: [t.state for t in processes.read_tasks(Path("/proc"), [str(held.pid)])] == ["D"]
        )
        values = row(collector)
        assert values["blocked_count"] and values["blocked_count"] >= 1
        uptime = Path("/proc/uptime").read_text().split()[0]
        until(lambda: Path("/proc/uptime").read_text().split()[0] != uptime)
        longest = row(collector)["blocked_longest_seconds"]
        assert longest and longest > 0
        assert not processes.has_open_device(folder, "/dev/nvidia", 512)
        held.stdin.close()
        assert held.wait(GUARD_SECONDS) == 0


def test_a_real_process_that_holds_a_device_file(tmp_path: Path) -> None:
    """By its open descriptors; a process with another file, and an ended process, hold none."""
    (tmp_path / "nvidia3").touch()
    (tmp_path / "nvidiactl").touch()
    program = "import sys; f = open(sys.argv[1]); print('open', flush=True); sys.stdin.read()"
    for name, holds in (("nvidia3", True), ("nvidiactl", False)):
        with subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path / name)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as child:
            assert child.stdout and child.stdin and child.stdout.readline() == b"open\n"
            folder = Path(f"/proc/{child.pid}")
            assert processes.has_open_device(folder, f"{tmp_path}/nvidia", 512) is holds
            assert processes.has_open_device(folder, f"{tmp_path}/nvidia", 0) is None
            child.stdin.close()
            child.wait(GUARD_SECONDS)
        assert processes.has_open_device(folder, f"{tmp_path}/nvidia", 512) is None
