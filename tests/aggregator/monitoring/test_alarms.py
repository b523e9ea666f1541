"""Alarms of the aggregator about itself: each is raised once here, and similar harmless figures
raise none; the clock is an argument.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.aggregator.config import AggregatorConfig
from gangline.aggregator.fleet.fleet import Fleet
from gangline.aggregator.ingest.findings import ActiveFindings
from gangline.aggregator.model import AGGREGATOR_HOST, Finding
from gangline.aggregator.monitoring import monitor
from gangline.aggregator.monitoring.alarms import Alarm, AlarmCleared, AlarmRaised, Alarms, table
from gangline.aggregator.monitoring.metrics import FIGURES, losing_hosts, silent_hosts
from gangline.aggregator.monitoring.monitor import SelfMonitor, record_alarms
from gangline.aggregator.monitoring.probes import ResourceUsage
from gangline.contract.server.metric_families import Histogram
from gangline.contract.wire import score_pb2
from gangline.contract.wire.score_pb2_grpc import ScoreServiceStub
from tests.processes import GUARD_SECONDS

NS = 1_000_000_000
CONFIG = AggregatorConfig()
#: The fields from which alarms take their messages.
STORE: Any = SimpleNamespace(
    loss_message="gangline.duckdb ends before what was receipted",
    history=SimpleNamespace(failing="exporting gpu_1s 202611210005: no space left on the disk"),
)
WELL = {
    "not_storing_seconds": 0.0, "losing_hosts": 0.0, "refused_agents": 0.0, "lag_seconds": 1.2, "queue_ratio": 0.01,
    "queue_bytes": 1e6, "disk_bytes": 1e12, "disk_free_bytes": 6e11, "database_bytes": 1e10,
    "commit_median_seconds": 0.2, "snapshot_age_seconds": 16.0, "judge_seconds": 0.1,
    "loop_lag_seconds": 0.01, "open_descriptors": 200.0, "descriptors_max": 524_288.0,
    "hosts": 400.0, "hosts_ratio": 0.02, "store_lost": 0.0, "history_failing": 0.0,
    "history_lag_seconds": 100.0, "history_turn_age_seconds": 3.0, "history_waiting": 20.0,
}  # fmt: skip

Sick = Callable[[float], dict[str, float]]

#: Harmless figures near an alarm, which belong to another figure.
NEAR: dict[str, dict[str, float]] = {
    "aggregator.not_storing": {"failed_commits": 3.0},
    "aggregator.receipt_loss": {"silent_hosts": 50.0},
    "aggregator.history_late": {"history_waiting": 200.0, "history_turn_age_seconds": 899.0},
    "aggregator.descriptors": {"descriptors_max": -1.0},
}


def _as(name: str, **also: float) -> Sick:
    return lambda value: {name: value, **also}


#: Alarm -> function that makes its figure, bound to raise, bound to clear, and the seconds of each.
BOUNDS: dict[str, tuple[Sick, float, float, float, float]] = {
    "aggregator.stored_lost": (_as("store_lost"), 0.0, 0.0, 0, 0),
    "aggregator.not_storing": (_as("not_storing_seconds"), 0.0, 0.0, 5, 10),
    "aggregator.receipt_loss": (_as("losing_hosts"), 0.0, 0.0, 0, 60),
    "aggregator.refused_agents": (_as("refused_agents"), 0.0, 0.0, 0, 0),
    "aggregator.lag": (_as("lag_seconds"), 10.0, 5.0, 15, 30),
    "aggregator.queue": (_as("queue_ratio"), 0.5, 0.25, 10, 30),
    "aggregator.disk_filling": (
        lambda share: {"disk_bytes": 4e11, "disk_free_bytes": 2e10 / share}, 0.5, 0.4, 0, 60,
    ),
    "aggregator.disk_slow": (_as("commit_median_seconds"), 2.0, 1.0, 30, 60),
    "aggregator.snapshot_old": (_as("snapshot_age_seconds"), 180.0, 30.0, 30, 0),
    "aggregator.history_late": (_as("history_lag_seconds"), 900.0, 450.0, 300, 60),
    "aggregator.history_failing": (_as("history_failing"), 0.0, 0.0, 150, 60),
    "aggregator.judge_slow": (_as("judge_seconds"), 2.0, 1.0, 15, 60),
    "aggregator.loop_stalled": (_as("loop_lag_seconds"), 2.0, 0.5, 0, 30),
    "aggregator.descriptors": (_as("open_descriptors", descriptors_max=1.0), 0.85, 0.75, 0, 60),
    "aggregator.hosts": (_as("hosts_ratio"), 0.95, 0.90, 0, 60),
}  # fmt: skip


def test_every_alarm_is_provoked_here() -> None:
    assert list(BOUNDS) == [alarm.name for alarm in table(CONFIG, STORE)]


def _stand(
    alarms: Alarms, changes: dict[str, float], seconds: float, begin: float = 0
) -> list[Any]:
    raised: list[Any] = []
    for second in range(int(begin), int(begin + seconds)):
        raised += alarms.step(WELL | changes, second * NS)
    return raised


@pytest.mark.parametrize("name", BOUNDS)
def test_an_alarm_is_raised_once_and_cleared_once(name: str) -> None:
    """At its bounds and on its second: the alarm is raised once with a remedy, stays, and is cleared for good."""
    make, above, below, hold, rest = BOUNDS[name]
    alarms = Alarms(table(CONFIG, STORE))
    little = 1e-9 * max(1.0, above)
    assert _stand(alarms, make(above), 300) == []
    assert _stand(alarms, make(above + little), hold, begin=300) == []
    (raised,) = _stand(alarms, make(above + little), 300, begin=300 + hold)
    assert isinstance(raised, AlarmRaised) and raised.name == name
    assert len(raised.message) > 60 and raised.clears_when
    assert len(alarms.messages) == 1 and alarms.active()[name]
    assert _stand(alarms, make(below + little), 300, begin=1000) == []
    assert _stand(alarms, make(below), rest, begin=1300) == []
    assert _stand(alarms, make(below), 300, begin=1300 + rest) == [AlarmCleared(name)]
    assert not alarms.messages and not any(alarms.active().values())


def test_a_message_has_the_last_bad_figure_and_a_size_that_shows() -> None:
    """A disk of 24 MB "has 0.0 GB free"; while an alarm waited for its end, "receipts are 0 s late"."""
    alarms = Alarms(table(CONFIG, STORE))
    small = {"disk_bytes": 24e6, "disk_free_bytes": 2e6, "database_bytes": 4.2e6}
    _stand(alarms, small | {"lag_seconds": 12.0}, 20)
    _stand(alarms, small | {"lag_seconds": 0.2}, 20, begin=20)
    late, filling = alarms.messages
    assert late.startswith("receipts are 12 s late")
    assert "has 2 MB free, 4.2 MB are the live store: with less than 1.2 MB" in filling


@pytest.mark.parametrize("name", NEAR)
def test_what_comes_near_is_no_alarm(name: str) -> None:
    """Pages for normal events make people ignore pages."""
    assert _stand(Alarms(table(CONFIG, STORE)), NEAR[name], 300) == []


@pytest.mark.parametrize("name", BOUNDS)
def test_what_is_not_known_changes_nothing(name: str) -> None:
    """An unreadable disk is not empty, and does not clear an active alarm."""
    alarms = Alarms(table(CONFIG, STORE))
    make, above, _, hold, _ = BOUNDS[name]
    _stand(alarms, make(above + 1), int(hold) + 1)
    assert alarms.step({}, 1000 * NS) == []
    assert alarms.active()[name]
    assert Alarms(table(CONFIG, STORE)).step({}, 0) == []


def test_why_history_fails_and_what_was_lost_are_in_the_words() -> None:
    """`history fails` required a search through the night's log, although the reason was known."""
    alarms = Alarms(table(CONFIG, STORE))
    _stand(alarms, {"history_failing": 1.0, "store_lost": 1.0}, 200)
    lost, failing = alarms.messages
    assert "ends before what was receipted" in lost and "admin restore" in lost
    assert "no space left" in failing


def test_history_that_stands_still_is_late() -> None:
    """A thread that hangs on a dead disk reports nothing: its last figure was an empty queue."""
    alarms = Alarms(table(CONFIG, STORE))
    raised = _stand(alarms, {"history_lag_seconds": 0.0, "history_turn_age_seconds": 901.0}, 301)
    assert [change.name for change in raised] == ["aggregator.history_late"]


def test_an_old_file_at_the_start_is_no_alarm() -> None:
    """After a night's stop the operators' file is hours old until it is written, seconds later: no page for that."""
    alarms = Alarms(table(CONFIG, STORE))
    assert _stand(alarms, {"snapshot_age_seconds": 40_000.0}, 29) == []
    assert _stand(alarms, {}, 100, begin=29) == []


def test_a_short_lag_is_none() -> None:
    """A checkpoint of ten seconds is normal; fifteen seconds raise the alarm."""
    alarms = Alarms(table(CONFIG, STORE))
    for second in range(0, 200, 20):
        assert _stand(alarms, {"lag_seconds": 30.0}, 15, begin=second) == []
        assert _stand(alarms, {}, 5, begin=second + 15) == []
    assert _stand(alarms, {"lag_seconds": 30.0}, 16, begin=200) != []


def test_between_the_bounds_nothing_changes() -> None:
    """A figure that wavers about one bound would raise and clear a finding a hundred times a night."""
    alarms = Alarms(table(CONFIG, STORE))
    _stand(alarms, {"lag_seconds": 30.0}, 20)
    wavering = [_stand(alarms, {"lag_seconds": 7.0}, 300, begin=20)]
    assert wavering == [[]] and alarms.active()["aggregator.lag"]
    assert _stand(alarms, {"lag_seconds": 4.0}, 40, begin=320) == [AlarmCleared("aggregator.lag")]


@given(st.lists(st.tuples(st.floats(0, 3), st.integers(0, 20)), max_size=60))
def test_raised_and_cleared_alternate(looks: list[tuple[float, int]]) -> None:
    """With any figure: two raises in a row would be two findings, of which one never ends."""
    alarm = Alarm("a", lambda v: v["x"], 2.0, 1.0, 5.0, 10.0, lambda v: f"{v['x']}", "never")
    alarms, now, raised = Alarms([alarm]), 0, list[Any]()
    for value, seconds in looks:
        now += seconds * NS
        before = alarms.active()["a"]
        changes = alarms.step({"x": value}, now)
        raised += changes
        assert not changes or (value > 2.0 if not before else value <= 1.0)
    kinds = [type(change) for change in raised]
    assert kinds == [AlarmRaised, AlarmCleared] * (len(kinds) // 2) + [AlarmRaised] * (
        len(kinds) % 2
    )
    assert bool(alarms.messages) == (len(kinds) % 2 == 1)


def test_settings_move_what_is_late() -> None:
    """With a commit every ten seconds, a receipt after fifteen is on time."""
    slow = AggregatorConfig(commit_seconds=10.0, ops_seconds=600.0, judge_seconds=30.0)
    alarms = Alarms(table(slow, STORE))
    late = {"lag_seconds": 30.0, "snapshot_age_seconds": 2000.0, "judge_seconds": 40.0}
    assert _stand(alarms, late, 100) == []


@pytest.mark.slow
def test_an_alarm_from_before_a_restart_ends_or_is_raised_anew(lab: Any, until: Any) -> None:
    """The alarm was kept for 300 s and then ended, even if active: SQL showed no alarm while the disk was full."""
    key = (AGGREGATOR_HOST, "aggregator.disk_filling", "")

    async def run() -> tuple[bool, bool]:
        async with lab.aggregator() as aggregator:
            record_alarms(
                aggregator.fleet,
                [AlarmRaised("aggregator.disk_filling", "as before", "room")],
                5 * NS,
            )
            await until(lambda: aggregator.store.commit_seconds.count)
        async with lab.aggregator() as again:
            before = key in again.fleet.findings
            record_alarms(
                again.fleet,
                [AlarmRaised("aggregator.disk_filling", "anew", "room")],
                again._wall_ns(),
            )
            again._ingest.findings.sweep(again._wall_ns() + 301 * NS)
            return before, key in again.fleet.findings

    before, after = asyncio.run(run())
    assert not before and after
    rows = lab.rows(
        "SELECT message, is_active FROM ops.findings WHERE name = 'aggregator.disk_filling' ORDER BY since"
    )
    assert rows == [("as before", False), ("anew", True)]


def test_a_raised_alarm_is_a_finding_of_the_aggregator_itself() -> None:
    """The aggregator's machine may run an agent, too: its score must not fall for the aggregator's lag."""
    fleet = Fleet()
    findings = ActiveFindings(fleet)
    record_alarms(fleet, [AlarmRaised("aggregator.lag", "message", "less lag")], 5 * NS)
    (new,) = findings.changes(6 * NS)
    assert new == Finding(
        AGGREGATOR_HOST, "aggregator.lag", "", "message", 5 * NS, clears_when="less lag"
    )
    record_alarms(fleet, [AlarmCleared("aggregator.lag")], 9 * NS)
    (gone,) = findings.changes(9 * NS)
    assert gone.cleared_ns == 9 * NS


def test_hosts_that_lose_readings_are_counted_once_each() -> None:
    """Only the finding of the agent's spool counts, and no other finding about losses."""
    fleet = Fleet()
    for host, name, subject in (
        ("a", "data.lost", "agent agent.spool_dropped_frames"),
        ("a", "data.lost", "other agent.spool_dropped_frames"),
        ("b", "data.lost", "agent something.else"),
        ("c", "gpu.lost", "GPU-1 agent.spool_dropped_frames"),
    ):
        fleet.add_finding(Finding(host, name, subject, "", 1))
    assert losing_hosts(fleet) == 1


def test_silent_hosts_are_real_ones_that_were_heard() -> None:
    """An ended simulation, and a host without any frame, are not silent hosts."""
    fleet = Fleet()
    for name, simulated in (("real", False), ("simulated", True), ("never", False)):
        fleet.register(name, simulated=simulated, boot_id=bytes(16), devices=())
    fleet._last_received_ns[:3] = [10 * NS, 10 * NS, 0]
    assert silent_hosts(fleet, 60 * NS) == 0
    assert silent_hosts(fleet, 71 * NS) == 1


def _machine(now_ns: int) -> ResourceUsage:
    return ResourceUsage(1000, 50, 1, 1.0, 1, 1.0, 10, 1000, 0)


def test_an_alarm_reaches_sql_the_listing_and_the_exposition(
    lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is 95 % full appears in `gangline hosts`, in SQL and in a graph."""
    monkeypatch.setattr("gangline.aggregator.server.read_resource_usage", lambda *_: _machine(0))

    async def run() -> tuple[Any, bytes]:
        import grpc

        async with lab.aggregator() as aggregator, asyncio.timeout(GUARD_SECONDS):
            async with grpc.aio.insecure_channel(f"127.0.0.1:{aggregator.port}") as channel:
                stub: Any = ScoreServiceStub(channel)  # type: ignore[no-untyped-call]
                while (
                    not aggregator.snapshot_holder.snapshot
                    or not aggregator.snapshot_holder.snapshot.alarms
                ):
                    await asyncio.sleep(0.005)
                reply = await stub.ListNodeScores(score_pb2.ListNodeScoresRequest())
            while (AGGREGATOR_HOST, "aggregator.disk_filling", "") not in aggregator.fleet.findings:
                await asyncio.sleep(0.005)
            return reply, aggregator._self_monitor.render("")[0]

    reply, text = asyncio.run(run())
    assert "the oldest readings in Parquet go" in reply.alarms[0] and not reply.degraded
    assert b'gangline_aggregator_alarm{alarm="aggregator.disk_filling"} 1' in text
    rows = lab.rows(
        "SELECT host, message, is_active, clears_when FROM ops.findings "
        "WHERE name = 'aggregator.disk_filling'"
    )
    assert rows[0][0] == AGGREGATOR_HOST and "add space" in rows[0][1] and rows[0][2] and rows[0][3]


def test_a_well_aggregator_has_no_alarm(lab: Any, until: Any) -> None:
    async def run() -> None:
        async with lab.aggregator() as aggregator:
            await until(lambda: aggregator._self_monitor._poll_count)
            await until(lambda: aggregator.snapshot_holder.snapshot)
            assert aggregator.snapshot_holder.snapshot.alarms == ()

    asyncio.run(run())


def test_a_look_that_fails_does_not_end_the_watch(caplog: pytest.LogCaptureFixture) -> None:
    """A figure that raises must not blind all alarms until the next restart."""
    polled = threading.Event()

    class Sick:
        def poll(self) -> monitor.AlarmChanges:
            polled.set()
            raise RuntimeError("a figure that is broken")

    thread = monitor.MonitorThread(Sick(), lambda changes: None, None)  # type: ignore[arg-type]
    thread.start()
    assert polled.wait(GUARD_SECONDS)
    thread.close()
    assert "broken" in caplog.text and not thread._thread.is_alive()


def test_every_figure_is_documented() -> None:
    page = (Path(__file__).parents[3] / "docs/operations.md").read_text()
    lacking = [figure.name for figure in FIGURES if f"`{figure.name}`" not in page]
    lacking += [alarm.name for alarm in table(CONFIG, STORE) if f"`{alarm.name}`" not in page]
    assert not lacking


def test_the_latency_kept_is_of_the_commits_since_the_look_before() -> None:
    """A mean since the start hides for days that the disk has become slow tonight."""
    histogram = Histogram((0.1, 1.0, 8.0))
    parts: Any = SimpleNamespace(config=CONFIG, store=SimpleNamespace(commit_seconds=histogram))
    own = SelfMonitor(parts, _machine, lambda: 0)
    histogram.observe(7.0)
    assert own._latency() == {"commit_median_seconds": 8.0, "commit_p99_seconds": 8.0}
    assert own._latency() == {}
    for seconds in (0.1, 0.1, 0.5):
        histogram.observe(seconds)
    assert own._latency() == {"commit_median_seconds": 0.1, "commit_p99_seconds": 1.0}


def test_hosts_tells_what_stands_against_the_aggregator(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table looks well while receipts are a minute late: the footer is where an operator looks first."""
    from gangline.aggregator.commands import hosts
    from gangline.contract.client.score_client import ScoreClient, ScoreListing

    monkeypatch.setattr(
        ScoreClient, "hosts", lambda *_: ScoreListing([], 1, "", ["receipts are late"])
    )
    assert hosts.main([]) == 0
    output = capsys.readouterr()
    assert output.err == "aggregator: receipts are late\n" and "degraded" not in output.out
    monkeypatch.setattr(ScoreClient, "hosts", lambda *_: ScoreListing([], 1, ""))
    assert hosts.main([]) == 0
    assert capsys.readouterr().err == ""
