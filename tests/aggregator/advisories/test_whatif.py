"""A rule replayed over stored evidence, with the current policy, limits and places."""

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
from gangline.contract.faults.table import builtin
from tests.aggregator.advisories.served import Tables

NOW = 1_760_000_000 * SECOND_NS
PLENTY = AdvisoryLimits(cluster_share_max=1.0, hosts_per_hour_max=1000, rack_hosts_max=2)


class Stored:
    """A store with ten hosts and the evidence that a test writes."""

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
            "1.0 AS relative_speed_factor, -0.5 AS score_delta, $reason AS reason, 'it is so' AS message, "
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
    """The newest half million rows of a chatty rule covered three days, and hid an XID before."""
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
    assert [episode.case.host for episode in report.episodes] == ["h1"]
    assert report.from_ns == NOW - 500 * HOUR_NS
    for hour in range(3):
        stored.saw(f"h{3 + hour}", 100.0 - hour)
    report = stored.asked("gpu.xid 95")
    assert [episode.case.host for episode in report.episodes] == ["h3", "h4", "h5"]
    assert report.from_ns == NOW - 100 * HOUR_NS


def test_what_was_never_stored_was_not_replayed() -> None:
    """Scores are kept for a fortnight: its episodes were taken for a month's, at half the cost."""
    stored = Stored()
    assert stored.asked("gpu.xid 95").from_ns == NOW
    stored.saw("h1", 60.0, signal="odd", reason="PCIE")
    stored.saw("h1", 50.0)
    assert stored.asked("gpu.xid 95").from_ns == NOW - 60 * HOUR_NS
    stored.saw("h1", 31 * 24.0)
    assert stored.asked("gpu.xid 95").from_ns == NOW - 30 * DAY_NS


def test_limits_of_a_rack_count_as_they_would() -> None:
    """The report drained a whole rack; real advice would drain two hosts of it."""
    stored = Stored()
    for number in range(4):
        stored.saw(f"h{number}", 10.0 - number / 10)
    assert len(stored.asked("gpu.xid 95").advisories) == 4
    report = stored.asked("gpu.xid 95", racked=True)
    assert (len(report.advisories), report.withheld_count, report.at_once_max) == (2, 2, 2)
    reasons = report.withheld_reasons(report.episodes)
    assert [bool(reason) for reason in reasons] == [
        not reason for reason in report.are_advised(report.episodes)
    ]
    assert all("rack r1" in reason for reason in reasons if reason)


def test_an_episode_of_ten_hours_is_advised_once() -> None:
    """Another host's fault five hours later repeated the advice; ten would open the breaker."""
    stored = Stored()
    for tenth in range(61):
        stored.saw("h1", 20.0 - tenth / 6)
    stored.saw("h2", 15.0)
    report = stored.asked("gpu.xid 95")
    assert len(report.episodes) == len(report.advisories) == 2 and not report.withheld


def test_an_episode_is_advised_by_what_was_advised_in_it() -> None:
    """Advice about a host in its fourth week was also attributed to its first week."""
    stored = Stored()
    for hours in (200.0, 100.0):
        stored.saw("h1", hours)
        stored.saw("h2", hours + 0.01)
    report = stored.asked(
        "gpu.xid 95", AdvisoryLimits(cluster_share_max=0.1, hosts_per_hour_max=1000)
    )
    advised = report.are_advised(report.episodes)
    assert sorted(advised) == [False, False, True, True]
    assert report.are_advised(report.episodes[1:]) == advised[1:]


def test_a_thousand_episodes_are_looked_up_not_searched_for() -> None:
    """An index finds the advisory of each episode.

    In a bad month each of a thousand episodes was compared with a hundred thousand advisories, and
    no agent was answered meanwhile.
    """

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
    advised = [ReplayedAdvisory(number, (f"h{number % 500}",), "", "") for number in range(10_000)]
    advised.append(ReplayedAdvisory(episode.first_ns, (Counted("h1"),), "", ""))
    report = ReplayReport((episode,) * 1000, tuple(advised), (), 0, 0)
    assert report.are_advised(report.episodes) == [True] * 1000
    assert Counted.looks < 10


def test_a_call_that_hung_for_minutes_would_have_been_avoided_only() -> None:
    """What-if drained a host per short hang; advice drains none that ends within 15 minutes."""
    stored = Stored()
    for hours in (50.0, 49.9):
        stored.saw("h1", hours, signal=policy.HUNG_SIGNAL, value=9.0, reason="DRIVER_HUNG")
    for minutes in range(0, 25, 5):
        stored.saw(
            "h2", 40.0 - minutes / 60, signal=policy.HUNG_SIGNAL, value=9.0, reason="DRIVER_HUNG"
        )
    actions = {
        episode.case.host: episode.case.action.name for episode in stored.asked("gpu_hung").episodes
    }
    assert actions["h1"] == "AVOID" and actions["h2"] != "AVOID"


def test_what_followed_is_told_though_the_score_stood_for_days() -> None:
    """Millions of rows of hosts that had been UNHEALTHY for a year were read for one rule."""
    stored = Stored()
    for host, hours in (("h1", 299.5), ("h2", 100.0)):
        stored.saw(host, 300.0, signal="odd", reason="ECC_TREND", state="SUSPECT")
        stored.saw(host, hours, signal="other", reason="PCIE")
    faulty_times = {
        episode.case.host: episode.faulty_ns for episode in stored.asked("ECC_TREND").episodes
    }
    assert faulty_times == {"h1": NOW - int(299.5 * HOUR_NS), "h2": 0}


@pytest.mark.parametrize("row", [one.name for one in builtin().rows if one.action])
def test_every_row_of_the_policy_can_be_asked_for(row: str) -> None:
    """The query searched for evidence with the row's name, which does not exist."""
    signals, reasons = policy.evidence_of_rule(row)
    (signal,) = {
        policy_row.evidence_signal for policy_row in builtin().rows if policy_row.name == row
    }
    assert signal in signals and row in reasons
