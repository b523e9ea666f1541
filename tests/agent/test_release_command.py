"""`gangline release` and `resume` against an agent's own socket; and without an agent."""

from __future__ import annotations

import argparse
import json
import os
import re
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from gangline import cli
from gangline.agent.clock import SystemClock
from gangline.agent.commands import release
from gangline.agent.config import AgentConfig
from gangline.agent.events import EventPublisher
from gangline.agent.hardware.files import Roots
from gangline.agent.hardware.proc_files import boot_id
from gangline.agent.inventory import HostDevice, Inventory
from gangline.agent.latest import LatestReadings
from gangline.agent.local import agent_service
from gangline.agent.local.agent_service import RELEASE, STATUS
from gangline.agent.local.attach import attach
from gangline.agent.local.self_status import FRESH_NS, STATE
from gangline.agent.registration import Registration
from gangline.agent.release_state import ReleaseStateFile
from gangline.agent.transport.unary_call import CallFailed, call
from gangline.contract.block import Block
from gangline.contract.settings import load
from gangline.contract.wire import agent_pb2 as pb
from tests.agent.fakes import KeptEvents
from tests.agent.test_gpu_release import A, B, Samplers, State, Stuck
from tests.processes import GUARD_SECONDS

GPUS = [
    HostDevice("gpu", f"GPU-{n:08x}-0000-0000-0000-000000000000", {"pci_address": address})
    for n, address in enumerate((A, B))
]


Said = Callable[..., tuple[int, str, str]]
Run = Said


class Agent:
    """The daemon's loop without its ticks: the mailbox, and due work."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "run/agent.sock"
        self.clock = SystemClock()
        self.samplers = Samplers(self)  # type: ignore[arg-type]
        self.latest = LatestReadings()
        self._folder, self._stop = folder, threading.Event()

    @property
    def now_ns(self) -> int:
        return self.clock.boottime_ns()

    @contextmanager
    def running(self) -> Iterator[Agent]:
        config = load(
            AgentConfig,
            None,
            [
                f"run_folder={self._folder / 'run'}",
                f"proc_root={self._folder / 'proc'}",
                f"sys_root={self._folder / 'sys'}",
            ],
        )
        teller = EventPublisher(self.clock, KeptEvents(), lambda: None)
        with ExitStack() as stack:
            registration = Registration("here", b"r" * 16, b"b" * 16, self.clock)
            registration.update(Inventory(tuple(GPUS)))
            file = ReleaseStateFile(self._folder / "run", boot_id(Path("/proc")))
            given = (registration, file, agent_service.healthy_result, self.latest)
            way, mailbox = attach(
                config, cast(Any, self.samplers), self.clock, teller, stack, *given
            )

            def loop() -> None:
                poll = select.poll()
                poll.register(mailbox.descriptor, select.POLLIN)
                next_ns: int | None = None
                while not self._stop.is_set():
                    left_ns = None if next_ns is None else max(0, next_ns - self.now_ns)
                    poll.poll(None if left_ns is None else left_ns / 1e6)
                    next_ns = way.tick()

            thread = threading.Thread(target=loop)
            thread.start()
            try:
                yield self
            finally:
                self._stop.set()
                mailbox.post(lambda: None)
                thread.join()


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    for minor, address in enumerate((A, B)):
        folder = tmp_path / "proc/driver/nvidia/gpus" / address
        folder.mkdir(parents=True)
        (folder / "information").write_text(
            f"GPU UUID: \t GPU-{minor:08x}-0000-0000-0000-000000000000\nDevice Minor: \t {minor}\n"
        )
    with Agent(tmp_path).running() as running:
        yield running


@pytest.fixture(autouse=True)
def no_nodes_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "PROC", tmp_path / "proc")
    monkeypatch.setattr(release, "DEV", tmp_path / "dev")
    (tmp_path / "proc").mkdir(exist_ok=True)


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    def run(*arguments: str) -> tuple[int, str, str]:
        try:
            code = cli.main([*arguments])
        except SystemExit as stop:
            code = int(stop.code or 0)
        output, errors = capsys.readouterr()
        return code, output, errors

    return run


@pytest.fixture
def run(said: Said) -> Run:
    """Return a function that runs a command at the socket of an agent, or at that of none."""

    def run(agent: Agent | None, *arguments: str) -> tuple[int, str, str]:
        return said(*arguments, "--socket", str(agent.socket) if agent else "/nowhere/agent.sock")

    return run


def test_release_by_uuid_then_status_then_resume(agent: Agent, run: Run) -> None:
    uuid = "GPU-00000001-0000-0000-0000-000000000000"
    code, out, err = run(agent, "release", uuid, "--for", "10m", "--why", "reset")
    assert (code, err) == (0, "")
    assert re.fullmatch(rf"released: {B} until \d\d:\d\d:\d\d \(reset\)\n", out)
    assert agent.samplers.released().keys() == {B}
    code, out, _ = run(agent, "release", A, "--for", "1m")
    assert re.fullmatch(rf"released: {A} until \S+ \(asked by process \d+\)\n", out), (
        "only what was asked for"
    )
    assert run(agent, "resume", A) == (0, f"resumed: {A}\n", "")
    code, out, _ = run(agent, "release", "--status")
    assert code == 0
    assert re.fullmatch(
        rf"agent \S+, process {os.getpid()}\nreleased: {B} until \S+ \(reset\)\n", out
    )
    assert run(agent, "resume", B.upper()) == (0, f"resumed: {B}\n", "")
    assert run(agent, "resume") == (0, "nothing was released\n", "")


def test_a_script_reads_json(agent: Agent, run: Run) -> None:
    """A maintenance script had to parse sentences to see which GPUs are closed, and until when."""

    def read(reached: Agent | None, *arguments: str) -> dict[str, Any]:
        code, out, err = run(reached, *arguments, "--json")
        assert (code, err) == (0, "")
        document = cast(dict[str, Any], json.loads(out))
        assert document.pop("format") == cli.JSON_FORMAT
        return document

    released = read(agent, "release", A, "--for", "10m", "--reason", "reset")
    (gpu,) = released.pop("released")
    assert (gpu["gpu"], gpu["reason"]) == (A, "reset") and 0 < gpu["seconds_left"] <= 600
    assert released.pop("processes_not_inspected") >= 0
    assert released == {"agent_runs": True, "held_by_agent": [], "held_by_others": []}
    status = read(agent, "release", "--status")
    assert status["pid"] == os.getpid() and [row["gpu"] for row in status["released"]] == [A]
    assert read(agent, "resume") == {"agent_runs": True, "resumed": [A]}
    assert read(None, "release")["agent_runs"] is False
    assert read(None, "release", "--status") == {"agent_runs": False}
    assert read(None, "resume") == {"agent_runs": False, "resumed": []}


def test_release_of_all(agent: Agent, run: Run) -> None:
    code, out, _ = run(agent, "release")
    assert code == 0
    assert re.fullmatch(r"released: all GPUs until \S+ \(asked by process \d+\)\n", out)
    code, _, err = run(agent, "resume", A)
    assert code == 1 and "resume without names reopens them" in err
    assert run(agent, "resume") == (0, "resumed: all GPUs\n", "")


@pytest.mark.parametrize("form", ["{0}|{1}", "{0}={1}"], ids=["apart", "joined"])
def test_the_agent_is_named_by_its_run_folder(agent: Agent, said: Said, form: str) -> None:
    """`gangline check --run-folder` found the agent; `release` with this option did not."""
    place = form.format("--run-folder", agent.socket.parent).split("|")
    assert said("release", A, *place)[0] == 0
    assert agent.samplers.released().keys() == {A}
    assert f"released: {A} until" in said("release", "--status", *place)[1]
    assert said("resume", *place) == (0, f"resumed: {A}\n", "")
    assert agent.samplers.released() == {}


@pytest.mark.parametrize("command", [["release"], ["release", "--status"], ["resume"]])
def test_a_run_folder_without_an_agent(said: Said, command: list[str]) -> None:
    by_socket = said(*command, "--socket", "/nowhere/agent.sock")
    assert "there is no /nowhere/agent.sock" in by_socket[1]
    assert said(*command, "--run-folder", "/nowhere") == by_socket


@pytest.mark.parametrize("command", ["release", "resume"])
def test_which_agent_is_meant_is_said_once(said: Said, command: str) -> None:
    code, _, err = said(command, "--run-folder", "/a", "--socket", "/b/agent.sock")
    assert code == 2 and "--socket: not allowed with argument --run-folder" in err
    code, _, err = said(command, "--run-folder", "")
    assert code == 2 and "--run-folder: expected a folder" in err


def test_a_stuck_sampler_is_named(agent: Agent, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit 1 and the call: a script must not continue with the reset."""
    monkeypatch.setattr("gangline.agent.gpu_release.RELEASE_NS_MAX", 50_000_000)
    agent.samplers.holding, agent.samplers.stuck = True, [Stuck(next_try_ns=agent.now_ns + 10**10)]
    agent.samplers.abandoned_count = 1
    message = f"nvmlDeviceGetFieldValues on {B} has not returned for 45 s"
    code, out, err = run(agent, "release", B)
    assert (code, out) == (1, "")
    assert err == f"still held: the driver by the agent: {message}\n"
    code, out, _ = run(agent, "release", "--status")
    assert code == 0
    assert re.search(
        rf"abandoned: {B}, nvmlDeviceGetFieldValues has not returned for 45 s, retried in \d+ s\n",
        out,
    )
    assert "samplers abandoned in a driver since the start: 1\n" in out


def test_who_else_holds_it_is_named(agent: Agent, tmp_path: Path, run: Run) -> None:
    """A job that outlived its allocation also defeats the reset."""
    fd = tmp_path / "proc/4711/fd"
    fd.mkdir(parents=True)
    (fd / "3").symlink_to("/dev/nvidia1")
    (fd / "4").symlink_to("/dev/nvidiactl")
    (tmp_path / "proc/4711/comm").write_text("python3\n")
    code, _, err = run(agent, "release", B)
    assert (code, err) == (0, f"also held: by process 4711 (python3): {B}\n")
    code, _, err = run(agent, "release", A)
    assert (code, err) == (0, "")
    code, _, err = run(agent, "release")
    assert err == f"also held: by process 4711 (python3): {B}, /dev/nvidiactl\n"
    code, _, err = run(None, "release")
    assert code == 0 and "also held: by process 4711" in err


def test_dcgms_engine_is_named_with_how_it_lets_go(agent: Agent, tmp_path: Path, run: Run) -> None:
    """nvidia-smi still refused the reset: the engine was overlooked."""
    fd = tmp_path / "proc/812/fd"
    fd.mkdir(parents=True)
    (fd / "9").symlink_to("/dev/nvidia1")
    (tmp_path / "proc/812/comm").write_text("nv-hostengine\n")
    _, _, err = run(agent, "release", B)
    assert err == f"also held: by process 812 (nv-hostengine): {B}; {release.ENGINE_HINT}\n"


def test_the_driver_being_updated_is_said(agent: Agent, run: Run, tmp_path: Path) -> None:
    """Otherwise an operator looks for lost GPUs during a package upgrade."""
    (tmp_path / "proc/driver/nvidia/version").write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  575.57.08  Thu May 1\n"
    )
    block = Block(STATE.table, ("GPU-1", "GPU-2"))
    column = block.signal_ids.index(STATE.signal_id)
    block.put_int(column, 1, 1)
    agent.latest.update(agent.now_ns, [block])
    line = "driver: being updated: NVML and the driver are of different versions; the kernel has 575.57.08 loaded\n"
    assert line in run(agent, "release", "--status")[1]
    agent.latest.update(agent.now_ns - 2 * FRESH_NS, [block])
    assert "driver" not in run(agent, "release", "--status")[1]


def test_a_device_that_is_well_again_is_said(agent: Agent, run: Run) -> None:
    agent.samplers.stuck = [Stuck(state=State.WELL)]
    assert f"well: {B}\n" in run(agent, "release", "--status")[1]


def test_without_an_agent_nothing_is_held(run: Run) -> None:
    """The repair continues while the agent is down: exit 0, with a message."""
    nobody = "there is no /nowhere/agent.sock"
    assert run(None, "release") == (0, f"the agent has no GPU open: {nobody}\n", "")
    assert run(None, "resume") == (0, f"nothing to resume: {nobody}\n", "")
    assert run(None, "release", "--status") == (0, f"no agent: {nobody}\n", "")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("release", "0"), 2, "gangline release: '0' is an index"),
        (("resume", "0"), 2, "gangline resume: '0' is an index"),
        (("release", "ff:00"), 2, f"this host has no such GPU; it has {A} GPU-00000000"),
        (("release", "--for", "2d"), 2, "expected a duration from 0.1s to 1d, such as 90s"),
        (("release", "--for", "25h"), 2, "expected a duration from 0.1s to 1d"),
        (("release", "--for", "0"), 2, "expected a duration from 0.1s to 1d"),
    ],
)
def test_wrong_usage_is_said_in_words(
    agent: Agent,
    run: Run,
    arguments: tuple[str, ...],
    code: int,
    message: str,
) -> None:
    got, out, err = run(agent, *arguments)
    assert (got, out) == (code, "")
    assert message in err
    assert agent.samplers.released() == {}


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf"), 86_401.0])
def test_nothing_is_released_for_ever(agent: Agent, seconds: float) -> None:
    request = pb.ReleaseRequest(seconds=seconds).SerializeToString()
    with pytest.raises(CallFailed, match="expected more than 0, at most 86400") as raised:
        call(agent.socket, RELEASE, request, GUARD_SECONDS)
    assert raised.value.status == "INVALID_ARGUMENT"


def test_bytes_that_are_no_request_are_refused(agent: Agent) -> None:
    with pytest.raises(CallFailed) as raised:
        call(agent.socket, RELEASE, b"\xff\xff", GUARD_SECONDS)
    assert raised.value.status == "INVALID_ARGUMENT"
    assert call(agent.socket, STATUS, b"", GUARD_SECONDS)


def test_an_agent_that_does_not_answer_is_a_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped agent (SIGSTOP, a debugger) may hold the GPU: not "it holds nothing"."""
    import socket

    monkeypatch.setattr(release, "ANSWER_SECONDS_MAX", 0.05)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "s"))
        silent.listen()
        assert cli.main(["release", "--socket", str(tmp_path / "s")]) == 1
    assert capsys.readouterr().err == "gangline release: no answer within 0.05 s\n"


def test_the_commands_start_light() -> None:
    """At three in the morning on a host that swaps; and without the aggregator's extra installed."""
    code = "import sys, gangline.agent.commands.release; print('grpc' in sys.modules, 'numpy' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout == "False False\n"


def test_an_agent_whose_socket_is_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/agent.sock").write_text("")
    with Agent(tmp_path).running():
        assert "local requests are not answered" in caplog.text and "is not a socket" in caplog.text


def test_roots_of_a_folder_show_nobody(tmp_path: Path) -> None:
    """A simulated host has no processes of the agent; its list must not contain this machine's."""
    from gangline.agent.hardware.open_handles import agent_processes

    assert list(agent_processes(Roots(proc=tmp_path / "proc").proc)) == []


def test_a_starting_agent_heeds_earlier_releases(tmp_path: Path, run: Run) -> None:
    """`release` during a reload held nothing, exit 0; then the new agent opened the GPU."""
    agent = Agent(tmp_path)
    agent.socket.parent.mkdir()
    code, out, err = run(agent, "release", A, "--why", "reset", "--for", "10m")
    assert (code, err) == (0, "") and "the agent has no GPU open: there is no" in out
    assert run(agent, "release", B)[0] == 0
    assert run(agent, "resume", B)[0] == 0
    with agent.running():
        _, out, _ = run(agent, "release", "--status")
        assert re.search(rf"^released: {A} until \S+ \(reset\)$", out, re.MULTILINE)
        assert B not in out and agent.samplers.released().keys() == {A}


def test_a_new_agent_is_asked(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """It had looked at the note before it was written; and answered before it was asked again."""
    agent, note = Agent(tmp_path), release._write_release_file
    agent.socket.parent.mkdir()
    with ExitStack() as stack:

        def begin(options: argparse.Namespace, names: list[str]) -> bool:
            stack.enter_context(agent.running())
            return note(options, names)

        monkeypatch.setattr(release, "_write_release_file", begin)
        code, out, _ = run(agent, "release", A)
        assert code == 0 and out.startswith(f"released: {A} until ")
        assert agent.samplers.released().keys() == {A}
