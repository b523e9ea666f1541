"""The truth as scoring reads it: a repaired host is healthy, and a later finding on it is wrong."""

from __future__ import annotations

import numpy as np
import pytest

from bench.quality.simulated_feed import JUDGE, Observed, SimulatedAdvice
from bench.quality.simulated_kinds import RIGHT, SimulatedCase
from bench.quality.simulated_score import score
from bench.quality.simulated_truth import GRACE_SECONDS, GroundTruth, TrueFault
from gangline.aggregator.advisories.advisory import Action, Basis
from gangline.simulator.world import World

PARADE = World("parade", 1)
EVERYONE = tuple(range(64))


def struck_by(
    name: str, begin: float = 0.0, end: float = PARADE.seconds
) -> tuple[GroundTruth, TrueFault]:
    number = next(n for n, class_ in enumerate(PARADE.schedule.classes) if class_.name == name)
    rows = PARADE.schedule.rows
    cause = int(rows[rows["cls"] == number]["cause"][0])
    whole = GroundTruth(PARADE, EVERYONE, 0.0, PARADE.seconds)
    return GroundTruth(PARADE, EVERYONE, begin, end), whole.of_cause(cause)[0]


def drained(truth: GroundTruth, one: TrueFault, seconds: float) -> list[str]:
    """Return the count of a drain of a struck host, for a reason of its fault, at a given time."""
    reason = min(right.name for right in RIGHT[one.each.name])
    advised = SimulatedAdvice(
        seconds, "a1", f"host {one.host}", (one.host,), Action.DRAIN_AFTER_JOB, Basis.STATISTICAL, reason, ""
    )  # fmt: skip
    case = SimulatedCase("", "", -1, 1.0, EVERYONE, 0.0, 60.0)
    wrong = score(case, Observed(advised=[advised]), truth, {}).wrong
    return [finding.what for finding in wrong if finding.by == JUDGE]


@pytest.mark.parametrize("name", ["gsp_hang", "gpu_lost"])  # a restart; a repair
def test_a_drain_of_a_host_that_is_back_from_its_repair_is_false(name: str) -> None:
    """A judge that carries an XID over the boot drains what was just repaired: for ten minutes that counted as right."""
    truth, struck = struck_by(name)
    assert any(away.end == struck.end for away in PARADE.schedule.downtimes), (
        "its end is that it is back"
    )
    assert drained(truth, struck, struck.end - 60.0) == []
    assert drained(truth, struck, struck.end + 10.0) == [], "what is just taken back"
    assert drained(truth, struck, struck.end + 300.0) == ["drain"]
    assert not truth.is_ill(struck.host, struck.end + 300.0)


def test_what_ends_by_itself_may_be_told_for_ten_minutes_more() -> None:
    """The judge counts events for ten minutes: the host was not repaired, and the fault may return."""
    truth, struck = struck_by("thermal")
    assert drained(truth, struck, struck.end + GRACE_SECONDS - 1.0) == []


def test_a_host_that_is_back_counts_as_well_and_as_calm() -> None:
    """Node-days, and the hosts without a fault: both must contain every host that can be wrongly drained."""
    truth, struck = struck_by("gsp_hang")
    times = np.arange(struck.end + 30.0, struck.end + 300.0, 10.0)
    later, _ = struck_by("gsp_hang", struck.end + 30.0, struck.end + 300.0)
    away = [
        a
        for a in PARADE.schedule.downtimes
        if a.begin <= struck.end + 300.0 and a.end > struck.end + 30.0
    ]
    assert not [a for a in away if PARADE.names[a.host] == struck.host]
    assert struck.host in truth.undisturbed(times)
    assert struck not in later.faults, "else it is none of the victims of others in this span"
