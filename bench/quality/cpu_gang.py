"""A real gang on this machine's cores: four processes that step together, one of them slowed.

Only the GPU is a stand-in: `follow` of `tests/fake_nvml` shows each process as the only GPU of one
host, from the kernel's state of the process and its count of completed work. The work, the barrier,
the contention for cores, the agents, their sockets, the aggregator and its judge are real. The
truth is the processes' own log of steps.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Self

import duckdb
import numpy as np

from bench.quality.cpu_gang_rank import RankPlan
from bench.quality.injected_hosts import MEMORY, InjectedHostFolder, folder, healthy_gpus
from bench.quality.markdown import table
from bench.quality.progress import Progress
from gangline.aggregator.model import HealthState
from gangline.contract.client.connection import CommandError
from gangline.contract.client.score_client import ScoreClient
from gangline.contract.wire.score_pb2 import NodeScore
from tests.fake_nvml.parts_scenario import following
from tests.processes import Process, free_port, listening, until

RANKS = 4
#: Seconds on a core, and of waiting per step. Ranks on one core compute at different times.
COMPUTE_SECONDS, WAIT_SECONDS = 0.025, 0.1
#: Niceness that shields the gang from other load. If the kernel refuses it, the gang runs at normal
#: priority.
NICE_GANG, NICE_OTHERS = -10, 5
#: Added niceness of the slowed rank and of its competitor: CFS gives them weights of 1024 to 655.
NICE_SLOWED, NICE_COMPETITOR = 10, 12
#: Seconds before the slowing (the judge needs about 100 s of past), and after it.
HEALTHY_SECONDS, SLOWED_SECONDS = 130.0, 140.0
#: A smaller slowdown of the slowed rank makes the run invalid: the machine had other load.
SLOWDOWN_MIN = 0.08
#: Signals by which the judge blames a member.
BLAMES = (
    "gang.slow_host", "gang.slow_gpu", "gang.cpu_contention", "gang.storage_stall", "gang.unknown",
)  # fmt: skip
#: Two gangs of agents read the same processes: with GPM, and without, as on an A100.
GPM = {"gang": True, "plain": False}
JOBS = {"gang": 7001, "plain": 7002}
#: No threads in numpy: a rank uses only its own core.
ONE_THREAD = {name: "1" for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")}
RANK_MODULE = "bench.quality.cpu_gang_rank"

WINDOW_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "gpu_fast_1s": ("sm_active_ratio", "tensor_active_ratio"),
    "gpu_1s": ("power_watts", "utilization_ratio"),
}
METHOD = f"""\
Four processes step together on two cores of the machine that makes this page. A step has {1000 * COMPUTE_SECONDS:.0f} ms of matrix
products in numpy, {1000 * WAIT_SECONDS:.0f} ms of waiting, and a barrier over sockets (torch is not installed). After {HEALTHY_SECONDS:.0f} s another
process begins to compete for the core of one of them, which the seed chooses. The slowed process does the same work, but later.
A second run of {HEALTHY_SECONDS + SLOWED_SECONDS:.0f} s has no such competitor.

Each process is the only GPU of a host for two real agents, one with GPM and one without. There is no GPU here, so its
readings come from the kernel's account of the process (`follow`, `tests/fake_nvml`):

- Computing is time on its core and in its queue. Waiting occupies 5 % of the SMs.
- Power is 200 W while waiting and 650 W while computing.
- Tensor activity is the process's own count of work done.

The log of steps of the processes gives the true slowdown.
"""


class CpuGangHost(InjectedHostFolder):
    """A host with one GPU that follows a real process; its /proc has this process, in a Slurm job."""

    def __init__(self, place: Path, name: str, port: int, source: random.Random) -> None:
        """*port*: of the aggregator on the loopback."""
        super().__init__(place, name, port, source)
        self.gpus = healthy_gpus(source)[:1]
        self.gpu = self.gpus[0]
        self.pid, self.job = 0, 0

    def follow(self, pid: int, job: int, work: Path, units_per_second_max: float) -> None:
        """Make its GPU follow *pid*. Call this before the start."""
        self.pid, self.job = pid, job
        following(self.gpu, pid, work, units_per_second_max=units_per_second_max)

    def boot(self) -> None:
        """Show the process in its /proc, and only the one GPU; then boot like any host."""
        place = self.folder / "proc" / str(self.pid)
        place.mkdir(exist_ok=True)
        for name in ("stat", "status"):
            (place / name).symlink_to(f"/proc/{self.pid}/{name}")
        group = f"0::/system.slice/slurmstepd.scope/job_{self.job}/step_0/user/task_0\n"
        (place / "cgroup").write_text(group)
        for function in (self.folder / "sys/bus/pci/devices").iterdir():
            kind = function / "class"
            is_gpu = kind.exists() and kind.read_text().startswith("0x0302")
            if is_gpu and function.name != self.gpu.address:
                if function.is_symlink():
                    function.unlink()
                else:
                    shutil.rmtree(function)
        super().boot()


@dataclass
class Blame:
    """The first blame of a host: seconds since the slowing began, its reason, and its size."""

    seconds: float
    rule: str
    state: str
    excess: float
    message: str


@dataclass
class CpuGangResult:
    """The result of a run; hosts by name. A control evaluates the rank without slowing it."""

    slowed: int  # rank
    # true slowdown by the logs, as a share: of the slowed rank relative to the others and to its
    # past
    slowdown: float
    drift: float  # largest change of any other rank, likewise, in either direction
    before: dict[str, Blame] = field(default_factory=dict)  # blamed before the slowing
    after: dict[str, Blame] = field(default_factory=dict)
    windows: str = ""  # the agents' windows, if a kind of gang has no blame

    @property
    def is_valid(self) -> bool:
        """Return whether the slowed rank was really slow."""
        return self.slowdown >= SLOWDOWN_MIN

    @property
    def is_control_valid(self) -> bool:
        """Return whether all ranks were steady before: on a loaded machine a rank may be slow, and
        be blamed rightly.
        """
        return self.drift < SLOWDOWN_MIN

    def named(self, kind: str) -> Blame | None:
        """Return the blame of the slowed host of the gang of that kind."""
        return self.after.get(f"{kind}-{self.slowed}")

    def wrong(self, kind: str) -> list[str]:
        """Return the other hosts blamed after the slowing."""
        right = f"{kind}-{self.slowed}"
        return sorted(host for host in self.after if host.startswith(kind) and host != right)

    def blamed(self, kind: str) -> list[str]:
        """Return the hosts blamed in the whole run."""
        return sorted(host for host in {**self.before, **self.after} if host.startswith(kind))


def missing() -> str:
    """Return why a gang cannot run here; "" otherwise."""
    if not Path("/proc/self/schedstat").exists():
        return "the kernel has no /proc/PID/schedstat"
    if len(os.sched_getaffinity(0)) < 2:
        return "one core: four processes would only compete with each other"
    return ""


class CpuGang:
    """The four processes, and the competitor of the slowed rank. They run within its context."""

    def __init__(self, place: Path) -> None:
        """*place*: an empty folder."""
        self._place = place
        self._left = ExitStack()
        self._cores = sorted(os.sched_getaffinity(0))[:2]
        self._environment = {**os.environ, **ONE_THREAD}
        self._children: list[subprocess.Popen[bytes]] = []
        self.pids: list[int] = []
        self.units = 0

    def __enter__(self) -> Self:
        port, self.units = free_port(), self._units_of_a_step()
        for rank in range(RANKS):
            self.work(rank).write_bytes(bytes(8))
            first = (0.0, WAIT_SECONDS / 2)[rank // 2]
            waits = first, WAIT_SECONDS - first
            plan = RankPlan(
                rank, RANKS, port, self._core(rank), self.units, waits,
                str(self._log(rank)), str(self.work(rank)),
            )  # fmt: skip
            self.pids.append(self._spawn(asdict(plan), NICE_GANG))
        return self

    def __exit__(self, *_: object) -> None:
        self._left.close()

    def work(self, rank: int) -> Path:
        """Return the file that counts a rank's units of work."""
        return self._place / f"work-{rank}"

    def slow(self, rank: int) -> None:
        """Start a process that competes with *rank* alone for its core: others have priority."""
        nice = os.getpriority(os.PRIO_PROCESS, self.pids[rank])
        os.setpriority(os.PRIO_PROCESS, self.pids[rank], nice + NICE_SLOWED)
        self._spawn(self._core(rank), nice + NICE_COMPETITOR)

    def compute_seconds(
        self, begin: float, end: float
    ) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Return each rank's mean compute seconds over steps that began between two moments.

        *begin*, *end*: seconds of the monotonic clock.
        """
        result = []
        for rank in range(RANKS):
            lines = [line.split() for line in self._log(rank).read_text().splitlines()]
            steps = [
                float(line[1]) for line in lines if len(line) == 3 and begin <= float(line[0]) < end
            ]
            result.append(float(np.mean(steps)) if steps else np.nan)
        return np.array(result)

    def check(self) -> None:
        """Raise RuntimeError if a process has ended."""
        if ended := [child.args for child in self._children if child.poll() is not None]:
            raise RuntimeError(f"ended before its time: {ended}")

    def _core(self, rank: int) -> int:
        return self._cores[rank % len(self._cores)]

    def _log(self, rank: int) -> Path:
        return self._place / f"log-{rank}"

    def _units_of_a_step(self) -> int:
        code = f"from {RANK_MODULE} import unit_seconds; print(unit_seconds())"
        out = subprocess.run(
            [sys.executable, "-c", code], env=self._environment, check=True, capture_output=True
        )
        return max(1, round(COMPUTE_SECONDS / float(out.stdout)))

    def _spawn(self, told: object, nice: int) -> int:
        # In our session: if the scheduler groups by session, niceness counts only within a session.
        child = subprocess.Popen(
            [sys.executable, "-m", RANK_MODULE, json.dumps(told)],
            env=self._environment, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        self._children.append(child)
        self._left.callback(child.wait)
        self._left.callback(child.kill)
        with suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, child.pid, nice)
        return child.pid


def slowdowns(
    now: np.ndarray[tuple[int], np.dtype[np.float64]],
    past: np.ndarray[tuple[int], np.dtype[np.float64]],
) -> list[float]:
    """Return each rank's increase of compute time relative to the median of the others, as a share."""

    def over_others(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> list[float]:
        return [float(v / np.median(np.delete(values, i))) for i, v in enumerate(values)]

    return [a / b - 1.0 for a, b in zip(over_others(now), over_others(past), strict=True)]


class CpuGangRun:
    """A gang, its agents and their aggregator, from start to end."""

    def __init__(self, disk: Path, memory: Path, seed: int) -> None:
        self._disk, self._memory, self._source = disk, memory, random.Random(seed)
        self.slowed = self._source.randrange(RANKS)
        self.port = free_port()
        address = f"127.0.0.1:{self.port}"
        options = ("--data", str(disk / "data"), "--set", "disk_free_share_min=0")
        self.aggregator = Process(["aggregator", "--listen", address, *options], disk / "log")
        self._client = ScoreClient(address)
        self._names = [f"{kind}-{rank}" for kind in GPM for rank in range(RANKS)]

    def run(
        self,
        progress: Progress,
        kinds: Sequence[str] = tuple(GPM),
        *,
        is_slowed: bool = True,
    ) -> CpuGangResult:
        """Run until the slowed host is blamed in the gangs of all *kinds*; return the result."""
        gang_folder = self._disk / "gang"
        gang_folder.mkdir()
        with ExitStack() as left:
            gang = left.enter_context(CpuGang(gang_folder))
            left.callback(self.aggregator.kill)
            self.aggregator.start()
            os.setpriority(os.PRIO_PROCESS, self.aggregator.pid, NICE_OTHERS)
            until(lambda: listening(self.port), "the aggregator listens")
            for name in self._names:
                if name.partition("-")[0] in kinds:
                    left.callback(self._start_host(gang, name).close)
            count = RANKS * len(kinds)
            until(lambda: len(self._scores()) == count, "all hosts are listed")
            began = time.monotonic()
            before = self._watch(
                began, began + HEALTHY_SECONDS, (), partial(progress, "none is slowed")
            )
            middle = time.monotonic()
            if is_slowed:
                gang.slow(self.slowed)
            wanted = [f"{kind}-{self.slowed}" for kind in kinds if is_slowed]
            after = self._watch(
                middle, middle + SLOWED_SECONDS, wanted, partial(progress, "one is slowed")
            )
            end = time.monotonic()
            gang.check()
            # The first and second half before the slowing; a control includes later steps.
            half = (began + middle) / 2
            early, late = gang.compute_seconds(began, half), gang.compute_seconds(half, middle)
            drifts = slowdowns(late, early)
            true = slowdowns(gang.compute_seconds(middle, end), gang.compute_seconds(began, middle))
            drift = max(map(abs, drifts if is_slowed else [*drifts, *true]))
            self.aggregator.stop()
            # A continued blame from before is not a new blame.
            after = {host: blame for host, blame in after.items() if host not in before}
            self._check_jobs(kinds)
            return CpuGangResult(
                self.slowed, true[self.slowed], drift, before, after, self._windows()
            )

    def _start_host(self, gang: CpuGang, name: str) -> CpuGangHost:
        kind, _, rank = name.partition("-")
        host = CpuGangHost(self._memory / name, name, self.port, self._source)
        if not GPM[kind]:
            values = host.gpu.values
            host.gpu.values = {k: v for k, v in values.items() if not k.startswith("gpm_")}
        at = int(rank)
        # A fully used core is 100 % tensor activity.
        units_per_second = gang.units / COMPUTE_SECONDS
        host.follow(gang.pids[at], JOBS[kind], gang.work(at), units_per_second)
        host.start()
        os.setpriority(os.PRIO_PROCESS, host.agent.pid, NICE_OTHERS)
        return host

    def _scores(self) -> list[NodeScore]:
        try:
            return list(self._client.hosts(full=True).scores)
        except CommandError:
            return []

    def _watch(
        self, begin: float, end: float, wanted: Sequence[str], progress: partial[None]
    ) -> dict[str, Blame]:
        """Return the blamed hosts from *begin* to *end*, or until all *wanted* are blamed."""
        result: dict[str, Blame] = {}
        while (now := time.monotonic()) < end and not (wanted and result.keys() >= set(wanted)):
            for score in self._scores():
                host = score.node.removeprefix("nodes/")
                for contribution in score.contributions:
                    if contribution.signal in BLAMES and host not in result:
                        state = HealthState(score.state).name
                        # For gaps the value is a share of time, for the others a factor.
                        excess = contribution.value - float(contribution.unit.startswith("times"))
                        result[host] = Blame(
                            now - begin, contribution.signal, state, excess, contribution.message
                        )
            progress((now - begin) / (end - begin))
            time.sleep(1.0)
        return result

    def _check_jobs(self, kinds: Sequence[str]) -> None:
        """Raise RuntimeError if an agent did not report the job of its process.

        Without a gang no host could be blamed.
        """
        store = self._disk / "data" / "gangline.duckdb"
        with duckdb.connect(str(store), read_only=True) as connection:
            rows = connection.execute("SELECT source, job, hosts FROM ops.jobs").fetchall()
        wanted = [
            ("slurm", str(JOBS[kind]), [f"{kind}-{rank}" for rank in range(RANKS)])
            for kind in kinds
        ]
        known = [(source, job, sorted(hosts)) for source, job, hosts in rows]
        if any(wanted_name not in known for wanted_name in wanted):
            raise RuntimeError(f"the gangs are not known as jobs of all their hosts: {rows}")

    def _windows(self) -> str:
        """Return the readings of each host's GPU in windows of ten seconds."""
        store = self._disk / "data" / "gangline.duckdb"
        text = []
        with duckdb.connect(str(store), read_only=True) as connection:
            for name, columns in WINDOW_COLUMNS.items():
                means = ", ".join(f"round(avg({column}), 4)" for column in columns)
                rows = connection.execute(
                    f"SELECT host, time_bucket(INTERVAL 10 SECOND, time) AS ten, {means} "
                    f"FROM readings.{name} GROUP BY ALL ORDER BY ten, host"
                ).fetchall()
                text += [f"{name}: {row[0]} {row[1]:%H:%M:%S} {row[2:]}" for row in rows]
        return "\n".join(text)


def run(seed: int, progress: Progress, *, is_slowed: bool = True) -> CpuGangResult:
    """Return the result of one run in temporary folders."""
    with folder() as disk, folder(MEMORY) as memory:
        return CpuGangRun(disk, memory, seed).run(progress, is_slowed=is_slowed)


def page(result: CpuGangResult, control: CpuGangResult) -> str:
    rows = [_slowed_row(result, kind) for kind in GPM] + [
        _control_row(control, kind) for kind in GPM
    ]
    head = ("one is slowed", "GPM", "named", "others blamed", "delay", "estimated", "true")
    return f"{METHOD}\n{table(head, rows)}\n"


def _slowed_row(result: CpuGangResult, kind: str) -> tuple[str, ...]:
    blame = result.named(kind)
    true = f"{100 * result.slowdown:.0f} %" if result.is_valid else "not valid: it was not slow"
    named = f"`{blame.rule}`, {blame.state}" if blame else "no"
    delay, estimate = (
        (f"{blame.seconds:.0f} s", f"{100 * blame.excess:.0f} %") if blame else ("-", "-")
    )
    others = ", ".join(sorted({*result.wrong(kind), *_before(result, kind)})) or "none"
    return "yes", "yes" if GPM[kind] else "no", named, others, delay, estimate, true


def _before(result: CpuGangResult, kind: str) -> list[str]:
    return [host for host in result.before if host.startswith(kind)]


def _control_row(control: CpuGangResult, kind: str) -> tuple[str, ...]:
    others = ", ".join(control.blamed(kind)) or "none"
    drift = f"drift {100 * control.drift:.0f} %"
    if not control.is_control_valid:
        drift = f"not valid: the machine was busy, {drift}"
    return "no", "yes" if GPM[kind] else "no", "-", others, "-", "-", drift


def section(seed: int, progress: Progress) -> str:
    """Return the part of the page: a run with a slowed rank, and one as long without."""
    if reason := missing():
        return f"Not run: {reason}.\n"
    return page(run(seed, progress), run(seed, progress, is_slowed=False))
