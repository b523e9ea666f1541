"""A host of processes in a folder: the /proc entry of each, and the driver's list."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gangline.agent.collector import CollectResult, run_collector
from gangline.agent.collectors.change_events import RESYNC_NAME
from gangline.agent.collectors.gpu_processes import GpuJobs
from gangline.agent.collectors.process_listing import GpuProcess, GpuProcessList, process_listing_of
from gangline.agent.events import EventPublisher
from gangline.agent.hardware.files import Roots
from gangline.agent.hardware.job_ranks import RankReader
from gangline.agent.hardware.process_state import HOST_PID_NAMESPACE
from gangline.contract.wire.telemetry_pb2 import HealthEvent
from tests.agent.fakes import HandedClock, read

SECOND = 1_000_000_000
GPU = "GPU-00000000-0000-0000-0000-000000000000"
OTHER_GPU = "GPU-00000001-0000-0000-0000-000000000000"
BOOT = "0b5e2f6c-7a5c-4b52-8b7e-0f3d6d1f9a10"
POD = "12345678-1234-4321-aaaa-123456789abc"
CONTAINER = "c0ffee" + "0" * 58
#: On a v2 host: one line.
SLURM = "0::/system.slice/slurmstepd.scope/job_123/step_0/user/task_0\n"
POD_CGROUP = (
    "0::/kubepods.slice/kubepods-burstable.slice/"
    f"kubepods-burstable-pod{POD.replace('-', '_')}.slice/cri-containerd-{CONTAINER}.scope\n"
)
SESSION = "0::/user.slice/user-1000.slice/session-3.scope\n"


class JobsHost:
    """The host. `turn` lists the processes on the GPUs and runs the collector of their jobs."""

    def __init__(
        self, folder: Path, *, reads_ranks: bool = False, nvml_library: str | None = None
    ) -> None:
        self.roots = Roots(
            sys=folder / "sys",
            proc=folder / "proc",
            nvml_library=nvml_library,
            dev=folder / "dev",
            reads_ranks=reads_ranks,
        )
        self.proc = self.roots.proc
        self.clock = HandedClock()
        self.events: list[HealthEvent] = []
        self.anew: list[HealthEvent] = []  # events which announce that everything was reported
        self.room: int | None = None  # free capacity for events; None: unlimited
        self._held = process_listing_of(self.roots)
        (self.proc / "self/ns").mkdir(parents=True)
        self.in_namespace(HOST_PID_NAMESPACE)
        (self.proc / "sys/kernel/random").mkdir(parents=True)
        (self.proc / "sys/kernel/random/boot_id").write_text(f"{BOOT}\n")
        self.process(1, "0::/init.scope\n", start=2, name="systemd")

    def in_namespace(self, link: str) -> None:
        (self.proc / "self/ns/pid").unlink(missing_ok=True)
        (self.proc / "self/ns/pid").symlink_to(link)

    def process(
        self,
        pid: int,
        cgroup: str | bytes,
        *,
        start: int = 5_000,
        name: str = "python3",
        state: str = "S",
        threads: int = 8,
        user: int = 1000,
        pids: str = "",
    ) -> Path:
        """Create a process, replacing one with the same number."""
        folder = self.proc / str(pid)
        folder.mkdir(exist_ok=True)
        rest = "1 1 1 0 -1 4194560 1 0 0 0 5 6 0 0 20 0"
        (folder / "stat").write_text(f"{pid} ({name}) {state} {rest} {threads} 0 {start} 1 2\n")
        uid = f"Uid:\t{user}\t{user}\t{user}\t{user}\n"
        (folder / "status").write_text(f"Name:\t{name}\n{uid}NSpid:\t{pids or pid}\n")
        data = cgroup.encode() if isinstance(cgroup, str) else cgroup
        (folder / "cgroup").write_bytes(data)
        return folder

    def end(self, pid: int) -> None:
        shutil.rmtree(self.proc / str(pid))

    def collector(self, ranks: RankReader | None = None) -> GpuJobs:
        gpu_jobs = GpuJobs(self.roots, self.clock, ranks)
        gpu_jobs.start(EventPublisher(self.clock, self, lambda: None))
        return gpu_jobs

    def running(self, cgroup: str = SLURM, **process: Any) -> GpuJobs:
        """Return a collector that has reported process 4711."""
        self.process(4711, cgroup, **process)
        collector = self.collector()
        self.settle(collector, 4711)
        return collector

    def put(self, event: HealthEvent) -> bool:
        """Take an event, like a sampler's channel to the daemon. False: full, the event is lost."""
        if self.room == 0:
            return False
        self.room = None if self.room is None else self.room - 1
        copy = HealthEvent()
        copy.CopyFrom(event)
        (self.anew if event.name == RESYNC_NAME else self.events).append(copy)
        return True

    def told(self) -> list[HealthEvent]:
        result, self.events = self.events, []
        return result

    def list(self, *holdings: GpuProcess | int, gpus: Iterable[str] | None = None) -> None:
        """Set the driver's list; a number is a process on the first GPU with a gigabyte."""
        rows = [
            h if isinstance(h, GpuProcess) else GpuProcess(GPU, h, None, None, 1 << 30)
            for h in holdings
        ]
        answer = {GPU, OTHER_GPU, *(row.gpu for row in rows)} if gpus is None else gpus
        self._held.put("gpu_process_1s", GpuProcessList(tuple(sorted(answer)), tuple(rows)))

    def turn(
        self, collector: GpuJobs, *holdings: GpuProcess | int, **more: Iterable[str]
    ) -> CollectResult:
        self.list(*holdings, **more)
        self.clock.now_ns += SECOND
        return run_collector(collector, self.clock)

    def turns(self, count: int, collector: GpuJobs, *holdings: GpuProcess | int) -> CollectResult:
        for _ in range(count - 1):
            self.turn(collector, *holdings)
        return self.turn(collector, *holdings)

    def settle(self, collector: GpuJobs, *holdings: GpuProcess | int) -> dict[str, str]:
        """Run turns until everything is reported; return the attributes of the last event."""
        for _ in range(3):
            self.turn(collector, *holdings)
        result = self.told()
        return dict(result[-1].attributes) if result else {}

    def counts(self, turn: CollectResult, gpu: str = GPU) -> dict[str, float | int | None]:
        return read(turn.blocks)[gpu]
