"""A returned host shows PROBATION in its state and score, over restarts, until its time is over."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing

import pytest

from gangline.aggregator.advisories.advisory import Action, AdvisoryState
from gangline.aggregator.advisories.advisory_limits import AdvisoryLimits
from gangline.aggregator.advisories.engine import AdvisoryEngine
from gangline.aggregator.advisories.messages import Acked
from gangline.aggregator.advisories.observer import Observer
from gangline.aggregator.commands.explain import explanation_text
from gangline.aggregator.hazard.features import FEATURES
from gangline.aggregator.hazard.model import HazardModel
from gangline.aggregator.model import Finding, HostScore
from gangline.aggregator.scoring.evaluate import evaluate
from gangline.aggregator.scoring.rules.configuration import FACTORS, factor_after
from gangline.aggregator.service.score_messages import score_message
from tests.aggregator.advisories.served import Tables, dead_gpu, observe
from tests.worlds import World, gpu_of

DAY_NS = 86_400 * 10**9
LIMITS = AdvisoryLimits(gather_seconds=0.0, verify_seconds=5.0, probation_seconds=2 * 86_400.0)
TRAINED = HazardModel(
    "a test",
    False,
    "all classes",
    -5.0,
    (1.1, 0.7, 1.3, 0.3, 0.9, 0.1, *[0.0] * (len(FEATURES) - 6)),
)


@pytest.fixture
def store() -> Iterator[Tables]:
    with closing(Tables()) as tables:
        yield tables


def book_of(store: Tables, world: World) -> AdvisoryEngine:
    return AdvisoryEngine(store, LIMITS, Observer(), world.now_ns, shadow=False)


def judged(world: World, book: AdvisoryEngine, model: HazardModel | None = None) -> HostScore:
    """Judge with the feedback of the engine, and return the third host."""
    world.snapshot = evaluate(
        world.fleet, world.now_ns, world.snapshot, model, book.outcome_feedback
    )
    return world.snapshot.hosts[2]


def answer(book: AdvisoryEngine, world: World, to: AdvisoryState) -> None:
    (open_advisory,) = book.feed.open
    asyncio.run(book.answer(Acked(world.now_ns, open_advisory.name, to, "slurm")))


def returned(store: Tables) -> tuple[World, AdvisoryEngine]:
    """Return a world whose third host was drained, reset and returned to service."""
    world = dead_gpu()
    book = book_of(store, world)
    observe(book, world)
    asyncio.run(book.flush())
    for to in (AdvisoryState.ACCEPTED, AdvisoryState.DONE):
        answer(book, world, to)
    host = world.hosts[2]
    for gpu in range(2):
        host.readings["gpu_1s", gpu_of(host, gpu)]["energy_joules"] = 0.0  # it was reset
    world.run(90)
    for _ in range(3):
        observe(book, world)
        asyncio.run(book.flush())
        world.run(6)
    (open_advisory,) = book.feed.open
    assert open_advisory.action is Action.RETURN_TO_SERVICE
    assert judged(world, book).state.name == "HEALTHY"  # no symptom is left, but it is still out
    answer(book, world, AdvisoryState.ACCEPTED)
    answer(book, world, AdvisoryState.DONE)
    return world, book


def test_a_host_that_came_back_is_on_probation_until_its_time_is_over(store: Tables) -> None:
    """A host failed again within the hour, under a big job: its return was not shown."""
    world, book = returned(store)
    host = judged(world, book)
    assert (host.state.name, host.reason.name) == ("PROBATION", "POLICY")
    assert host.clears_when.startswith("it stays well until ")
    (returned_evidence,) = [e for e in host.evidence if e.signal == "host.returned"]
    assert "110 times" in returned_evidence.message and returned_evidence.score_delta < 0
    assert host.hazard_per_hour == pytest.approx(110.4 * world.snapshot.hosts[1].hazard_per_hour)  # type: ignore[union-attr]
    observe(book, world)
    assert book.feed.open == []  # a forecast of this kind needs no action
    again = book_of(store, world)  # after a restart
    assert judged(world, again).state.name == "PROBATION"
    assert judged(world, again, TRAINED).state.name == "PROBATION"
    trained = [e for e in judged(world, again, TRAINED).evidence if e.signal == "host.returned"]
    assert trained[0].log_hazard_delta == 0.0  # the model includes it
    assert world.snapshot is not None
    trained_score = judged(world, again, TRAINED)
    explanation = explanation_text(
        score_message(world.snapshot, trained_score, 8.0, full=True, sources=()), 200
    )
    assert "back in service since" in explanation
    assert "There is no evidence against it" not in explanation
    begin = again.outcome_feedback.returned["h2"].since_ns
    world.now_ns = begin + DAY_NS + 10**9
    world.run(8)
    observe(again, world)
    later = judged(world, again)
    assert later.state.name == "PROBATION"
    assert later.hazard_per_hour == pytest.approx(10.8 * world.snapshot.hosts[1].hazard_per_hour)
    world.now_ns = begin + 2 * DAY_NS
    world.run(8)
    observe(again, world)
    assert judged(world, again).state.name == "HEALTHY" and not again.outcome_feedback.returned


@pytest.mark.slow
@pytest.mark.parametrize(("silent", "stalled_ratio", "factor"), [(True, 0.0, 5.0), (False, 0.5, 2.0)])  # fmt: skip
def test_what_befalls_a_host_on_probation_adds_to_it(
    store: Tables, silent: bool, stalled_ratio: float, factor: float
) -> None:
    """Hazards of silence and of probation add up.

    A host just back from repair fell silent, and its score rose from 0.85 to 0.99: the worse state
    counted, which has by far the lesser hazard.
    """
    world, book = returned(store)
    before = judged(world, book)
    world.hosts[2].silent = silent
    world.hosts[2].set("host_1s", "host", pressure_memory_full_ratio=stalled_ratio)
    world.run(90)
    host = judged(world, book)
    added = {item.signal: item.hazard_delta for item in host.evidence}
    calm = before.hazard_per_hour / 110.4
    assert added["host.returned"] == pytest.approx(109.4 * calm)
    assert host.hazard_per_hour == pytest.approx((110.4 + factor - 1) * calm)
    assert host.score < before.score


def test_a_fault_during_probation_is_told_before_it(store: Tables) -> None:
    """The fault is the host's state, ahead of its probation."""
    world, book = returned(store)
    world.event(world.hosts[2], 95, gpu_of(world.hosts[2], 1))
    assert judged(world, book).state.name == "UNHEALTHY"


def test_a_milder_trouble_makes_a_host_no_better_to_choose(store: Tables) -> None:
    """A clock off by 1 s made the host WATCH, which ranked before other hosts on probation."""
    world, book = returned(store)
    assert (judged(world, book).state.name, buckets(world)) == ("PROBATION", [0, 0, 2, 0])
    for name in ("h1", "h2"):
        world.fleet.add_finding(Finding(name, "clock.offset", "", "the clock is 3600 s ahead", 1))
    assert (judged(world, book).state.name, buckets(world)) == ("WATCH", [0, 1, 2, 0])
    judged(world, book, TRAINED)
    assert buckets(world) == [0, 1, 2, 0]


def buckets(world: World) -> list[int]:
    assert world.snapshot is not None
    return world.snapshot.columns.bucket.tolist()  # type: ignore[no-any-return]


def test_the_longer_ago_the_less() -> None:
    """By public records most failed repairs fail within a day."""
    factors = [factor_after(days) for days, _ in FACTORS] + [factor_after(400.0)]
    assert factor_after(0.0) == 110.4 and factors == sorted(factors, reverse=True)
