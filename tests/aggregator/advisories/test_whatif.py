"""What a rule would have done: over stored evidence, by the policy, the limits and the places of now."""

from __future__ import annotations

from typing import Any

import pytest

from gangline.aggregator.advisories import policy, replay
from gangline.aggregator.advisories.advisory_limits import HOUR_NS, SECOND_NS, AdvisoryLimits
from gangline.aggregator.advisories.failure_domains import NOWHERE, FailureDomains
from gangline.aggregator.advisories.replay import (
    DAY_NS,
    ReplayedAdvisory,
    ReplayReport,
    replay_rule,
)
from gangline.aggregator.store.rows import time_us
from gangline.contract.host_policy import builtin
from tests.aggregator.advisories.served import Tables

NOW = 1_760_000_000 * SECOND_NS
PLENTY = AdvisoryLimits(cluster_share_max=1.0, hosts_per_hour_max=1000, rack_hosts_max=2)


class Stored:
    """A store with the evidence that a test writes, of ten hosts."""

    def __init__(self) -> None:
        self.connection = Tables().connection
        self.write("INSERT INTO hosts BY NAME SELECT 'h' || range AS host FROM range(10)", {})

    def write(self, statement: str, values: dict[str, Any]) -> None:
        self.connection.execute(statement, values)

    def saw(
        self, host: str, hours_ago: float, signal: str = "gpu.xid", value: float = 95.0,
        reason: str = "XID_FATAL", state: str = "UNHEALTHY", device: str = "GPU-1",
    ) -> None:  # fmt: skip
        """Store a score with one piece of evidence."""
        at = time_us(NOW - int(hours_ago * HOUR_NS))
        self.write(
            "INSERT INTO evidence BY NAME SELECT make_timestamp($at) AS time, $host AS host, 1 AS version, "
            "$signal AS signal, $device AS device, $value AS value, '' AS unit, '' AS normal, 2.0 AS log_hazard_delta, "
            "1.0 AS relative_speed_factor, -0.5 AS score_delta, $reason AS reason, 'it is so' AS words, "
            "make_timestamp($at) AS observed, '' AS sql",
            {"at": at, "host": host, "signal": signal, "device": device, "value": value, "reason": reason},
        )  # fmt: skip
        self.write(
            "INSERT INTO scores BY NAME SELECT make_timestamp($at) AS time, $host AS host, 1 AS version, "
            "$state AS state, 0.1 AS hazard_per_hour, 1.0 AS relative_speed, 0.5 AS score_upper",
            {"at": at, "host": host, "state": state},
        )

    def asked(
        self, rule: str, limits: AdvisoryLimits = PLENTY, racked: bool = False
    ) -> ReplayReport:
        place = (lambda host: FailureDomains(rack="r1")) if racked else (lambda host: NOWHERE)
        return replay_rule(self.connection, rule, 30, limits, NOW, place)


def test_other_rules_do_not_crowd_a_rule_out_and_a_cut_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Half a million rows of a chatty rule were three days, and the month before them had had no XID at all."""
    stored = Stored()
    stored.saw("h1", 500.0)
    for hour in range(5):
        stored.saw(
            "h2",
            float(hour),
            signal="host.pressure_cpu_some_ratio",
            reason="HOST_CPU",
            state="WATCH",
        )
    monkeypatch.setattr(replay, "ROWS_MAX", 3)
    report = stored.asked("gpu.xid 95")
    assert [one.case.host for one in report.episodes] == ["h1"]
    assert report.from_ns == NOW - 500 * HOUR_NS
    for hour in range(3):
        stored.saw(f"h{3 + hour}", 100.0 - hour)
    report = stored.asked("gpu.xid 95")
    assert [one.case.host for one in report.episodes] == ["h3", "h4", "h5"]
    assert report.from_ns == NOW - 100 * HOUR_NS


def test_what_was_never_stored_was_not_replayed() -> None:
    """Scores are kept for a fortnight: what came in it was read as what comes in a month, and cost half as much."""
    stored = Stored()
    assert stored.asked("gpu.xid 95").from_ns == NOW
    stored.saw("h1", 60.0, signal="odd", reason="PCIE")
    stored.saw("h1", 50.0)
    assert stored.asked("gpu.xid 95").from_ns == NOW - 60 * HOUR_NS
    stored.saw("h1", 31 * 24.0)
    assert stored.asked("gpu.xid 95").from_ns == NOW - 30 * DAY_NS


def test_limits_of_a_rack_count_as_they_would() -> None:
    """It would have drained a whole rack, said the report; advice would have drained two of it."""
    stored = Stored()
    for number in range(4):
        stored.saw(f"h{number}", 10.0 - number / 10)
    assert len(stored.asked("gpu.xid 95").advisories) == 4
    report = stored.asked("gpu.xid 95", racked=True)
    assert (len(report.advisories), report.withheld_count, report.at_once_max) == (2, 2, 2)
    words = report.withheld_reasons(report.episodes)
    assert [bool(one) for one in words] == [not one for one in report.are_advised(report.episodes)]
    assert all("rack r1" in one for one in words if one)


def test_an_episode_of_ten_hours_is_advised_once() -> None:
    """Another host's fault, five hours into it, had it advised anew; ten such hosts would have opened the breaker."""
    stored = Stored()
    for tenth in range(61):
        stored.saw("h1", 20.0 - tenth / 6)
    stored.saw("h2", 15.0)
    report = stored.asked("gpu.xid 95")
    assert len(report.episodes) == len(report.advisories) == 2 and not report.withheld


def test_an_episode_is_advised_by_what_was_advised_in_it() -> None:
    """A host was advised about in the fourth week, and the report said so of its first week, too."""
    stored = Stored()
    for hours in (200.0, 100.0):
        stored.saw("h1", hours)
        stored.saw("h2", hours + 0.01)
    report = stored.asked(
        "gpu.xid 95", AdvisoryLimits(cluster_share_max=0.1, hosts_per_hour_max=1000)
    )
    told = report.are_advised(report.episodes)
    assert sorted(told) == [False, False, True, True]
    assert report.are_advised(report.episodes[1:]) == told[1:]


def test_a_thousand_episodes_are_looked_up_not_searched_for() -> None:
    """A code of a bad month: each of a thousand episodes was looked for among a hundred thousand advisories, one by one, while
    no agent was answered."""

    class Counted(str):
        looks = 0
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            Counted.looks += 1
            return str.__eq__(self, other)

    stored = Stored()
    stored.saw("h1", 50.0)
    (episode,) = stored.asked("gpu.xid 95").episodes
    advised = [ReplayedAdvisory(at, (f"h{at % 500}",), "", "") for at in range(10_000)]
    advised.append(ReplayedAdvisory(episode.first_ns, (Counted("h1"),), "", ""))
    report = ReplayReport((episode,) * 1000, tuple(advised), (), 0, 0)
    assert report.are_advised(report.episodes) == [True] * 1000
    assert Counted.looks < 10


def test_a_call_that_hung_for_minutes_would_have_been_avoided_only() -> None:
    """What-if drained a host for each of them; advice drains none that returns within a quarter of an hour."""
    stored = Stored()
    for hours in (50.0, 49.9):
        stored.saw("h1", hours, signal=policy.HUNG_SIGNAL, value=9.0, reason="DRIVER_HUNG")
    for minutes in range(0, 25, 5):
        stored.saw(
            "h2", 40.0 - minutes / 60, signal=policy.HUNG_SIGNAL, value=9.0, reason="DRIVER_HUNG"
        )
    actions = {one.case.host: one.case.action.name for one in stored.asked("gpu_hung").episodes}
    assert actions["h1"] == "AVOID" and actions["h2"] != "AVOID"


def test_what_followed_is_told_though_the_score_stood_for_days() -> None:
    """Millions of rows of hosts that had been UNHEALTHY for a year were read for one rule."""
    stored = Stored()
    for host, hours in (("h1", 299.5), ("h2", 100.0)):
        stored.saw(host, 300.0, signal="odd", reason="ECC_TREND", state="SUSPECT")
        stored.saw(host, hours, signal="other", reason="PCIE")
    found = {one.case.host: one.faulty_ns for one in stored.asked("ECC_TREND").episodes}
    assert found == {"h1": NOW - int(299.5 * HOUR_NS), "h2": 0}


@pytest.mark.parametrize("row", [one.name for one in builtin().rows if one.action])
def test_every_row_of_the_policy_can_be_asked_for(row: str) -> None:
    """The query read what bears the row's name, and no evidence does."""
    signals, reasons = policy.evidence_of_rule(row)
    (about,) = {one.evidence_signal for one in builtin().rows if one.name == row}
    assert about in signals and row in reasons
