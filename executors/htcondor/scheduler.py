"""HTCondor, through its commands: `condor_status`, `condor_q`, `condor_drain`.

A mark is a graceful drain of the machine with Gangline's reason: running jobs continue for up to MAXJOBRETIREMENTTIME.
HTCondor never ends a drain, so a drain lasts until the executor or `undo` cancels it, by the drain's request id.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from .. import model
from ..scheduler_command import Run, run_command
from ..settings import DrainingConfig, ExecutorConfig, cluster_setting, drain_mark
from ..site import SchedulerSite

SLOT_ATTRIBUTES = "Name,Machine,JobId,State,Activity,Draining,DrainReason,DrainingRequestId,DaemonStartTime,MaxJobRetirementTime,RetirementTimeRemaining"
JOB_ATTRIBUTES = (
    "ClusterId,ProcId,JobUniverse,JobStatus,RemoteHost,AllRemoteHosts,NumShadowStarts,QDate,JobCurrentStartDate,"
    "EnteredCurrentStatus,RequestGpus,CurrentHosts"
)
PARALLEL_UNIVERSE = 11
JOB_STATES = {
    1: "PENDING", 2: "RUNNING", 3: "CANCELLED", 4: "COMPLETED", 5: "HELD", 6: "RUNNING", 7: "SUSPENDED",
}  # fmt: skip
#: Limit and period of the wait until the machine has reported a drain to the collector.
VISIBLE_SECONDS_MAX, VISIBLE_POLL_SECONDS = 3.0, 0.1
#: A busy machine is drained only if its jobs may continue for at least this long.
RETIREMENT_SECONDS_MIN = 86_400.0
#: The machine evaluates this expression for each slot before it begins to drain, and refuses with CHECK_FAILED.
SAFE_TO_DRAIN = f'State =!= "Claimed" || MaxJobRetirementTime >= {RETIREMENT_SECONDS_MIN:.0f}'
#: Check of `_restore_retirement`: a slot in state Drained would skip the state that resets MaxJobRetirementTime.
IDLE = 'State =?= "Unclaimed" || State =?= "Owner"'
CHECK_FAILED = "Draining check expression is false"
HOW_TO_RETIRE = (
    f"Set MAXJOBRETIREMENTTIME to {RETIREMENT_SECONDS_MIN:.0f} or more; where it is, an earlier drain has left 0, "
    "and a drain and a cancel while the machine is idle restore it"
)
JOB_NAME = re.compile(r"[0-9]{1,10}\.[0-9]{1,10}", re.ASCII)


class HTCondor(model.Scheduler):
    """HTCondor, through its commands; tests of parsing replace *run*."""

    name = "htcondor"

    def __init__(
        self,
        run: Run = run_command,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._run, self._monotonic, self._sleep = run, monotonic, sleep
        #: Machines that this process saw with an executor's drain: a startd forgets its drain when it restarts.
        self._drained: set[str] = set()

    def capabilities(self) -> model.Capabilities:
        """Return the capabilities of this version."""
        found = re.search(r"CondorVersion: ([0-9.]+)", self._run(["condor_version"]))
        return model.Capabilities(found.group(1) if found else "", has_hold=False)

    def read_nodes(self, names: Collection[str] | None = None) -> dict[str, model.Node]:
        """Return machines by name; all if *names* is None."""
        slots = self.slots(names)
        nodes = {name: node_of(name, several) for name, several in slots.items()}
        self._drained |= {node.name for node in nodes.values() if node.is_managed}
        return nodes

    def read_jobs(self) -> dict[str, model.ScheduledJob]:
        """Return jobs that run or wait; an ended job leaves HTCondor's queue."""
        return parse_jobs(
            self._list(["condor_q", "-allusers", "-json", "-attributes", JOB_ATTRIBUTES])
        )

    def read_holds(self) -> dict[str, model.NodeHold]:
        """Return no holds: a drain is the only mark."""
        return {}

    def started(self) -> float:
        """Return the latest start of a startd that lost an executor's drain; 0: none did."""
        slots = self.slots(self._drained) if self._drained else {}
        lost = [several for name, several in slots.items() if not node_of(name, several).is_managed]
        return max((_number(slot, "DaemonStartTime") for s in lost for slot in s), default=0.0)

    def apply(self, steps: Iterable[model.Step]) -> dict[model.Step, str]:
        """Carry out *steps*, up to TOGETHER_MAX in parallel."""
        todo = list(steps)
        errors = model.together(
            [partial(model.attempt, partial(self._apply_one, step)) for step in todo]
        )
        return {step: error for step, error in zip(todo, errors, strict=True) if error}

    def _apply_one(self, step: model.Step) -> None:
        match step:
            case model.Drain(node=node, reason=reason):
                self._drain(node, reason)
            case model.Resume(node=node):
                self._cancel(node)
            case model.Requeue():
                raise model.SchedulerError(
                    "in HTCondor its owner moves it, by condor_hold and condor_release"
                )
            case _:
                raise model.SchedulerError(f"{type(step).__name__} is not a step of HTCondor")

    def _drain(self, node: str, reason: str) -> None:
        slots = self.slots([node]).get(node, [])
        before = node_of(node, slots)
        if before.is_managed and before.reason.startswith(reason.partition(";ttl=")[0]):
            return
        if before.is_managed:  # for another action, for example after the fault became more severe
            self._cancel(node)
        # The machine checks too, because a job may start there between the reading above and the drain.
        try:
            self._run(
                ["condor_drain", "-graceful", "-reason", reason, "-check", SAFE_TO_DRAIN, node]
            )
        except model.SchedulerError as error:
            if CHECK_FAILED not in str(error):
                raise
            raise model.SchedulerError(
                f"{node}: a drain would evict its jobs: MaxJobRetirementTime is below {RETIREMENT_SECONDS_MIN:.0f} s there. {HOW_TO_RETIRE}"
            ) from error
        self._drained.add(node)
        self._wait_for(node, lambda shown: shown.is_managed)

    def _cancel(self, node: str) -> None:
        """Cancel the executor's drain by its request id: the machine refuses if a person's drain has replaced it."""
        slots = self.slots([node]).get(node, [])
        self._cancel_requests(node, slots)
        shown = node_of(node, slots)
        if shown.is_managed and any(not _number(slot, "MaxJobRetirementTime") for slot in slots):
            self._restore_retirement(node, shown.reason)
        self._drained.discard(node)

    def _cancel_requests(self, node: str, slots: Iterable[Mapping[str, Any]]) -> None:
        for number in {str(slot.get("DrainingRequestId")) for slot in slots if _is_managed(slot)}:
            self._run(["condor_drain", "-cancel", "-request-id", number, node])
            self._wait_for(node, lambda shown: not shown.is_managed and shown.state != "Drained")

    def _restore_retirement(self, node: str, reason: str) -> None:
        """Restore MaxJobRetirementTime: drain the idle machine again, and cancel this drain.

        When the last job leaves a draining machine, its startd sets MaxJobRetirementTime to 0, and a cancel does not restore it
        (seen with 23.9.6): the next drain would evict jobs at once. A drain of an idle machine restores the value. If a job has
        started there in the meantime, the machine refuses this drain.
        """
        try:
            self._run(["condor_drain", "-graceful", "-reason", reason, "-check", IDLE, node])
        except model.SchedulerError as error:
            if CHECK_FAILED not in str(error):
                raise
            return
        self._wait_for(node, lambda shown: shown.is_managed)
        self._cancel_requests(node, self.slots([node]).get(node, []))

    def _wait_for(self, node: str, condition: Callable[[model.Node], bool]) -> None:
        """Wait until the collector's view of *node* meets *condition*, at most VISIBLE_SECONDS_MAX."""
        end = self._monotonic() + VISIBLE_SECONDS_MAX
        while self._monotonic() < end:
            if condition(node_of(node, self.slots([node]).get(node, []))):
                return
            self._sleep(VISIBLE_POLL_SECONDS)

    def slots(self, names: Collection[str] | None = None) -> dict[str, list[Mapping[str, Any]]]:
        """Return the slots by machine. Invalid *names* are skipped, because names become part of an expression."""
        command = ["condor_status", "-json", "-attributes", SLOT_ATTRIBUTES]
        if names is not None:
            known = sorted(name for name in names if model.NODE_NAME.fullmatch(name))
            if not known:
                return {}
            command += ["-constraint", f'stringListIMember(Machine, "{",".join(known)}")']
        found: dict[str, list[Mapping[str, Any]]] = {}
        for slot in self._list(command):
            name = slot.get("Machine")
            if isinstance(name, str) and model.NODE_NAME.fullmatch(name):
                found.setdefault(name, []).append(slot)
        return found

    def _list(self, command: list[str]) -> list[Mapping[str, Any]]:
        """Return the ads that *command* prints; HTCondor prints nothing at all if there are no ads."""
        text = self._run(command)
        try:
            ads = json.loads(text) if text.strip() else []
        except (ValueError, RecursionError) as error:
            raise model.SchedulerError(f"{command[0]}: its output is not JSON") from error
        return [ad for ad in ads if isinstance(ad, dict)] if isinstance(ads, list) else []


def doctor_findings(condor: HTCondor) -> Iterable[model.DoctorFinding]:
    """Yield missing settings and unexpected behavior. Raises SchedulerError if HTCondor does not respond."""
    version = condor.capabilities().version
    slots = condor.slots()
    yield model.DoctorFinding(
        model.DoctorLevel.OK, f"HTCondor {version} answers: {len(slots)} machines"
    )
    short = sorted(
        name
        for name, several in slots.items()
        if any(_number(slot, "MaxJobRetirementTime") < RETIREMENT_SECONDS_MIN for slot in several)
    )
    if short:
        named = ", ".join(short[:5]) + (" ..." if len(short) > 5 else "")
        yield model.DoctorFinding(
            model.DoctorLevel.MISSING,
            f"MaxJobRetirementTime is below {RETIREMENT_SECONDS_MIN:.0f} s on {len(short)} machines ({named}): "
            f"while jobs run there, they are not drained. {HOW_TO_RETIRE}",
        )
    condor.read_jobs()
    yield model.DoctorFinding(
        model.DoctorLevel.NOTE,
        "a drain does not expire: it lasts until the executor or `undo --all` cancels it",
    )


def _is_managed(slot: Mapping[str, Any]) -> bool:
    return slot.get("Draining") is True and str(slot.get("DrainReason")).startswith(
        model.REASON_PREFIX
    )


def node_of(name: str, slots: Iterable[Mapping[str, Any]]) -> model.Node:
    """Return the node of a machine with *slots*."""
    several = list(slots)
    drained = next((slot for slot in several if slot.get("Draining") is True), None)
    states = {str(slot.get("State", "")) for slot in several}
    state = "Claimed" if "Claimed" in states else next(iter(sorted(states)), "")
    if drained is None:
        return model.Node(name, state, is_responding=bool(several))
    reason = str(drained.get("DrainReason", ""))[:500]
    is_managed = _is_managed(drained)
    return model.Node(
        name=name,
        state=state,
        reason=reason,
        is_responding=True,
        out=f"drained: {reason}",
        down="",
        is_managed=is_managed,
    )


def parse_jobs(ads: Iterable[Mapping[str, Any]]) -> dict[str, model.ScheduledJob]:
    """Return jobs by name, `cluster.proc`; a job of the parallel universe may hold several machines."""
    jobs: dict[str, model.ScheduledJob] = {}
    for ad in ads:
        name = f"{_number(ad, 'ClusterId'):.0f}.{_number(ad, 'ProcId'):.0f}"
        status = int(_number(ad, "JobStatus"))
        if not JOB_NAME.fullmatch(name) or status not in JOB_STATES:
            continue
        is_parallel = _number(ad, "JobUniverse") == PARALLEL_UNIVERSE
        is_running = status in (2, 6, 7)
        listed = str(ad.get("AllRemoteHosts" if is_parallel else "RemoteHost") or "")
        hosts = [slot.rpartition("@")[2] for slot in listed.split(",")] if is_running else []
        starts = int(_number(ad, "NumShadowStarts"))
        jobs[name] = model.ScheduledJob(
            name=name,
            state=JOB_STATES[status],
            nodes=frozenset(filter(model.NODE_NAME.fullmatch, hosts)),
            # A job that waits after a start was requeued.
            restarts=max(0, starts - 1 if is_running else starts),
            may_requeue=False,
            gpus=int(_number(ad, "RequestGpus") * max(1.0, _number(ad, "CurrentHosts"))),
            submitted=_number(ad, "QDate"),
            started=_number(ad, "JobCurrentStartDate") if is_running else 0.0,
            ended=_number(ad, "EnteredCurrentStatus") if status in (3, 4) else 0.0,
        )
    return jobs


def _number(ad: Mapping[str, Any], name: str) -> float:
    """Return the number *name* of an ad; 0 if the value is not a number.

    Expressions are text such as `/Expr(30 * 86400)/`; only a number or a product of two numbers is read.
    """
    value = ad.get(name)
    if isinstance(value, str):
        match = re.fullmatch(r"/Expr\(([0-9]{1,12})(?: \* ([0-9]{1,12}))?\)/", value)
        return float(match.group(1)) * float(match.group(2) or 1) if match else 0.0
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    return float(value)


@dataclass(frozen=True)
class HTCondorConfig(DrainingConfig):
    """Settings of an executor of an HTCondor pool."""

    cluster: str = cluster_setting("htcondor", "pool")
    mark: str = drain_mark("by condor_drain -graceful")


class HTCondorSite(SchedulerSite):
    """HTCondor through its commands."""

    title = "HTCondor"

    def __init__(self, config: ExecutorConfig) -> None:
        super().__init__(config)
        self._condor = HTCondor()
        self.scheduler = self._condor

    def findings(self, attempt: bool) -> Iterable[model.DoctorFinding]:
        """Yield the findings of HTCondor's doctor; *attempt* is ignored: a drain has no dry run."""
        del attempt
        return doctor_findings(self._condor)
