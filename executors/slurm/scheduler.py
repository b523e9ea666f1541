"""Slurm, through its commands only: `scontrol`, `squeue`, `scancel`.

Users choose names and comments of jobs, so `squeue` lists jobs only with fields that users cannot write. The comment of each
job is read by a separate command. Parsing is separate from running commands.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from functools import partial

from ...contract.host_sets import fold_hosts
from .. import model
from ..mirror_format import MirrorError
from ..scheduler_command import Run, host_names, run_command, site_command
from . import output as slurm_output
from . import pending_job

#: Limit of names in a command line.
NODES_PER_COMMAND = 500
#: First version with `resumeafter`, by which a drain ends by itself.
DRAIN_ENDS_VERSION = (23, 11)


#: First listing of `squeue`, with fields that a user cannot fill with free text. `%i` names parts of heterogeneous jobs
#: and array tasks.
IDENTITY_FORMAT = "%A|%i|%T|%D|%S|%e|%V|%b|%N"
#: Second listing: field and width of each column.
COUNT_FORMAT = "JobID:16,RestartCnt:16,Requeue:16,EligibleTime:24"


class Slurm(model.Scheduler):
    """Slurm, through its commands; tests of parsing replace *run*."""

    name = "slurm"

    def __init__(
        self, run: Run = run_command, reset_command: str = "", release_command: str = ""
    ) -> None:
        """*reset_command*, *release_command*: the site's commands, with `{node}` for the node's name; "" for none."""
        self._run = run
        self._reset_command, self._release_command = reset_command, release_command
        #: (job, submit time) -> comment.
        self._comments: dict[tuple[str, float], str] = {}

    def capabilities(self) -> model.Capabilities:
        """Return the capabilities of this version."""
        text = self._run(["scontrol", "--version"]).strip()
        version = text.split()[-1] if text else ""
        numbers = tuple(int(part) for part in re.findall(r"[0-9]+", version)[:2])
        # slurmd refuses a credential issued in the same second in which the job's previous credential was revoked: "Job
        # already killed, do not launch batch job". Seen in 8 of 14 requeues on 22.05.8.
        return model.Capabilities(version, numbers >= DRAIN_ENDS_VERSION, restart_next_second=True)

    def read_nodes(self, names: Collection[str] | None = None) -> dict[str, model.Node]:
        """Return nodes by name; all if *names* is None."""
        if names is None:
            return slurm_output.parse_nodes(self._run(["scontrol", "-o", "show", "node"]))
        known = sorted(name for name in names if model.NODE_NAME.fullmatch(name))
        found: dict[str, model.Node] = {}
        for start in range(0, len(known), NODES_PER_COMMAND):
            listed = known[start : start + NODES_PER_COMMAND]
            try:
                text = self._run(["scontrol", "-o", "show", "node", ",".join(listed)])
            except model.SchedulerError as error:
                if "not found" not in str(error):
                    raise
                text = ""  # some versions print no node at all if any name is unknown
                for name in listed:
                    text += self._read_node(name)
            found |= slurm_output.parse_nodes(text)
        return found

    def _read_node(self, name: str) -> str:
        try:
            return self._run(["scontrol", "-o", "show", "node", name])
        except model.SchedulerError as error:
            if "not found" in str(error):
                return ""
            raise

    def read_jobs(self) -> dict[str, model.ScheduledJob]:
        """Return jobs by number; a heterogeneous job is named by its first part."""
        listing = ["squeue", "--noheader", "--all", "--array", "--states=all"]
        identity = self._run([*listing, f"--format={IDENTITY_FORMAT}"])
        counts = self._run([*listing, f"--Format={COUNT_FORMAT}"])
        jobs = slurm_output.parse_jobs(identity, counts, time.time())
        return {name: self._with_comment(job) for name, job in jobs.items()}

    def _with_comment(self, job: model.ScheduledJob) -> model.ScheduledJob:
        if not job.is_running:
            return job
        key = (job.name, job.submitted)
        comment = self._comments.get(key)
        if comment is None:
            try:
                comment = self._run(["squeue", "--noheader", f"--jobs={job.name}", "--format=%k"])
            except model.SchedulerError:  # the job has ended in the meantime
                return job
            if len(self._comments) >= slurm_output.COMMENTS_MAX:
                self._comments.clear()
            self._comments[key] = comment
        return slurm_output.apply_comment(job, comment)

    def read_holds(self) -> dict[str, model.NodeHold]:
        """Return the active reservations by name."""
        text = self._run(["scontrol", "-o", "show", "reservation"])
        return slurm_output.parse_reservations(text)

    def started(self) -> float:
        """Return when slurmctld started."""
        text = self._run(["scontrol", "show", "config"])
        match = re.search(r"^BOOT_TIME\s*=\s*(\S+)", text, re.MULTILINE)
        return slurm_output._seconds(match.group(1)) if match else 0.0

    def apply(self, steps: Iterable[model.Step]) -> dict[model.Step, str]:
        """Carry out *steps*; drains with equal settings, and all resumes, share a command."""
        calls: list[tuple[list[model.Step], Callable[[], object]]] = []
        updates: dict[tuple[str, ...], list[model.Drain | model.Resume]] = {}
        for step in steps:
            match step:
                case model.Drain(seconds=seconds, down=down):
                    state = "down" if down else "drain"
                    assignments = [f"state={state}", f"reason={step.reason}"]
                    if self.capabilities_cached.drain_ends:
                        assignments.append(f"resumeafter={max(1, round(seconds))}")
                    updates.setdefault(tuple(assignments), []).append(step)
                case model.Resume():
                    updates.setdefault(("state=resume",), []).append(step)
                case _:
                    calls.append(([step], partial(self._apply_one, step)))
        for update, same in updates.items():
            nodes = ",".join(step.node for step in same)
            command = ["scontrol", "update", f"nodename={nodes}", *update]
            calls.append(([*same], partial(self._run, command)))
        found = model.together([partial(model.attempt, call) for _, call in calls])
        return {
            step: error
            for (several, _), error in zip(calls, found, strict=True)
            for step in several
            if error
        }

    @property
    def capabilities_cached(self) -> model.Capabilities:
        """Capabilities of this version, read once."""
        if self._capabilities is None:
            self._capabilities = self.capabilities()
        return self._capabilities

    _capabilities: model.Capabilities | None = None

    def _apply_one(self, step: model.Step) -> None:
        match step:
            case model.PlaceHold():
                self._place(step)
            case model.ExtendHold(hold=hold, seconds=seconds):
                self._run(["scontrol", "update", f"reservationname={hold}", _end_word(seconds)])
            case model.RemoveHold(hold=hold):
                self._remove(hold)
            case model.Requeue(job=job, node=node):
                if node and (reason := self._obstacle(job, node)):
                    raise model.SchedulerError(f"it can run nowhere else: {reason}")
                self._run(["scontrol", "requeue", job])
            case model.StartNow(job=job, begin=begin):
                # `uts`: seconds since 1970, independent of the time zone.
                start = f"starttime=uts{begin:.0f}" if begin else "starttime=now"
                for part in step.parts or self._parts(job):
                    self._start(part, start)
            case model.EndStep(job=job, node=node):
                self._end_steps(job, node)
            case model.Reboot(node=node, reason=reason):
                if self._release_command:
                    self._run(site_command(self._release_command, node))
                self._run(
                    ["scontrol", "reboot", "asap", "nextstate=resume", f"reason={reason}", node]
                )
            case model.SetWeight(nodes=nodes, weight=weight):
                self._run(
                    ["scontrol", "update", f"nodename={fold_hosts(nodes)}", f"weight={weight}"]
                )
            case model.ResetGpus(node=node):
                if self._release_command:
                    self._run(site_command(self._release_command, node))
                self._run(site_command(self._reset_command, node))
            case _:
                raise model.SchedulerError(f"{type(step).__name__} is not a step of Slurm")

    def _obstacle(self, job: str, node: str) -> str:
        """Return why *job* could not run without *node*; "" if no obstacle is known."""
        commands = (["-o", "show", "job", job], ["-d", "-o", "show", "node"], ["-o", "show", "reservation"], ["-o", "show", "license"])  # fmt: skip
        try:
            shown, nodes, reservations, shown_licenses = model.together(
                [partial(self._run, ["scontrol", *command]) for command in commands]
            )
            found = pending_job.parse_nodes(nodes)
            reserved = pending_job.parse_reservations(reservations)
            licenses = pending_job.parse_licenses(shown_licenses)
            parts = [pending_job.parse_job(line) for line in shown.splitlines() if "JobId=" in line]
        except (model.SchedulerError, MirrorError):
            return ""
        reasons = (pending_job.obstacle(part, found, reserved, node, licenses) for part in parts)
        return next(filter(None, reasons), "")

    def _start(self, part: str, start: str) -> None:
        try:
            self._run(["scontrol", "update", f"jobid={part}", start])
        except model.SchedulerError as error:
            if "no longer pending" not in str(error):  # the job already runs
                raise

    def _place(self, step: model.PlaceHold) -> None:
        flags = "ignore_jobs,overlap" if step.overlaps else "ignore_jobs"
        try:
            self._run(
                [
                    "scontrol", "create", "reservation", f"reservationname={step.hold}", f"nodes={step.node}",
                    "starttime=now", _end_word(step.seconds), "users=root", f"flags={flags}",
                ]
            )  # fmt: skip
        except model.SchedulerError as error:
            if "Duplicate" in str(error) or (
                "name" in str(error).lower() and step.hold in self.read_holds()
            ):
                self._run(
                    ["scontrol", "update", f"reservationname={step.hold}", _end_word(step.seconds)]
                )
                return
            if step.overlaps or "overlap" not in str(error).lower():
                raise
            self._place(replace(step, overlaps=True))

    def _remove(self, hold: str) -> None:
        try:
            self._run(["scontrol", "delete", f"reservationname={hold}"])
        except model.SchedulerError:
            if hold in self.read_holds():
                raise

    def _parts(self, job: str) -> list[str]:
        """Return the numbers of all parts of *job*."""
        text = self._run(["squeue", "--noheader", "--all", f"--jobs={job}", "--format=%A"])
        parts = [line.strip() for line in text.splitlines() if line.strip().isdecimal()]
        return parts or [job]

    def _end_steps(self, job: str, node: str) -> None:
        """End only the steps on *node*: a step that was already restarted on other nodes continues."""
        text = self._run(["squeue", "--noheader", "--steps", f"--jobs={job}", "--format=%i %N"])
        found = (
            re.fullmatch(r"([0-9+]+\.[0-9]+) (\S+)", line.strip()) for line in text.splitlines()
        )
        steps = [one[1] for one in found if one is not None and node in host_names(one[2])]
        if steps:
            self._run(["scancel", *steps])


def _end_word(seconds: float) -> str:
    """Return the option that ends a reservation in *seconds*, by the controller's clock."""
    return f"endtime=now+{max(1, int(seconds))}seconds"
