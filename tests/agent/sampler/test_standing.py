"""The state of a process in /proc; and abandoned processes, from one agent to the next."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gangline.agent.sampler.abandoned import (
    FILE_NAME,
    AbandonedProcess,
    AbandonedProcessFile,
    format_abandoned,
    parse_abandoned,
)
from gangline.agent.sampler.collector_groups import PROCESSES_MAX
from gangline.agent.sampler.forkserver import (
    StallReason,
    live_task,
    parse_stall_reason,
    stall_reason,
)
from tests.processes import until

#: In the format of fs/proc/array.c: state, parent, group, ..., utime and stime (42 and 7 ticks of
#: 10 ms), ..., start.
STAT = b"77 (gangline-gpu) %c 1 1 1 0 -1 4194560 9 0 0 0 42 7 0 0 20 0 1 0 5000 1 1" + b" 0" * 28
BOOT = b"b" * 16
LEFT = AbandonedProcess(
    ("gpu", "0000:9b:00.0", ""), 77, 5000, 3, "gpu_1s", "nvmlDeviceGetFieldValues"
)

SLEEP, SPIN = ("sleep", "600"), ("sh", "-c", "while :; do :; done")


@pytest.mark.parametrize(
    ("state", "spoke_at", "excuse"),
    [
        ("R", 0.45, StallReason.STARVED),  # ready to run, with 0.04 s of CPU since its last message
        ("R", 0.10, None),  # always running: it spins in its driver
        ("S", 0.45, None),
        ("D", 0.45, None),
        ("T", 0.10, StallReason.STOPPED),
        ("t", 0.45, StallReason.STOPPED),
    ],
)
def test_waits_for_cpu_and_driver(state: str, spoke_at: float, excuse: StallReason | None) -> None:
    assert parse_stall_reason(STAT.replace(b"%c", state.encode()), spoke_at) is excuse


def test_what_is_no_stat_file_excuses_nobody() -> None:
    for content in (b"", b"77", b"77 (x) R", b"x (y) R" + b" -" * 50, STAT[:40]):
        assert parse_stall_reason(content, 0.0) is None


@contextmanager
def child(*command: str) -> Iterator[int]:
    with subprocess.Popen(command) as process:
        try:
            yield process.pid
        finally:
            process.kill()


def test_true_processes_as_the_kernel_shows_them() -> None:
    with child(*SLEEP) as sleeps, child(*SPIN) as spins, child(*SLEEP) as stands:
        os.kill(stands, signal.SIGSTOP)
        until(lambda: stall_reason(stands, 0.0) is StallReason.STOPPED, "a process that is stopped")
        until(lambda: (task := live_task(sleeps)) and task.state == "S", "one that sleeps")
        assert stall_reason(sleeps, 0.0) is None
        used = Path(f"/proc/{spins}/stat")
        until(lambda: int(used.read_text().rpartition(")")[2].split()[11]) > 40, "CPU time")
        assert stall_reason(spins, 0.0) is None
        # as if its last message was a moment ago
        assert stall_reason(spins, 1e9) is StallReason.STARVED
        task = live_task(sleeps)
        assert task is not None
        left = AbandonedProcess(("gpu", "", ""), sleeps, task.start_ticks, 1, "", "")
        assert left.is_alive and not left._replace(start_ticks=task.start_ticks + 1).is_alive
    assert live_task(sleeps) is None and stall_reason(sleeps, 0.0) is None and not left.is_alive


def test_abandoned_processes_are_found_by_the_next_agent_of_this_boot(tmp_path: Path) -> None:
    file = AbandonedProcessFile(tmp_path / "state", BOOT)
    assert file.read() == []
    with child(*SLEEP) as pid:
        task = live_task(pid)
        assert task is not None
        lives = LEFT._replace(pid=pid, start_ticks=task.start_ticks)
        # another process had that number
        file.write([lives, LEFT._replace(pid=pid, start_ticks=1)])
        assert file.read() == [lives]
        assert AbandonedProcessFile(tmp_path / "state", b"c" * 16).read() == []
    assert file.read() == []


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{" * 100_000,
        format_abandoned(BOOT, [LEFT._replace(pid=-1)]),
        format_abandoned(BOOT, [LEFT._replace(start_ticks=1 << 70)]),
        format_abandoned(BOOT, [LEFT._replace(call="x" * 1000)]),
        format_abandoned(BOOT, [LEFT]).replace(b'"gpu"', b"null"),
        format_abandoned(BOOT, [LEFT]).replace(b'["gpu"', b'["gpu", "gpu"'),
        format_abandoned(BOOT, [LEFT]).replace(b"5000, ", b""),
    ],
)
def test_a_damaged_file(tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    with pytest.raises(ValueError, match="is not a list of abandoned processes"):
        parse_abandoned(content, BOOT)
    assert AbandonedProcessFile(tmp_path, BOOT).read() == []
    assert FILE_NAME in caplog.text


def test_no_more_are_taken_over_than_there_can_be() -> None:
    many = format_abandoned(BOOT, [LEFT] * 100)
    assert parse_abandoned(many, BOOT) == [LEFT] * PROCESSES_MAX


def test_a_read_only_folder(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "state").write_text("")
    AbandonedProcessFile(tmp_path / "state", BOOT).write([LEFT])
    assert "after a restart" in caplog.text
