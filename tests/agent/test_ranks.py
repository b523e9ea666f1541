"""The helper that reads ranks: the real child over real processes, and its parent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.agent.hardware import job_ranks, job_ranks_child
from gangline.agent.hardware.job_ranks import (
    BATCH_MAX,
    DEADLINE_NS,
    RETRY_NS,
    RankAnswer,
    RankReader,
    attributes_of,
    parse_answers,
)
from gangline.agent.hardware.process_state import read_process_state
from tests.agent.fakes import HandedClock
from tests.agent.jobs_host import SLURM, JobsHost
from tests.processes import GUARD_SECONDS

PROC = Path("/proc")
SECRETS = {"AWS_SECRET_ACCESS_KEY": "hunter2", "RANKING": "5", "XRANK": "7", "LONG": "x" * 100_000}


class Process:
    """A process with an environment of its own."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._child = subprocess.Popen(
            ["/bin/sh", "-c", "echo ready; read line"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._child.stdout
        assert self._child.stdout.readline() == b"ready\n"
        self.pid = self._child.pid
        self.identity = self.pid, read_process_state(PROC, self.pid).start_ticks

    def end(self) -> None:
        self._child.communicate(b"\n", GUARD_SECONDS)


@pytest.fixture
def process() -> Iterator[Process]:
    created = Process({"RANK": "3", "WORLD_SIZE": "16", "SLURM_JOB_GPUS": "0,2-3"} | SECRETS)
    yield created
    created.end()


def answers(reader: RankReader) -> list[RankAnswer]:
    until = time.monotonic() + GUARD_SECONDS
    while time.monotonic() < until:
        if found := reader.poll():
            return found
        if reader._child is not None and reader._child.stdout is not None:
            os.waitid(os.P_PID, reader._child.pid, os.WEXITED | os.WNOWAIT)
    raise AssertionError("the helper did not answer")


def run(*arguments: str) -> list[dict[str, object]]:
    done = subprocess.run(
        [*job_ranks.COMMAND, *arguments],
        capture_output=True,
        check=True,
        env={},
        timeout=GUARD_SECONDS,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_it_reads_the_ranks_and_nothing_else(process: Process) -> None:
    """A monitor that could read environments sent a storage key to the fleet's database."""
    reader = RankReader(PROC, HandedClock())
    reader.request([process.identity])
    assert answers(reader) == [
        RankAnswer(
            process.identity,
            {
                "rank": "3", "rank_source": "RANK", "world_size": "16",
                "gres_gpus": "0,2-3", "gres_gpus_source": "SLURM_JOB_GPUS",
            },
        )
    ]  # fmt: skip
    [attributes] = run("/proc", f"{process.pid}:{process.identity[1]}")
    assert "hunter2" not in json.dumps(attributes)
    assert set(attributes["variables"]) == {"RANK", "WORLD_SIZE", "SLURM_JOB_GPUS"}  # type: ignore[call-overload]


def test_a_secret_in_the_name_of_a_rank_is_not_read(tmp_path: Path) -> None:
    """A token was stored in RANK; a value that is not a number is not a rank."""
    host = JobsHost(tmp_path)
    folder = host.process(7, SLURM, start=9)
    lines = [b"RANK=s3cret", b"WORLD_SIZE=12345678901", b"SLURM_JOB_GPUS=token", b"LOCAL_RANK=1"]
    (folder / "environ").write_bytes(b"\0".join(lines) + b"\0")
    assert run(str(host.proc), "7:9") == [{"pid": 7, "start": 9, "variables": {"LOCAL_RANK": "1"}}]


def test_another_process_under_the_number_is_not_read(tmp_path: Path) -> None:
    """Between the question and the helper's start the number was reused."""
    host = JobsHost(tmp_path)
    (host.process(7, SLURM, start=10) / "environ").write_bytes(b"RANK=1\0")
    assert run(str(host.proc), "7:9", "8:1") == [
        {"pid": 7, "start": 9, "refused": "another process has its number"},
        {"pid": 8, "start": 1, "refused": "it has ended"},
    ]


def test_an_unreadable_environment(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without CAP_SYS_PTRACE another user's environment is closed: the message names the remedy."""
    opened = os.open

    def refuse(path: str, flags: int) -> int:
        if path.endswith("environ"):
            raise PermissionError(13, "Permission denied")
        return opened(path, flags)

    monkeypatch.setattr(os, "open", refuse)
    attributes = job_ranks_child.answer("/proc", *process.identity)
    assert attributes["refused"] == "no permission"
    refused = RankReader(PROC, HandedClock(), _printing(json.dumps(attributes)))
    refused.request([process.identity])
    assert answers(refused) == [RankAnswer(process.identity, {}, "no permission")]
    assert "CAP_SYS_PTRACE" in refused.access_error and "read_ranks=false" in refused.access_error


def test_a_rank_becomes_part_of_what_is_told(tmp_path: Path) -> None:
    """The slow GPU was known, but the job's owner had to be asked for its rank."""
    host = JobsHost(tmp_path, reads_ranks=True)
    folder = host.process(4711, SLURM, start=5_000)
    environment = (
        b"SLURM_PROCID=9\0SLURM_NTASKS=16\0SLURM_ARRAY_JOB_ID=100\0SLURM_ARRAY_TASK_ID=4\0"
    )
    (folder / "environ").write_bytes(environment)
    collector = host.collector()
    assert collector._ranks is not None
    for _ in range(4):
        host.turn(collector, 4711)
        if (child := collector._ranks._child) is not None:
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    reported = host.told()
    attributes = reported[-1].attributes
    collector.close()
    assert (attributes["rank"], attributes["rank_source"], attributes["world_size"]) == (
        "9",
        "SLURM_PROCID",
        "16",
    )
    assert (attributes["array_job_id"], attributes["array_task_id"]) == ("100", "4")
    assert reported[-1].message.startswith(
        "process 4711 (python3) of Slurm job 123 step 0, rank 9 of 16"
    )


def test_by_default_no_environment_is_read(tmp_path: Path) -> None:
    """Without a setting of the operator it is forbidden."""
    host = JobsHost(tmp_path)
    folder = host.process(4711, SLURM)
    os.mkfifo(folder / "environ")  # opening it would hang
    assert "rank" not in host.settle(host.collector(), 4711)


def _printing(*lines: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", f"print({chr(10).join(lines)!r})"]


def test_a_helper_that_does_not_return_is_killed_and_is_the_only_one() -> None:
    """A process' memory was locked by a hung driver: each turn added a helper."""
    clock = HandedClock()
    code = "import signal; signal.pause()"
    reader = RankReader(PROC, clock, [sys.executable, "-I", "-S", "-c", code])
    reader.request([(1, 1), (2, 2)])
    for _ in range(5):
        assert reader.poll() == []
    child = reader._child
    assert child is not None
    clock.now_ns += DEADLINE_NS
    assert reader.poll() == [] and reader._child is child
    assert "does not respond" in reader.access_error
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert reader.poll() == [RankAnswer((1, 1), {}, "not answered")]
    assert child.returncode is not None and child.returncode < 0


def test_one_process_that_holds_the_helper_up_costs_its_neighbours_nothing() -> None:
    """One user's environment never returned: jobs that began with it had no rank."""
    code = (
        "import json, os, signal, sys\n"
        "for asked in sys.argv[2:]:\n"
        "    pid, start = map(int, asked.split(':'))\n"
        "    if pid == 2: os.kill(os.getpid(), signal.SIGALRM)\n"
        "    print(json.dumps({'pid': pid, 'start': start, 'variables': {'RANK': str(pid)}}), flush=True)\n"
    )
    reader = RankReader(PROC, HandedClock(), [sys.executable, "-I", "-S", "-c", code])
    reader.request([(1, 1), (2, 2), (3, 3), (4, 4)])
    first, second = answers(reader), answers(reader)
    assert [(a.identity[0], a.refused) for a in first] == [(1, ""), (2, "not answered")]
    assert [(a.identity[0], a.attributes["rank"]) for a in second] == [(3, "3"), (4, "4")]


def test_a_helper_that_says_nothing_is_not_asked_again(tmp_path: Path) -> None:
    """The interpreter was broken: one more helper a second would not help."""
    reader = RankReader(
        PROC, HandedClock(), [sys.executable, "-I", "-S", "-c", "raise SystemExit(1)"]
    )
    reader.request([(1, 1), (2, 2)])
    assert {a.refused for a in answers(reader)} == {"not answered"}
    assert reader.poll() == [] and reader._child is None


def test_a_helper_that_cannot_be_started_is_tried_again_later(tmp_path: Path) -> None:
    """The interpreter was being upgraded."""
    clock = HandedClock()
    reader = RankReader(PROC, clock, [str(tmp_path / "none")])
    reader.request([(1, 1)])
    assert reader.poll() == [] and "could not be started" in reader.access_error
    reader._command = tuple(_printing('{"pid": 1, "start": 1, "variables": {"RANK": "4"}}'))
    reader.poll()
    assert reader._child is None
    clock.now_ns += RETRY_NS
    assert answers(reader)[0].attributes["rank"] == "4"


def test_more_than_a_batch_is_asked_in_turn() -> None:
    """A thousand processes on a command line."""
    code = "import sys, json; [print(json.dumps({'pid': int(a.split(':')[0]), 'start': 1})) for a in sys.argv[2:]]"
    reader = RankReader(PROC, HandedClock(), [sys.executable, "-I", "-S", "-c", code])
    reader.request([(pid, 1) for pid in range(BATCH_MAX + 3)])
    assert [len(answers(reader)) for _ in range(2)] == [BATCH_MAX, 3]


def test_answers_about_others_are_not_believed() -> None:
    """A helper of another version, or another program."""
    reader = RankReader(
        PROC, HandedClock(), _printing('{"pid": 9, "start": 9, "variables": {"RANK": "4"}}')
    )
    reader.request([(1, 1)])
    assert answers(reader) == [RankAnswer((1, 1), {}, "not answered")]


def test_closing_ends_the_helper() -> None:
    """The agent was stopped, and a helper of its stayed."""
    reader = RankReader(PROC, HandedClock(), [sys.executable, "-I", "-S", "-c", "input()"])
    reader.request([(1, 1)])
    reader.poll()
    child = reader._child
    assert child is not None
    reader.close()
    child.wait(GUARD_SECONDS)


@pytest.mark.parametrize(
    ("variables", "rank", "source"),
    [
        (
            {"RANK": "1", "SLURM_PROCID": "2"},
            "1",
            "RANK",
        ),  # torchrun within srun: the job's own value
        ({"SLURM_PROCID": "2", "PMI_RANK": "3"}, "2", "SLURM_PROCID"),
        ({"OMPI_COMM_WORLD_RANK": "4"}, "4", "OMPI_COMM_WORLD_RANK"),
        ({"JOB_COMPLETION_INDEX": "5"}, "5", "JOB_COMPLETION_INDEX"),
    ],
)
def test_launchers_differ(variables: dict[str, str], rank: str, source: str) -> None:
    attributes = attributes_of(variables)
    assert (attributes["rank"], attributes["rank_source"]) == (rank, source)


@given(st.binary(max_size=300))
def test_no_output_breaks_the_reader(output: bytes) -> None:
    """A helper killed in the middle of a line."""
    assert all(isinstance(answer, RankAnswer) for answer in parse_answers(output))


@given(
    st.lists(
        st.tuples(
            st.sampled_from([*job_ranks_child.NAMES, b"SECRET", b""]), st.binary(max_size=900)
        )
    ),
    st.integers(1, 700),
)
def test_only_what_has_its_form_comes_out(entries: list[tuple[bytes, bytes]], chunk: int) -> None:
    data = b"".join(name + b"=" + value.replace(b"\0", b"") + b"\0" for name, value in entries)
    reading, writing = os.pipe()
    os.write(writing, data[:60_000])
    os.close(writing)
    before, job_ranks_child.CHUNK_BYTES = job_ranks_child.CHUNK_BYTES, chunk
    try:
        result = job_ranks_child.variables_of(reading)
    finally:
        job_ranks_child.CHUNK_BYTES = before
        os.close(reading)
    for name, value in result.items():
        assert job_ranks_child.NAMES[name.encode()].fullmatch(value.encode())
        assert f"{name}={value}\0".encode() in data
