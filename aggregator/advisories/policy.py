"""The action for a case by the policies (`contract/host_policy.toml`, `xid.toml`, `sxid.toml`).

This module translates the texts of the policy tables into an action, its follow-up and a scope. It
makes no decision of its own: a test fails for a row with an unknown text.
"""

from __future__ import annotations

import difflib
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import isfinite, sqrt
from typing import NamedTuple

from ...contract.host_policy import PolicyRow
from ...contract.host_policy_file import builtin
from ...contract.signals import BY_NAME
from ...contract.xid.policy import Xid
from ...contract.xid.policy import policy as xid_rows
from ...contract.xid.policy import sxid_policy as sxid_rows
from ..model import Evidence, HealthState, HostScore, Reason
from ..rule_catalogue.agent import HOST_RETURNED
from .advisory import HOUR_NS, SILENCE_REASON, Action, Basis, Case, Price, Scope


@dataclass(frozen=True, slots=True)
class Workload:
    """The workload of a host. Zeros and "": unknown."""

    job: str = ""
    gang_gpus: int = 0
    gang_hazard_per_hour: float = 0.0  # all hosts of the gang; for Young's optimum
    checkpoint_seconds: float = 0.0  # checkpoint period; 0: unknown
    dead: bool = False


@dataclass(frozen=True, slots=True)
class CostAssumptions:
    """Assumptions for undeclared values.

    Training teams report detect, restart and checkpoint times like these for hundreds of GPUs
    (assumed until outcomes show better values); the repair is the public record's median
    (`docs/advice.md`).
    """

    horizon_hours: float = 8.0
    detect_hours: float = 0.1
    decide_hours: float = 0.05
    restart_hours: float = 0.2
    checkpoint_write_seconds: float = 60.0
    reset_hours: float = 0.25
    reboot_hours: float = 0.5
    diagnostic_hours: float = 1.0
    repair_hours: float = 20.0


COST_ASSUMPTIONS = CostAssumptions()
#: Before these actions the running job ends.
AFTER_JOB_ACTIONS = (Action.AVOID, Action.DRAIN_AFTER_JOB, Action.DRAIN_AND_RESET)
DRAINS = (Action.DRAIN_AFTER_JOB, Action.DRAIN_AT_CHECKPOINT, Action.EVICT_NOW)


@dataclass(frozen=True, slots=True)
class Fault:
    """The host's hazard per hour, relative speed (1.0 or NaN costs nothing), and GPUs."""

    hazard_per_hour: float
    relative_speed: float
    gpus: int


def checkpoint_hours(
    work: Workload, fault: Fault, assumptions: CostAssumptions = COST_ASSUMPTIONS
) -> tuple[float, str]:
    """Return the checkpoint interval, and its source as text."""
    if work.checkpoint_seconds > 0:
        return work.checkpoint_seconds / 3600.0, "seen"
    hazard = max(work.gang_hazard_per_hour, fault.hazard_per_hour, 1e-9)
    optimum = sqrt(2.0 * assumptions.checkpoint_write_seconds / 3600.0 / hazard)
    return min(optimum, assumptions.horizon_hours), "Young's optimum"


def waiting_cost(
    fault: Fault, work: Workload, assumptions: CostAssumptions = COST_ASSUMPTIONS
) -> tuple[float, str]:
    """Return the GPU-hours lost within the horizon without action, and the arithmetic as text.

    A job of G GPUs is interrupted by this host about H / (1/h + t) times within H hours, at hazard
    h per hour, where each interruption costs t = detect + decide + restart + half a checkpoint
    interval (renewal theory; for small h the number is h * H). A slow host costs (1 - speed) of the
    whole gang. An unknown interval is Young's optimum, sqrt(2 * checkpoint * MTTF) (Young 1974,
    Daly 2006).
    """
    gang, horizon = max(work.gang_gpus, fault.gpus), assumptions.horizon_hours
    interval, source = checkpoint_hours(work, fault, assumptions)
    hours_per_interruption = (
        assumptions.detect_hours
        + assumptions.decide_hours
        + assumptions.restart_hours
        + interval / 2.0
    )
    hazard = fault.hazard_per_hour
    times = horizon / (1.0 / hazard + hours_per_interruption) if hazard > 0 else 0.0
    slow = 1.0 - fault.relative_speed if isfinite(fault.relative_speed) else 0.0
    slow = min(max(slow, 0.0), 1.0)
    share = min(times * hours_per_interruption / horizon, 1.0)
    lost = gang * horizon * (share + (1.0 - share) * slow)
    detail = (
        f"waiting {lost:,.1f} GPU-hours = {gang} GPUs x {horizon:g} h x ({100 * share:.1f} % lost to "
        f"{times:.2f} interruptions ({hazard:.3g}/h) of {hours_per_interruption:.2f} h each"
    )
    detail += f", and {100 * slow:.0f} % slow of the rest)" if slow else ")"
    return lost, f"{detail}; checkpoint every {interval:.2f} h ({source})"


def out_hours(
    action: Action, then: Action | None, assumptions: CostAssumptions = COST_ASSUMPTIONS
) -> float:
    """Return the hours for which the host is out of service."""
    step = then if then is not None and action in (*DRAINS, Action.DRAIN_P2P) else action
    return {
        Action.INSPECT: assumptions.repair_hours if action in DRAINS else 0.0,
        Action.CAP_POWER: 0.0,
        Action.RETURN_TO_SERVICE: 0.0,
        Action.AVOID: assumptions.horizon_hours,
        Action.RESET_GPU: assumptions.reset_hours,
        Action.DRAIN_AND_RESET: assumptions.reset_hours,
        Action.RECOVER_IMEX_DOMAIN: assumptions.reset_hours,
        Action.DRAIN_P2P: assumptions.reset_hours,
        Action.REBOOT: assumptions.reboot_hours,
        Action.RUN_DIAGNOSTIC: assumptions.diagnostic_hours,
    }.get(step, assumptions.repair_hours)


def acting_cost(
    action: Action,
    then: Action | None,
    fault: Fault,
    work: Workload,
    assumptions: CostAssumptions = COST_ASSUMPTIONS,
) -> tuple[float, str]:
    """Return the GPU-hours lost by *action*, and the arithmetic as text.

    The loss is the job's until the step takes effect (as by waiting) and by the step, and the
    host's while it is out. If the job ends before the step, it loses the same either way: both
    prices then cover the horizon after it, for an equally large job.
    """
    host, gang = out_hours(action, then, assumptions), max(work.gang_gpus, fault.gpus)
    job = _job_hours(action, fault, work, assumptions)
    lost = gang * job + fault.gpus * host
    detail = f"{fault.gpus} GPUs x {host:g} h out"
    if job:
        detail += f" + {gang} GPUs x {job:.2f} h of restart and lost work"
    if action is Action.DRAIN_AT_CHECKPOINT and not work.dead:
        until = min(checkpoint_hours(work, fault, assumptions)[0] / 2.0, assumptions.horizon_hours)
        exposed = waiting_cost(fault, work, assumptions)[0] * until / assumptions.horizon_hours
        lost += exposed
        detail += f" + {exposed:,.1f} until its next checkpoint, in {until:.2f} h"
    return lost, f"acting {lost:,.1f} GPU-hours = {detail}"


def _job_hours(action: Action, fault: Fault, work: Workload, assumptions: CostAssumptions) -> float:
    """Return the hours that the whole gang loses by the step itself."""
    if work.dead:
        return 0.0
    if action is Action.DRAIN_AT_CHECKPOINT:
        return assumptions.restart_hours
    if action in (Action.EVICT_NOW, Action.RESET_GPU, Action.REBOOT):
        return assumptions.restart_hours + checkpoint_hours(work, fault, assumptions)[0] / 2.0
    return 0.0


def price(
    action: Action, then: Action | None, fault: Fault, work: Workload, now_ns: int,
    basis: Basis, assumptions: CostAssumptions = COST_ASSUMPTIONS,
) -> Price:  # fmt: skip
    """Return both costs, the time when waiting has cost as much as acting, and the arithmetic."""
    wait, wait_detail = waiting_cost(fault, work, assumptions)
    act, act_detail = acting_cost(action, then, fault, work, assumptions)
    act_by, due_detail = 0, "within the horizon waiting never costs as much"
    if action in AFTER_JOB_ACTIONS and work.gang_gpus and not work.dead:
        due_detail = f"both cover the {assumptions.horizon_hours:g} h after the running job, which loses the same either way"
    elif act <= 0:
        due_detail = "acting costs no GPU-hours: act as soon as possible"
    elif wait > act:
        hours = assumptions.horizon_hours * act / wait
        act_by = now_ns + int(hours * HOUR_NS)
        due_detail = f"waiting costs as much after {hours:.2f} h: {act:,.1f} / {wait:,.1f} x {assumptions.horizon_hours:g} h"
    certain = " (a fault, not a forecast)" if basis is not Basis.STATISTICAL else ""
    return Price(wait, act, act_by, f"{wait_detail}{certain}. {act_detail}. {due_detail}.")


#: Maximum jobs of a shared cause whose arithmetic is shown; the rest is shown as a total.
JOBS_SHOWN_MAX = 3
INSPECTION_COST = "acting 0.0 GPU-hours: an inspection takes no host out of service."


def combined_price(cases: Sequence[Case], assumptions: CostAssumptions = COST_ASSUMPTIONS) -> Price:
    """Return the cost of waiting on all hosts of *cases*, which have one cause.

    A job counts once, with the sum of its hosts' hazards and the pace of its slowest host.
    """
    hosts = list({case.host: case for case in cases}.values())
    gpus = sum(case.gpus for case in hosts)
    if hosts and all(case.reason == SILENCE_REASON for case in hosts):
        lost = gpus * assumptions.horizon_hours
        condition = (
            f"none of the {len(hosts)} hosts works" if len(hosts) > 1 else "it does not work"
        )
        sums = f"{gpus} GPUs x {assumptions.horizon_hours:g} h, if {condition}"
        return Price(lost, arithmetic=f"waiting {lost:,.1f} GPU-hours = {sums}. {INSPECTION_COST}")
    jobs: dict[str, list[Case]] = defaultdict(list)
    for case in hosts:
        jobs[case.job].append(case)
    jobless = jobs.pop("", [])
    parts = sorted(
        (_job_cost(job, job_cases, assumptions) for job, job_cases in jobs.items()), reverse=True
    )
    if jobless:
        parts.append(_jobless_cost(jobless, assumptions))
    lost = sum(part for part, _ in parts)
    shown = [f"{part:,.1f} ({detail})" for part, detail in parts[:JOBS_SHOWN_MAX]]
    if rest := [part for part, _ in parts[JOBS_SHOWN_MAX:]]:
        shown.append(f"{sum(rest):,.1f} (of {len(rest)} more)")
    return Price(
        lost, arithmetic=f"waiting {lost:,.1f} GPU-hours = {' + '.join(shown)}. {INSPECTION_COST}"
    )


def _job_cost(job: str, hosts: Sequence[Case], assumptions: CostAssumptions) -> tuple[float, str]:
    """Return the job's loss by all of *hosts*, and the arithmetic as text."""
    fault = Fault(
        sum(case.hazard_per_hour for case in hosts),
        min(case.relative_speed for case in hosts),
        sum(case.gpus for case in hosts),
    )
    checkpoint_seconds = max(case.checkpoint_seconds for case in hosts)
    work = Workload(job, max(case.gang_gpus for case in hosts), 0.0, checkpoint_seconds)
    lost, detail = waiting_cost(fault, work, assumptions)
    return lost, f"job {job} on {len(hosts)} of them: {detail.partition(' = ')[2]}"


def _jobless_cost(hosts: Sequence[Case], assumptions: CostAssumptions) -> tuple[float, str]:
    """Return the loss of hosts without a known job, each with its own GPUs."""
    losses = [
        waiting_cost(
            Fault(case.hazard_per_hour, case.relative_speed, case.gpus), Workload(), assumptions
        )[0]
        for case in hosts
    ]
    gpus = sum(case.gpus for case in hosts)
    share = sum(losses) / max(gpus * assumptions.horizon_hours, 1e-9)
    detail = f"{gpus} GPUs x {assumptions.horizon_hours:g} h x {100 * share:.1f} % lost"
    return sum(losses), f"{len(hosts)} hosts without a known job: {detail}"


class PolicyAction(NamedTuple):
    """The actions of a policy's text. `action` None: nothing for a scheduler."""

    action: Action | None
    then: Action | None = None


class RequestedAction(NamedTuple):
    """The action for one piece of evidence, and its basis."""

    rule: str
    action: Action
    then: Action | None
    scope: Scope
    basis: Basis
    reason: str


#: Beginning of a policy's text -> action. The first match counts.
ACTION_BY_PREFIX: tuple[tuple[str, Action | None], ...] = (
    ("drain now", Action.EVICT_NOW),
    ("let the jobs end, start none", Action.DRAIN_AND_RESET),
    ("end its peer-to-peer work", Action.DRAIN_P2P),
    ("recover the IMEX domain", Action.RECOVER_IMEX_DOMAIN),
    ("drain after the job", Action.DRAIN_AFTER_JOB),
    ("drain", Action.DRAIN_AT_CHECKPOINT),
    ("reset the GPU at the end of the job", Action.DRAIN_AFTER_JOB),
    ("reboot the host after the job", Action.DRAIN_AFTER_JOB),
    ("unmount and check it, after the job", Action.DRAIN_AFTER_JOB),
    ("enable ECC and reboot the host after the job", Action.DRAIN_AFTER_JOB),
    ("replace the drive", Action.DRAIN_AFTER_JOB),
    ("look at", Action.INSPECT),
    ("look for", Action.INSPECT),
    ("check", Action.INSPECT),
    ("replace", Action.INSPECT),
    ("plan to replace", Action.INSPECT),
    ("update the driver", Action.INSPECT),
    # `gpu.recovery_action_state` reports the same, and has its own row
    ("do what its text asks", None),
    ("as XID 48 beside it says", None),
    ("watch", None),
    ("restart the application", None),
    ("the job asked for", None),
    ("none", None),
)
#: Phrase in the text -> next action after the drain. The first match counts.
FOLLOW_UP_BY_PHRASE: tuple[tuple[str, Action], ...] = (
    ("reset all GPUs", Action.REBOOT),
    ("reset the GPU", Action.RESET_GPU),
    ("reboot", Action.REBOOT),
    ("recover the IMEX domain", Action.RECOVER_IMEX_DOMAIN),
    ("diagnostic", Action.RUN_DIAGNOSTIC),
    ("replace", Action.INSPECT),
    ("reseat", Action.INSPECT),
    ("look at", Action.INSPECT),
    ("read ", Action.INSPECT),
    ("check", Action.INSPECT),
    ("restart the", Action.REBOOT),
)
#: These phrases may follow an action for now; the host is then drained as well.
END_OF_JOB_PHRASES = (
    "reset the GPU at the end of the job",
    "reboot the host at the end of the job",
)


class UnknownPolicyText(ValueError):
    """A policy's text without an entry in the tables."""


@cache
def parse_policy_text(text: str) -> PolicyAction:
    """Return the actions of a policy's *text*. Raises UnknownPolicyText."""
    matches = [action for start, action in ACTION_BY_PREFIX if text.startswith(start)]
    if not matches:
        raise UnknownPolicyText(
            f"{text!r}: add its beginning to ACTION_BY_PREFIX of aggregator/advisories/policy.py"
        )
    action = matches[0]
    if action is None and any(phrase in text for phrase in END_OF_JOB_PHRASES):
        action = Action.DRAIN_AFTER_JOB
    if action is None or action in (Action.INSPECT, Action.DRAIN_AND_RESET):
        return PolicyAction(action)
    return PolicyAction(
        action, next((then for phrase, then in FOLLOW_UP_BY_PHRASE if phrase in text), None)
    )


_SCOPES = {scope.value: scope for scope in Scope}
#: Without a policy text: state -> action and basis.
DEFAULT_BY_STATE = {
    HealthState.UNHEALTHY: (Action.DRAIN_AT_CHECKPOINT, Basis.DETERMINISTIC),
    HealthState.SUSPECT: (Action.DRAIN_AFTER_JOB, Basis.STATISTICAL),
    HealthState.DEGRADED: (Action.AVOID, Basis.STATISTICAL),
}
#: Hosts in other states are healthy or not judged, and get no action.
ACTIONABLE_STATES = (
    HealthState.UNHEALTHY,
    HealthState.SUSPECT,
    HealthState.DEGRADED,
    HealthState.WATCH,
    HealthState.PROBATION,
)
#: Signals of forecasts (models, outcomes, returns): they change a score but request no action.
FORECASTS = ("hazard.", HOST_RETURNED.name)
#: The signal of hung calls; `_policy_row_name` selects their row of `contract/host_policy.toml`.
HUNG_SIGNAL = "probe.hung_seconds"
#: Signals of hung calls. Most return within minutes while the GPU continues (median 4 min:
#: assumed); the cause of the others soon reports a code of its own (XID 119).
HUNG_CALL_SIGNALS = frozenset({HUNG_SIGNAL, "collector.outcome_state"})
_CODE = re.compile(r"(?:gpu\.|nvswitch\.)?(s?xid|)\s*([0-9]{1,6})", re.ASCII | re.IGNORECASE)
#: A host with a hung call is only avoided until the hang is this long.
HUNG_SECONDS_MIN = 900.0


def requested_action(host: HostScore, evidence: Evidence, work: Workload) -> RequestedAction | None:
    """Return the action for *evidence* of *host*; None if a scheduler has nothing to do."""
    costs = evidence.log_hazard_delta > 0 or evidence.relative_speed_factor < 1
    costs = costs and not evidence.signal.startswith(FORECASTS)
    if not costs or host.state not in ACTIONABLE_STATES:
        return None
    row = _row(evidence)
    if row is None:
        return _action_by_state(host, evidence)
    policy_text, certain = (
        row.action,
        row.severity.value == "fatal" and host.state is HealthState.UNHEALTHY,
    )
    advice = parse_policy_text(policy_text)
    if advice.action is None or (
        host.state is HealthState.WATCH and advice.action is Action.INSPECT
    ):
        return None
    dead = work.dead and certain
    basis = Basis.DEAD_JOB if dead else Basis.DETERMINISTIC if certain else Basis.STATISTICAL
    action = advice.action
    if action is Action.DRAIN_AT_CHECKPOINT and dead:
        action = Action.EVICT_NOW  # no checkpoint will come, and nothing can be lost
    if action is Action.DRAIN_P2P:
        basis = Basis.DETERMINISTIC  # the driver requests it
    rule = f"{evidence.signal} {evidence.value:.0f}" if isinstance(row, Xid) else row.name
    return RequestedAction(
        rule, action, advice.then, _SCOPES.get(row.scope, Scope.HOST), basis, policy_text
    )


def avoid_while_hung(
    requested: RequestedAction, evidence: Evidence, seconds: float
) -> RequestedAction:
    """Return *requested*; AVOID for a call that hangs for under HUNG_SECONDS_MIN."""
    certain = requested.basis is Basis.DETERMINISTIC and evidence.signal in HUNG_CALL_SIGNALS
    if not certain or seconds >= HUNG_SECONDS_MIN:
        return requested
    minutes = HUNG_SECONDS_MIN / 60
    reason = f"{requested.reason}; such calls often return on their own, so only if it lasts {minutes:.0f} min, until then AVOID"
    return requested._replace(
        action=Action.AVOID, then=None, basis=Basis.STATISTICAL, reason=reason
    )


def evict_without_checkpoint(
    requested: RequestedAction, fault: Fault, work: Workload
) -> RequestedAction:
    """Return *requested*; EVICT_NOW if continuing with a certain fault costs more.

    This applies if the job's checkpoints are unknown: nothing shows when such a job ends, so "after
    the job" would have no end.
    """
    certain = (
        requested.basis is Basis.DETERMINISTIC and requested.action is Action.DRAIN_AT_CHECKPOINT
    )
    if not certain or not work.gang_gpus or work.checkpoint_seconds > 0:
        return requested
    if (
        waiting_cost(fault, work)[0]
        <= acting_cost(Action.EVICT_NOW, requested.then, fault, work)[0]
    ):
        return requested
    reason = f"{requested.reason}; the checkpoint times of its job are unknown, and continuing costs the job more than a restart"
    return requested._replace(action=Action.EVICT_NOW, reason=reason)


def _action_by_state(host: HostScore, evidence: Evidence) -> RequestedAction | None:
    """Return the default action of the host's state for its first evidence, else None."""
    if host.state not in DEFAULT_BY_STATE or evidence is not next(iter(host.evidence), evidence):
        return None
    action, basis = DEFAULT_BY_STATE[host.state]
    if evidence.reason in (Reason.POWER_CAP, Reason.THERMAL_THROTTLE, Reason.STALE_TELEMETRY):
        basis, action = Basis.STATISTICAL, Action.AVOID
    reason = f"no row for this fault, so the default for a host that is {host.state.name}"
    return RequestedAction(evidence.signal, action, None, Scope.HOST, basis, reason)


def normalize_rule(rule: str) -> str:
    """Return *rule* as in stored evidence; people write XID 95, sxid 20009, or 95."""
    match = _CODE.fullmatch(rule.strip())
    if match is None:
        return rule
    return f"{'nvswitch.sxid' if match[1].lower() == 'sxid' else 'gpu.xid'} {int(match[2])}"


def unknown_rule(rule: str) -> str:
    """Return a message with suggestions if *rule* is unknown; "" if it is known."""
    known = {*BY_NAME, *Reason.__members__, *(row.name for row in builtin().rows)}
    signal, _, code = rule.rpartition(" ")
    if rule in known or (signal in ("gpu.xid", "nvswitch.sxid") and code.isdecimal()):
        return ""
    close_names = difflib.get_close_matches(rule, sorted(known), n=3)
    suggestion = (
        f"did you mean {' or '.join(close_names)}?" if close_names else "a code is 'gpu.xid 95'"
    )
    return (
        f"{rule!r}: no rule, reason or signal has this name, and no stored evidence; {suggestion}"
    )


def evidence_of_rule(rule: str) -> tuple[list[str], list[str]]:
    """Return the signals and reasons of evidence of *rule*: a code, row, reason, or signal."""
    signals = [row.evidence_signal for row in builtin().rows if row.name == rule]
    hung = [HUNG_SIGNAL] if rule.endswith("_hung") else []
    heat = [Reason.THERMAL_THROTTLE.name] if rule == "gpu_thermal" else []
    return [rule, rule.rpartition(" ")[0], *signals, *hung], [rule, *heat]


def _row(evidence: Evidence) -> PolicyRow | Xid | None:
    """Return the policy's row for *evidence*; None unless exactly one matches."""
    tables = {"gpu.xid": xid_rows, "nvswitch.sxid": sxid_rows}
    if evidence.signal in tables:
        return tables[evidence.signal]().get(int(evidence.value))
    if name := _policy_row_name(evidence):
        return next((row for row in builtin().rows if row.name == name), None)
    matches = [
        row for row in _by_signal().get(evidence.signal, ()) if _row_matches(row, evidence.value)
    ]
    return matches[0] if len(matches) == 1 else None


def _policy_row_name(evidence: Evidence) -> str:
    """Return the row's name for evidence without a signal of its own; "" for other evidence."""
    if evidence.reason is Reason.THERMAL_THROTTLE:
        return "gpu_thermal"
    if evidence.signal != HUNG_SIGNAL:
        return ""
    if evidence.device.startswith("GPU-"):
        return "gpu_hung"
    return "driver_hung" if evidence.device.startswith("gpu") else "device_hung"


@cache
def _by_signal() -> dict[str, list[PolicyRow]]:
    rows: dict[str, list[PolicyRow]] = {}
    for row in builtin().rows:
        if row.action:
            rows.setdefault(row.evidence_signal, []).append(row)
    return rows


def _row_matches(row: PolicyRow, value: float) -> bool:
    if not row.when:
        return not row.codes or int(value) in row.codes
    first = row.when[0]
    return first.compare not in ("==", "in") or bool(first.other) or first.holds(value, None)
