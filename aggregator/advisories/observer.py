"""Turns a judgement into events of the state machine: only the changes since the last judgement.

Silence: a single host gets INSPECT after a while; a silent rack at once, as one cause
(`shared_causes.py`). A silent host may still work, since perhaps only its agent is silent. So no
advisory drains or avoids it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from .. import model
from ..arrays import Codes
from ..declared.model import Declared
from ..model import Evidence, HostScore
from ..scoring.evaluate import Judgement
from ..scoring.missing_readings import OUTAGE_SECONDS_MAX
from ..scoring.results import Hosts
from . import costs, policy
from .advisory import SILENCE_REASON, Action, Basis, Case, Scope, restrict_to_basis
from .advisory_limits import SECOND_NS
from .costs import Fault, Workload, combined_price, price
from .failure_domains import DomainCounts, DomainSizes, FailureDomains, place_of
from .limits import PRICE_STEP_RATIO
from .messages import Available, CaseGone, CaseSeen, Event, FleetSize, Frozen, Unavailable, Well
from .state import SILENT, MachineState

State = model.HealthState

#: After a longer silence it is known, or the host is out of use for good.
SILENCE_NEWS_SECONDS_MAX = 86_400.0

MAINTENANCE = "maintenance"
CASE_MESSAGE_CHARACTERS_MAX = 500

#: States of hosts that are not judged; their cases stay.
UNMONITORED_STATES = (State.STALE, State.UNKNOWN, State.MAINTENANCE)
#: States without new cases, except the silence of STALE hosts.
NO_ACTION_STATES = (State.HEALTHY, *UNMONITORED_STATES)


def silence_key(host: str) -> str:
    """Return the key of the case of silence of *host*."""
    return f"{host}/silent/"


def needs_inspection(machine_state: MachineState, host: HostScore, judgement: Judgement) -> bool:
    """Return whether the silence of *host*, which is STALE, needs an inspection.

    False if an actor has the host out, and until agents had time to reconnect after a restart of
    the aggregator.
    """
    if (
        host.host in machine_state.absent
        or host.host in machine_state.holds
        or not host.last_received_ns
    ):
        return False
    restarted_ns, now_ns = judgement.restarted_ns, judgement.computed_ns
    is_since_restart = (
        silence_key(host.host) not in machine_state.cases and host.last_received_ns < restarted_ns
    )
    if is_since_restart and now_ns - restarted_ns < OUTAGE_SECONDS_MAX * SECOND_NS:
        return False
    return not is_gone(host, now_ns)


def is_gone(host: HostScore, now_ns: int) -> bool:
    """Return whether *host* was silent for so long that it counts as gone for good."""
    return now_ns - host.last_received_ns > SILENCE_NEWS_SECONDS_MAX * SECOND_NS


def silence_case(
    machine_state: MachineState,
    host: HostScore,
    domains: DomainSizes,
    work: Workload,
    gpus: int,
    restarted_ns: int,
) -> Case:
    """Return the case that *host* is silent; the previous case while that lasts."""
    key = silence_key(host.host)
    before = machine_state.cases.get(key)
    if before is not None and before.case.place == domains.place:
        return before.case
    since_ns = max(host.last_received_ns, restarted_ns)
    unseen = host.last_received_ns < restarted_ns
    if before is not None:
        since_ns, unseen = before.case.since_ns, before.case.unseen
    while_down = ""
    if unseen:
        while_down = f", and it was silent when the aggregator restarted at {_time_text(since_ns)}"
    message = f"it has been silent since {_time_text(host.last_received_ns)}{while_down}: check its power, its network and its agent; it may still work"
    case = Case(
        key=key, host=host.host, reason=SILENCE_REASON, basis=Basis.DETERMINISTIC, action=Action.INSPECT,
        scope=Scope.HOST, message=message, since_ns=since_ns, place=domains.place, job=work.job,
        gang_gpus=work.gang_gpus, hazard_per_hour=host.hazard_per_hour, gpus=gpus, among=domains.among,
        unseen=unseen,
    )  # fmt: skip
    return replace(case, price=combined_price([case]))


def _time_text(at_ns: int) -> str:
    return f"{datetime.fromtimestamp(at_ns // SECOND_NS, UTC):%Y-%m-%d %H:%M:%S} UTC"


#: Returns the workload of a host; None: not known now.
WorkloadOf = Callable[[HostScore, Judgement], Workload | None]


def no_workload(host: HostScore, judgement: Judgement) -> Workload | None:
    """Return None: the workload is unknown."""
    return None


class Observer:
    """Compares a judgement with the machine's state. Its own state is only the domain sizes."""

    def __init__(
        self, declared: Callable[[], Declared | None] = lambda: None,
        work: WorkloadOf = no_workload,
    ) -> None:  # fmt: skip
        self._declared, self._work, self._places = declared, work, DomainCounts()

    def place(self, host: str) -> FailureDomains:
        """Return the location of *host*."""
        return place_of(self._declared(), host)

    def events(
        self, machine_state: MachineState, judgement: Judgement, gpus: Codes
    ) -> Iterator[Event]:
        """Yield the changes as events. *gpus*: GPU count per node index."""
        now_ns = judgement.computed_ns
        # True for a judgement of `evaluate`, which builds no scores of healthy hosts.
        assert isinstance(judgement.hosts, Hosts)
        self._places.update(self._declared(), judgement.hosts.inputs.names)
        hosts = [
            host
            for _, host in sorted(judgement.hosts.computed_scores.items())
            if judgement.is_listed(host)
        ]
        listed_count = judgement.hosts.listed_count(judgement)
        if machine_state.hosts != listed_count:
            yield FleetSize(now_ns, listed_count)
        if without_numbers(machine_state.frozen) != without_numbers(judgement.degraded_reason):
            yield Frozen(now_ns, judgement.degraded_reason)
        yield from self._availability_changes(machine_state, hosts, judgement)
        before: dict[str, list[Case]] = {}
        for tracked_case in machine_state.cases.values():
            before.setdefault(tracked_case.case.host, []).append(tracked_case.case)
        active_keys: set[str] = set()
        for host in hosts:
            known, count = before.get(host.host, []), max(int(gpus[host.node_index]), 1)
            if host.state in UNMONITORED_STATES:
                active_keys.update(case.key for case in known if case.key != silence_key(host.host))
            if host.state in NO_ACTION_STATES and host.state is not State.STALE:
                continue
            for case in self._cases_of(machine_state, host, judgement, known, count):
                active_keys.add(case.key)
                if _is_changed(machine_state, case):
                    yield CaseSeen(now_ns, case)
        for key in [key for key in machine_state.cases if key not in active_keys]:
            yield CaseGone(now_ns, key, "judging no longer finds it")
        yield from _health_changes(machine_state, judgement.hosts, now_ns, active_keys)

    def _cases_of(
        self,
        machine_state: MachineState,
        host: HostScore,
        judgement: Judgement,
        known: Sequence[Case],
        gpus: int,
    ) -> Iterator[Case]:
        """Yield the cases of *host*; for a silent host, only that. *known*: its cases so far."""
        silent = host.state is State.STALE
        if silent and not needs_inspection(machine_state, host, judgement):
            return
        domains = self._places.sizes(host.host)
        work = self._work(host, judgement) or _previous_workload(known)
        if silent:
            yield silence_case(machine_state, host, domains, work, gpus, judgement.restarted_ns)
            return
        fault = Fault(host.hazard_per_hour, host.relative_speed, gpus)
        yield from _cases(machine_state, host, fault, domains, work, judgement.computed_ns)

    def _availability_changes(
        self, machine_state: MachineState, hosts: Sequence[HostScore], judgement: Judgement
    ) -> Iterator[Event]:
        """Yield hosts that are out for reasons other than our advice, and hosts that are back.

        A host that has disappeared for good does not count as out.
        """
        now_ns = judgement.computed_ns
        reasons = {State.MAINTENANCE: MAINTENANCE, State.STALE: SILENT}
        out = {
            score.host: score
            for score in hosts
            if score.state in reasons
            and not (score.state is State.STALE and is_gone(score, now_ns))
        }
        for host, score in out.items():
            by, before = reasons[score.state], machine_state.taken.get(host)
            if before is None or before.by != by:
                work = self._work(score, judgement)
                job = work.job if work else ""
                yield Unavailable(now_ns, host, by, self._places.sizes(host)[0], job)
        for host in [host for host in machine_state.taken if host not in out]:
            yield Available(now_ns, host)


def without_numbers(text: str) -> str:
    """Return *text* without its digits, which change each second."""
    return "".join(character for character in text if not character.isdecimal())


def _cases(
    machine_state: MachineState,
    host: HostScore,
    fault: Fault,
    domains: DomainSizes,
    work: Workload,
    now_ns: int,
) -> Iterator[Case]:
    """Yield the cases of *host* that need an action; per key only the strongest."""
    seen = set[str]()
    for evidence in host.evidence:
        requested = policy.requested_action(host, evidence, work)
        if requested is None:
            continue
        key = f"{host.host}/{requested.rule}/{evidence.device}"
        if key in seen:
            continue
        seen.add(key)
        before = machine_state.cases.get(key)
        active_seconds = (now_ns - before.seen_ns) / 1e9 if before else 0.0
        requested = policy.evict_without_checkpoint(
            policy.avoid_while_hung(requested, evidence, active_seconds), fault, work
        )
        new = _case(key, host, evidence, requested, work, domains, fault)
        if before is not None and _is_same_case(before.case, new):
            yield before.case
        else:
            yield _with_price(new, requested.then, fault, work, now_ns)


def _previous_workload(known: Sequence[Case]) -> Workload:
    """Return the workload in a host's last cases, until it is reported after a restart."""
    case = next(iter(known), None)
    if case is None:
        return Workload()
    dead = case.basis is Basis.DEAD_JOB
    return Workload(case.job, case.gang_gpus, 0.0, case.checkpoint_seconds, dead)


def _case(
    key: str, host: HostScore, evidence: Evidence, requested: policy.RequestedAction, work: Workload,
    domains: DomainSizes, fault: Fault,
) -> Case:  # fmt: skip
    certain = requested.basis in (Basis.DETERMINISTIC, Basis.DEAD_JOB)
    message = f"{evidence.message}; policy: {requested.reason}"
    return restrict_to_basis(
        Case(
            key=key, host=host.host, reason=evidence.reason.name, basis=requested.basis,
            action=requested.action, scope=requested.scope, message=message[:CASE_MESSAGE_CHARACTERS_MAX],
            since_ns=evidence.observed_ns, then=requested.then,
            devices=(evidence.device,) if evidence.device else (), place=domains.place, job=work.job,
            checkpoint_seconds=work.checkpoint_seconds, gang_gpus=work.gang_gpus,
            confidence=1.0 if certain else 1.0 - host.score_upper,
            hazard_per_hour=host.hazard_per_hour, gpus=fault.gpus,
            relative_speed=min(fault.relative_speed, 1.0) if fault.relative_speed > 0 else 1.0,
            among=domains.among,
        )
    )  # fmt: skip


def _with_price(case: Case, then: Action | None, fault: Fault, work: Workload, now_ns: int) -> Case:
    """Return *case* with its price; a forecast that is cheaper to wait for requests only AVOID.

    *then*: the policy's next action: a drain for a GPU reset costs far less than a repair of twenty
    hours.
    """
    cost = price(case.action, then, fault, work, now_ns, case.basis)
    drains = case.action is Action.DRAIN_AFTER_JOB and case.basis is Basis.STATISTICAL
    if drains and then is None and cost.waiting_gpu_hours <= cost.acting_gpu_hours:
        avoid = price(Action.AVOID, None, fault, work, now_ns, case.basis)
        message = f"{case.message}; a drain costs more than waiting, so AVOID"
        return replace(case, action=Action.AVOID, price=avoid, message=message)
    if (
        case.action in costs.DRAINS
        and case.basis is Basis.DETERMINISTIC
        and (cost.waiting_gpu_hours < cost.acting_gpu_hours)
    ):
        message = f"{case.message}; acting costs more than waiting, but the fault is certain and stays until it is repaired"
        return replace(case, price=cost, message=message)
    return replace(case, price=cost)


def _is_same_case(before: Case, now: Case) -> bool:
    """Return whether *now* differs from *before* only by later readings: then its price is kept."""
    compared = (
        "then",
        "scope",
        "basis",
        "reason",
        "devices",
        "job",
        "checkpoint_seconds",
        "place",
        "gpus",
    )
    if any(getattr(before, name) != getattr(now, name) for name in compared):
        return False
    lowered = before.action is Action.AVOID and now.action is Action.DRAIN_AFTER_JOB
    return (
        (before.action is now.action or lowered)
        and _near(before.gang_gpus, now.gang_gpus)
        and _near(before.hazard_per_hour, now.hazard_per_hour)
        and _near(before.relative_speed, now.relative_speed)
    )


def _near(one: float, other: float) -> bool:
    low, high = sorted((one, other))
    return high <= PRICE_STEP_RATIO * low


def _is_changed(machine_state: MachineState, case: Case) -> bool:
    before = machine_state.cases.get(case.key)
    return before is None or before.case is not case


def _health_changes(
    machine_state: MachineState, hosts: Hosts, now_ns: int, active_keys: set[str]
) -> Iterator[Event]:
    """Yield Well for hosts with holds that became well, or no longer are."""
    if not (machine_state.holds or machine_state.well):
        return
    names = set(hosts.inputs.names)
    unhealthy_hosts = {
        machine_state.cases[key].case.host for key in active_keys if key in machine_state.cases
    }
    states = {score.host: score.state for score in hosts.computed_scores.values()}
    for host in machine_state.holds.keys() | machine_state.well.keys():
        state = states.get(host, State.HEALTHY if host in names else State.UNKNOWN)
        is_well = (
            host in machine_state.holds
            and host not in unhealthy_hosts
            and state not in UNMONITORED_STATES
        )
        is_well = is_well and state not in (State.UNHEALTHY, State.SUSPECT, State.DEGRADED)
        if is_well != (host in machine_state.well):
            yield Well(now_ns, host, is_well)
