"""Costs in GPU-hours of waiting with a case and of acting on it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, sqrt

from .advisory import SILENCE_REASON, Action, Basis, Case, Price
from .advisory_limits import HOUR_NS

#: Before these actions the running job ends.
AFTER_JOB_ACTIONS = (Action.AVOID, Action.DRAIN_AFTER_JOB, Action.DRAIN_AND_RESET)
DRAINS = (Action.DRAIN_AFTER_JOB, Action.DRAIN_AT_CHECKPOINT, Action.EVICT_NOW)
#: Maximum jobs of a shared cause whose arithmetic is shown; the rest is shown as a total.
JOBS_SHOWN_MAX = 3
INSPECTION_COST = "acting 0.0 GPU-hours: an inspection takes no host out of service."


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
    react_hours = assumptions.detect_hours + assumptions.decide_hours
    hours_per_interruption = react_hours + assumptions.restart_hours + interval / 2.0
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
    faults = (Fault(case.hazard_per_hour, case.relative_speed, case.gpus) for case in hosts)
    losses = [waiting_cost(fault, Workload(), assumptions)[0] for fault in faults]
    gpus = sum(case.gpus for case in hosts)
    share = sum(losses) / max(gpus * assumptions.horizon_hours, 1e-9)
    detail = f"{gpus} GPUs x {assumptions.horizon_hours:g} h x {100 * share:.1f} % lost"
    return sum(losses), f"{len(hosts)} hosts without a known job: {detail}"
