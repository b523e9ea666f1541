"""What waiting costs and what acting costs, in GPU-hours, with the sums shown.

Waiting: a job of G GPUs is interrupted by this host about H / (1/h + t) times within H hours, at hazard h per hour,
where each time costs t = detect + decide + restart + half a checkpoint interval (renewal theory; for small h it is
h * H). A slow host costs (1 - speed) of the whole gang. Where the interval is not known it is Young's optimum,
sqrt(2 * checkpoint * MTTF) (Young 1974, Daly 2006). Acting: what the job loses by the step, and the host while it
is out. All times are hours but where a name says seconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, sqrt

from .advisory import SILENCE, Action, Basis, Case, Price
from .limits import HOUR_NS


@dataclass(frozen=True, slots=True)
class Workload:
    """What runs on a host. Zeros and "": not known."""

    job: str = ""
    gang_gpus: int = 0
    gang_hazard_per_hour: float = 0.0  # of all its hosts; for Young's optimum
    checkpoint_seconds: float = 0.0  # cadence; 0: not known
    dead: bool = False


@dataclass(frozen=True, slots=True)
class Assumed:
    """What nobody told us. Detect, restart and checkpoint are what training teams report for hundreds of GPUs
    (assumed until outcomes say better); the repair is the public record's median (`docs/advice.md`)."""

    horizon_hours: float = 8.0
    detect_hours: float = 0.1
    decide_hours: float = 0.05
    restart_hours: float = 0.2
    checkpoint_write_seconds: float = 60.0
    reset_hours: float = 0.25
    reboot_hours: float = 0.5
    diagnostic_hours: float = 1.0
    repair_hours: float = 20.0


ASSUMED = Assumed()
DRAINS = (Action.DRAIN_AFTER_JOB, Action.DRAIN_AT_CHECKPOINT, Action.EVICT_NOW)


@dataclass(frozen=True, slots=True)
class Fault:
    """What is known of the host: hazard per hour, relative speed (1.0 or NaN costs nothing), its GPUs."""

    hazard_per_hour: float
    relative_speed: float
    gpus: int


def checkpoint_hours(work: Workload, fault: Fault, assumed: Assumed = ASSUMED) -> tuple[float, str]:
    """Return the checkpoint interval, and in words where it is from."""
    if work.checkpoint_seconds > 0:
        return work.checkpoint_seconds / 3600.0, "seen"
    hazard = max(work.gang_hazard_per_hour, fault.hazard_per_hour, 1e-9)
    optimum = sqrt(2.0 * assumed.checkpoint_write_seconds / 3600.0 / hazard)
    return min(optimum, assumed.horizon_hours), "Young's optimum"


def waiting(fault: Fault, work: Workload, assumed: Assumed = ASSUMED) -> tuple[float, str]:
    """Return the GPU-hours lost within the horizon if nothing is done, and the sum in words."""
    gang, horizon = max(work.gang_gpus, fault.gpus), assumed.horizon_hours
    interval, source = checkpoint_hours(work, fault, assumed)
    each = assumed.detect_hours + assumed.decide_hours + assumed.restart_hours + interval / 2.0
    hazard = fault.hazard_per_hour
    times = horizon / (1.0 / hazard + each) if hazard > 0 else 0.0
    slow = 1.0 - fault.relative_speed if isfinite(fault.relative_speed) else 0.0
    slow = min(max(slow, 0.0), 1.0)
    share = min(times * each / horizon, 1.0)
    lost = gang * horizon * (share + (1.0 - share) * slow)
    words = (
        f"waiting {lost:,.1f} GPU-hours = {gang} GPUs x {horizon:g} h x ({100 * share:.1f} % lost to "
        f"{times:.2f} interruptions ({hazard:.3g}/h) of {each:.2f} h each"
    )
    words += f", and {100 * slow:.0f} % slow of the rest)" if slow else ")"
    return lost, f"{words}; checkpoint every {interval:.2f} h ({source})"


def out_hours(action: Action, then: Action | None, assumed: Assumed = ASSUMED) -> float:
    """Return for how long the host is out of service."""
    step = then if then is not None and action in (*DRAINS, Action.DRAIN_P2P) else action
    return {
        Action.INSPECT: assumed.repair_hours if action in DRAINS else 0.0,
        Action.CAP_POWER: 0.0,
        Action.RETURN_TO_SERVICE: 0.0,
        Action.AVOID: assumed.horizon_hours,
        Action.RESET_GPU: assumed.reset_hours,
        Action.DRAIN_AND_RESET: assumed.reset_hours,
        Action.RECOVER_IMEX_DOMAIN: assumed.reset_hours,
        Action.DRAIN_P2P: assumed.reset_hours,
        Action.REBOOT: assumed.reboot_hours,
        Action.RUN_DIAGNOSTIC: assumed.diagnostic_hours,
    }.get(step, assumed.repair_hours)


def acting(
    action: Action, then: Action | None, fault: Fault, work: Workload, assumed: Assumed = ASSUMED
) -> tuple[float, str]:
    """Return the GPU-hours lost by *action*, and the sum in words."""
    host, gang = out_hours(action, then, assumed), max(work.gang_gpus, fault.gpus)
    job = _job_hours(action, fault, work, assumed)
    lost = gang * job + fault.gpus * host
    words = f"acting {lost:,.1f} GPU-hours = {fault.gpus} GPUs x {host:g} h out"
    if job:
        words += f" + {gang} GPUs x {job:.2f} h of restart and lost work"
    return lost, words


def _job_hours(action: Action, fault: Fault, work: Workload, assumed: Assumed) -> float:
    """Return the hours that the whole gang loses."""
    if work.dead:
        return 0.0
    if action is Action.DRAIN_AT_CHECKPOINT:
        return assumed.restart_hours
    if action in (Action.EVICT_NOW, Action.RESET_GPU, Action.REBOOT):
        return assumed.restart_hours + checkpoint_hours(work, fault, assumed)[0] / 2.0
    return 0.0


def price(
    action: Action, then: Action | None, fault: Fault, work: Workload, now_ns: int,
    basis: Basis, assumed: Assumed = ASSUMED,
) -> Price:  # fmt: skip
    """Return both costs, when waiting has cost as much as acting, and the arithmetic."""
    wait, wait_words = waiting(fault, work, assumed)
    act, act_words = acting(action, then, fault, work, assumed)
    act_by, by_words = 0, "within the horizon waiting never costs as much"
    if act <= 0:
        by_words = "acting costs no GPU-hours, so the sooner the better"
    elif wait > act:
        hours = assumed.horizon_hours * act / wait
        act_by = now_ns + int(hours * HOUR_NS)
        by_words = f"waiting costs as much after {hours:.2f} h: {act:,.1f} / {wait:,.1f} x {assumed.horizon_hours:g} h"
    certain = " (a fault, not a forecast)" if basis is not Basis.STATISTICAL else ""
    return Price(wait, act, act_by, f"{wait_words}{certain}. {act_words}. {by_words}.")


#: Of a shared cause the sums of so many jobs are shown; of the others what they come to.
JOBS_SHOWN_MAX = 3
LOOKING = "acting 0.0 GPU-hours: looking takes no host out of service."


def together(cases: Sequence[Case], assumed: Assumed = ASSUMED) -> Price:
    """Return what waiting costs on all hosts of *cases*, which have one cause; looking for it costs nothing.

    A job counts once, whatever number of its hosts it is: at the sum of their hazards and the pace of its slowest.
    """
    hosts = list({one.host: one for one in cases}.values())
    gpus = sum(one.gpus for one in hosts)
    if hosts and all(one.reason == SILENCE for one in hosts):
        lost = gpus * assumed.horizon_hours
        works = f"none of the {len(hosts)} hosts works" if len(hosts) > 1 else "it does not work"
        sums = f"{gpus} GPUs x {assumed.horizon_hours:g} h, if {works}"
        return Price(lost, arithmetic=f"waiting {lost:,.1f} GPU-hours = {sums}. {LOOKING}")
    jobs: dict[str, list[Case]] = defaultdict(list)
    for one in hosts:
        jobs[one.job].append(one)
    alone = jobs.pop("", [])
    parts = sorted((_of_job(job, each, assumed) for job, each in jobs.items()), reverse=True)
    if alone:
        parts.append(_of_idle(alone, assumed))
    lost = sum(part for part, _ in parts)
    shown = [f"{part:,.1f} ({words})" for part, words in parts[:JOBS_SHOWN_MAX]]
    if rest := [part for part, _ in parts[JOBS_SHOWN_MAX:]]:
        shown.append(f"{sum(rest):,.1f} (of {len(rest)} more)")
    return Price(lost, arithmetic=f"waiting {lost:,.1f} GPU-hours = {' + '.join(shown)}. {LOOKING}")


def _of_job(job: str, hosts: Sequence[Case], assumed: Assumed) -> tuple[float, str]:
    """Return what the job loses by all of *hosts*, with the sum in words."""
    fault = Fault(
        sum(one.hazard_per_hour for one in hosts),
        min(one.relative_speed for one in hosts),
        sum(one.gpus for one in hosts),
    )
    checkpoint_seconds = max(one.checkpoint_seconds for one in hosts)
    work = Workload(job, max(one.gang_gpus for one in hosts), 0.0, checkpoint_seconds)
    lost, words = waiting(fault, work, assumed)
    return lost, f"job {job} on {len(hosts)} of them: {words.partition(' = ')[2]}"


def _of_idle(hosts: Sequence[Case], assumed: Assumed) -> tuple[float, str]:
    """Return what hosts lose of which no job is known, each with its own GPUs."""
    each = [
        waiting(Fault(one.hazard_per_hour, one.relative_speed, one.gpus), Workload(), assumed)[0]
        for one in hosts
    ]
    gpus = sum(one.gpus for one in hosts)
    share = sum(each) / max(gpus * assumed.horizon_hours, 1e-9)
    words = f"{gpus} GPUs x {assumed.horizon_hours:g} h x {100 * share:.1f} % lost"
    return sum(each), f"{len(hosts)} hosts of which no job is known: {words}"
