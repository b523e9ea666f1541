"""Placement in simulated fleets: gain over packing by topology alone, and distance to an oracle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bench.quality.markdown import table
from bench.quality.simulated_feed import UNLIMITED, SimulatedAggregator
from gangline.aggregator.arrays import Flags, Floats, Indexes
from gangline.aggregator.decisions import planner
from gangline.aggregator.decisions.node_search import Candidates
from gangline.aggregator.decisions.node_table import NodeTable, node_table
from gangline.aggregator.decisions.price import lost_time, price
from gangline.aggregator.decisions.requirements import GangRequirements
from gangline.aggregator.hazard.events import EventsError, FaultTable
from gangline.aggregator.hazard.history import ALL, units_of
from gangline.aggregator.hazard.training import train
from gangline.aggregator.scoring.base_hazard import base_hazard_per_hour
from gangline.aggregator.scoring.rules.gang import HOSTS_MIN
from gangline.fingerprints.group_statistics import outliers_max
from gangline.fingerprints.sensitivity import WorkloadNeeds
from gangline.simulator.gang_model import GAP_RATIO
from gangline.simulator.incidents import DAY, HOUR, SHARED_PLACES, named_random
from gangline.simulator.machine import GPUS
from gangline.simulator.scenario import FaultClass
from gangline.simulator.window import SimulationWindow
from gangline.simulator.world import World
from tests.aggregator.decisions.fleets import Node, table_of

#: Seconds of telemetry before gangs are placed, and at some earlier hours.
WATCHED_SECONDS, EARLIER_SECONDS = 300.0, 150.0
GANG_HOURS = 24.0
#: Free hosts relative to the size of the gang.
POOL_SHARE = 2.0
#: (scenario, hosts of a gang, midnights, hours before each at which readings are also received)
PLACED = (
    ("quarter", 64, (50, 75), (12.0, 5.0)),
    ("nvl72", 36, (14, 19, 24), (48.0, 36.0, 24.0, 18.0, 12.0, 8.0, 5.0, 2.0)),
)
DRAWS = 20
#: Classes that slow a host at a normal clock, and classes of more work; seconds until a job shows
#: the slowness.
SLOW_AT_CLOCK, MORE_WORK = ("slow_host",), ("stage_imbalance", "sequence_imbalance")
TOLD_SECONDS = 120.0
WANTED = 0.80
#: Hours after midnight at which active effects are evaluated, each until the next.
LOOKS_HOURS = (0.0, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
#: Classes of a job of the world: a placed gang is another job.
PER_JOB = ("job_hour", "job_share")
COMMUNICATE, TENSOR = 0.18, 0.10
#: The workload of the request: the shares of a step of a median job of the world.
NEEDS = WorkloadNeeds(
    bound=(1.0 - COMMUNICATE - TENSOR - GAP_RATIO, 0.0, 0.0, TENSOR, COMMUNICATE, GAP_RATIO, 0.0),
    in_use=(1.0, 0.0, 0.0, TENSOR, COMMUNICATE, GAP_RATIO, 0.0),
)
TEXT = f"""\
An aggregator runs in process at some midnights of a world (2 of `quarter`, 3 of `nvl72`). For {WATCHED_SECONDS / 60:g} minutes it receives
data from all hosts that are up, and before that for {EARLIER_SECONDS / 60:g} minutes at some earlier hours ({"; ".join(f"`{name}`: {', '.join(f'{hour:g}' for hour in hours)}" for name, _, _, hours in PLACED)}).
A real service receives data all the time; this is what the time for the test allows.

- The planner has the aggregator's hazards, speeds and states. A model trained on the faults that ended before gives the
  hazard of a host without a symptom.
- Jobs that are assumed to end at that midnight, and idle hosts, offer {POOL_SHARE:g} times as many hosts as a gang of {GANG_HOURS:g} h takes. Each midnight has
  {DRAWS} placements with different jobs.
- The request gives the shares of a step that its workload spends in computing and in communication.
- `blind` packs by topology alone, on any host that is up.
- `oracle` is the same planner with each host's true rate of interruptions and its true mean speed over those hours. The
  rate has its hardware's share, the burst after a return, and current faults that will kill a job. The speed has its
  parts, and current effects for as long as they last. The oracle does not know what begins later.
- All three are priced with that truth, by the planner's formula and its assumed cost of crossing tiers. Faults that many
  hosts share are in no rate.
- `detectable while observed` and `ever detectable` use the plan's hazards and the true speeds, with one exception. The speed of a
  host that is slow at a normal clock counts only if a job could reveal it. That job ran while data
  arrived, or at any time since the world began.
- Such a job has three hosts or more, few of them slow, for two minutes, and no more work on that host. A plan from
  received data beats `detectable while observed` only by luck.
- The control gives each host the figures of another one.

Command: `python -m bench.quality.placement --only simulated --judged-seed N`."""

REASON = """\
**What is missed is speed** (`with true speeds`: the plan's hazards and the oracle's speeds). One slow member takes the
whole gang's gain. The slow members that remain are slow at a normal clock: five times as many in `nvl72` as in `quarter`.
Only a job that waits for such a host reveals it, unless its stages are uneven or it has many slow hosts.

If `detectable while observed` is below the target, no plan from received data reaches the target. If it is above, the
plan misses what could be detected. Fingerprints of many runs on a host, which find such hosts in service, are not part of
this."""


@dataclass(frozen=True, slots=True)
class HostNumbers:
    """Hazard per hour and speed of each host, and the excluded hosts."""

    hazard: Floats
    speed: Floats
    excluded: Flags


@dataclass(frozen=True, slots=True)
class SimulatedGain:
    """Mean GPU-hours lost by gangs placed in one scenario, by the truth."""

    scenario: str
    gang: int
    gangs: int
    gpu_hours: float  # GPUs x hours of one gang
    blind: float
    planned: float
    oracle: float
    control: float
    speeds_known: float  # by the plan's hazards and the true speeds
    # the same, limited to slowness that a job could show during the watched times
    seen_when_heard: float
    seen_ever: float

    def share(self, lost: float) -> float:
        """Return the share of the oracle's gain for a method that loses *lost*."""
        return (self.blind - lost) / (self.blind - self.oracle)


def base_table(world: World) -> NodeTable:
    """Return all hosts at their places, equally healthy and fast."""
    nodes = []
    for host, name in enumerate(world.names):
        at = world.location(host)
        nvlink = at.nvlink_domain if world.scenario.nvlink_hosts > 1 else ""
        places = ("", at.spine, at.leaf, at.rack, nvlink, at.power_domain, at.cooling_domain)
        nodes.append(Node(name, places=_in_rows(places)))
    return table_of(nodes)[0]


def _in_rows(places: tuple[str, ...]) -> tuple[str, ...]:
    """Return *places* (core, spine, leaf, rack, NVLink, power, cooling) in DOMAIN_FIELDS' order."""
    from gangline.aggregator.scoring.node_facts import DOMAIN_FIELDS

    names = ("core", "spine", "leaf", "rack", "nvlink_domain", "power_domain", "cooling_domain")
    by_name = dict(zip(names, places, strict=True))
    return tuple(by_name.get(field, "") for field in DOMAIN_FIELDS)


def with_numbers(base: NodeTable, numbers: HostNumbers) -> NodeTable:
    hazard, speed = np.maximum(numbers.hazard, 1e-9), numbers.speed
    return replace(
        base, hazard=hazard, hazard_lower=hazard, hazard_upper=hazard, speed=speed, speed_lower=speed,
        speed_upper=speed, excluded=numbers.excluded, _orders={},
    )  # fmt: skip


def class_by_cause(world: World) -> dict[int, FaultClass]:
    rows, classes = world.schedule.rows, world.schedule.classes
    pairs = zip(rows["cause"].tolist(), rows["cls"].tolist(), strict=True)
    return {cause: classes[number] for cause, number in pairs}


def true_rates(world: World, now: float, hours: float) -> Floats:
    """Return the expected interruptions per hour by each host's own faults over *hours* from *now*."""
    scenario, schedule = world.scenario, world.schedule
    count = schedule.hosts
    shape = world.settings.frailty.shape
    shares = named_random(world.seed, "frailty").gamma(shape, 1.0 / shape, count)
    rate = 0.0
    for fault_class in world.settings.active_classes(scenario):
        if fault_class.kills and fault_class.per in ("gpu_hour", "port_hour", "host_hour"):
            units = GPUS if fault_class.per != "host_hour" else 1
            rate += fault_class.rate * scenario.rate_factor * units
    result = np.asarray(rate * count * shares / shares.sum(), dtype=np.float64)
    after = world.settings.after_return
    starts = np.array([0.0, *after.until_days[:-1]])
    ends = np.array(after.until_days)
    per_day = np.array(after.per_1000_node_days) / 1000.0 * min(scenario.rate_factor, 1.0)
    classes = schedule.classes
    cause_class = class_by_cause(world)
    for host, downtimes in schedule.downtimes_by_host.items():
        ends_of_faults = [
            away.end
            for away in downtimes
            if away.end <= now
            and (cause := cause_class.get(away.cause))
            and cause.ends in ("repair", "restart")
            and cause.per not in SHARED_PLACES
            and cause.sort == "faults"
        ]
        if ends_of_faults:
            since = (now - ends_of_faults[-1]) / DAY
            until = since + hours / 24.0
            overlap = np.maximum(np.minimum(ends, until) - np.maximum(starts, since), 0.0)
            result[host] += float(overlap @ per_day) / hours
    rows = schedule.rows
    kills = np.array([fault_class.kills for fault_class in classes])[rows["cls"]]
    under_way = kills & (rows["begin"] <= now) & (rows["end"] > now)
    for row in rows[under_way]:
        if row["begin"] + row["onset"] < now + hours * HOUR:
            result[int(row["host"])] += 1.0 / hours
    return result


def of_class(world: World, names: Sequence[str]) -> Flags:
    """Return which rows of the schedule belong to the classes *names*."""
    schedule = world.schedule
    return np.asarray(
        np.isin([fault_class.name for fault_class in schedule.classes], names)[schedule.rows["cls"]]
    )


def told_slow(world: World, spans: Sequence[tuple[float, float]]) -> Flags:
    """Return hosts that are slow at a normal clock, and whose job can show the slowness.

    The job shows it within one of *spans*, each (begin, end).
    """
    schedule = world.schedule
    result = np.zeros(schedule.hosts, dtype=bool)
    rows = schedule.rows[of_class(world, SLOW_AT_CLOCK)]
    slow = {int(row["host"]): float(row["begin"]) for row in rows}
    larger: dict[int, list[tuple[float, float]]] = {}
    for row in schedule.rows[of_class(world, MORE_WORK)]:
        larger.setdefault(int(row["host"]), []).append((float(row["begin"]), float(row["end"])))
    for job in schedule.jobs:
        inside = [host for host in job.hosts.tolist() if host in slow]
        if job.hosts.size < HOSTS_MIN or len(inside) > outliers_max(np.array([job.hosts.size]))[0]:
            continue
        for host in inside:
            hidden = any(begin < job.end and end > job.begin for begin, end in larger.get(host, ()))
            slow_since = max(job.begin, slow[host])
            both = max(min(job.end, end) - max(slow_since, begin) for begin, end in spans)
            result[host] |= not hidden and both >= TOLD_SECONDS
    return result


def true_speeds(world: World, now: float, hours: float, hidden: Flags | None = None) -> Floats:
    """Return the mean pace of a gang with each host as its slowest, over *hours* from *now*,
    relative to the median host.

    Effects active at *now* last as scheduled; no later effect counts. *hidden*: hosts whose
    slowness at a normal clock is ignored.
    """
    schedule = world.schedule
    rows = schedule.rows
    of_host = ~np.isin([fault_class.per for fault_class in schedule.classes], PER_JOB)[rows["cls"]]
    standing = of_host & (rows["begin"] <= now) & (rows["end"] > now)
    if hidden is not None:
        hosts_of = np.where(of_host, rows["host"], 0)
        standing &= ~(of_class(world, SLOW_AT_CLOCK) & hidden[hosts_of])
    frozen = replace(schedule, rows=rows[standing], jobs=[], jobs_by_host={}, downtimes=[])
    hosts = np.arange(schedule.hosts, dtype=np.int64)
    end = now + hours * HOUR
    window = SimulationWindow(frozen, world.hardware, world.seed, hosts, now, end + 1.0)
    paces: list[Floats] = []
    for hour in LOOKS_HOURS:
        effects = window.step(now + hour * HOUR).gauges.effects
        compute = world.hardware.clock * effects.speed * effects.work
        step = (1.0 - COMMUNICATE - GAP_RATIO) / compute.min(axis=1)
        step += COMMUNICATE / effects.port.min(axis=1) + GAP_RATIO
        step += TENSOR * (1.0 / np.maximum(effects.nvlink.min(axis=1), 0.05) - 1.0)
        lost = 1.0 - (1.0 - effects.stall) * (1.0 - effects.starved)
        paces.append(np.asarray((1.0 - lost) / step, dtype=np.float64))
    weights = np.diff((*LOOKS_HOURS, hours))
    mean = np.average(np.stack(paces), axis=0, weights=weights)
    return np.asarray(mean / np.median(mean), dtype=np.float64)


def fault_table(world: World, until_seconds: float) -> FaultTable:
    """Return the faults that took a host away, as in a record until *until_seconds*."""
    schedule = world.schedule
    of_cause = class_by_cause(world)
    result = [
        (away.host, away.begin / DAY, away.end / DAY if away.end <= until_seconds else np.inf)
        for away in schedule.downtimes
        if away.begin < until_seconds
        and away.cause in of_cause
        and of_cause[away.cause].sort == "faults"
    ]
    node, start, end = np.array(result).T.reshape(3, -1)
    return FaultTable(
        tuple(world.names), node.astype(np.intp), start, end, np.ones(node.size, dtype=bool), until_seconds / DAY
    )  # fmt: skip


def model_hazards(world: World, now: float) -> Floats:
    """Return each host's hazard per hour by its faults before *now*, a midnight.

    A host that is not in the record has the base rate.
    """
    prior = base_hazard_per_hour(GPUS)
    hazards = np.full(world.schedule.hosts, prior)
    faults = fault_table(world, now)
    try:
        model = train(faults, ALL, "the world until then")
    except EventsError:
        return hazards
    # The state at *now* is the state at the last midnight of a record that ends slightly later.
    units = units_of(replace(faults, end_days=faults.end_days + 1.5), 1)
    last = units.between(round(now / DAY), round(now / DAY))
    hazards[last.node] = -np.log1p(-model.probability(last.state, 1)) / 24.0
    return hazards


def judged_numbers(
    world: World, now: float, earlier_hours: Sequence[float], seconds: float = WATCHED_SECONDS
) -> HostNumbers:
    """Return hazards, speeds and states of an aggregator that received the hosts.

    It received them for *seconds* from *now*, and for EARLIER_SECONDS at *earlier_hours* before.
    """
    schedule = world.schedule
    hosts = [host for host in range(schedule.hosts) if not schedule.is_away(host, now)]
    aggregator = SimulatedAggregator(world, hosts, UNLIMITED)
    for hours in earlier_hours:
        for step in world.frames(hosts, now - hours * HOUR, now - hours * HOUR + EARLIER_SECONDS):
            aggregator.step(step)
        aggregator.reconnect()
    for step in world.frames(hosts, now, now + seconds):
        aggregator.step(step)
    judged = aggregator.judged
    assert judged is not None
    known = node_table(judged, NEEDS)
    at = np.array([judged.names.index(name) for name in world.names], dtype=np.intp)
    symptoms = np.maximum(known.hazard[at] - base_hazard_per_hour(GPUS), 0.0)
    return HostNumbers(model_hazards(world, now) + symptoms, known.speed[at], known.excluded[at])


def free_hosts(world: World, now: float, count: int, source: np.random.Generator) -> Indexes:
    """Return *count* hosts that are up: idle hosts, and the hosts of randomly drawn jobs."""
    schedule = world.schedule
    up = [host for host in range(schedule.hosts) if not schedule.is_away(host, now)]
    jobs: dict[int, list[int]] = {}
    free: list[int] = []
    for host in up:
        job = schedule.job_at(host, now)
        (free if job is None else jobs.setdefault(job.number, [])).append(host)
    for number in source.permutation(sorted(jobs)).tolist():
        if len(free) >= count:
            break
        free += jobs[number]
    return np.array(free[:count], dtype=np.intp)


def gain(
    world: World,
    gang: int,
    days: Sequence[int],
    earlier_hours: Sequence[float],
    seed: int,
    draws: int = DRAWS,
    watched: float = WATCHED_SECONDS,
) -> SimulatedGain:
    """Return the losses of gangs placed at the midnights of *days*, by method."""
    source = np.random.default_rng(seed)
    needs = GangRequirements(gang, gpus_per_node=GPUS, hours=GANG_HOURS)
    lost = lost_time(needs, gang * GPUS)
    base = base_table(world)
    nobody = np.zeros(len(base), dtype=bool)
    result: list[list[float]] = []
    for day in days:
        now = day * DAY
        judged = judged_numbers(world, now, earlier_hours, watched)
        begins = now + watched
        truth = HostNumbers(
            true_rates(world, begins, GANG_HOURS), true_speeds(world, begins, GANG_HOURS), nobody
        )
        mixed = source.permutation(len(base))
        control = HostNumbers(judged.hazard[mixed], judged.speed[mixed], judged.excluded[mixed])
        true_table = with_numbers(base, truth)
        earlier = [now - hour * HOUR for hour in earlier_hours]
        heard = [(now, begins), *((begin, begin + EARLIER_SECONDS) for begin in earlier)]
        known = [truth.speed]
        for spans in (heard, [(0.0, begins)]):
            known.append(true_speeds(world, begins, GANG_HOURS, ~told_slow(world, spans)))
        by = judged, truth, control, *(replace(judged, speed=speed) for speed in known)
        tables = [base, *(with_numbers(base, numbers) for numbers in by)]
        for _ in range(draws):
            free = np.zeros(len(base), dtype=bool)
            free[free_hosts(world, begins, round(POOL_SHARE * gang), source)] = True
            row: list[float] = []
            for nodes in tables:
                chosen = planner.plan(nodes, Candidates(free), needs)[0].nodes
                members = planner.members_of(true_table, chosen)
                row.append(price(members, lost, GANG_HOURS).total.value)
            result.append(row)
    means = [float(value) for value in np.mean(result, axis=0)]
    return SimulatedGain(world.scenario.name, gang, len(result), lost.gross_gpu_hours, *means)


def simulated_section(seed: int) -> str:
    rows = [
        gain(World(name, seed), gang, days, earlier_hours, seed)
        for name, gang, days, earlier_hours in PLACED
    ]
    cells = [
        (
            f"`{row.scenario}`", str(row.gang), str(row.gangs), f"{row.gpu_hours:,.0f}",
            *(f"{value:,.0f}" for value in (row.blind, row.planned, row.oracle)),
            f"{row.share(row.planned):.0%}",
            *(f"{row.share(value):.0%}" for value in (row.seen_when_heard, row.seen_ever, row.speeds_known, row.control)),
        )
        for row in rows
    ]  # fmt: skip
    heads = (
        "fleet | hosts of a gang | gangs | GPU-hours of one | lost: blind | plan | oracle | share "
        "of the oracle's gain | detectable while observed | ever detectable | with true speeds | "
        "control"
    )
    missed = [f"`{row.scenario}`" for row in rows if row.share(row.planned) < WANTED]
    summary = f"Target: {WANTED:.0%} of the oracle's gain, {'missed in ' + ' and '.join(missed) if missed else 'met'}. Seed {seed}."
    if missed:
        summary += f"\n\n{REASON}"
    return "\n\n".join(["## Simulated: fleets", TEXT, table(heads, cells), summary])
