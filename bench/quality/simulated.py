"""Simulated: judging and advice over a world of 2,000 hosts and 90 days, in process.

Drawing the world takes about 20 s. Then hours of the whole fleet, and episodes around causes (only
their hosts and minutes), are each fed to an aggregator of their own and scored, one process per
core. The tables depend only on scenario, seed and sizes, not on the number of processes.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from bench.quality.kept import Pieces
from bench.quality.progress import Progress
from bench.quality.simulated_feed import LIMITS, UNLIMITED, feed
from bench.quality.simulated_kinds import AFTER_ONSET_SECONDS, NEAR_MAX, Score, SimulatedCase
from bench.quality.simulated_moments import passing
from bench.quality.simulated_page import page
from bench.quality.simulated_run import SimulatedRun
from bench.quality.simulated_score import score
from bench.quality.simulated_truth import GroundTruth, node_days
from gangline.simulator.sampled_episodes import (
    BEFORE_SECONDS,
    SampledEpisode,
    fault_episodes,
    random_spans,
)
from gangline.simulator.world import World

#: Peers of an episode: at least FAR_MIN, and 1.25 for each host that its cause affects, because a
#: fleet has many more unaffected hosts.
FAR_MIN, UNSTRUCK_RATIO = 16, 1.25
#: Distance between the additional hosts of successive episodes, so that they cover the fleet.
STRIDE_HOSTS = 389


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The amount of judged data."""

    scenario: str = "quarter"
    per_class: int = 20
    hours: int = 4
    hosts: int | None = None  # instead of the scenario's own


def section(
    seed: int, progress: Progress, plan: RunPlan = RunPlan(), pieces: Pieces | None = None
) -> str:
    """Return the section of docs/quality.md. *pieces*: judged pieces to resume from."""
    progress("drawing the world", 0.0)
    world = World(plan.scenario, seed, hosts=plan.hosts)
    scores = judged(world, list(planned(world, plan)), progress, pieces=pieces)
    classes = world.settings.active_classes(world.scenario)
    sizes = plan.per_class, plan.hours, world.scenario.hosts, world.seconds / 86400.0
    return page(SimulatedRun(plan.scenario, seed, *sizes, classes, tuple(scores), node_days(world)))


def planned(world: World, plan: RunPlan) -> Iterator[SimulatedCase]:
    """Yield the cases to judge."""
    sorts = {fault_class.name: fault_class.sort for fault_class in world.schedule.classes}
    for episode in fault_episodes(world, plan.per_class):
        yield _around(world, episode, sorts[episode.class_name])
    for span in random_spans(world, plan.hours):
        yield SimulatedCase("", "", -1, span.weight, span.hosts, span.begin, span.end)


def _around(world: World, episode: SampledEpisode, sort: str) -> SimulatedCase:
    rows = world.schedule.rows
    cause_rows = rows[rows["cause"] == episode.cause]
    near = episode.hosts[:NEAR_MAX]
    struck_hosts = len({*cause_rows["host"].tolist()} & {*near})
    wanted = max(FAR_MIN, int(np.ceil(UNSTRUCK_RATIO * struck_hosts)) - (len(near) - struck_hosts))
    # Benign causes are watched for their whole duration, because some advice comes late. A
    # permanent fault has no time before it, and is watched as long as others.
    end = episode.end
    if sort == "faults":
        onset_end = float(cause_rows["begin"].min() + cause_rows["onset"].max())
        end = min(end, max(onset_end, episode.begin + BEFORE_SECONDS) + AFTER_ONSET_SECONDS)
    hosts = (*near, *_others(world, near, wanted, episode.cause))
    case = episode.class_name, sort, episode.cause, episode.weight
    return SimulatedCase(*case, hosts, episode.begin, end)


def _others(world: World, hosts: tuple[int, ...], count: int, number: int) -> tuple[int, ...]:
    total, among = world.scenario.hosts, {*hosts}
    first = number * STRIDE_HOSTS % total
    everyone = ((first + step) % total for step in range(total))
    return tuple(host for host in everyone if host not in among)[: max(count, 0)]


#: The work of the processes, inherited by fork.
_work: tuple[World, Sequence[SimulatedCase]] | None = None


def judged(
    world: World,
    cases: Sequence[SimulatedCase],
    progress: Progress,
    processes: int | None = None,
    pieces: Pieces | None = None,
) -> list[Score]:
    """Return the scores of *cases*, in their order. *processes*: None for one per core."""
    global _work
    _work = world, cases
    before = {index: pieces.read(index) for index in range(len(cases))} if pieces else {}
    done: dict[int, Score] = {name: score for name, score in before.items() if score is not None}
    # The longest first, so that the last processes end together.
    order = sorted(
        {*range(len(cases))} - done.keys(), key=lambda index: (-_size(cases[index]), index)
    )
    whole, size = sum(map(_size, cases)), sum(_size(cases[index]) for index in done)
    with multiprocessing.get_context("fork").Pool(processes or os.cpu_count()) as pool:
        for index, score in pool.imap_unordered(_judge, order):
            done[index] = score
            if pieces:
                pieces.write(index, score)
            size += _size(cases[index])
            progress("judging the world", size / whole)
    return [done[index] for index in range(len(cases))]


def _size(case: SimulatedCase) -> float:
    return len(case.hosts) * (case.end - case.begin)


def _judge(at: int) -> tuple[int, Score]:
    assert _work is not None
    world, cases = _work
    return at, judge_case(world, cases[at])


def judge_case(world: World, case: SimulatedCase) -> Score:
    """Return the score of one episode or one hour."""
    is_hour = not case.class_name
    observed = feed(world, case.hosts, case.begin, case.end, UNLIMITED if is_hour else LIMITS)
    truth = GroundTruth(world, case.hosts, case.begin, case.end)
    places = {world.names[host]: world.location(host) for host in case.hosts}
    passed = list(passing(world, case.hosts, case.begin, case.end)) if is_hour else []
    return score(case, observed, truth, places, passed)
