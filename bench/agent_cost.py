"""The agent's CPU and memory at 1 Hz, cold, against a C program that does the same reads (floor.c).

A host that is a folder (`tests/hosts`, with RDMA ports up to the counter files of a large GPU host) and
eight GPUs of the stand-in NVML; all collectors, frames, spool and transport to a real aggregator. The
agent and its children count together.
"""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gangline.agent.collectors import COLLECTORS
from gangline.agent.collectors.folders import FolderCollector
from gangline.agent.hardware.roots import Roots
from gangline.agent.turn import NoData
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
        "events_folder": folder / "events", "state_folder": folder / "state",
    }  # fmt: skip
    words = [w for key, value in settings.items() for w in ("--set", f"{key}={value}")]
    arguments = ("agent", *words, *more)
    with _command(folder / "agent.log", *arguments, GANGLINE_FAKE_NVML=str(scenario)) as pid:
        time.sleep(WARM_UP_SECONDS)
        yield pid


def _files(root: Path, pace: str) -> set[str]:
    """The files that the collectors of a pace read in each turn, also those they do not keep open."""
    gc.collect()  # the descriptors of a call before
    roots, found = Roots(root / "sys", root / "proc", "none"), set[str]()
    made = [make(roots) for name, make in COLLECTORS.items() if name.endswith(f"_{pace}")]
    for collector in made:
        with suppress(NoData):
            collector.collect()
        if isinstance(collector, FolderCollector):
            found |= set(collector.paths)
    kept = {os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()}
    # Real paths, as the links in /proc/self/fd are: most devices of /sys/class are links.
    found = {os.path.realpath(path) for path in found} | kept
    return {path for path in found if path.startswith(str(root)) and os.path.exists(path)}


@contextmanager
def _floor(
    folder: Path, fast: set[str], slow: set[str], library: Path, scenario: Path
) -> Iterator[int]:
    """Run the C program; yields its pid."""
    program = folder / "floor"
    options = ["-O2", f"-I{header_folder()}", str(HERE / "floor.c"), "-o", str(program), "-ldl"]
    subprocess.run([*compiler(), *options], check=True)
    for name, paths in (("fast", fast), ("slow", slow)):
        (folder / name).write_text("".join(f"{path}\n" for path in sorted(paths)))
    seconds = 2 * WARM_UP_SECONDS + MEASURED_SECONDS + 10
    child = subprocess.Popen(
        [program, folder / "fast", folder / "slow", library, str(seconds)],
        stdout=subprocess.DEVNULL, env={**os.environ, "GANGLINE_FAKE_NVML": str(scenario)},
    )  # fmt: skip
    try:
        yield child.pid
    finally:
        child.terminate()
        child.wait(30)


def _cpu(*pids: int) -> list[float]:
    """CPU per second of each process and its children, living and reaped, over the same seconds."""
    begin = [sum(cpu_seconds(p) for p in family(pid)) for pid in pids]
    time.sleep(MEASURED_SECONDS)
    end = [sum(cpu_seconds(p) for p in family(pid)) for pid in pids]
    return [(e - b) / MEASURED_SECONDS for b, e in zip(begin, end, strict=True)]


def run(seed: int) -> list[Result]:
    """Measure the agent streaming to an aggregator and the floor, on the same folder and at the same
    time: on a machine that others use too, one second is twice as dear as another."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        root, library = _host(folder), build(folder / "nvml")
        scenario = Scenario(folder / "scenario", gpus()).path
        listen = ("aggregator", "--data", str(folder / "aggregator"), "--listen", "127.0.0.1:7690")
        fast, slow = _files(root, "1s"), _files(root, "10s")
        with (
            _command(folder / "aggregator.log", *listen),
            _floor(folder, fast, slow, library, scenario) as floor_pid,
            _agent(folder, root, library, scenario, "--aggregator", "127.0.0.1:7690") as pid,
        ):
            spent, floor = _cpu(pid, floor_pid)
            memory = pss_bytes(family(pid))
    notes = (
        f"{len(fast)} files each second, {len(slow)} each 10 s, 8 stand-in GPUs, "
        f"{MEASURED_SECONDS} s; the agent with frames, spool and transport"
    )
    return [
        Result("agent CPU at 1 Hz, all collectors", spent * 1e6, "us/s",
               "C, same reads", floor * 1e6, notes),
        Result("agent memory, PSS of all its processes", memory / 1e6, "MB",
               "budget", 40.0),
    ]  # fmt: skip
