"""Flux, through its commands: `flux resource status`, `drain`, `undrain` and `flux jobs`.

A mark is a drain with Gangline's reason: running jobs continue, and drains survive a restart of Flux. Flux never ends a
drain, so a drain lasts until the executor or `undo` ends it. Flux rejects draining a drained node, so no foreign reason is
overwritten.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from ...contract.text import counted
from .. import model
from ..scheduler_command import Run, host_names, host_names_or_problem, run_command
from ..settings import DrainingConfig, ExecutorConfig, cluster_setting, drain_mark
from ..site import SchedulerSite

#: Fields documented in flux-resource(1) and flux-jobs(1); the reason comes last because it may contain the separator.
NODE_FORMAT = "{statex}|{status}|{nodelist}|{reason}"
JOB_FORMAT = "{id.hex}|{status}|{nodelist}|{t_submit}|{t_run}|{t_inactive}"
JOBS_MAX = 100_000
#: The list of jobs includes jobs that ended within this time.
SINCE = "-10m"
JOB_ID = re.compile(r"0x[0-9a-f]{1,16}", re.ASCII)
JOB_STATES = {
    "PENDING": "PENDING", "RUNNING": "RUNNING", "COMPLETED": "COMPLETED", "FAILED": "FAILED", "CANCELED": "CANCELLED", "TIMEOUT": "TIMEOUT",
}  # fmt: skip
DRAINED = ("drained", "draining")


class Flux(model.Scheduler):
    """Flux, through its commands; tests replace *run*."""

    name = "flux"

    def __init__(self, run: Run = run_command) -> None:
        self._run = run

    def capabilities(self) -> model.Capabilities:
        """Return the capabilities of this version."""
        found = re.search(r"^commands:\s+(\S{1,40})", self._run(["flux", "version"]), re.MULTILINE)
        return model.Capabilities(found.group(1) if found else "", has_hold=False)

    def read_nodes(self, names: Collection[str] | None = None) -> dict[str, model.Node]:
        """Return nodes by name; all if *names* is None."""
        command = ["flux", "resource", "status", "--no-header", f"--format={NODE_FORMAT}"]
        nodes: dict[str, model.Node] = {}
        for line in self._run(command).splitlines():
            state, status, listed, reason = [*line.split("|", 3), "", "", ""][:4]
            for name in filter(model.NODE_NAME.fullmatch, host_names(listed)):
                nodes[name] = node_of(name, state.strip(), status.strip(), reason.strip())
        return nodes if names is None else {name: nodes[name] for name in names if name in nodes}

    def read_jobs(self) -> dict[str, model.ScheduledJob]:
        """Return jobs that run, wait or have just ended."""
        command = [
            "flux", "jobs", "-A", f"--since={SINCE}", f"--count={JOBS_MAX}", "--no-header", f"--format={JOB_FORMAT}",
        ]  # fmt: skip
        jobs: dict[str, model.ScheduledJob] = {}
        for line in self._run(command).splitlines():
            fields = line.split("|")
            if len(fields) != 6 or not JOB_ID.fullmatch(fields[0]) or fields[1] not in JOB_STATES:
                continue
            name, state = fields[0], JOB_STATES[fields[1]]
            is_running = state == "RUNNING"
            listed, problem = host_names_or_problem(fields[2]) if is_running else ([], "")
            nodes = frozenset(filter(model.NODE_NAME.fullmatch, listed))
            submitted, started, ended = map(_seconds, fields[3:])
            jobs[name] = model.ScheduledJob(
                name, state, nodes, submitted=submitted, started=started if is_running else 0.0,
                ended=ended if state not in ("PENDING", "RUNNING") else 0.0, problem=problem,
            )  # fmt: skip
        return jobs

    def read_holds(self) -> dict[str, model.NodeHold]:
        """Return no holds: a drain is the only mark."""
        return {}

    def apply(self, steps: Iterable[model.Step]) -> dict[model.Step, str]:
        """Carry out *steps*."""
        return model.apply_each(steps, self._apply_one)

    def _apply_one(self, step: model.Step) -> None:
        match step:
            case model.Drain(node=node, reason=reason):
                # The reason is read just before the change, so that a person's drain is neither renamed nor ended.
                before = self._node(node)
                if (
                    before.is_managed
                    and before.reason.partition(";ttl=")[0] == reason.partition(";ttl=")[0]
                ):
                    return
                force = ["--force"] if before.is_managed else []
                self._run(["flux", "resource", "drain", *force, node, reason])
            case model.Resume(node=node):
                if self._node(node).is_managed:
                    self._run(["flux", "resource", "undrain", node])
            case model.Requeue():
                raise model.SchedulerError("Flux requeues no job: its owner submits it again")
            case _:
                raise model.SchedulerError(f"{type(step).__name__} is not a step of Flux")

    def _node(self, name: str) -> model.Node:
        found = self.read_nodes([name]).get(name)
        if found is None:
            raise model.SchedulerError(f"{name} is not a node of this instance of Flux")
        return found


def node_of(name: str, state: str, status: str, reason: str) -> model.Node:
    """Return a node that Flux reports with *state* and *status*."""
    is_online = status != "offline"
    if state in DRAINED:
        is_managed = reason.startswith(model.REASON_PREFIX)
        return model.Node(
            name=name,
            state=state,
            reason=reason[:500],
            is_responding=is_online,
            out=f"{state}: {reason}"[:500],
            down="",
            is_managed=is_managed,
        )
    if state == "exclude":
        return model.Node(name, state, "", is_online, "excluded by configuration")
    is_down = state == "torpid" or not is_online
    return model.Node(
        name, state, "", not is_down, down=(state if is_online else status) if is_down else ""
    )


def _seconds(text: str) -> float:
    """Return a time in seconds since the epoch; 0 for an empty or invalid field."""
    return float(text) if re.fullmatch(r"[0-9]{1,12}(?:\.[0-9]{1,12})?", text.strip()) else 0.0


def doctor_findings(flux: Flux) -> Iterable[model.DoctorFinding]:
    """Yield the state of Flux and unexpected behavior. Raises SchedulerError if Flux does not respond."""
    version, nodes = flux.capabilities().version, flux.read_nodes()
    yield model.DoctorFinding(
        model.DoctorLevel.OK, f"Flux {version} answers: {counted(len(nodes), 'node')}"
    )
    flux.read_jobs()
    yield model.DoctorFinding(
        model.DoctorLevel.NOTE, "only the owner of the instance may drain nodes"
    )
    yield model.DoctorFinding(
        model.DoctorLevel.NOTE,
        "a drain does not expire: it lasts until the executor or `undo --all` ends it",
    )
    yield model.DoctorFinding(
        model.DoctorLevel.NOTE,
        "Flux requeues no job: EVICT_NOW drains the node, and its jobs continue",
    )


@dataclass(frozen=True)
class FluxConfig(DrainingConfig):
    """Settings of an executor of a Flux instance."""

    cluster: str = cluster_setting("flux", "instance")
    mark: str = drain_mark("by flux resource drain")


class FluxSite(SchedulerSite):
    """Flux through its commands."""

    title = "Flux"

    def __init__(self, config: ExecutorConfig) -> None:
        super().__init__(config)
        self._flux = Flux()
        self.scheduler = self._flux

    def findings(self, attempt: bool) -> Iterable[model.DoctorFinding]:
        """Yield the findings of Flux's doctor; *attempt* is ignored: a drain has no dry run."""
        del attempt
        return doctor_findings(self._flux)
