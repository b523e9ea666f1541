"""Memory of each process on a GPU or MIG instance, every second, and the job, pod or container that owns it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

from ...contract.block import Block
from ...contract.isolation import ATTRIBUTE
from ...contract.signals import index_of
from ...contract.wire.telemetry_pb2 import HealthEvent
from ...ext.nvml_parts import COMPUTE, Parts, Process, ProcessLists
from ..clock import Clock, SystemClock
from ..collector import AccessDenied, Collector, NoData
from ..events import EventPublisher
from ..hardware import kubelet, process_state
from ..hardware.files import Roots
from ..hardware.job_ranks import RankReader
from ..hardware.process_state import DEVICE_NAME, ProcessSnapshot, ProcessState
from ..hardware.processes import read_tasks
from .block_writer import block_of
from .change_events import REPEAT_NS, boot_of, event_bucket, resync_event, revision_at
from .gpu_parts import GpuPartsCollector, cleared_block
from .job_groups import JobGroups
from .job_isolation import JobIsolation
from .process_listing import GpuProcess, GpuProcessList, process_listing_of
from .process_tracker import (
    FOREIGN,
    GONE,
    HIDDEN,
    NO_GROUP,
    REUSED,
    GpuProcessCounts,
    Identity,
    ProcessTracker,
    TrackedProcess,
    counts_of,
    message_of,
)
from .tasks import HIDEPID

#: Maximum per host; processes with higher PIDs are left out, with a message in `access_error`.
ROWS_MAX = 8192

#: Turns with unchanged lists after which the start times are read again, in case a PID was reused
#: within a second.
UNCHANGED_TURNS_MAX = 9

TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")

#: Minimum time between lookups of pods while a name is missing.
PODS_NS_MIN = 10_000_000_000
EVENT = "gpu.process"
#: Attributes of ranks that are facts about isolation.
MPS_LIMITS = ("mps_threads", "mps_memory")
#: Names of processes have at most 15 bytes, of kernel threads 63.
NAME_CHARACTERS_MAX = 63
_NAMESPACE_REMEDY = (
    "the driver reports PIDs of the host, but this agent runs in another PID namespace. Run it in "
    "the host's "
    "(hostPID: true, --pid=host)"
)
_RELATIVE_REMEDY = (
    "cgroups are shown relative to the agent's own. Run it in the host's cgroup namespace "
    "(--cgroupns=host)"
)


class GpuProcesses(GpuPartsCollector):
    """Processes on GPUs, each identified by PID and start.

    The start is missing for a PID of another namespace, or if the process ended before it was read.
    """

    def __init__(self, roots: Roots) -> None:
        super().__init__("gpu_process_1s", roots)
        self._block: Block | None = None
        self._listing = process_listing_of(roots)  # for `gpu_job_1s`, whose turn is later
        self._lists: ProcessLists | None = None
        self._process_list = GpuProcessList((), ())
        self._overflow_message = ""
        self._unchanged_turns_left = 0

    def release(self) -> None:
        super().release()
        self._lists, self._unchanged_turns_left = None, 0

    def _read(self, parts: Parts) -> Sequence[Block]:
        """Return the block, refilled only after a change or UNCHANGED_TURNS_MAX turns."""
        if self._lists is None:
            self._lists = ProcessLists(parts, self._gpus)
        is_same = self._lists.run()
        self._unchanged_turns_left -= 1
        if self._unchanged_turns_left < 0 or self._block is None or not is_same:
            self._unchanged_turns_left = 0  # if the refill fails, the next turn tries again
            self._block = self._fill(self._query(self._lists.of))
            self._unchanged_turns_left = UNCHANGED_TURNS_MAX
        self._listing.put(self.name, self._process_list)
        self.access_error = self.access_error or self._overflow_message
        return (self._block,)

    def _fill(self, answers: Mapping[str, list[Process]]) -> Block:
        rows: dict[str, Process] = {}
        listed = {self._gpus[address]: merge_processes(group) for address, group in answers.items()}
        self._process_list = GpuProcessList(tuple(listed), _gpu_processes(listed))
        self._session.compute_processes = {
            gpu: frozenset(process.pid for process in processes if process.kinds & COMPUTE)
            for gpu, processes in listed.items()
        }
        for gpu, processes in listed.items():
            rows |= {process_key(gpu, process): process for process in processes}
        is_over_limit = len(rows) > ROWS_MAX
        self._overflow_message = (
            f"{len(rows)} processes on GPUs, only {ROWS_MAX} are reported" if is_over_limit else ""
        )
        if is_over_limit:
            rows = dict(sorted(rows.items(), key=lambda item: item[1].pid)[:ROWS_MAX])
        starts = self._starts({process.pid for process in rows.values()})
        block = cleared_block(self._block, "gpu_process_1s_changes", rows)
        for row, process in enumerate(rows.values()):
            block.put_float(0, row, process.memory_bytes)
            block.put_int(1, row, process.kinds)
            block.put_int(2, row, starts.get(process.pid))
            block.put_int(3, row, process.gpu_instance)
            block.put_int(4, row, process.compute_instance)
        return block

    def _starts(self, pids: Iterable[int]) -> dict[int, int]:
        tasks = read_tasks(self._roots.proc, map(str, pids))
        return {task.number: task.start_ticks * TICK_NS for task in tasks}


def _gpu_processes(listed: Mapping[str, Iterable[Process]]) -> tuple[GpuProcess, ...]:
    gpu_processes = [
        GpuProcess(gpu, p.pid, p.gpu_instance, p.compute_instance, p.memory_bytes)
        for gpu, processes in listed.items()
        for p in processes
    ]
    return tuple(gpu_processes[:ROWS_MAX])


def merge_processes(processes: Iterable[Process]) -> list[Process]:
    """Return one entry per process and instance.

    A process may be in several of a GPU's lists, each with all memory.
    """
    merged: dict[tuple[int, int | None, int | None], Process] = {}
    for process in processes:
        key = process.pid, process.gpu_instance, process.compute_instance
        other = merged.get(key, process)
        known = [m for m in (process.memory_bytes, other.memory_bytes) if m is not None]
        merged[key] = process._replace(
            kinds=process.kinds | other.kinds, memory_bytes=max(known, default=None)
        )
    return list(merged.values())


def process_key(gpu: str, process: Process) -> str:
    """Return `GPU-uuid/PID`, under MIG `GPU-uuid/gi1/ci0/PID`."""
    if process.gpu_instance is None:
        return f"{gpu}/{process.pid}"
    compute = "" if process.compute_instance is None else f"/ci{process.compute_instance}"
    return f"{gpu}/gi{process.gpu_instance}{compute}/{process.pid}"


class GpuJobs(Collector):
    """Owners of the processes on GPUs: Slurm job, pod, container, unit.

    `collect` raises NoData without a listing.

    An owner is reported as the event `gpu.process`, because a frame carries only numbers: when a
    process appears, changes or ends, and every REPEAT_NS for an aggregator that lost it. A process
    on a GPU keeps one event id, with rising revisions. The table `gpu_job_1s` has the counts.
    """

    name = "gpu_job_1s"
    enters_driver = True

    def __init__(
        self, roots: Roots, clock: Clock | None = None, ranks: RankReader | None = None
    ) -> None:
        """*ranks*: the helper that reads ranks; None: created if the setting `read_ranks` is on."""
        self._roots, self._clock = roots, clock or SystemClock()
        self._listing = process_listing_of(roots)
        self._is_excluded = False
        self._processes = ProcessTracker(self._read_process, self._read_state)
        self._ranks = ranks or (RankReader(roots.proc, self._clock) if roots.reads_ranks else None)
        self._ranks_of: dict[Identity, dict[str, str]] = {}
        self._pods: dict[str, kubelet.Pod] = {}
        self._pods_ns = -PODS_NS_MIN
        self._boot = boot_of(roots.proc)
        self._isolation, self._groups = JobIsolation(roots, self._boot), JobGroups(roots)
        self._is_foreign = not process_state.in_host_pid_namespace(roots.proc)
        self._shows_all = process_state.shows_all(roots.proc)
        self._rate_limit = event_bucket()
        self._is_behind = False  # a due report was not sent
        self._since: dict[str, int] = {}  # first listing of each GPU; 0 once all on it was reported
        self._publisher: EventPublisher | None = None
        self._block: Block | None = None

    def start(self, publisher: EventPublisher) -> None:
        """Take the publisher: a frame cannot carry an owner."""
        self._publisher = publisher

    def close(self) -> None:
        """End the helper, if it runs."""
        if self._ranks:
            self._ranks.close()

    def exclude(self, devices: frozenset[str]) -> None:
        """Skip /proc if it has blocked a sampler."""
        # Listed by name: "all but one GPU" contains every name
        self._is_excluded = DEVICE_NAME in tuple(devices)

    def collect(self) -> Sequence[Block]:
        """Return the block, with a row per GPU that answered."""
        if self._is_excluded:
            raise AccessDenied("/proc does not respond: processes on the GPUs are not looked up")
        listing = self._listing.take()
        if listing is None:
            raise NoData("no driver has listed processes since the last turn")
        now_ns = self._clock.boottime_ns()
        moved = self._processes.observe(listing, now_ns)
        moved |= not self._is_foreign and self._isolation.observe(
            self._processes, self._processes.gpus
        )
        if self._request_ranks() or moved or self._is_behind or self._block is None:
            self.access_error = self._access_error()
            if self._publisher:
                self._is_behind = not self._publish_all(self._publisher, now_ns)
            self._groups.observe((p, self._attributes(p, now_ns)) for p in self._processes)
            self._block = self._fill()
        groups = self._groups.block()
        return (self._block, groups) if groups is not None else (self._block,)

    def _read_process(self, pid: int) -> ProcessSnapshot:
        return self._as_visible(
            ProcessSnapshot(ProcessState.HIDDEN)
            if self._is_foreign
            else process_state.read_process(self._roots.proc, pid)
        )

    def _read_state(self, pid: int) -> ProcessSnapshot:
        return self._as_visible(
            ProcessSnapshot(ProcessState.HIDDEN)
            if self._is_foreign
            else process_state.read_process_state(self._roots.proc, pid)
        )

    def _as_visible(self, snapshot: ProcessSnapshot) -> ProcessSnapshot:
        """Return *snapshot*; HIDDEN instead of GONE unless /proc shows all processes."""
        is_hidden = snapshot.state is ProcessState.GONE and not self._shows_all
        return ProcessSnapshot(ProcessState.HIDDEN) if is_hidden else snapshot

    def _access_error(self) -> str:
        tracked = list(self._processes)
        if self._is_foreign:
            return _NAMESPACE_REMEDY if tracked else ""
        if any(process.state is ProcessState.HIDDEN for process in tracked):
            return HIDEPID
        if any(
            process.snapshot and process.snapshot.owner.is_relative and not process.source
            for process in tracked
        ):
            return _RELATIVE_REMEDY
        return self._ranks.access_error if self._ranks else ""

    def _request_ranks(self) -> bool:
        """Request the ranks of new processes, and take answers; return whether there were any."""
        if self._ranks is None:
            return False
        known = self._processes.identities()
        new = known - self._ranks_of.keys()
        self._ranks_of = {i: self._ranks_of.get(i, {}) for i in known}
        self._ranks.request(sorted(new))
        answers = [answer for answer in self._ranks.poll() if answer.identity in known]
        self._ranks_of |= {answer.identity: answer.attributes for answer in answers}
        for identity, attributes in self._ranks_of.items():
            limits = {name: attributes[name] for name in MPS_LIMITS if name in attributes}
            self._isolation.set_limits(identity, limits)
        return bool(answers)

    def _pod(self, uid: str, now_ns: int) -> kubelet.Pod | None:
        if uid not in self._pods and now_ns - self._pods_ns >= PODS_NS_MIN:
            self._pods, self._pods_ns = kubelet.pods_by_uid(self._roots.proc.parent), now_ns
        return self._pods.get(uid)

    def _publish_all(self, publisher: EventPublisher, now_ns: int) -> bool:
        """Publish all changes. False: the queue is full, and the rest follows in the next turn."""
        return (
            self._publish_ended(publisher, now_ns)
            and all(
                self._publish_changes(publisher, tracked, now_ns) for tracked in self._processes
            )
            and self._publish_resync(publisher, now_ns)
            and self._isolation.publish(
                publisher,
                [(tracked, self._attributes(tracked, now_ns)) for tracked in self._processes],
                (now_ns, self._clock.wall_ns()),
                self._rate_limit.try_take,
            )
        )

    def _publish_ended(self, publisher: EventPublisher, now_ns: int) -> bool:
        ended = self._processes.take_ended()
        for index, tracked in enumerate(ended):
            if not self._publish(
                publisher, tracked, {**tracked.reported, "state": "ended"}, now_ns
            ):
                self._processes.put_back(ended[index:])
                return False
        return True

    def _publish_changes(
        self, publisher: EventPublisher, tracked: TrackedProcess, now_ns: int
    ) -> bool:
        if tracked.is_unsettled or now_ns <= tracked.since_ns:
            return True
        is_old = tracked.reported_ns is not None and now_ns - tracked.reported_ns >= REPEAT_NS
        if is_old:
            self._processes.refresh(tracked)
        attributes = self._attributes(tracked, now_ns)
        if (is_old or attributes != tracked.reported) and not self._rate_limit.try_take(
            now_ns / 1e9
        ):
            return self._publish(publisher, tracked, attributes, now_ns)
        return True

    def _publish_resync(self, publisher: EventPublisher, now_ns: int) -> bool:
        """Announce once per GPU that all its present processes were reported."""
        for gpu in self._processes.gpus:
            self._since.setdefault(gpu, now_ns)
        waiting = {
            tracked.gpu_process.gpu for tracked in self._processes if tracked.reported_ns is None
        }
        for gpu in [g for g in self._processes.gpus if self._since[g] and g not in waiting]:
            event = resync_event(self._boot, EVENT, "gpu", gpu, self._since[gpu], now_ns)
            if not publisher.publish(event):
                return False
            self._since[gpu] = 0
        return True

    def _publish(
        self,
        publisher: EventPublisher,
        tracked: TrackedProcess,
        attributes: dict[str, str],
        now_ns: int,
    ) -> bool:
        wall_ns = self._clock.wall_ns() - (now_ns - tracked.since_ns)
        if not publisher.publish(self._event(tracked, attributes, wall_ns, now_ns)):
            return False
        tracked.reported, tracked.reported_ns = attributes, now_ns
        return True

    def _event(
        self, tracked: TrackedProcess, attributes: dict[str, str], wall_ns: int, now_ns: int
    ) -> HealthEvent:
        gpu, pid, instance, compute, _ = tracked.gpu_process
        start = tracked.snapshot.start_ticks if tracked.snapshot else 0
        name = tracked.snapshot.name[:NAME_CHARACTERS_MAX] if tracked.snapshot else ""
        instance_label = "" if instance is None else f"{instance}.{compute}"
        tracked.event_id = (
            tracked.event_id or f"{self._boot}/{gpu[:48]}/{instance_label}/{pid}/{start}"
        )
        return HealthEvent(
            event_id=tracked.event_id,
            device_kind="gpu",
            device=gpu,
            name=EVENT,
            message=message_of(attributes, pid, name),
            boottime_ns=tracked.since_ns,
            last_boottime_ns=now_ns,
            wall_time_ns=wall_ns,
            revision=revision_at(now_ns),
            process_id=pid,
            process_name=name,
            attributes=attributes,
        )

    def _attributes(self, tracked: TrackedProcess, now_ns: int) -> dict[str, str]:
        attributes = {
            "state": "dead" if tracked.is_dead else "running",
            "source": tracked.source or "unknown",
        }
        numbers = {
            "gpu_instance": tracked.gpu_process.gpu_instance,
            "compute_instance": tracked.gpu_process.compute_instance,
        }
        if tracked.is_dead:
            attributes["dead"] = tracked.state.value
        if not tracked.source:
            attributes["unknown"] = self._unknown_reason(tracked)
        if tracked.snapshot and not tracked.is_reused:
            numbers["start_nanoseconds"] = tracked.snapshot.start_ticks * TICK_NS
            numbers["user_id"] = tracked.snapshot.user_id
            numbers["namespace_pid"] = tracked.snapshot.namespace_pid
            attributes |= tracked.snapshot.owner.attributes()
            pod = self._pod(uid, now_ns) if (uid := attributes.get("pod_uid")) else None
            attributes |= {"namespace": pod.namespace, "pod": pod.name} if pod else {}
            identity = tracked.gpu_process.pid, tracked.snapshot.start_ticks
            attributes |= {
                name: value
                for name, value in self._ranks_of.get(identity, {}).items()
                if name not in MPS_LIMITS
            }
            if facts := self._isolation.text_of(identity):
                attributes[ATTRIBUTE] = facts
        return attributes | {
            name: str(number) for name, number in numbers.items() if number is not None
        }

    def _unknown_reason(self, tracked: TrackedProcess) -> str:
        if tracked.is_dead and tracked.snapshot is None:
            return GONE
        if self._is_foreign:
            return FOREIGN
        if tracked.is_reused:
            return REUSED
        return HIDDEN if tracked.state is ProcessState.HIDDEN else NO_GROUP

    def _fill(self) -> Block:
        by_gpu: dict[str, list[TrackedProcess]] = {gpu: [] for gpu in self._processes.gpus}
        for tracked in self._processes:
            by_gpu[tracked.gpu_process.gpu].append(tracked)
        block = block_of(self._block or Block("gpu_job_1s_changes", ()), by_gpu)
        for row, processes in enumerate(by_gpu.values()):
            counts = counts_of(processes)
            for name, value in signals_of(counts).items():
                block.put_float(index_of(name), row, value)
        return block


def signals_of(counts: GpuProcessCounts) -> dict[str, float | None]:
    return {
        "gpu_job.processes_count": counts.processes,
        "gpu_job.jobs_count": counts.jobs,
        "gpu_job.in_jobs_count": counts.in_jobs,
        "gpu_job.others_count": counts.others,
        "gpu_job.unknown_count": counts.unknown,
        "gpu_job.dead_count": counts.dead,
        "gpu_job.dead_memory_bytes": counts.dead_memory_bytes,
    }
