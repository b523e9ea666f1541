"""The world's schedule and truth: deterministic to the byte, and as its file says."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from gangline.simulator import truth
from gangline.simulator.jobs import SimulatedJob
from gangline.simulator.sampled_episodes import (
    AFTER_SECONDS,
    BEFORE_SECONDS,
    LENGTH_SECONDS_MAX,
    fault_episodes,
    random_spans,
)
from gangline.simulator.scenario import WorldSettings
from gangline.simulator.scenario_file import load
from gangline.simulator.timelines import days_until_next
from gangline.simulator.world import STEP_SECONDS, World

SETTINGS = load()


def small(name: str, **changes: Any) -> WorldSettings:
    scenario = replace(SETTINGS.scenarios[name], **changes)
    return replace(SETTINGS, scenarios={**SETTINGS.scenarios, name: scenario})


@lru_cache(maxsize=4)
def world(seed: int = 1) -> World:
    """Return 128 hosts for ten days of a bad season."""
    return World("month", seed, settings=small("month", hosts=128, days=10.0, rate_factor=8.0))


def log(of: World) -> list[dict[str, Any]]:
    return [json.loads(line) for line in truth.lines(of)]


def incidents(of: World) -> list[dict[str, Any]]:
    return [line for line in log(of) if line["what"] == "incident"]


def first_frames(of: World) -> bytes:
    steps = of.frames(range(4), 600.0, 660.0)
    return b"".join(d.frame for step in steps for d in step.deliveries)


def test_the_same_seed_gives_the_same_bytes_and_another_gives_others() -> None:
    """A finding of the bench must be reproducible from its seed."""
    first, again, other = (World("parade", seed) for seed in (3, 3, 4))
    assert list(truth.lines(first)) == list(truth.lines(again))
    assert first_frames(first) == first_frames(again) != first_frames(other)
    assert set(truth.lines(first)) != set(truth.lines(other))


def test_a_class_that_is_left_out_changes_no_other() -> None:
    """If each class drew from one source, a sweep of one rate would reshuffle the rest."""
    both = World("shared", 1, settings=small("shared", hosts=64, days=3.0))
    classes = tuple(c for c in both.scenario.classes if c not in ("leaf_down", "rack_dark"))
    fewer = World("shared", 1, settings=small("shared", hosts=64, days=3.0, classes=classes))
    brakes = [
        [i["begin_seconds"] for i in incidents(w) if i["class"] == "power_brake"]
        for w in (both, fewer)
    ]
    assert brakes[0] and brakes[0] == brakes[1]


def test_faults_come_as_often_as_the_file_says() -> None:
    """A world with a tenth of the faults would make any detector look calm."""
    gpus, hours = 128 * 8, 10 * 24
    rows = world().schedule.rows
    for name in ("flap", "power_cap"):
        class_ = SETTINGS.classes[name]
        number = list(SETTINGS.classes).index(name)
        expected = class_.rate * 8.0 * gpus * hours
        assert 0.6 * expected < (rows["cls"] == number).sum() < 1.3 * expected, name


def test_hosts_come_back_and_fail_again() -> None:
    """Faults cluster after repair; in a memoryless world recency would be worthless, unlike in reality."""
    again = [i for i in incidents(world()) if i["origin"] is not None]
    assert again
    by_cause = {i["cause"]: i for i in incidents(world())}
    for incident in again:
        first = by_cause[incident["origin"]]
        assert first["begin_seconds"] < incident["begin_seconds"]
        assert incident["struck"][0] in first["struck"] and incident["class"] == first["class"]


def test_what_hosts_share_does_not_come_back_on_one_of_them() -> None:
    """A rack's loss of power "came back" on a single host, which its truth called a rack."""
    scenario = small("shared", hosts=256, days=30.0, classes=("rack_dark",), nvlink_hosts=1)
    schedule = World("shared", 1, settings=scenario).schedule
    assert len(schedule.rows) > 40
    for cause in np.unique(schedule.rows["cause"]):
        rows = schedule.rows[schedule.rows["cause"] == cause]
        rack = np.flatnonzero(schedule.topology.rack == schedule.topology.rack[rows["host"][0]])
        begin = float(rows["begin"].min())
        missing = {*rack.tolist()} - {*rows["host"].tolist()}
        assert all(schedule.is_away(host, begin + 2.0) for host in missing), "else it is struck"


def test_a_gang_hangs_until_its_time_out_and_dies_then() -> None:
    """`world.toml` ended jobs at the onset; in fact they hang for minutes, and show a lost GPU's peers as victims."""
    parade = World("parade", 1)
    for name in ("gpu_lost", "gsp_hang", "nic", "hbm"):
        row = parade.schedule.rows[
            parade.schedule.rows["cls"] == list(SETTINGS.classes).index(name)
        ][0]
        due = float(row["begin"] + row["onset"])
        job = parade.schedule.job_at(int(row["host"]), due)
        assert job is not None and job.killed_by == row["cause"], name
        away = next(a for a in parade.schedule.downtimes if a.cause == row["cause"])
        assert due + 10.0 < job.end == away.begin - 60.0 * SETTINGS.repair.drain_minutes
        view = parade.open([int(row["host"])], due - 5.0, job.end)
        view.step(due - 1.0)
        assert view.step(due + 5.0).gauges.shares.wait[0].min() > 0.99


@pytest.mark.parametrize(("exponential", "days"), [(0.0, 0.0), (0.1, 0.0303), (9.0, float("inf"))])
def test_the_hazard_after_a_return_is_spent_span_by_span(exponential: float, days: float) -> None:
    """The first hour holds the repairs that repaired nothing: 3.3 a node-day there."""
    draws = type("Draws", (), {"settings": SETTINGS, "scenario": SETTINGS.scenarios["month"]})
    assert days_until_next(draws, exponential) == pytest.approx(days, rel=1e-2)  # type: ignore[arg-type]


def test_no_host_is_in_two_jobs_or_away_with_one() -> None:
    """Such a world would have victims in jobs of other hosts."""
    schedule = world().schedule
    for host in range(schedule.hosts):
        jobs: list[SimulatedJob] = [schedule.jobs[n] for n in schedule.jobs_by_host.get(host, [])]
        spans = [(j.begin, j.end) for j in jobs]
        spans += [(a.begin, a.end) for a in schedule.downtimes_by_host.get(host, [])]
        spans.sort()
        assert all(a[1] <= b[0] + 1e-6 for a, b in pairwise(spans)), host
    assert len(schedule.jobs) > 100
    worked = sum(job.hosts.size * (job.end - job.begin) for job in schedule.jobs)
    assert worked > 0.5 * schedule.seconds * schedule.hosts


def test_a_fault_that_kills_ends_the_job_of_all_its_hosts() -> None:
    """A gang dies with any of its members."""
    schedule = world().schedule
    killed = {job.killed_by: job for job in schedule.jobs if job.killed_by >= 0}
    killing = {i["cause"]: i for i in incidents(world()) if i["killed_jobs"]}
    assert killed and killing
    for incident in killing.values():
        class_ = SETTINGS.classes[incident["class"]]
        assert class_.kills or class_.ends in ("repair", "restart")
        assert set(incident["killed_jobs"]) <= set(incident["jobs"])


def test_shared_causes_strike_a_whole_place_within_two_seconds() -> None:
    """Eight hosts of one rack braking at once are one power fault, not eight bad hosts."""
    shared = World("shared", 2, settings=small("shared", hosts=96, days=7.0))
    rows = shared.schedule.rows
    number = list(SETTINGS.classes).index("power_brake")
    brakes = rows[rows["cls"] == number]
    for cause in np.unique(brakes["cause"]):
        mine = brakes[brakes["cause"] == cause]
        assert np.ptp(mine["begin"]) < 2.0
        assert len(np.unique(shared.schedule.topology.rack[mine["host"]])) == 1
    assert len(brakes) >= SETTINGS.fleet.rack_hosts


def test_the_healthy_world_has_look_alikes_and_no_fault() -> None:
    calm = World("healthy", 1, settings=small("healthy", hosts=96, days=5.0))
    sorts = {i["sort"] for i in incidents(calm)}
    assert sorts == {"benign"}
    assert {i["class"] for i in incidents(calm)} >= {
        "data_stall",
        "planned_reboot",
        "full_load_cap",
    }


def test_every_class_has_its_turn_in_a_parade() -> None:
    for nvlink_hosts in (1, 8):
        parade = World("parade", 1, settings=small("parade", nvlink_hosts=nvlink_hosts))
        wanted = {c.name for c in SETTINGS.active_classes(parade.scenario) if c.per != "share"}
        assert {i["class"] for i in incidents(parade)} >= wanted
        assert ("nvlink_switch" in wanted) == (nvlink_hosts > 1)


def test_the_truth_says_who_what_when_how_much_and_who_waited() -> None:
    """The truth that the judge is measured by must be complete."""
    parade = World("parade", 1)
    lines = log(parade)
    assert [line["what"] for line in lines[:2]] == ["world", "job"]
    assert "rdma_link" in lines[0]["assumed_classes"] and "hbm" not in lines[0]["assumed_classes"]
    assert "amount" in lines[0]["chosen"]["hbm"]
    hang = next(i for i in incidents(parade) if i["class"] == "gsp_hang")
    assert hang["struck"][0][1].startswith("GPU-") and hang["amount_is"]
    assert hang["begin_seconds"] < hang["due_seconds"] < hang["end_seconds"]
    jobs = {line["job"]: line for line in lines if line["what"] == "job"}
    others = {host for job in hang["jobs"] for host in jobs[job]["hosts"]}
    assert hang["victims_count"] == len(others - {hang["struck"][0][0]})
    places = {parade.location(host).rack for host in range(4)}
    assert len(places) == 1 and len(parade.location(0).rails) == 8


def test_hours_sample_all_time_alike() -> None:
    """False alarms per node-day come from samples: a random span from each equal part, with that part's weight."""
    spans = list(random_spans(world(), 12))
    assert sum(e.weight * (e.end - e.begin) for e in spans) == pytest.approx(world().seconds)
    assert all(e.hosts == tuple(range(128)) and e.end <= world().seconds for e in spans)
    assert len({int(12 * e.begin / (world().seconds - 3600.0)) for e in spans}) == 12
    assert spans == list(random_spans(world(), 12))


def test_eventful_episodes_hold_the_culprit_its_gang_and_the_onset() -> None:
    """A judge that sees only the culprit cannot compare it with other hosts."""
    episodes = list(fault_episodes(world(), 2))
    assert len({e.class_name for e in episodes}) > 15
    truths = {i["cause"]: i for i in incidents(world())}
    names = world().names
    for episode in episodes:
        reported = truths[episode.cause]
        assert reported["struck"][0][0] in {names[h] for h in episode.hosts}
        begin = reported["begin_seconds"]
        is_fault = (
            reported["sort"] == "faults" and episode.class_name != "slow_host"
        )  # that has no begin
        is_whole = is_fault or reported["end_seconds"] - begin <= LENGTH_SECONDS_MAX
        assert not is_whole or (episode.begin <= max(begin, STEP_SECONDS) and begin < episode.end)
        assert episode.weight >= 1.0 and len(episode.hosts) >= 8


def test_what_stands_for_long_is_watched_at_any_time_and_what_is_short_until_it_is_over() -> None:
    """Look-alikes of whole jobs were looked at in their first five minutes, and no reboot until its host was back."""
    sorts = {class_.name: class_.sort for class_ in world().schedule.classes}
    episodes = [
        episode for episode in fault_episodes(world(), 5) if sorts[episode.class_name] != "faults"
    ]
    rows = world().schedule.rows
    late = []
    for episode in episodes:
        mine = rows[rows["cause"] == episode.cause]
        begin, end = float(mine["begin"].min()), min(float(mine["end"].max()), world().seconds)
        stood = min(episode.end, end) - max(episode.begin, begin)
        assert stood >= min(end - begin, LENGTH_SECONDS_MAX) - 1e-6
        assert episode.end - episode.begin <= BEFORE_SECONDS + LENGTH_SECONDS_MAX + AFTER_SECONDS
        if end - begin <= LENGTH_SECONDS_MAX:
            assert episode.end == pytest.approx(min(end + AFTER_SECONDS, world().seconds))
        if end - begin > 36_000.0:
            late.append(episode.begin > begin + LENGTH_SECONDS_MAX)
    reboots = [episode for episode in episodes if episode.class_name == "planned_reboot"]
    assert len(reboots) == 5 and sum(late) > 0.8 * len(late) > 8
    assert episodes == [
        episode for episode in fault_episodes(world(), 5) if sorts[episode.class_name] != "faults"
    ]


def test_a_fault_that_stands_for_ever_is_watched_at_any_time() -> None:
    """Slow hosts were only watched in the first eight minutes of the world, when all jobs begin,
    before any checkpoint.
    """
    episodes = [
        episode for episode in fault_episodes(world(), 5) if episode.class_name == "slow_host"
    ]
    parts = {int(4 * episode.begin / world().seconds) for episode in episodes}
    assert len(episodes) > 3 and len(parts) > 2
    longest = BEFORE_SECONDS + LENGTH_SECONDS_MAX + AFTER_SECONDS
    assert all(episode.end - episode.begin <= longest for episode in episodes)
    # Its gang is the gang at the onset.
    jobs = [
        world().schedule.job_at(episode.hosts[0], episode.begin + BEFORE_SECONDS)
        for episode in episodes
    ]
    gangs = [
        (episode, {*job.hosts.tolist()}) for episode, job in zip(episodes, jobs, strict=True) if job
    ]
    assert gangs and all(
        len(gang & {*episode.hosts}) >= min(len(gang), 40) for episode, gang in gangs
    )


def test_causes_begin_anywhere_between_two_steps() -> None:
    """All faults began on a step: a fault of two seconds was always seen, and each delay was half a step too short."""
    begins = {int(row["cause"]): float(row["begin"]) for row in world().schedule.rows[::-1]}
    phases = [
        (begins[episode.cause] - episode.begin) % STEP_SECONDS
        for episode in fault_episodes(world(), 5)
    ]
    counts, _ = np.histogram(phases, 5, (0.0, STEP_SECONDS))
    assert counts.min() >= 0.1 * len(phases), counts
