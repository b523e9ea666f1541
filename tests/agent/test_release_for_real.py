"""A complete agent, a stand-in for NVML that holds device nodes open, and the commands: the
kernel's view.

An operator runs `nvidia-smi -r` at three in the morning: one open descriptor on one node makes the
reset fail.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gangline.agent.hardware.open_handles import children, open_nodes
from gangline.agent.local.agent_service import STATUS
from gangline.agent.transport.unary_call import CallFailed, NoListener, call
from gangline.contract.wire import agent_pb2 as pb
from tests.fake_nvml.build import build
from tests.fake_nvml.scenario import Gpu, Scenario
from tests.processes import GUARD_SECONDS, Process, until

PROC = Path("/proc")
GPUS = [
    Gpu(f"GPU-{n:08x}-0000-0000-0000-000000000000", f"0000:{0x1B + n:02x}:00.0") for n in range(3)
]
ALL = {"nvidia0", "nvidia1", "nvidia2"}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


class RealHost:
    def __init__(self, folder: Path, library: Path) -> None:
        self.folder, self.dev = folder, folder / "dev"
        self.socket = folder / "run/agent.sock"
        self.dev.mkdir()
        for name in ("nvidiactl", *ALL):
            (self.dev / name).touch()
        Scenario(folder / "scenario", GPUS)
        names = ("spool", "events", "state", "run")
        settings = {f"{name}_folder": folder / name for name in names}
        settings |= {
            "spool_head_folder": folder,
            "nvml_library": library,
            "dev_root": self.dev,
            "sys_root": folder / "sys",
        }
        sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        sets += ["--set", "collectors_off=pcie,disk,nfs,lustre", "--set", "host=here"]
        self.arguments, self.log = ["agent", "--aggregator", "127.0.0.1:9", *sets], folder / "log"
        self.agent = Process(self.arguments, self.log)

    def show_in_sysfs(self) -> Path:
        """Show the GPUs bound to the driver in sysfs; return the folder."""
        links = self.folder / "sys/bus/pci/drivers/nvidia"
        links.mkdir(parents=True)
        for gpu in GPUS:
            (links / gpu.address).touch()
        return links

    @contextmanager
    def running(self) -> Iterator[Process]:
        with self.agent:
            until(self.socket.exists, "the agent's socket")
            yield self.agent

    def held(self) -> set[str]:
        """Return the GPU nodes that any process of the agent has open, from /proc."""
        pending, nodes = [self.agent.pid], set[str]()
        while pending:
            process_id = pending.pop()
            pending += children(PROC, process_id)
            nodes |= open_nodes(PROC, process_id, self.dev) or set()
        return nodes

    def run(self, *arguments: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "gangline.cli", *arguments, "--socket", str(self.socket)]
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=GUARD_SECONDS
        )
        return done.returncode, done.stdout

    def status(self) -> pb.GetStatusResponse:
        return pb.GetStatusResponse.FromString(call(self.socket, STATUS, b"", GUARD_SECONDS))


@pytest.fixture
def host(tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch) -> RealHost:
    monkeypatch.setenv("GANGLINE_FAKE_NVML", str(tmp_path / "scenario"))
    monkeypatch.setenv("GANGLINE_FAKE_NVML_NODES", str(tmp_path / "dev"))
    return RealHost(tmp_path, library)


def test_no_descriptor_is_left_and_all_are_taken_back(host: RealHost) -> None:
    with host.running():
        until(lambda: host.held() >= ALL, "every GPU is sampled")
        code, output = host.run("release", GPUS[1].address, "--for", "5m")
        assert (code, host.held() & ALL) == (0, ALL - {"nvidia1"})
        assert re.fullmatch(rf"released: {GPUS[1].address} until \S+ \(asked by process \d+\)\n", output)  # fmt: skip
        code, _ = host.run("release", "--for", "5m")
        assert (code, host.held()) == (0, set()), "an unload needs the control node too"
        assert host.run("resume")[0] == 0
        until(lambda: host.held() >= ALL, "every GPU is sampled again")


@pytest.mark.slow
def test_the_time_is_over_and_they_are_taken_back(host: RealHost) -> None:
    """The operator went to bed: a host must not stay blind."""
    with host.running():
        until(lambda: host.held() >= ALL, "every GPU is sampled")
        assert host.run("release", "--for", "1s")[0] == 0
        until(lambda: host.held() >= ALL, "every GPU is sampled again, by itself")


@pytest.mark.slow
def test_a_killed_agents_socket_and_the_next_agent(host: RealHost) -> None:
    """After kill -9 `release` reports that nothing is held; the next agent answers there."""
    with host.running() as agent:
        before = host.status().process_id
        agent.kill()
        until(
            lambda: is_nobody_there(host), "the end of its last process, which has the socket, too"
        )
        assert host.run("release") == (
            0,
            f"the agent has no GPU open: no answer at {host.socket}\n",
        )
        agent.start()
        until(lambda: answers(host), "the next agent's answer")
        assert host.status().process_id == agent.pid != before


@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed", "reloaded"])
def test_a_release_outlives_the_agent(host: RealHost, how: str) -> None:
    """Killed or reloaded during a reset: a second later the next agent had the GPU open."""
    host.show_in_sysfs()
    (host.folder / "agent.toml").touch()
    host.agent = Process([*host.arguments, "--config", str(host.folder / "agent.toml")], host.log)
    with host.running() as agent:
        until(lambda: host.held() >= ALL, "every GPU is sampled")
        assert host.run("release", GPUS[1].address, "--for", "5m", "--why", "reset")[0] == 0
        if how == "killed":
            agent.kill()
            agent.start()
        else:
            os.kill(agent.pid, signal.SIGHUP)
            until(lambda: "restarting in place" in agent.said(), "the reload")
        until(lambda: host.held() & ALL == ALL - {"nvidia1"}, "its neighbours are sampled")
        until(lambda: answers(host), "the next agent's answer")
        (released,) = host.status().released
        assert (released.pci_address, released.why) == (GPUS[1].address, "reset")
        assert host.held() & ALL == ALL - {"nvidia1"}
        assert host.run("resume")[0] == 0
        until(lambda: host.held() >= ALL, "every GPU is sampled again")


def is_nobody_there(host: RealHost) -> bool:
    try:
        return not host.status()
    except CallFailed:
        return False
    except NoListener:
        return True


def answers(host: RealHost) -> bool:
    try:
        return bool(host.status().process_id)
    except (NoListener, CallFailed):
        return False


def test_after_xid_79_the_gpu_is_left_alone(host: RealHost) -> None:
    """From a line of the kernel's log to a sampler without that GPU's handle."""
    stamp = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    line = "NVRM: Xid (PCI:0000:1c:00): 79, pid=4711, name=python, GPU has fallen off the bus."
    (host.dev / "kmsg").write_text(f"3,1,{stamp},-;{line}\n")
    with host.running():
        until(lambda: host.status().devices, "the GPU that is left alone")
        (device,) = host.status().devices
        assert (device.device, device.state) == (GPUS[1].address, "left_alone")
        assert 0 < device.next_try_seconds < 3600
        until(lambda: host.held() & ALL == ALL - {"nvidia1"}, "its neighbours are sampled")


@pytest.mark.slow
def test_an_unbind_that_waits_for_us_goes_on(host: RealHost) -> None:
    """Its link disappears from sysfs: the driver's `remove` waits for the agent's release."""
    links = host.show_in_sysfs()
    with host.running():
        until(lambda: host.held() >= ALL, "every GPU is sampled")
        (links / GPUS[2].address).unlink()
        until(lambda: host.held() & ALL == ALL - {"nvidia2"}, "it is let go of")
        (links / GPUS[2].address).touch()
        until(lambda: host.held() >= ALL, "it is taken back")
        assert os.path.exists(host.socket)
