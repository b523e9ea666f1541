"""The choice of judgements that are stored."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from gangline.aggregator.model import HealthState, HostScore, Reason, Snapshot
from gangline.aggregator.scoring.score_rows import ScoreLog

SECOND = 1_000_000_000
ONE = HostScore(
    host="a", node_index=0, simulated=False, score=0.99, score_lower=0.9, score_upper=1.0,
    state=HealthState.HEALTHY, hazard_per_hour=0.001, relative_speed=1.0, reason=Reason.NONE,
    reason_message="", clears_when="", last_received_ns=1,
)  # fmt: skip


def at(seconds: int, *hosts: HostScore) -> Snapshot:
    return Snapshot(1, seconds * SECOND, 28800.0, hosts)


def test_an_unchanged_score_is_written_every_five_minutes() -> None:
    """The history has no longer gap, and not 86,400 rows a day of a healthy host."""
    log = ScoreLog()
    written = [second for second in range(3600) if log.take_changed(at(second, ONE))]
    assert written == list(range(0, 3600, 300))


@pytest.mark.parametrize(
    "change",
    [
        {"state": HealthState.WATCH},
        {"reason": Reason.ECC_TREND},
        {"score": 0.98},
        {"relative_speed": 0.9},
        {"relative_speed": math.nan},
        {"hazard_per_hour": 0.002},
    ],
)
def test_a_change_is_written_at_once(change: dict[str, float]) -> None:
    """A change is stored at once, so that its second is known; small noise is not stored."""
    log = ScoreLog()
    log.take_changed(at(1, ONE))
    assert log.take_changed(at(2, replace(ONE, score=0.9905, last_received_ns=2))) == []
    other = replace(ONE, **change)  # type: ignore[arg-type]
    assert log.take_changed(at(3, other)) == [other]
    assert log.take_changed(at(4, other)) == []
    assert log.take_changed(at(5, ONE)) == [ONE]


def test_hosts_are_spread_over_the_five_minutes() -> None:
    """Ten thousand rows in the same second of every 300 would be a periodic stall."""
    log = ScoreLog()
    hosts = [replace(ONE, host=f"h{n}", node_index=n) for n in range(300)]
    log.take_changed(at(0, *hosts))
    counts = [len(log.take_changed(at(second, *hosts))) for second in range(1, 301)]
    assert max(counts) == 1
