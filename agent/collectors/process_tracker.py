"""Owners of the processes on GPUs over time: listings and checks in, reports out. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ..hardware.process_owner import CONTAINER, KUBERNETES, SLURM, SYSTEMD
from ..hardware.process_state import ProcessSnapshot, ProcessState
from .process_listing import GpuProcess, GpuProcessList

#: Turns with an unchanged list after which known processes are read again.
RECHECK_TURNS = 10
#: Reads after which an ended process that is still listed counts as dead: its memory will not be
#: freed.
DEAD_OBSERVATIONS_MIN = 2
FOREIGN = "its PID belongs to another PID namespace than the agent's"
HIDDEN = "/proc does not show it"
REUSED = "its PID was reused while the GPU was still listed"
GONE = "it ended before it was seen"
NO_GROUP = "its cgroup does not name an owner"
Identity = tuple[int, int]  # PID and start in clock ticks
Key = tuple[str, int, int | None, int | None]


def gpu_process_key(gpu_process: GpuProcess) -> Key:
    """Return the key of a process on a GPU or instance, unique on its host."""
    return gpu_process[:4]


@dataclass(slots=True)
class TrackedProcess:
    """A process on a GPU, since its first listing."""

    gpu_process: GpuProcess
    since_ns: int
    snapshot: ProcessSnapshot | None = None  # the last read that showed the process; None: none did
    observations: int = 0  # number of reads that showed the same process
    ended_observations: int = 0  # number of consecutive reads that showed its end
    state: ProcessState = ProcessState.HIDDEN  # at the last read
    is_reused: bool = False
    #: The last report, its time, and its event id, which stays when more becomes known.
    reported: Mapping[str, str] = field(default_factory=dict[str, str])
    reported_ns: int | None = None
    event_id: str = ""

    @property
    def identity(self) -> Identity | None:
        """PID and start; None while unknown."""
        if self.snapshot is None or self.is_reused:
            return None
        return self.gpu_process.pid, self.snapshot.start_ticks

    @property
    def is_dead(self) -> bool:
        """Whether the process has ended while the GPU is still held."""
        return self.ended_observations >= DEAD_OBSERVATIONS_MIN and not self.is_reused

    @property
    def is_unsettled(self) -> bool:
        """Whether a read in the next turn will show more."""
        if self.is_reused:
            return False
        observed_once = self.observations == 1 and not self.ended_observations
        return (
            observed_once
            or 0 < self.ended_observations < DEAD_OBSERVATIONS_MIN
            or self.state is ProcessState.CHANGED
        )

    @property
    def source(self) -> str:
        """The `Owner.source`; empty: unknown."""
        return self.snapshot.owner.source if self.snapshot and not self.is_reused else ""

    def update(self, snapshot: ProcessSnapshot) -> None:
        """Take a read of the PID. A start of 0 means that nothing was visible."""
        self.state = snapshot.state
        ended = snapshot.state in (ProcessState.GONE, ProcessState.ZOMBIE)
        self.ended_observations = self.ended_observations + 1 if ended else 0
        if not snapshot.start_ticks:
            return
        if self.snapshot is None:
            self.snapshot, self.observations = snapshot, 1
        elif self.snapshot.start_ticks == snapshot.start_ticks:
            self.observations += 1
        else:
            self.is_reused = True


class ProcessTracker:
    """All processes on the host's GPUs, over time. No clock, no I/O.

    A process is identified by PID and start, but NVML names only the PID. So a report needs two
    reads with the same start: else a process that ended between listing and read would pass its GPU
    to the next owner of its PID.
    """

    def __init__(
        self,
        read_process: Callable[[int], ProcessSnapshot],
        read_state: Callable[[int], ProcessSnapshot],
    ) -> None:
        """*read_process* reads everything about a PID, *read_state* its state and start."""
        self._read_process, self._read_state = read_process, read_state
        self._tracked: dict[Key, TrackedProcess] = {}
        self._ended: list[TrackedProcess] = []
        self._turns_to_recheck = 0
        self._listing = GpuProcessList((), ())

    def __iter__(self) -> Iterator[TrackedProcess]:
        """Yield the processes on GPUs that answered last; those on other GPUs may have changed."""
        return (
            tracked
            for tracked in self._tracked.values()
            if tracked.gpu_process.gpu in self._listing.gpus
        )

    def observe(self, listing: GpuProcessList, now_ns: int) -> bool:
        """Take a listing; return whether all its processes were read.

        They are read if the listing changed or a read is due.
        """
        self._turns_to_recheck -= 1
        if listing == self._listing and self._turns_to_recheck > 0:
            return False
        changed = self._update_list(listing, now_ns)
        if not changed and self._turns_to_recheck > 0:
            return False
        self._recheck_all()
        unsettled = any(tracked.is_unsettled for tracked in self)
        self._turns_to_recheck = 1 if unsettled else RECHECK_TURNS
        return True

    def _update_list(self, listing: GpuProcessList, now_ns: int) -> bool:
        """Add new processes and end missing ones. A GPU that did not answer keeps its processes."""
        gpus_changed = listing.gpus != self._listing.gpus
        back = set(listing.gpus).difference(self._listing.gpus)
        self._listing = listing
        listed = {gpu_process_key(gpu_process): gpu_process for gpu_process in listing.processes}
        removed = [
            key
            for key, tracked in self._tracked.items()
            if key[0] in listing.gpus
            and (key not in listed or (key[0] in back and self._was_replaced(tracked)))
        ]
        self._ended += [self._tracked.pop(key) for key in removed]
        added = listed.keys() - self._tracked.keys()
        for key, gpu_process in listed.items():
            if key in added:
                self._tracked[key] = TrackedProcess(gpu_process, now_ns)
            else:
                self._tracked[key].gpu_process = gpu_process
        return bool(removed or added or gpus_changed)

    def _was_replaced(self, tracked: TrackedProcess) -> bool:
        """Return whether the PID was reused while the GPU did not answer."""
        now = self._read_state(tracked.gpu_process.pid)
        return tracked.identity is not None and now.start_ticks not in (0, tracked.identity[1])

    def _recheck_all(self) -> None:
        snapshots: dict[int, ProcessSnapshot] = {}
        for tracked in self:
            pid = tracked.gpu_process.pid
            if tracked.snapshot is None:  # everything, once
                snapshots[pid] = self._read_process(pid)
            elif pid not in snapshots:
                snapshots[pid] = self._read_state(pid)
        for tracked in self:
            tracked.update(snapshots[tracked.gpu_process.pid])

    @property
    def gpus(self) -> tuple[str, ...]:
        """The GPUs that answered last."""
        return self._listing.gpus

    def refresh(self, tracked: TrackedProcess) -> None:
        """Read a process again, because its control group may change.

        An ended process is ignored: it may show no control group.
        """
        snapshot = self._read_process(tracked.gpu_process.pid)
        runs = snapshot.state is ProcessState.RUNNING
        if runs and tracked.snapshot and snapshot.start_ticks == tracked.snapshot.start_ticks:
            tracked.snapshot = snapshot

    def take_ended(self) -> list[TrackedProcess]:
        """Return reported processes that are no longer listed, each once."""
        ended = [tracked for tracked in self._ended if tracked.reported_ns is not None]
        self._ended = []
        return ended

    def put_back(self, ended: Iterable[TrackedProcess]) -> None:
        """Take back processes whose end could not be reported."""
        self._ended += ended

    def identities(self) -> set[Identity]:
        return {tracked.identity for tracked in self._tracked.values() if tracked.identity}


@dataclass(slots=True)
class GpuProcessCounts:
    """Counts of one GPU's processes."""

    processes: int = 0
    jobs: int = 0
    in_jobs: int = 0
    others: int = 0
    unknown: int = 0
    dead: int = 0
    dead_memory_bytes: int | None = 0  # None: partly unknown


def counts_of(processes: Iterable[TrackedProcess]) -> GpuProcessCounts:
    """Count the processes on one GPU: in jobs and pods, other, unknown, and dead."""
    counts, jobs = GpuProcessCounts(), set[tuple[str, str]]()
    memory: list[int | None] = []
    for tracked in processes:
        counts.processes += 1
        if tracked.is_dead:
            counts.dead += 1
            memory.append(tracked.gpu_process.memory_bytes)
        elif tracked.snapshot and tracked.source in (SLURM, KUBERNETES):
            owner = tracked.snapshot.owner
            counts.in_jobs += 1
            jobs.add((owner.source, owner.job_id or owner.pod_uid or owner.container_id))
        elif tracked.source:
            counts.others += 1
        else:
            counts.unknown += 1
    counts.jobs = len(jobs)
    known = [number for number in memory if number is not None]
    counts.dead_memory_bytes = sum(known) if len(known) == len(memory) else None
    return counts


def message_of(attributes: Mapping[str, str], pid: int, name: str) -> str:
    subject = f"process {pid}" + (f" ({name})" if name else "")
    rank = (
        f", rank {attributes['rank']} of {attributes.get('world_size', '?')}"
        if "rank" in attributes
        else ""
    )
    owner = f"{owner_text(attributes)}{rank}"
    if attributes["state"] == "ended":
        return f"{subject} of {owner} no longer holds the GPU"
    if attributes["state"] == "dead":
        return f"{subject} of {owner} has ended ({attributes['dead']}), but the GPU is still in use"
    return f"{subject} of {owner} holds the GPU"


def owner_text(attributes: Mapping[str, str]) -> str:
    source = attributes["source"]
    if source == SLURM:
        return f"Slurm job {attributes['job_id']}" + (
            f" step {attributes['step']}" if "step" in attributes else ""
        )
    if source == KUBERNETES:
        name = (
            f"{attributes['namespace']}/{attributes['pod']}"
            if "pod" in attributes
            else attributes.get("pod_uid", "")
        )
        return f"pod {name}" if name else f"container {attributes['container_id'][:12]}"
    if source == CONTAINER:
        return f"container {attributes['container_id'][:12]}"
    if source == SYSTEMD:
        return f"unit {attributes.get('user_unit') or attributes['unit']}"
    return "an unknown owner" + (f" ({attributes['unknown']})" if attributes.get("unknown") else "")
