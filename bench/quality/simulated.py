"""Simulated: the judge and its advice over episodes of a world of 2,000 hosts and 90 days, in process.

Drawing the world takes some 20 s; then each episode (its hosts and minutes alone) is fed to an aggregator of its own and
scored, in as many processes as there are cores. The tables are a function of scenario, seed and sizes alone.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gangline.agent.simulated.world import World
from gangline.agent.simulated.world.episodes import (
    BEFORE_SECONDS,
    HOSTS_MIN,
    Episode,
    eventful,
    quiet,
)

from .simulated_feed import feed
from .simulated_kinds import Case, Score
from .simulated_moments import passing
from .simulated_page import page
from .simulated_run import Run
from .simulated_score import score
from .simulated_truth import Truth, node_days

Progress = Callable[[str, float], None]

#: Of an episode's own hosts; and others beside them, as peers: so many at least, and so many that for each host that one
#: cause strikes there are 1.25 that it does not, as there would be many more in a fleet.
NEAR_MAX, FAR_MIN, UNSTRUCK_RATIO = 40, 16, 1.25
#: An episode ends so long after the onset was over.
AFTER_ONSET_SECONDS = 600.0
QUIET_SECONDS, QUIET_HOSTS = 600.0, 96
#: From where others stand beside one episode to where they do beside the next: all over the fleet in turn.
STRIDE_HOSTS = 389


@dataclass(frozen=True, slots=True)
class Plan:
    """How much of what is judged."""

    scenario: str = "quarter"
    per_class: int = 20
    quiet: int = 200
    hosts: int | None = None  # instead of the scenario's own


def section(seed: int, progress: Progress, plan: Plan = Plan()) -> str:
    """Return the section of docs/quality.md."""
    progress("drawing the world", 0.0)
    world = World(plan.scenario, seed, hosts=plan.hosts)
    cases = list(planned(world, plan))
    scores = judged(world, cases, progress)
    run = Run(
        plan.scenario,
        seed,
        plan.per_class,
        plan.quiet,
        world.scenario.hosts,
        world.seconds / 86400.0,
        world.schedule.classes,
        tuple(scores),
        quiet_days(world, cases),
        node_days(world),
    )
    return page(run)


def planned(world: World, plan: Plan) -> Iterator[Case]:
    """Yield what is to be judged."""
    sorts = {each.name: each.sort for each in world.schedule.classes}
    for episode in eventful(world, plan.per_class):
        yield _around(world, episode, sorts[episode.class_name])
    for number, episode in enumerate(quiet(world, plan.quiet, QUIET_SECONDS)):
        yield _quiet(world, episode, number)


def _around(world: World, episode: Episode, sort: str) -> Case:
    rows = world.schedule.rows
    mine = rows[rows["cause"] == episode.cause]
    near = episode.hosts[:NEAR_MAX]
    struck = len({*mine["host"].tolist()} & {*near})
    wanted = max(FAR_MIN, int(np.ceil(UNSTRUCK_RATIO * struck)) - (len(near) - struck))
    far = _others(world, near, wanted, episode.cause)
    # What is wrong with the telling alone is watched to its end: advice waits for some of it.
    after = AFTER_ONSET_SECONDS if sort != "monitoring" else float("inf")
    due = BEFORE_SECONDS + float(mine["onset"].max()) + after
    end = min(episode.end, episode.begin + due)
    names = world.names
    return Case(
        class_name=episode.class_name,
        sort=sort,
        cause=episode.cause,
        weight=episode.weight,
        hosts=(*near, *far),
        near=frozenset(names[host] for host in near),
        far=frozenset(names[host] for host in far),
        begin=episode.begin,
        end=end,
    )


def _quiet(world: World, episode: Episode, number: int) -> Case:
    """Return a quiet episode with others beside it: a hundred hosts cost little more than sixteen."""
    far = _others(world, episode.hosts, QUIET_HOSTS - len(episode.hosts), number)
    hosts = (*episode.hosts, *far)
    names = frozenset(world.names[host] for host in hosts)
    return Case("", "", -1, episode.weight, hosts, frozenset(), names, episode.begin, episode.end)


def _others(world: World, hosts: tuple[int, ...], count: int, number: int) -> tuple[int, ...]:
    """Return *count* neighbours elsewhere in the fleet, by *number*."""
    total, among = world.scenario.hosts, {*hosts}
    first = number * STRIDE_HOSTS % total
    everyone = ((first + step) % total for step in range(total))
    return tuple(host for host in everyone if host not in among)[: max(count, 0)]


def quiet_days(world: World, cases: Sequence[Case]) -> float:
    """Return the node-days of the world for which its quiet episodes stand."""
    size = min(HOSTS_MIN, world.scenario.hosts)
    found = (one for one in cases if not one.class_name)
    return sum(one.weight * size * (one.end - one.begin) for one in found) / 86400.0


#: What the processes work on: taken over from their parent as it was forked.
_work: tuple[World, Sequence[Case]] | None = None


def judged(world: World, cases: Sequence[Case], progress: Progress) -> list[Score]:
    """Return the scores of *cases*, in their order."""
    global _work
    _work = world, cases
    # The longest first, so that no process works alone at the end.
    order = sorted(range(len(cases)), key=lambda at: -_size(cases[at]))
    done: dict[int, Score] = {}
    with multiprocessing.get_context("fork").Pool(os.cpu_count()) as pool:
        for at, one in pool.imap_unordered(_judge, order):
            done[at] = one
            progress("judging episodes", len(done) / len(cases))
    return [done[at] for at in range(len(cases))]


def _size(case: Case) -> float:
    return len(case.hosts) * (case.end - case.begin)


def _judge(at: int) -> tuple[int, Score]:
    assert _work is not None
    world, cases = _work
    return at, judge_case(world, cases[at])


def judge_case(world: World, case: Case) -> Score:
    """Return how the aggregator did in one episode."""
    said = feed(world, case.hosts, case.begin, case.end)
    truth = Truth(world, case.hosts, case.begin, case.end)
    places = {world.names[host]: world.place(host) for host in case.hosts}
    passed = list(passing(world, case.hosts, case.begin, case.end))
    return score(case, said, truth, places, passed)
