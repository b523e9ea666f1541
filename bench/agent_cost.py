"""CPU of the agent at its real rate with cold caches, against the same reads in C (floor.c).

The host is a folder with eight GPUs of the stand-in NVML. All collectors run, and frames go to a
real aggregator. Agent and children count together. The stand-in first counts the agent's calls; the
floor makes the same number, and both counts over the measured seconds are compared.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from gangline.agent.collectors.gpu_fast import PERIOD_NS
from tests.fake_nvml.build import build, compiler, header_folder
from tests.fake_nvml.scenario import Scenario, gpus

from . import node_exporter
from .folder_host import FILES_MIN, PORTS, files_of, make_host
from .measure import CallTimer, ProcessCost, Result, ended, family

GPUS = 8
WARM_UP_SECONDS = 12
#: Seconds in which calls are counted: two turns of the ten-second readings.
COUNTED_SECONDS = 20
MEASURED_SECONDS = 60
#: The run is invalid if the floor's number of calls differs from the agent's by a larger share.
CALLS_SHARE_MAX = 0.05
#: Targets (issue 4): ratio of CPU, MB, wake-ups a second.
MEMORY_MB, WAKES_MAX = 40.0, 25.0
#: On a host the run folder is in /run, which is memory.
MEMORY_FOLDER = "/dev/shm"
AGGREGATOR = "127.0.0.1:7690"
HERE = Path(__file__).parent
UNIT = HERE.parent / "packaging/systemd/gangline-agent.service"


@dataclass(frozen=True)
class Ground:
    """Files, library and folders that agent and floor share."""

    folder: Path
    root: Path
    run_folder: Path
    library: Path
    files: Mapping[str, set[str]]  # by pace

    @classmethod
    @contextmanager
    def temporary(cls) -> Iterator[Ground]:
        """Yield the host in temporary folders, its run folder in memory, as /run is."""
        memory = MEMORY_FOLDER if os.access(MEMORY_FOLDER, os.W_OK) else None
        with (
            tempfile.TemporaryDirectory() as name,
            tempfile.TemporaryDirectory(dir=memory) as run_folder,
        ):
            folder = Path(name)
            roots = make_host(folder)
            files = {pace: files_of(roots, pace) for pace in ("1s", "10s", "60s")}
            count = sum(map(len, files.values()))
            if count < FILES_MIN:
                raise RuntimeError(
                    f"the host has {count} files that are read, expected {FILES_MIN}"
                )
            library = build(folder / "nvml")
            yield cls(folder, roots.sys.parent, Path(run_folder), library, files)

    def agent_options(self, name: str, *options: str) -> list[str]:
        """Return the options of an agent with folders of its own; create its folder."""
        folder = self.folder / name
        folder.mkdir()
        settings = [
            f"host={name}", f"sys_root={self.root / 'sys'}", f"proc_root={self.root / 'proc'}",
            f"nvml_library={self.library}", f"run_folder={self.run_folder / name}",
            *(f"{kind}_folder={folder / kind}" for kind in ("spool", "events", "state")),
        ]  # fmt: skip
        return [word for setting in (*settings, *options) for word in ("--set", setting)]

    def gpus(self, name: str) -> CallTimer:
        """Create the GPU scenario of one process family, with counted calls."""
        return CallTimer(self.library, Scenario(self.folder / name, gpus(GPUS)).path)


@contextmanager
def _command(log: Path, *arguments: str, **environment: str) -> Iterator[int]:
    with open(log, "ab") as out:
        child = subprocess.Popen(
            [sys.executable, "-m", "gangline.cli", *arguments],
            stdout=out, stderr=out, env={**os.environ, **environment},
        )  # fmt: skip
    with ended(child):
        yield child.pid


@contextmanager
def running_aggregator(ground: Ground) -> Iterator[int]:
    """Run an aggregator for the agents; yield its pid."""
    data = ("--data", str(ground.folder / "aggregator"))
    log = ground.folder / "aggregator.log"
    with _command(log, "aggregator", *data, "--listen", AGGREGATOR) as pid:
        yield pid


@contextmanager
def running_agent(
    ground: Ground, name: str, calls: CallTimer, *options: str, **environment: str
) -> Iterator[int]:
    """Run an agent as its unit does; yield its pid."""
    lines = (line.partition("Environment=") for line in UNIT.read_text().splitlines())
    unit = dict(assignment.split("=", 1) for before, key, assignment in lines if key and not before)
    environment = {**unit, "GANGLINE_FAKE_NVML": str(calls.scenario), **environment}
    arguments = (*ground.agent_options(name, *options), "--aggregator", AGGREGATOR)
    with _command(ground.folder / name / "log", "agent", *arguments, **environment) as pid:
        yield pid


@contextmanager
def _floor(ground: Ground, calls: CallTimer, wanted: Mapping[str, float]) -> Iterator[int]:
    """Run the C program with *wanted* calls a GPU and second; yields its pid."""
    program = ground.folder / "floor"
    ticks = f"-DTICKS={1_000_000_000 // PERIOD_NS}"
    source = [f"-I{header_folder()}", str(HERE / "floor.c"), "-o", str(program)]
    subprocess.run([*compiler(), "-O2", ticks, *source, "-ldl"], check=True)
    lists = [ground.folder / f"files_{pace}" for pace in ground.files]
    for place, paths in zip(lists, ground.files.values(), strict=True):
        place.write_text("".join(f"{path}\n" for path in sorted(paths)))
    plan = ground.folder / "calls"
    plan.write_text("".join(f"{name} {rate}\n" for name, rate in wanted.items()))
    seconds = str(WARM_UP_SECONDS + MEASURED_SECONDS + 60)
    child = subprocess.Popen(
        [program, *lists, ground.library, plan, seconds],
        stdout=subprocess.DEVNULL, env={**os.environ, "GANGLINE_FAKE_NVML": str(calls.scenario)},
    )  # fmt: skip
    with ended(child):
        yield child.pid


def run(seed: int) -> list[Result]:
    """Measure agent, floor and node_exporter on one folder at the same time.

    On a shared machine the cost of a second varies by a factor of two. *seed* is ignored.
    """
    del seed
    with Ground.temporary() as ground, ExitStack() as stack:
        exporter = node_exporter.find(ground.folder / "node_exporter")
        enter = stack.enter_context
        enter(running_aggregator(ground))
        calls = {"agent": ground.gpus("agent.gpus"), "floor": ground.gpus("floor.gpus")}
        pids = {"agent": enter(running_agent(ground, "agent", calls["agent"]))}
        time.sleep(WARM_UP_SECONDS)
        wanted = calls["agent"].rates(COUNTED_SECONDS, GPUS)
        pids["floor"] = enter(_floor(ground, calls["floor"], wanted))
        sizes = [0] * MEASURED_SECONDS
        if exporter:
            pids["exporter"], sizes = enter(node_exporter.scraped(exporter, ground.root))
        time.sleep(5)
        costs, calls_made = _measure(pids, calls)
        if len(sizes) < MEASURED_SECONDS // 2:
            raise RuntimeError(f"node_exporter answered {len(sizes)} scrapes of {MEASURED_SECONDS}")
        log = (ground.folder / "agent/log").read_text()
    if "cause=aggregator.connected" not in log:
        raise RuntimeError(f"the agent never reached the aggregator:\n{log[-2000:]}")
    return _results(ground, costs, calls_made)


def _measure(
    pids: Mapping[str, int], calls: Mapping[str, CallTimer]
) -> tuple[dict[str, ProcessCost], dict[str, float]]:
    """Return the cost per family over the same seconds, and its calls per GPU and second."""
    before = {name: ProcessCost.now(family(pid)) for name, pid in pids.items()}
    counted = {name: call.counts() for name, call in calls.items()}
    time.sleep(MEASURED_SECONDS)
    now = {name: sum(call.counts()) - sum(counted[name]) for name, call in calls.items()}
    costs = {name: ProcessCost.now(family(pids[name])).since(before[name]) for name in pids}
    return costs, {name: count / MEASURED_SECONDS / GPUS for name, count in now.items()}


def _results(
    ground: Ground, costs: Mapping[str, ProcessCost], made: Mapping[str, float]
) -> list[Result]:
    agent, floor = costs["agent"], costs["floor"]
    if abs(made["floor"] / made["agent"] - 1) > CALLS_SHARE_MAX:
        raise RuntimeError(
            f"the floor made {made['floor']:.1f} calls a GPU and second, the agent {made['agent']:.1f}: "
            "name the new calls in `kinds` of floor.c"
        )
    split = ", ".join(f"{len(paths)} files each {pace}" for pace, paths in ground.files.items())
    shares = " + ".join(
        f"{name} {seconds * 1e6 / MEASURED_SECONDS:.0f}"
        for name, seconds in zip(agent.names, agent.cpu_by_process, strict=True)
    )
    notes = (
        f"by process {shares}; {split} ({PORTS} RDMA ports), {GPUS} stand-in GPUs at 1 Hz and 10 Hz, {MEASURED_SECONDS} s; "
        "the agent with frames, spool and transport"
    )
    second = MEASURED_SECONDS
    result = [
        Result("agent CPU, all processes", agent.cpu_seconds * 1e6 / second, "us/s",
               "C, same reads and calls", floor.cpu_seconds * 1e6 / second, notes),
        Result("driver calls a GPU", made["agent"], "1/s", "C, same reads and calls", made["floor"],
               "both counted by the stand-in"),
        Result("agent memory, PSS of all its processes", agent.pss_bytes / 1e6, "MB", "budget", MEMORY_MB,
               f"{agent.processes} processes, {agent.threads} threads"),
        Result("agent wake-ups, all threads", agent.wakes / second, "1/s", "budget", WAKES_MAX,
               f"C, same reads and calls: {floor.wakes / second:.0f}"),
        Result("agent, to the disk", agent.disk_bytes / 1e3 / second, "KB/s",
               "passed to write(2), sockets included", agent.write_bytes / 1e3 / second,
               "write_bytes less cancelled_write_bytes: what was written and not deleted before it reached the disk"),
    ]  # fmt: skip
    if "exporter" in costs:
        exporter = costs["exporter"]
        result.append(
            Result("node_exporter CPU, a scrape a second", exporter.cpu_seconds * 1e6 / second, "us/s",
                   "C, same reads and calls", floor.cpu_seconds * 1e6 / second,
                   f"Debian's, its default collectors, no GPU; PSS {exporter.pss_bytes / 1e6:.0f} MB, "
                   f"{exporter.wakes / second:.0f} wake-ups/s")
        )  # fmt: skip
    else:
        print(f"no {node_exporter.PACKAGE} to be had: its row is left out", file=sys.stderr)
    return result
