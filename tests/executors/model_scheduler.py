"""A scheduler in memory: nodes, jobs and holds that behave as Slurm's do, as far as executors see."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from gangline.executors.model import (
    Capabilities,
    Drain,
    EndStep,
    ExtendHold,
    Node,
    NodeHold,
    PlaceHold,
    Reboot,
    RemoveHold,
    Requeue,
    ResetGpus,
    Resume,
    ScheduledJob,
    Scheduler,
    SchedulerError,
    SetWeight,
    StartNow,
    Step,
)


class ModelScheduler(Scheduler):
    """A scheduler whose free nodes take waiting jobs at each read."""

    name = "model"

    def __init__(
        self,
        nodes: Iterable[str],
        *,
        drain_ends: bool = False,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._wall, self._drain_ends = wall, drain_ends
        self.nodes = {name: Node(name, "IDLE", weight=1) for name in nodes}
        self.jobs: dict[str, tuple[ScheduledJob, int]] = {}
        self.holds: dict[str, NodeHold] = {}
        self.commands: list[Step] = []
        self._drain_until: dict[str, float] = {}
        #: Jobs whose requeue is refused for now.
        self.fixed: set[str] = set()
        #: Raised in place of an answer while the scheduler is unavailable.
        self.is_away = False

    def capabilities(self) -> Capabilities:
        return Capabilities("model", self._drain_ends)

    def read_nodes(self, names: Collection[str] | None = None) -> dict[str, Node]:
        self._turn()
        return {name: node for name, node in self.nodes.items() if names is None or name in names}

    def read_jobs(self) -> dict[str, ScheduledJob]:
        self._turn()
        return {name: job for name, (job, _) in self.jobs.items()}

    def read_holds(self) -> dict[str, NodeHold]:
        self._turn()
        return dict(self.holds)

    def apply(self, steps: Iterable[Step]) -> dict[Step, str]:
        errors: dict[Step, str] = {}
        for step in steps:
            self._turn()
            try:
                self.apply_one(step)
                self.commands.append(step)
            except SchedulerError as error:
                errors[step] = str(error)
        return errors

    def apply_one(self, step: Step) -> None:
        now = self._wall()
        match step:
            case PlaceHold(hold=hold, node=node, seconds=seconds):
                others = [h for h in self.holds.values() if node in h.nodes and h.name != hold]
                if others and not step.overlaps:
                    raise SchedulerError("Requested reservation overlaps")
                self.holds[hold] = NodeHold(hold, frozenset([node]), now + seconds)
            case ExtendHold(hold=hold, seconds=seconds):
                if hold not in self.holds:
                    raise SchedulerError(f"{hold}: no such hold")
                self.holds[hold] = replace(self.holds[hold], ends=now + seconds)
            case RemoveHold(hold=hold):
                self.holds.pop(hold, None)
            case Drain(node=node, reason=reason, seconds=seconds, down=down):
                state = "DOWN" if down else "DRAIN"
                self.drain(node, reason, state)
                if self._drain_ends:
                    self._drain_until[node] = now + seconds
            case Resume(node=node):
                self.resume(node)
            case Requeue(job=job):
                self._requeue(job)
            case StartNow(job=job):
                job_state, count = self.jobs[job]
                self.jobs[job] = replace(job_state, waits_for_begin_time=False), count
            case SetWeight(nodes=nodes, weight=weight):
                for name in nodes:
                    self.nodes[name] = replace(self.nodes[name], weight=weight)
            case EndStep() | Reboot() | ResetGpus():
                pass
            case _:
                raise SchedulerError(f"unknown {step}")

    def _requeue(self, name: str) -> None:
        job, count = self.jobs[name]
        if not job.may_requeue or name in self.fixed:
            raise SchedulerError("Requested operation is presently disabled")
        if not job.is_running:
            raise SchedulerError("ScheduledJob is pending execution")
        job = replace(
            job, state="PENDING", nodes=frozenset(), restarts=job.restarts + 1, waits_for_begin_time=True,
        )  # fmt: skip
        self.jobs[name] = job, count

    def _turn(self) -> None:
        if self.is_away:
            raise SchedulerError("no answer")
        now = self._wall()
        self.holds = {name: h for name, h in self.holds.items() if not h.ends or h.ends > now}
        for node in [name for name, until in self._drain_until.items() if until <= now]:
            self.resume(node)
        for name, (job, count) in self.jobs.items():
            if job.state == "PENDING" and not job.waits_for_begin_time:
                free = sorted(self._free(), key=lambda one: (self.nodes[one].weight or 0, one))
                if len(free) >= count:
                    self.jobs[name] = (
                        replace(job, state="RUNNING", nodes=frozenset(free[:count]), started=now), count,
                    )  # fmt: skip

    def _free(self) -> set[str]:
        busy = {node for job, _ in self.jobs.values() if job.is_running for node in job.nodes}
        held = {node for hold in self.holds.values() for node in hold.nodes}
        return {n.name for n in self.nodes.values() if n.state == "IDLE"} - busy - held

    def submit(self, count: int, *, may_requeue: bool = True, spares: bool = False) -> str:
        name = str(len(self.jobs) + 1)
        job = ScheduledJob(
            name, "PENDING", may_requeue=may_requeue, restarts_itself=spares, gpus=4 * count,
            submitted=self._wall(),
        )  # fmt: skip
        self.jobs[name] = job, count
        self._turn()
        return name

    def drain(self, node: str, reason: str, state: str = "DRAIN") -> None:
        ours = reason.startswith("gangline:v1;")
        out = "" if ours and state == "DOWN" else f"{state}: {reason}"
        self.nodes[node] = Node(
            node, state, reason, True, out, "", ours, ours, weight=self.nodes[node].weight
        )

    def resume(self, node: str) -> None:
        self.nodes[node] = Node(node, "IDLE", weight=self.nodes[node].weight)
        self._drain_until.pop(node, None)

    def set_weight(self, node: str, weight: int) -> None:
        self.nodes[node] = replace(self.nodes[node], weight=weight)

    def end(self, name: str) -> None:
        job, count = self.jobs[name]
        self.jobs[name] = replace(job, state="COMPLETED", ended=self._wall()), count
