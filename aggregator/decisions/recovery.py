"""Ways to continue when members of a gang fail, compared by expected loss in GPU-hours.

  lost = GPUs x (detect + decide + act + resume + lost work)      until the gang runs again
       + its loss from then to the job's end                      speed, topology, checkpoints, second failures
       + the way's own cost                                       missing GPUs, nodes that another job gives up

Each duration is a lognormal random variable, given by its value and its 90 % interval. All ways are
evaluated at the same fixed, evenly spread points, so one question has one answer. The mean decides;
p50 and p90 are reported with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property
from math import isnan, nan
from typing import NamedTuple

import numpy as np

from ...contract.text import counted
from ..arrays import Floats, Indexes
from ..scoring.reported_factors import CHECKPOINT_INTERVAL_MINUTES, RESTART_MINUTES
from . import node_search, planner
from .groups import group_spans, layout_of
from .node_search import Candidates, SearchEffort
from .node_table import NodeTable
from .price import (
    DECIDE_FACTOR,
    DECIDE_MINUTES,
    DETECT_FACTOR,
    DETECT_MINUTES,
    GangPrice,
    PricePart,
    lost_time,
    price,
)
from .quantity import Quantity, QuantitySource, assumed, declared, duration_hours, weakest
from .replacements import (
    Replacements,
    SuspectDomain,
    choose_replacements,
    fallen_groups,
    in_suspect_domain,
    suspect_domains,
)
from .requirements import GangRequirements
from .sampled_hours import (
    ACT,
    DECIDE,
    DETECT,
    INTERRUPTION,
    LOST_WORK,
    OTHER,
    POINTS,
    RESUME,
    SPEED,
    SampledSum,
    drawn,
    drawn_between,
    narrowed,
    points,
    repair_hours,
    second_failures,
    slowest_width,
    topology_lost,
)

#: Minutes with 90 % intervals (assumed): existing processes continue; a spare with a loaded
#: program; a free node that must start the program; a job that must first release nodes; a gang
#: with a new layout.
IN_PROCESS_MINUTES, STANDBY_MINUTES = (0.5, 0.1, 3.0), (1.0, 0.2, 5.0)
FREE_NODE_MINUTES = (4.0, 1.0, 20.0)
BORROW_MINUTES = (8.0, 2.0, 40.0)
RESHARD_MINUTES = (5.0, 1.0, 30.0)
#: Minutes to restore state from a peer's memory, and from storage.
LOCAL_RESTORE_MINUTES, REMOTE_RESTORE_MINUTES = (0.5, 0.1, 3.0), (3.0, 0.5, 20.0)
#: Minutes until all processes run again, without the restore, which has a price of its own.
RESTART_ACT_MINUTES = (
    RESTART_MINUTES[0] - REMOTE_RESTORE_MINUTES[0],
    RESTART_MINUTES[1] - REMOTE_RESTORE_MINUTES[1],
    RESTART_MINUTES[2] - REMOTE_RESTORE_MINUTES[2],
)
#: Minutes of work since the last copy in a peer's memory.
REPLICA_AGE_MINUTES = (1.0, 0.1, 10.0)
#: P(the same node fails again soon) if it continues unchanged (assumed), and if the job failed
#: there before.
RECURRENCE, RECURRENCE_KNOWN = 0.2, 0.9
#: A way that stops healthy processes must save this share of GPUs x hours to come first.
STOP_SHARE_MIN = 0.01
#: With this many failures at the same step of the job, on any nodes, the workload is the cause.
FAILURES_AT_STEP_MAX = 2

#: Duration of each way from the decision until its processes run: the factor in scheduler reports,
#: and the assumed minutes.
RESTART_ACT_FACTOR = "act.restart"
PEER_RESUME_FACTOR, STORAGE_RESUME_FACTOR = "resume.peer_memory", "resume.storage"

NO_NODES: Indexes = np.zeros(0, dtype=np.intp)


class RecoveryKind(IntEnum):
    """RecoveryKind of the wire, least disturbing first."""

    IN_PROCESS = 1
    STANDBY = 2
    FREE_NODE = 3
    BORROW = 4
    SHRINK = 5
    WAIT_FOR_REPAIR = 6
    RESTART_ELSEWHERE = 7


ACT_MINUTES: Mapping[RecoveryKind, tuple[str, tuple[float, float, float]]] = {
    RecoveryKind.IN_PROCESS: ("act.in_process", IN_PROCESS_MINUTES),
    RecoveryKind.STANDBY: ("act.hot_spare", STANDBY_MINUTES),
    RecoveryKind.FREE_NODE: ("act.free_node", FREE_NODE_MINUTES),
    RecoveryKind.BORROW: ("act.borrow", BORROW_MINUTES),
    RecoveryKind.SHRINK: ("act.shrink", RESHARD_MINUTES),
    RecoveryKind.WAIT_FOR_REPAIR: (RESTART_ACT_FACTOR, RESTART_ACT_MINUTES),
    RecoveryKind.RESTART_ELSEWHERE: (RESTART_ACT_FACTOR, RESTART_ACT_MINUTES),
}


@dataclass(frozen=True, slots=True)
class Lender:
    """A job of a lower stratum that may give up nodes. `hours_left`: NaN if unknown."""

    name: str
    nodes: Indexes
    hours_left: float = nan
    priority: int | None = None  #: None: unknown

    def may_lend(self, priority: int | None) -> bool:
        """Return False if the job's priority is known to be at least *priority*."""
        return self.priority is None or priority is None or self.priority < priority


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """State of the checkpoints; NaN: unknown.

    `replicas`: by rank, the node whose memory has a copy of the rank's state.
    """

    age_hours: float = nan
    local_restore_hours: float = nan
    remote_restore_hours: float = nan
    replicas: Indexes = field(default_factory=lambda: NO_NODES)


@dataclass(frozen=True, slots=True)
class Incident:
    """A failure, and the resources to recover. Nodes are node indexes; `current` in rank order."""

    current: Indexes
    failed: Indexes
    suspects: Indexes = field(default_factory=lambda: NO_NODES)
    standbys: Indexes = field(default_factory=lambda: NO_NODES)
    lenders: tuple[Lender, ...] = ()
    checkpoint: CheckpointState = CheckpointState()
    goes_on_in_process: bool = False  #: healthy processes wait for the others, and need no restart
    nodes_min: int = 0  #: 0: the gang cannot shrink
    failures_at_step: int = 0
    application_error: str = ""


@dataclass(frozen=True, slots=True)
class RecoveryOption:
    """A way to continue. `nodes` in rank order afterwards; the nodes at `places` are new."""

    kind: RecoveryKind
    nodes: Indexes
    places: Indexes
    replaced: Indexes
    keeps_segment: tuple[bool, ...]
    keeps_rails: tuple[bool, ...]
    stopped: Indexes  #: healthy members whose processes end or restart
    lender: str
    hours: Mapping[int, Quantity]  #: DETECT, DECIDE, ACT, RESUME and LOST_WORK
    parts: tuple[PricePart, ...]
    total: Quantity
    p50_gpu_hours: float
    p90_gpu_hours: float
    second_failure: Quantity
    running: GangPrice
    steps: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UndisturbedGang:
    """The gang's loss without the failure; the excess over it is the failure's price."""

    parts: tuple[PricePart, ...]
    total: Quantity
    p50_gpu_hours: float
    p90_gpu_hours: float
    interruption: Quantity  #: probability before the job's end
    running: GangPrice


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """Ways to continue, the cheapest first.

    In this order a way that stops healthy processes costs `STOP_SHARE_MIN` more.
    """

    options: tuple[RecoveryOption, ...]
    undisturbed: UndisturbedGang
    failed: Indexes  #: failed nodes of the incident, and excluded members that it does not name
    domains: tuple[SuspectDomain, ...]
    futile_reason: str
    culprit: int  #: node index, -1: none
    culprit_probability: float


def plan_recovery(
    table: NodeTable,
    candidates: Candidates,
    needs: GangRequirements,
    incident: Incident,
    communication: Quantity | None = None,
) -> RecoveryPlan:
    """Return the ways to continue after *incident*.

    *needs*: with the remaining hours of the job, and the number of nodes of the whole gang.
    """
    current = incident.current
    unnamed = current[table.excluded[current] & ~np.isin(current, incident.failed)]
    failed = np.concatenate((incident.failed, unnamed))
    doubted = np.union1d(failed, incident.suspects[np.isin(incident.suspects, current)])
    domains = suspect_domains(table, current, doubted)
    answer = _Answer(table, candidates, needs, incident, communication, failed, domains)
    # A tier's cost is assumed: a gain within the margin does not justify a stop.
    margin = STOP_SHARE_MIN * answer.gpus * needs.hours

    def order(option: RecoveryOption) -> tuple[float, int]:
        return option.total.value + margin * bool(option.stopped.size), int(option.kind)

    culprit, probability = answer.culprit()
    return RecoveryPlan(
        options=tuple(sorted(answer.options(), key=order)),
        undisturbed=answer.undisturbed(),
        failed=failed,
        domains=tuple(domains),
        futile_reason=answer.futile_reason(),
        culprit=culprit,
        culprit_probability=probability,
    )


class SampledPart(NamedTuple):
    """A cost of one way besides the common costs: GPU-hours at the points."""

    name: str
    samples: Floats
    source: QuantitySource
    evidence: str
    delay_hours: Floats | float = 0.0  #: delay of the job besides detect to resume


def _assumed_part(name: str, samples: Floats, evidence: str) -> SampledPart:
    return SampledPart(name, samples, QuantitySource.ASSUMED, evidence)


class _RunningGang(NamedTuple):
    """The loss of a gang while it runs: its price, and its parts, sampled or fixed."""

    price: GangPrice
    sampled: list[SampledPart]
    fixed: list[PricePart]


class _Answer:
    """One incident, and the inputs that all its options share."""

    def __init__(
        self,
        table: NodeTable,
        candidates: Candidates,
        needs: GangRequirements,
        incident: Incident,
        communication: Quantity | None,
        failed: Indexes,
        domains: list[SuspectDomain],
    ) -> None:
        self.table, self.candidates, self.needs, self.incident = table, candidates, needs, incident
        self.failed, self.domains, self.communication = failed, domains, communication
        self.places = np.flatnonzero(np.isin(incident.current, failed))
        self.gpus_per_node = node_search.gpus_of(table, needs)
        self.gpus = incident.current.size * self.gpus_per_node
        self.lost = lost_time(needs, self.gpus, communication)
        barred = in_suspect_domain(table, domains)
        barred[incident.suspects] = True
        barred[failed] = True
        all_nodes = Candidates(np.ones(len(table), dtype=bool))
        self.fit = node_search.usable(table, all_nodes, needs) & ~barred
        self.healthy = np.delete(incident.current, self.places)
        self.repair = repair_hours(self.lost.repair_hours.value, self.places.size)
        self.free = node_search.usable(table, candidates, needs) & ~barred
        self.standbys = np.zeros(len(table), dtype=bool)
        self.standbys[incident.standbys] = self.fit[incident.standbys]

    def options(self) -> list[RecoveryOption]:
        """Return each possible way, with only the cheapest loan."""
        candidates = [
            self._in_process(),
            self._replaced(RecoveryKind.STANDBY, np.flatnonzero(self.standbys)),
            self._replaced(RecoveryKind.FREE_NODE, np.flatnonzero(self.standbys | self.free)),
            *(
                self._borrowed(lender)
                for lender in self.incident.lenders
                if lender.may_lend(self.needs.priority)
            ),
            self._shrunk(),
            self._repaired(),
            self._elsewhere(),
        ]
        options = [option for option in candidates if option is not None]
        borrowed = [option for option in options if option.kind == RecoveryKind.BORROW]
        cheapest = min(borrowed, key=lambda option: option.total.value, default=None)
        return [o for o in options if o.kind != RecoveryKind.BORROW or o is cheapest]

    def culprit(self) -> tuple[int, float]:
        """Return the member most likely at fault, by hazards, and its share of all hazards."""
        if not self.failed.size:
            return -1, 0.0
        hazards = self.table.hazard
        worst = int(self.failed[np.argmax(hazards[self.failed])])
        total = float(hazards[self.incident.current].sum()) + self.lost.shared_hazard.value
        return worst, float(hazards[worst]) / max(total, 1e-12)

    def futile_reason(self) -> str:
        """Return why a restart on other nodes does not help; "" if it does."""
        if self.incident.application_error:
            return f"the workload reports an error of its own ({self.incident.application_error}): it follows the job to other nodes"
        if self.incident.failures_at_step >= FAILURES_AT_STEP_MAX:
            return f"the job failed {self.incident.failures_at_step} times at the same step: the workload or its data is the likely cause, not a node, and it follows the job"
        within = self.needs.within
        for domain in self.domains:
            if within is not None and domain.tier == within:
                return f"the gang must be within one {within.title}, and {domain.name} is itself suspected"
        return ""

    def _in_process(self) -> RecoveryOption | None:
        """Return the way in which the same nodes continue: only their processes failed."""
        failed = self.failed
        if (
            not (self.incident.goes_on_in_process and failed.size)
            or self.table.excluded[failed].any()
            or in_suspect_domain(self.table, self.domains)[failed].any()
        ):
            return None
        again = RECURRENCE_KNOWN if self.incident.failures_at_step else RECURRENCE
        recurs = np.where(points()[:, OTHER] < again, 1.0, 0.0)
        hours = recurs * self.gpus * drawn(self.lost.per_interruption_hours, INTERRUPTION)
        evidence = f"with probability {again:g} (assumed)"
        part = _assumed_part("the same failure again", hours, evidence)
        steps = [f"restart the processes on {self._names(failed)} in place"]
        return self._option(RecoveryKind.IN_PROCESS, self.incident.current, steps, [part])

    def _replaced(self, kind: RecoveryKind, pool: Indexes) -> RecoveryOption | None:
        if not self.places.size:
            return None
        chosen = self._choose(pool)
        if chosen is None:
            return None
        is_standby = bool(self.standbys[chosen.nodes].all())
        if kind == RecoveryKind.FREE_NODE and is_standby:
            return None  # the option with hot spares is the same
        return self._with_replacements(kind, chosen)

    def _borrowed(self, lender: Lender) -> RecoveryOption | None:
        """Return the way with a lower job's nodes, if free nodes do not suffice or are worse."""
        nodes = lender.nodes[self.fit[lender.nodes] & ~np.isin(lender.nodes, self.incident.current)]
        if not nodes.size or not self.places.size:
            return None
        fit = self.standbys | self.free
        fit[nodes] = True
        chosen = self._choose(np.flatnonzero(fit))
        if chosen is None:
            return None
        taken = chosen.nodes[np.isin(chosen.nodes, nodes)]
        if not taken.size:
            return None
        if isnan(lender.hours_left):
            hours = self.needs.hours
        else:
            hours = min(lender.hours_left, self.needs.hours)
        lost = taken.size * self.gpus_per_node * hours * points()[:, OTHER]
        lenders_gpus = lender.nodes.size * self.gpus_per_node
        restart = lenders_gpus * drawn(self.lost.per_interruption_hours, INTERRUPTION)
        use = f"{counted(taken.size, 'node')} for {hours:g} h; unknown how much of it that job would have used"
        parts = [
            _assumed_part(f"taken from {lender.name}", lost, use),
            _assumed_part(f"restart of {lender.name}", restart, "it starts again with fewer nodes"),
        ]
        known = lender.priority is not None and self.needs.priority is not None
        right = "it is unknown whether its priority is lower"
        if known:
            right = f"priority {lender.priority}, below {self.needs.priority}"
        steps = [f"have {lender.name} give up {self._names(taken)} ({right})"]
        option = self._with_replacements(RecoveryKind.BORROW, chosen, steps, parts)
        return replace(option, lender=lender.name)

    def _shrunk(self) -> RecoveryOption | None:
        """Return the way without the failed nodes' groups, until they are repaired."""
        needs, current = self.needs, self.incident.current
        if not self.incident.nodes_min or not self.places.size:
            return None
        replica_gpus = max(needs.tensor_parallel, 1) * max(needs.pipeline_parallel, 1)
        replica_nodes = -(-replica_gpus // self.gpus_per_node)
        unit = max(needs.segment_nodes, replica_nodes, 1)
        gone = fallen_groups(current.size, unit, self.places)
        left = np.delete(current, gone)
        if left.size < max(self.incident.nodes_min, 1):
            return None
        dropped = current[gone[~np.isin(gone, self.places)]]
        missing = np.minimum(self.repair, needs.hours) * self.gpus_per_node
        lost = missing * self.places.size
        parts = [_assumed_part("GPUs of failed nodes missing", lost, "until they are repaired")]
        if dropped.size:
            name = "healthy nodes dropped with their group"
            evidence = f"{counted(dropped.size, 'node')}, in groups of {unit}"
            parts.append(_assumed_part(name, missing * dropped.size, evidence))
        regrow = np.where(self.repair < needs.hours, 1.0, 0.0) * self.gpus
        restart = self._hours("restart", nan, RESTART_MINUTES, RESTART_ACT_FACTOR)
        regrow = regrow * drawn(restart, OTHER)
        parts.append(_assumed_part("growing again", regrow, "a restart once they are repaired"))
        steps = [
            f"continue with {left.size} of {counted(current.size, 'node')}",
            f"grow again when {self._names(self.failed)} are repaired",
        ]
        option = self._option(RecoveryKind.SHRINK, left, steps, parts)
        return replace(option, stopped=np.union1d(option.stopped, dropped))

    def _repaired(self) -> RecoveryOption | None:
        """Return the way in which the whole gang waits for repairs."""
        if not self.places.size:
            return None
        waits = self.repair * self.gpus
        median = float(np.median(self.repair))
        evidence = f"median {median:.1f} h for {counted(self.places.size, 'node')}"
        source = self.lost.repair_hours.source
        part = SampledPart("waiting for repairs", waits, source, evidence, self.repair)
        steps = [f"wait for repairs of {self._names(self.failed)}", "restart from the checkpoint"]
        return self._option(RecoveryKind.WAIT_FOR_REPAIR, self.incident.current, steps, [part])

    def _elsewhere(self) -> RecoveryOption | None:
        """Return the way that restarts the whole gang on the best nodes."""
        nodes = self.candidates.nodes | self.standbys
        nodes[self.healthy] = True
        nodes &= self.fit
        candidates = Candidates(nodes, self.candidates.gpus, self.candidates.source)
        effort = SearchEffort(steps_max=0)
        choices = planner.plan(self.table, candidates, self.needs, self.communication, effort)
        if not choices:
            return None
        members = choices[0].nodes
        new = np.flatnonzero(~np.isin(members, self.incident.current))
        steps = [
            f"end the gang, start it on {counted(members.size, 'node')} ({new.size} of them new)",
            "restart from the checkpoint",
        ]
        option = self._option(RecoveryKind.RESTART_ELSEWHERE, members, steps, places=new)
        return replace(option, stopped=np.sort(self.healthy))

    def _choose(self, pool: Indexes) -> Replacements | None:
        current = self.incident.current
        return choose_replacements(self.table, self.needs, self.lost, current, self.places, pool)

    def _with_replacements(
        self,
        kind: RecoveryKind,
        chosen: Replacements,
        steps: Sequence[str] = (),
        extra: Sequence[SampledPart] = (),
    ) -> RecoveryOption:
        members = self.incident.current.copy()
        members[self.places] = chosen.nodes
        steps = [*steps, self._replacement_text(chosen)]
        return self._option(kind, members, steps, extra, self.places, chosen)

    def _hours(
        self, name: str, given: float, minutes: tuple[float, float, float], factor: str = ""
    ) -> Quantity:
        return duration_hours(name, given, minutes, self.needs.reports, factor)

    def _durations(self, kind: RecoveryKind, *, restarts: bool) -> dict[int, Quantity]:
        """Return the hours of each step until the gang runs again."""
        needs, checkpoint = self.needs, self.incident.checkpoint
        factor, minutes = ACT_MINUTES[kind]
        act = self._hours("act", nan, minutes, factor)
        if restarts:
            act = self._restart_act(act)
        survives = self._has_replicas() and kind != RecoveryKind.RESTART_ELSEWHERE
        if survives:
            name, given = "restore from a peer's memory", checkpoint.local_restore_hours
            resume = self._hours(name, given, LOCAL_RESTORE_MINUTES, PEER_RESUME_FACTOR)
            lost = self._hours("work since the last copy in memory", nan, REPLICA_AGE_MINUTES)
        else:
            name, given = "restore from the checkpoint", checkpoint.remote_restore_hours
            resume = self._hours(name, given, REMOTE_RESTORE_MINUTES, STORAGE_RESUME_FACTOR)
            lost = self._lost_work()
        if restarts and not isnan(needs.restart_hours):
            # The request's restart lasts until the gang works again.
            act = declared(max(act.value - resume.value, 0.0), f"{act.evidence}, less the restore")
            if act.value == 0.0:
                resume = declared(needs.restart_hours, "restart of the request")
        return {
            DETECT: self._hours("detect", needs.detect_hours, DETECT_MINUTES, DETECT_FACTOR),
            DECIDE: self._hours("decide", needs.decide_hours, DECIDE_MINUTES, DECIDE_FACTOR),
            ACT: act,
            RESUME: resume,
            LOST_WORK: lost,
        }

    def _restart_act(self, act: Quantity) -> Quantity:
        """Return the time until all processes run again; *act* is for failed nodes only."""
        given = self.needs.restart_hours
        restart = self._hours("restart", given, RESTART_ACT_MINUTES, RESTART_ACT_FACTOR)
        return restart if not isnan(given) or restart.value > act.value else act

    def _lost_work(self) -> Quantity:
        age = self.incident.checkpoint.age_hours
        if not isnan(age):
            return declared(age, f"last checkpoint {age * 60.0:.3g} min ago (request)")
        interval = self.needs.checkpoint_interval_hours
        if isnan(interval):
            value, _, upper = (minutes / 60.0 for minutes in CHECKPOINT_INTERVAL_MINUTES)
            return assumed(value / 2.0, value / 40.0, upper, "half a checkpoint interval (assumed)")
        return assumed(
            interval / 2.0, interval / 20.0, interval, "half of the request's checkpoint interval"
        )

    def _has_replicas(self) -> bool:
        """Return whether each failed rank's state is in the memory of a continuing node."""
        replicas = self.incident.checkpoint.replicas
        if replicas.size != self.incident.current.size:
            return False
        holders = replicas[self.places]
        return bool(np.isin(holders, self.healthy).all() and not self.table.excluded[holders].any())

    def _option(
        self,
        kind: RecoveryKind,
        nodes: Indexes,
        steps: Sequence[str],
        extra: Sequence[SampledPart] = (),
        places: Indexes = NO_NODES,
        chosen: Replacements | None = None,
    ) -> RecoveryOption:
        ends_all = kind in (RecoveryKind.WAIT_FOR_REPAIR, RecoveryKind.RESTART_ELSEWHERE)
        restarts = not self.incident.goes_on_in_process or ends_all
        hours = self._durations(kind, restarts=restarts)
        total = SampledSum()
        for step, name in enumerate(("detect", "decide", "act", "resume", "lost work")):
            duration = hours[step]
            if step == ACT and restarts:
                name = f"act: restart of {self.healthy.size} healthy nodes' processes"
            total.add(name, drawn(duration, step) * self.gpus, duration.source, duration.evidence)
        for sampled in extra:
            total.add(sampled.name, sampled.samples, sampled.source, sampled.evidence)
        self._add_delay(total, hours, extra)
        is_repaired = kind == RecoveryKind.WAIT_FOR_REPAIR
        gang = self._repaired_gang if is_repaired else self._running(self.table, nodes)
        _add_running(total, gang)
        parts, lost, p50, p90 = total.parts_and_total()
        return RecoveryOption(
            kind=kind,
            nodes=nodes,
            places=places,
            replaced=self.incident.current[places] if chosen else NO_NODES,
            keeps_segment=tuple(chosen.keeps_segment.tolist()) if chosen else (),
            keeps_rails=tuple(chosen.keeps_rails.tolist()) if chosen else (),
            stopped=np.sort(self.healthy) if restarts else NO_NODES,
            lender="",
            hours=hours,
            parts=parts,
            total=lost,
            p50_gpu_hours=p50,
            p90_gpu_hours=p90,
            second_failure=self._interruption(gang.price),
            running=gang.price,
            steps=tuple(steps),
        )

    def _add_delay(
        self, total: SampledSum, hours: Mapping[int, Quantity], extra: Sequence[SampledPart]
    ) -> None:
        """Add the cost of the later end of the job to *total*, if it has an exchange rate."""
        if not self.needs.delay_rate:
            return
        late = sum((drawn(duration, step) for step, duration in hours.items()), np.zeros(POINTS))
        late = late + sum(part.delay_hours for part in extra)
        evidence = f"until it runs again and has done the lost work again; {self.needs.rate_text('delay_rate')}"
        source = weakest(duration.source for duration in hours.values())
        total.add("delay", late * self.needs.delay_rate, source, evidence)

    def undisturbed(self) -> UndisturbedGang:
        """Return the loss without the failure, with median members for the failed ones."""
        gang, total = self._repaired_gang, SampledSum()
        _add_running(total, gang)
        parts, lost, p50, p90 = total.parts_and_total()
        return UndisturbedGang(parts, lost, p50, p90, self._interruption(gang.price), gang.price)

    def _interruption(self, running: GangPrice) -> Quantity:
        """Return the probability of an interruption before the job's end."""
        survives = running.survival
        value, lower, upper = 1.0 - survives.value, 1.0 - survives.upper, 1.0 - survives.lower
        evidence = f"over the remaining {self.needs.hours:g} h"
        return Quantity(value, lower, upper, survives.source, evidence)

    @cached_property
    def _repaired_gang(self) -> _RunningGang:
        return self._running(self._repaired_table(), self.incident.current)

    def _running(self, table: NodeTable, nodes: Indexes) -> _RunningGang:
        """Return the loss of the gang on *nodes* until the job's end."""
        gpus, hours = nodes.size * self.gpus_per_node, self.needs.hours
        lost = lost_time(replace(self.needs, nodes=nodes.size), gpus, self.communication)
        # a gang that shrinks has fewer data groups of the same pipelines
        layout = layout_of(replace(self.needs, data_parallel=0), nodes.size, self.gpus_per_node)
        groups = group_spans(table, nodes, layout, self.needs) if layout else None
        members = planner.members_of(table, nodes, None, groups)
        gang = _RunningGang(price(members, lost, hours, self.needs.preferences), [], [])
        for part in gang.price.parts:
            # The same points for all ways: an assumption's error affects all alike.
            cost = part.gpu_hours
            if part.name == "slowest member":
                samples = drawn_between(narrowed(cost, slowest_width(members)), SPEED)
                gang.sampled.append(SampledPart(part.name, samples, cost.source, cost.evidence))
            elif part.name == "topology":
                running_hours = lost.gross_gpu_hours * gang.price.speed.value
                samples = running_hours * topology_lost(members, lost)
                gang.sampled.append(SampledPart(part.name, samples, cost.source, cost.evidence))
            elif "interruptions" not in part.name and part.name != "spot preemption":
                gang.fixed.append(part)
        hazard = float(members.hazard.sum()) + float(members.preemption.sum())
        mean = (hazard + lost.shared_hazard.value) * hours
        failures = second_failures(mean) * drawn(lost.per_interruption_hours, INTERRUPTION) * gpus
        evidence = f"{mean:.3g} expected over {hours:g} h"
        gang.sampled.append(_assumed_part("second failures", failures, evidence))
        return gang

    def _repaired_table(self) -> NodeTable:
        """Return the nodes, with the failed ones like the median healthy member."""
        healthy = self.healthy if self.healthy.size else self.incident.current
        own = self.table.numbers[0, healthy]  # without preemption, which stays each node's own
        middle = healthy[np.argsort(own, kind="stable")][healthy.size // 2]
        return self.table.repaired(self.failed, int(middle))

    def _names(self, nodes: Indexes) -> str:
        names = [self.table.snapshot.names[node] for node in nodes[:8].tolist()]
        return ", ".join(names) + (f" and {nodes.size - 8} more" if nodes.size > 8 else "")

    def _replacement_text(self, chosen: Replacements) -> str:
        names = self.table.snapshot.names
        before = self.incident.current[self.places][:8].tolist()
        pairs = [
            f"{names[old]} -> {names[new]}"
            for old, new in zip(before, chosen.nodes[:8].tolist(), strict=True)
        ]
        more = self.places.size - len(pairs)
        return "replace " + ", ".join(pairs) + (f" and {more} more" if more else "")


def _add_running(total: SampledSum, gang: _RunningGang) -> None:
    for sampled in gang.sampled:
        total.add(sampled.name, sampled.samples, sampled.source, sampled.evidence)
    for part in gang.fixed:
        total.add_fixed(part)
