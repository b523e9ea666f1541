"""Age is the aggregator's run time: no setting of the clock, and no pause, deletes too early."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from gangline.aggregator.store.retention_clock import (
    ANCHOR_NS_MIN,
    ANCHORS_MAX,
    DEVIATION_NS_MAX,
    RetentionClock,
)
from gangline.aggregator.store.retention_rules import _RETENTION_RULES
from gangline.aggregator.store.writer import RUN_TIME_STORED_NS
from tests.aggregator.parquet.conftest import SECOND_NS, Past

START_NS = 1_795_168_800 * SECOND_NS
HOUR_NS, DAY_NS = 3600 * SECOND_NS, 86_400 * SECOND_NS
AGES_NS = (HOUR_NS, DAY_NS)
DECISION_TABLES = ("decisions", "decision_records", "decision_inputs", "decision_choices")

ACTS = st.one_of(
    st.tuples(st.just("run"), st.integers(1, 30 * HOUR_NS)),
    st.tuples(st.just("set"), st.integers(-400 * DAY_NS, 400 * DAY_NS)),
    st.tuples(st.just("set"), st.sampled_from([-20_000 * DAY_NS, -50 * SECOND_NS, 50 * SECOND_NS])),
    st.tuples(st.just("restart"), st.integers(-40 * DAY_NS, 40 * DAY_NS)),
    st.tuples(st.just("restart"), st.integers(0, 120 * SECOND_NS)),
)


class Datum(NamedTuple):
    """Stored under `wall_ns`, after `run_ns` of run time."""

    wall_ns: int
    run_ns: int


class Aggregator:
    """A wall clock, a steady clock, restarts; each observation of the clock stores a datum."""

    def __init__(self, wall_ns: int = START_NS) -> None:
        self.wall_ns, self.steady_ns, self.run_ns = wall_ns, 0, 0
        self.clock = RetentionClock(lambda: self.steady_ns)
        self.data: list[Datum] = []
        self.restarts = 0
        self.observe()

    def observe(self) -> None:
        self.clock.observe(self.wall_ns)
        self.data.append(Datum(self.wall_ns, self.run_ns))

    def run(self, ns: int) -> None:
        """Run with one observation at least every half hour."""
        while ns > 0:
            step = min(ns, HOUR_NS // 2)
            self.wall_ns, self.steady_ns, self.run_ns = (
                value + step for value in (self.wall_ns, self.steady_ns, self.run_ns)
            )
            self.observe()
            ns -= step

    def set(self, ns: int) -> None:
        """Set the wall clock by *ns*, not before 1970."""
        self.wall_ns = max(0, self.wall_ns + ns)
        self.observe()

    def restart(self, off_ns: int, *, lost_ns: int = 0) -> None:
        """Kill it *lost_ns* after the run time was stored; start with another steady clock."""
        anchors = self.clock.anchors()
        self.run(lost_ns)
        self.wall_ns, self.steady_ns = max(0, self.wall_ns + off_ns), 7
        self.restarts += 1
        self.clock = RetentionClock(lambda: self.steady_ns, anchors)
        self.observe()

    def check(self) -> None:
        """No datum is deleted too soon, and each that the wall clock passed is deleted in time."""
        slack_ns = 2 * (DEVIATION_NS_MAX + ANCHOR_NS_MIN) + self.restarts * RUN_TIME_STORED_NS
        lowest_ns = self.wall_ns
        cutoffs_ns = {age_ns: self.clock.cutoff_ns(age_ns) for age_ns in AGES_NS}
        for datum in reversed(self.data):
            was_set_back = lowest_ns < datum.wall_ns + 2 * DEVIATION_NS_MAX
            lowest_ns = min(lowest_ns, datum.wall_ns)
            for age_ns, cutoff_ns in cutoffs_ns.items():
                run_age_ns = self.run_ns - datum.run_ns
                if datum.wall_ns < cutoff_ns:
                    assert run_age_ns >= age_ns
                elif not was_set_back:
                    assert run_age_ns <= age_ns + slack_ns


@given(st.sampled_from([0, START_NS]), st.lists(ACTS, max_size=12))
def test_a_jump_deletes_nothing_too_soon_and_a_run_ends_in_deletion(
    wall_ns: int, acts: list[tuple[str, int]]
) -> None:
    """A wall clock that jumped by 20 days deleted 300 acknowledged frames and 50 events."""
    aggregator = Aggregator(wall_ns)
    for name, ns in acts:
        getattr(aggregator, name)(ns)
        aggregator.check()
    aggregator.run(HOUR_NS)
    aggregator.check()


@given(st.lists(st.integers(0, 59), min_size=1, max_size=50))
def test_a_crash_loop_still_ages_its_data(losses: list[int]) -> None:
    """A kill loses at most the run time since it was last stored: data stays longer."""
    aggregator = Aggregator()
    for seconds in losses:
        aggregator.run(90 * SECOND_NS)
        aggregator.restart(5 * SECOND_NS, lost_ns=seconds * SECOND_NS)
        aggregator.check()
    aggregator.run(4 * HOUR_NS)
    aggregator.check()
    assert aggregator.clock.cutoff_ns(HOUR_NS) > aggregator.data[0].wall_ns


def test_the_anchors_are_bounded() -> None:
    """A wall clock that is set every two hours needs bounded memory."""
    aggregator = Aggregator()
    for _ in range(ANCHORS_MAX + 50):
        aggregator.run(2 * HOUR_NS)
        aggregator.set(-HOUR_NS)
    assert len(aggregator.clock.anchors()) <= ANCHORS_MAX + 1
    aggregator.data = aggregator.data[-50:]
    aggregator.check()


def fill(past: Past) -> None:
    """Store a reading, which moves to Parquet, and a row in each table with an age limit."""
    past.put(values={"power_watts": 1.0})
    past.later(306)
    past.turn()
    past.put(values={"power_watts": 2.0})
    rows = [(rule.table, rule.column) for rule in _RETENTION_RULES]
    rows += [(table, "time") for table in DECISION_TABLES]

    def insert(connection: Any) -> None:
        for table, column in rows:
            connection.execute(
                f"INSERT INTO {table} ({column}) VALUES (make_timestamp(?))", [past.now_ns // 1000]
            )

    past.store.in_transaction(insert)


def counts(past: Past) -> dict[str, int]:
    """Return how many rows each table has, and how many readings there are."""
    tables = {rule.table for rule in _RETENTION_RULES} | {*DECISION_TABLES, "readings.gpu_1s"}
    return {table: past.ask(f"SELECT count(*) FROM {table}")[0][0] for table in sorted(tables)}


def commit(past: Past) -> None:
    """Store a reading of another table: a commit applies retention."""
    past.put("host_1s", {"cpu_user_ratio": 0.5}, devices=("host",))
    past.later(60)
    past.turn()


def test_no_table_and_no_file_follows_the_wall_clock(tmp_path: Path) -> None:
    """A jump of the clock deletes nothing, running or restarted; as much run time deletes all."""
    past = Past(tmp_path / "data").open()
    fill(past)
    stored = counts(past)
    assert stored == dict.fromkeys(stored, 1) | {"readings.gpu_1s": 2}
    for seconds in (4000 * 86_400, -20 * 86_400):
        past.jump(seconds)
        past.later(3600)
        commit(past)
        assert counts(past) == stored
        past.close()
        past.jump(seconds)
        past.open()
        past.later(3600)
        commit(past)
        assert counts(past) == stored
    for _ in range(2):
        past.later(201 * 86_400)
        commit(past)
        past = past.again()
    past.later(3600)
    commit(past)
    kept = counts(past)
    past.close()
    assert kept == dict.fromkeys(stored, 0)


def test_a_wall_clock_that_was_ahead_ends_no_record_of_days(tmp_path: Path) -> None:
    """A host's day of 2036 was on record: until then no further day was taken from the scores."""

    def insert(connection: Any) -> None:
        connection.execute("INSERT INTO host_days (host, day) VALUES ('a', '2036-01-01')")
        connection.execute(
            "INSERT INTO scores (host, time, hazard_model, features) VALUES ('a', '2026-11-20', 'm', MAP {})"
        )

    past = Past(tmp_path / "data").open()
    past.store.in_transaction(insert)
    commit(past)
    days = past.ask("SELECT count(*) FROM host_days WHERE day = '2026-11-20'")
    past.close()
    assert days == [(1,)]
