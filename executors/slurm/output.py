"""Parses the output of Slurm's commands: nodes, jobs, reservations and host names. No I/O."""

from __future__ import annotations

import re
import time
from dataclasses import replace

from ..model import HOLD_PREFIX, REASON_PREFIX, Node, NodeHold, ScheduledJob
from ..scheduler_command import NO_TIMES, host_names_or_problem
from .text import BUSY, DOWN, DRAINED, OUT, parse_reason, state_names
from .text import gpus_of as _gpus

#: Reasons that the controller writes when it sets a node DOWN.
CONTROLLER_REASONS = ("Not responding", "Node unexpectedly rebooted", "Low ")
CONTROLLER = "slurm"
NODE_HEAD = re.compile(r"NodeName=(\S+) .*? ?State=(\S+)")
ADDRESS = re.compile(r" NodeAddr=(\S{1,255})")
WEIGHT = re.compile(r" Weight=([0-9]{1,10})\b", re.ASCII)
JOB_LINE = re.compile(
    r"([0-9]{1,10})\|([0-9]{1,10})([+_][^|]*)?\|([A-Z_]{1,30})\|([0-9]{1,7})\|([^|]*)\|([^|]*)\|([^|]*)\|([^|]*)\|(.*)",
    re.ASCII,
)
COMMENT = re.compile(r"(?:^|[\s,;])gangline:([a-z_]{1,20})(?:=([0-9]{1,7}))?", re.ASCII)
CHECKPOINT_SECONDS_MAX = 7 * 86_400
#: Limit of cached comments; at the limit the cache is cleared.
COMMENTS_MAX = 100_000
#: Flags of a reservation whose jobs start on its nodes although another reservation holds these
#: nodes (seen on 22.05.8).
OVERRIDING_FLAGS = frozenset({"MAINT", "OVERLAP"})

ENDED_STATES = frozenset(
    {
        "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED",
        "TIMEOUT", "REVOKED",
    }
)  # fmt: skip


def parse_nodes(text: str) -> dict[str, Node]:
    """Return the nodes of `scontrol -o show node`."""
    nodes: dict[str, Node] = {}
    for line in text.splitlines():
        head = NODE_HEAD.match(line)
        if head is None:
            continue
        name, state = head.groups()
        before, _, behind = line.partition(" Reason=")
        reason, author = parse_reason(behind)
        # A reason is free text, and may contain `Weight=`.
        weight, address = WEIGHT.search(before), ADDRESS.search(before)
        nodes[name] = replace(
            node_of(name, state, reason, author),
            weight=int(weight[1]) if weight else None,
            address=address[1] if address else "",
        )
    return nodes


def node_of(name: str, state: str, reason: str, author: str) -> Node:
    """Return a node that Slurm reports with *state*, for *reason* by *author*."""
    names = state_names(state)
    is_drained = bool(names & DRAINED)
    # A host's check ends its own drain (`by=check`); such a drain does not take the node out, so jobs there are still
    # evicted.
    by_check = reason.startswith(REASON_PREFIX) and ";by=check" in reason
    is_managed = (
        reason.startswith(REASON_PREFIX) and ";adv=a" in reason and (is_drained or "DOWN" in names)
    )
    by_controller = author == CONTROLLER or reason.startswith(CONTROLLER_REASONS)
    shown = "+".join(sorted(names & (OUT | DOWN)))
    message = f"{shown}: {reason}" + (f" ({author})" if author else "") if reason else shown
    is_persons = not by_controller and (
        (is_drained and not by_check) or ("DOWN" in names and bool(reason))
    )
    is_out = is_persons or bool(names & (OUT - DRAINED))
    is_down = bool(names & DOWN) or (is_drained and by_controller)
    return Node(
        name=name,
        state=state,
        reason=reason,
        is_responding="NOT_RESPONDING" not in names,
        out=message if is_out else "",
        down=message if is_down and not is_out else "",
        is_managed=is_managed,
        may_drain=is_managed or not (is_drained or is_persons),
        is_busy=bool(names & BUSY),
    )


def parse_jobs(identity: str, counts: str, now: float) -> dict[str, ScheduledJob]:
    """Return the jobs of two listings of `squeue`, IDENTITY_FORMAT and COUNT_FORMAT.

    A job in only one listing began or ended between the two commands, and is left out.
    """
    counted: dict[str, tuple[int, bool, float]] = {}
    for line in counts.splitlines():
        fields = line.split()
        if len(fields) == 4 and fields[0].isdecimal() and fields[1].isdecimal():
            counted[fields[0]] = int(fields[1]), fields[2] == "1", _seconds(fields[3])
    jobs: dict[str, ScheduledJob] = {}
    expanded: dict[str, tuple[list[str], str]] = {}
    for line in identity.splitlines():
        match = JOB_LINE.fullmatch(line)
        if match is None or match.group(1) not in counted:
            continue
        number, shown, suffix, state, count, started, ended, submitted, gpus, listed = (
            match.groups()
        )
        # 3+1 is a part of job 3; 5_2 is an array task, which has its own job number.
        name = shown if suffix and suffix.startswith("+") else number
        restarts, may_requeue, eligible = counted[number]
        if listed not in expanded:
            expanded[listed] = host_names_or_problem(listed)
        nodes, problem = expanded[listed]
        part = ScheduledJob(
            name=name,
            state=state,
            nodes=frozenset(nodes),
            restarts=restarts,
            may_requeue=may_requeue,
            gpus=_gpus(gpus) * int(count),
            submitted=_seconds(submitted),
            started=_seconds(started),
            ended=_seconds(ended) if state in ENDED_STATES else 0.0,
            # The time decides, because Slurm sets the reason BeginTime a moment later.
            waits_for_begin_time=state == "PENDING" and restarts > 0 and eligible > now,
            parts=(number,),
            begins=eligible,
            array=shown if suffix and suffix.startswith("_") else "",
            array_task=suffix[1:] if suffix and suffix.startswith("_") else "",
            problem=problem,
        )
        jobs[name] = _joined(jobs[name], part) if name in jobs else part
    return jobs


def _joined(first: ScheduledJob, second: ScheduledJob) -> ScheduledJob:
    """Return two parts of a heterogeneous job as a single job, which runs while all its parts run."""
    waiting = [part for part in (first, second) if not part.is_running]
    return replace(
        first,
        state=waiting[0].state if waiting else first.state,
        nodes=first.nodes | second.nodes,
        restarts=max(first.restarts, second.restarts),
        may_requeue=first.may_requeue and second.may_requeue,
        gpus=first.gpus + second.gpus,
        problem=first.problem or second.problem,
        started=max(first.started, second.started),
        ended=max(first.ended, second.ended),
        # While a part is still completing, Slurm has not yet set its delay.
        waits_for_begin_time=first.state == second.state == "PENDING"
        and (first.waits_for_begin_time or second.waits_for_begin_time),
        parts=(*first.parts, *second.parts),
        begins=max(first.begins, second.begins),
    )


def apply_comment(job: ScheduledJob, comment: str) -> ScheduledJob:
    """Return *job* with its owner's options in `--comment`: `gangline:checkpoint=1800`, `gangline:spares`."""
    options = {name: value for name, value in COMMENT.findall(comment[:4096])}
    seconds = int(options.get("checkpoint") or 0)
    if not 0 < seconds <= CHECKPOINT_SECONDS_MAX:
        seconds = 0
    return replace(job, checkpoint_seconds=float(seconds), restarts_itself="spares" in options)


def _seconds(text: str) -> float:
    """Return a local time of Slurm as seconds since the epoch; 0 for an unknown or invalid time."""
    if text in NO_TIMES:
        return 0.0
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except (ValueError, OverflowError):
        return 0.0


def parse_reservations(text: str) -> dict[str, NodeHold]:
    """Return the active reservations in the output of `scontrol -o show reservation`."""
    holds: dict[str, NodeHold] = {}
    for line in text.splitlines():
        head = re.match(r"ReservationName=(\S+) ", line)
        nodes = re.search(r" Nodes=(\S+)", line)
        end = re.search(r" EndTime=(\S+)", line)
        if head is None or nodes is None or " State=ACTIVE" not in line:
            continue
        name, names = head.group(1), frozenset(host_names_or_problem(nodes.group(1))[0])
        flags = re.search(r" Flags=(\S+)", line)
        overrides = flags is not None and not OVERRIDING_FLAGS.isdisjoint(flags[1].split(","))
        holds[name] = NodeHold(
            name,
            names,
            _seconds(end.group(1)) if end else 0.0,
            overrides_holds=overrides and not name.startswith(HOLD_PREFIX),
        )
    return holds
