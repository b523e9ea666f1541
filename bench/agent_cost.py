"""The agent's CPU and memory at 1 Hz, cold, against a C program that does the same reads (floor.c).

A host that is a folder (`tests/hosts`, with RDMA ports up to the counter files of a large GPU host) and
eight GPUs of the stand-in NVML; all collectors, frames, spool and transport to a real aggregator. The
agent and its children count together.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.fake_nvml.build import build, compiler, header_folder
from tests.fake_nvml.scenario import Scenario, gpus
from tests.hosts import unpack

from .measure import Result, cpu_seconds, family, pss_bytes

PORTS = 12
WARM_UP_SECONDS = 5
MEASURED_SECONDS = 30
HERE = Path(__file__).parent


def _host(folder: Path) -> Path:
    """Make the host's folder; its first RDMA device is copied until there are PORTS of them."""
    root = unpack("h100-ib", folder / "host").root
    devices = root / "sys" / "class" / "infiniband"
    first = min(devices.iterdir())
    for number in range(len(list(devices.iterdir())), PORTS):
        shutil.copytree(first.resolve(), devices / f"mlx5_{number + 20}", symlinks=True)
    return root


@contextmanager
def _command(log: Path, *arguments: str, **environment: str) -> Iterator[int]:
    with open(log, "ab") as out:
        child = subprocess.Popen(
            [sys.executable, "-m", "gangline.cli", *arguments],
            stdout=out, stderr=out, env={**os.environ, **environment},
        )  # fmt: skip
    try:
        yield child.pid
    finally:
        child.terminate()
        child.wait(30)


@contextmanager
def _agent(folder: Path, root: Path, library: Path, scenario: Path, *more: str) -> Iterator[int]:
    """Run an agent of that host; yields its pid once it has been at work for a while."""
    settings = {
        "host": "bench", "sys_root": root / "sys", "proc_root": root / "proc",
        "nvml_library": library, "spool_folder": folder / "spool",
        "events_folder": folder / "events",
    }  # fmt: skip
    words = [w for key, value in settings.items() for w in ("--set", f"{key}={value}")]
    arguments = ("agent", *words, *more)
    with _command(folder / "agent.log", *arguments, GANGLINE_FAKE_NVML=str(scenario)) as pid:
        time.sleep(WARM_UP_SECONDS)
        yield pid


def _kept(pid: int, root: Path) -> set[str]:
    """The counter files that the process holds open."""
    links = Path(f"/proc/{pid}/fd").iterdir()
    paths = {os.readlink(link) for link in links if link.is_symlink()}
    return {path for path in paths if path.startswith(str(root))}


def _floor(folder: Path, fast: set[str], slow: set[str], library: Path, scenario: Path) -> float:
    """Return the C program's CPU per second."""
    program = folder / "floor"
    options = ["-O2", f"-I{header_folder()}", str(HERE / "floor.c"), "-o", str(program), "-ldl"]
    subprocess.run([*compiler(), *options], check=True)
    for name, paths in (("fast", fast), ("slow", slow)):
        (folder / name).write_text("".join(f"{path}\n" for path in sorted(paths)))
    seconds = WARM_UP_SECONDS + MEASURED_SECONDS + 2
    child = subprocess.Popen(
        [program, folder / "fast", folder / "slow", library, str(seconds)],
        stdout=subprocess.DEVNULL, env={**os.environ, "GANGLINE_FAKE_NVML": str(scenario)},
    )  # fmt: skip
    try:
        time.sleep(WARM_UP_SECONDS)
        begin = cpu_seconds(child.pid)
        time.sleep(MEASURED_SECONDS)
        return (cpu_seconds(child.pid) - begin) / MEASURED_SECONDS
    finally:
        child.terminate()
        child.wait(30)


def _agent_cpu(pid: int) -> float:
    """CPU per second of the agent and its children, living and reaped."""
    begin = sum(cpu_seconds(p) for p in family(pid))
    time.sleep(MEASURED_SECONDS)
    return (sum(cpu_seconds(p) for p in family(pid)) - begin) / MEASURED_SECONDS


def run(seed: int) -> list[Result]:
    """Measure the agent streaming to an aggregator, then the floor, on the same folder."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        root, library = _host(folder), build(folder / "nvml")
        scenario = Scenario(folder / "scenario", gpus()).path
        listen = ("aggregator", "--data", str(folder / "aggregator"), "--listen", "127.0.0.1:7690")
        # Which files are read each second: those that an agent without the slow collectors keeps.
        slow_ones = ("--set", "collectors_off=" + ",".join(_slow_collectors()))
        with _agent(folder, root, library, scenario, *slow_ones) as pid:
            fast = _kept(pid, root)
        with (
            _command(folder / "aggregator.log", *listen),
            _agent(folder, root, library, scenario, "--aggregator", "127.0.0.1:7690") as pid,
        ):
            slow = _kept(pid, root) - fast
            spent = _agent_cpu(pid)
            memory = pss_bytes(family(pid))
        floor = _floor(folder, fast, slow, library, scenario)
    notes = (
        f"{len(fast)} files each second, {len(slow)} each 10 s, 8 stand-in GPUs, "
        f"{MEASURED_SECONDS} s; the agent with frames, spool and transport"
    )
    return [
        Result("agent CPU at 1 Hz, all collectors", spent * 1e6, "us/s",
               "C, same reads", floor * 1e6, notes),
        Result("agent memory, PSS of all its processes", memory / 1e6, "MB",
               "budget of a later issue", 40.0),
    ]  # fmt: skip


def _slow_collectors() -> list[str]:
    from gangline.agent.collectors import COLLECTORS

    return [name for name in COLLECTORS if not name.endswith("_1s")]
