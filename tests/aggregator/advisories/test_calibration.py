"""Calibration of hazards by outcomes: by hazard, each job once, aged, and bounded per reporter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import exp, expm1, log
from typing import Any, NamedTuple

import numpy as np
import pytest

from gangline.aggregator.advisories import outcome_rows
from gangline.aggregator.advisories.outcome_rows import ExpectedOutcome, OutcomeHost, OutcomeRecord
from gangline.aggregator.scoring.calibration import (
    FACTOR_BOUNDS,
    KNOTS_PER_HOUR,
    Calibration,
    ReportedOutcomes,
    factors,
)
from gangline.aggregator.store.store import Store
from tests.worlds import START_NS

HOUR_NS, DAY_NS = 3600 * 10**9, 86_400 * 10**9
#: From a host without GPUs to a host that is about to fail.
HAZARDS = tuple(np.geomspace(5e-6, 60.0, 100).tolist())
CALM = 1.81e-4

HISTORIES: dict[str, tuple[tuple[float, float, bool, int], ...]] = {
    "none": (),
    "a few": ((CALM, 8.0, True, 3), (CALM, 8.0, False, 500)),
    "hazards too large": ((CALM, 500.0, False, 400), (0.05, 8.0, False, 300)),
    "hazards too small": ((CALM, 8.0, True, 200), (2e-3, 8.0, True, 30), (0.3, 8.0, True, 30)),
    "the calm too small, the sick too large": ((CALM, 8.0, True, 400), (0.3, 100.0, False, 400)),
    "only the sick": ((1.0, 100.0, False, 500), (0.05, 10.0, True, 20)),
}  # fmt: skip
#: Hazard, hours, whether it was interrupted: dead for half an hour and for a year, a week of calm, a burst, a moment.
WORST = (
    (60.0, 0.5, True), (60.0, 8760.0, False), (60.0, 8760.0, True), (CALM, 8760.0, True), (CALM, 8760.0, False),
    (CALM, 1e-3, True), (1e-3, 24.0, True), (1e-2, 240.0, False), (0.2, 1e-6, True), (5e-6, 1.0, True),
)  # fmt: skip
JOBS, GANG, JOB_HOURS = 10_000, 16, 24.0


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    opened_store = Store.open(tmp_path_factory.mktemp("store"), None, lambda: START_NS)
    yield opened_store
    opened_store.close()


@pytest.fixture
def store(opened: Store) -> Store:
    """A store without scores."""
    opened.in_transaction(lambda connection: connection.execute("DELETE FROM scores"))
    return opened


def near(hazard: float) -> list[float]:
    """Return the weight of each knot for *hazard*."""
    position = min(max(np.log10(hazard / KNOTS_PER_HOUR[0]), 0.0), 3.0)
    return [max(0.0, 1.0 - abs(position - knot)) for knot in range(len(KNOTS_PER_HOUR))]


def told(
    reported: ReportedOutcomes,
    hazard: float,
    hours: float,
    interrupted: bool,
    by: str = "",
    count: int = 1,
) -> None:
    """Report *count* jobs of *hours* hours each on a host with *hazard*."""
    chance = -expm1(-hazard * hours)
    shares = near(hazard)
    all_shares = [count * share for share in shares]  # sums over many jobs
    interruptions = [interrupted * share for share in all_shares]
    expected = [chance * share for share in all_shares]
    counted = [(1.0 - chance) * share for share in interruptions]
    hours_near = [hours * share for share in all_shares]
    reported.add(
        by, START_NS, (counted, expected), (all_shares, hours_near, interruptions, expected)
    )


def factors_of(calibration: Calibration) -> np.ndarray[Any, Any]:
    return np.exp(calibration.log_factors(np.log(HAZARDS)))


@pytest.mark.parametrize("history", HISTORIES)
def test_no_single_outcome_moves_any_hazard_by_more_than_5_percent(history: str) -> None:
    """One true report of one dead host divided every hazard of the fleet by ten, for 400 days."""
    before = ReportedOutcomes()
    for hazard, hours, interrupted, count in HISTORIES[history]:
        told(before, hazard, hours, interrupted, count=count)
    factors_before = factors_of(before.calibration(START_NS))
    for worst_case in WORST:
        after = ReportedOutcomes()
        for hazard, hours, interrupted, count in HISTORIES[history]:
            told(after, hazard, hours, interrupted, count=count)
        told(after, *worst_case)
        moved = factors_of(after.calibration(START_NS)) / factors_before
        assert np.all(np.abs(np.log(moved)) <= log(1.05)), worst_case


@pytest.mark.parametrize("mine", WORST)
@pytest.mark.parametrize("honest", [1, 100])
def test_a_liar_among_a_hundred_reporters_moves_no_hazard_by_more_than_10_percent(
    mine: tuple[float, float, bool], honest: int
) -> None:
    """A tenant's script reported each of its crashes as a host's, ten thousand times."""
    random = np.random.default_rng(5)
    hazards = np.geomspace(1e-4, 0.5, 99)
    known = ReportedOutcomes()
    for tenant, hazard in enumerate(hazards):
        told(known, hazard, 0.3 / hazard, False, f"tenant {tenant}", int(3 * honest))
        told(known, hazard, 0.3 / hazard, True, f"tenant {tenant}", int(random.poisson(honest)))
    factors_before = factors_of(known.calibration(START_NS))
    told(known, *mine, by="liar", count=10_000)
    assert np.all(
        np.abs(np.log(factors_of(known.calibration(START_NS)) / factors_before)) <= log(1.1)
    )


def test_one_scheduler_alone_is_believed() -> None:
    """Most fleets have a single scheduler: the bound per reporter must not silence it."""
    known = ReportedOutcomes()
    told(known, CALM, 8.0, True, "slurm", 300)
    told(known, CALM, 8.0, False, "slurm", 100_000)
    interruptions, expected = 300 * exp(-8 * CALM), 100_300 * -expm1(-8 * CALM)
    assert known.calibration(START_NS).factors[0] == pytest.approx(interruptions / expected)


def test_the_sick_say_nothing_of_the_well_and_a_higher_hazard_stays_the_higher() -> None:
    """A thousand good jobs on hosts expected to fail made healthy hosts ten times as good."""
    known = ReportedOutcomes()
    told(known, 1.0, 8.0, False, count=1000)
    calibration = known.calibration(START_NS)
    assert calibration.factors[0] == 1.0 and calibration.factors[-1] == pytest.approx(0.1)
    # A knot without data takes the factor of the knot below.
    assert factors((100.0, 0.0, 0.0, 0.0), (50.0, 0.0, 0.0, 0.0)) == (2.0,) * 4
    random = np.random.default_rng(1)
    for _ in range(200):
        interruptions, expected = random.exponential(100.0, (2, 4)) * random.integers(0, 2, (2, 4))
        calibration = Calibration((), (), factors(interruptions.tolist(), expected.tolist()))
        low, high = FACTOR_BOUNDS
        assert all(low <= factor <= high for factor in calibration.factors)
        after = np.log(HAZARDS) + calibration.log_factors(np.log(HAZARDS))
        assert np.all(np.diff(after) >= -1e-9)


def test_outcomes_fade_by_half_in_their_half_life() -> None:
    """An incident of last year, with an obsolete driver, affected hazards for 400 days."""
    known = ReportedOutcomes(half_life_days=30.0)
    told(known, CALM, 8.0, True, count=400)
    now = known.calibration(START_NS)
    later = known.calibration(START_NS + 30 * DAY_NS)
    for before, after in ((now.interruptions, later.interruptions), (now.expected, later.expected)):
        assert after == pytest.approx([value / 2 for value in before])
    assert known.calibration(START_NS + 400 * DAY_NS).factors[0] < 1.01 < later.factors[0]
    assert known.totals[2].sum() == pytest.approx(400)  # reports are kept


class Score(NamedTuple):
    """A stored score of *host*, *minutes* after the job began."""

    minutes: float
    hazard: float
    state: str = "HEALTHY"
    log_outcomes: float | None = None
    host: str = "h0"


def put(store: Store, scores: Sequence[Score]) -> None:
    def work(connection: Any) -> None:
        if scores:
            connection.executemany(
            "INSERT INTO scores (time, host, version, hazard_per_hour, state, log_hazard_outcomes) "
            "VALUES (make_timestamp(?), ?, 1, ?, ?, ?)",
            [
                (START_NS // 1000 + int(s.minutes * 60e6), s.host, s.hazard, s.state, s.log_outcomes)
                for s in scores
            ],
        )  # fmt: skip

    store.in_transaction(work)


def every_5_minutes(hours: float, hazard: float, *rest: Any, after: float = 0.0) -> list[Score]:
    return [Score(after + 5.0 * step, hazard, *rest) for step in range(int(hours * 12))]


HAZARDS_SUMMED: dict[str, tuple[list[Score], float, bool, float | None, float]] = {
    # scores, hours of the job, interrupted, summed hazard (None: unknown), counted share of an
    # interruption
    "all of it was scored": (every_5_minutes(2.0, 0.01), 2.0, True, 0.02, 1.0),
    "its first hour was scored": (every_5_minutes(1.0, 0.01), 8.0, True, 0.01 * 65 / 60, 0.0),
    "its last hour was scored": (every_5_minutes(1.0, 0.01, after=420.0), 8.0, True, 0.01, 1.0),
    "one score": ([Score(0.0, 0.3)], 8.0, False, 0.05, 0.0),
    "no score": ([], 8.0, True, None, 0.0),
    "a score of before counts until the next": ([Score(-5.0, 6.0), Score(0.0, 0.1)], 0.1, False, 0.01, 1.0),
    "sixty scores of one minute": (
        [*every_5_minutes(1.0, 0.0001), *(Score(60 + at / 60, 1.0) for at in range(60)), Score(61.0, 0.0001)],
        61.5 / 60, False, 0.0001 * 60.5 / 60 + 1 / 60, 1.0,
    ),
    "without what outcomes added": (every_5_minutes(2.0, 0.1, "WATCH", log(10.0)), 2.0, True, 0.02, 1.0),
    "at the limit": ([Score(0.0, 60.0, "WATCH", log(0.1))], 0.1, False, 6.0, 1.0),
    "dead all the time": (every_5_minutes(2.0, 60.0, "UNHEALTHY"), 2.0, True, None, 0.0),
    "in maintenance": (every_5_minutes(2.0, 0.1, "MAINTENANCE"), 2.0, True, None, 0.0),
    # The interruption counts as expected, though the job was reported hours later.
    "it died after an hour": (
        [*every_5_minutes(1.0, 0.01), *every_5_minutes(7.0, 60.0, "UNHEALTHY", after=60.0)], 8.0, True, 0.01, 1.0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", HAZARDS_SUMMED)
def test_hazard_counts_where_it_was_scored_up_to_the_interruption(store: Store, case: str) -> None:
    """Hazard only counts for scored time, up to the interruption.

    A job of 30 minutes on a host that had died 50 s before was charged for 30 minutes; a job of 8
    h, scored in its last minute, for 8 h.
    """
    scores, hours, interrupted, summed, share = HAZARDS_SUMMED[case]
    put(store, scores)
    span = OutcomeHost(7, "h0", START_NS, START_NS + int(hours * HOUR_NS), interrupted)
    expected = store.in_transaction(
        lambda connection: outcome_rows.expected_outcomes(connection, [span])
    )
    assert (7 in expected) == (summed is not None)
    if summed is not None:
        outcome = expected[7]
        assert outcome.interruptions == pytest.approx(-expm1(-summed), rel=1e-6)
        assert sum(outcome.by_hazard) == pytest.approx(outcome.interruptions)
        assert sum(outcome.shares) == pytest.approx(share)


def test_an_interruption_is_of_the_blamed_host_else_of_all_by_their_hazards(store: Store) -> None:
    """The sick host of a gang ended the job, and all healthy hosts were rated worse."""
    weak = [score._replace(host="h1") for score in every_5_minutes(1.0, KNOTS_PER_HOUR[2], "WATCH")]
    put(store, [*every_5_minutes(1.0, KNOTS_PER_HOUR[0]), *weak])
    spans = [
        OutcomeHost(number, host, START_NS, START_NS + HOUR_NS, True, host in suspects)
        for number, suspects in enumerate((("h0", "h1"), ("h0",), ("h1",)))
        for host in ("h0", "h1", "h2")  # nothing is stored of h2
    ]
    expected = store.in_transaction(
        lambda connection: outcome_rows.expected_outcomes(connection, spans)
    )
    assert expected[0].by_hazard == pytest.approx(expected[1].by_hazard) == expected[2].by_hazard
    assert expected[0].by_hazard[2] == pytest.approx(100 * expected[0].by_hazard[0], rel=1e-3)
    assert expected[0].shares == pytest.approx((1 / 101, 0, 100 / 101, 0), rel=1e-3)
    assert expected[1].shares == pytest.approx((1, 0, 0, 0), abs=1e-9)
    assert expected[2].shares == pytest.approx((0, 0, 1, 0), abs=1e-9)
    nobody = [OutcomeHost(0, host, START_NS, START_NS + HOUR_NS, True) for host in ("h0", "h1", "h2", "h3")]  # fmt: skip
    expected = store.in_transaction(
        lambda connection: outcome_rows.expected_outcomes(connection, nobody)
    )
    assert sum(expected[0].shares) == pytest.approx(0.5)  # two of four hosts have no scores


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("factor", [0.3, 1.0, 3.0])
def test_10000_outcomes_bring_a_hazard_that_is_mis_scaled_back(factor: float, seed: int) -> None:
    """Scores are *factor* times the truth; some hosts fail once a year, some within the hour."""
    random = np.random.default_rng(seed)
    reported = ReportedOutcomes()
    for _ in range(JOBS):
        # Most jobs run on healthy hosts; one in ten has a sick host, too.
        scored = random.uniform(1e-4, 4e-4, GANG)
        if random.random() < 0.1:
            scored[0] = 10 ** random.uniform(-3.0, 0.0)
        times = random.exponential(factor / scored)
        hours, first = min(float(times.min()), JOB_HOURS), int(times.argmin())
        knots = np.array([near(record) for record in scored])
        hazards = (scored * hours) @ knots
        is_blamed = random.random() < 0.5
        shares = knots[first] if is_blamed else scored @ knots / scored.sum()
        chance = -expm1(-hazards.sum())
        by_hazard = tuple((chance * hazards / hazards.sum()).tolist())
        expected = ExpectedOutcome(float(chance), by_hazard, tuple(shares.tolist()))
        record = OutcomeRecord("", "slurm", hours < JOB_HOURS, expected, (), GANG * hours, GANG)
        record.add_to(reported, START_NS)
    calibration = reported.calibration(START_NS)
    hosts = np.log(np.geomspace(1e-4, 1.0, 50))
    back = np.exp(calibration.log_factors(hosts)) * factor
    assert np.all((back > 1 / 1.2) & (back < 1.2)), calibration
