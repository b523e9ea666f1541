"""Training and judging use the same features of each host."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import duckdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.aggregator.fleet.fleet import Fleet
from gangline.aggregator.hazard.events import EventsError
from gangline.aggregator.hazard.features import (
    BASIC_AND_CLASS_NAMES,
    BASIC_FEATURE_NAMES,
    FEATURE_NAMES,
    HISTORY_FEATURE_NAMES,
    features_of,
)
from gangline.aggregator.hazard.history import state_at
from gangline.aggregator.hazard.store_history import (
    DAY_US,
    DAYS_BACK_MAX,
    FaultIncident,
    read_incidents,
    read_recording,
)
from gangline.aggregator.ingest.findings import ActiveFindings
from gangline.aggregator.model import Finding
from gangline.aggregator.scoring.evaluate import evaluate
from gangline.aggregator.scoring.features import FaultHistory
from gangline.aggregator.scoring.findings import open_faults
from gangline.aggregator.store import rows
from gangline.aggregator.store.duckdb_file import migrations
from tests.aggregator.scoring.test_recompute import TRAINED
from tests.worlds import SECOND_NS, World, gpu_of

START_NS = 1_790_000_000 * SECOND_NS
MINUTE_NS = 60 * SECOND_NS
HOSTS = ("a", "b", "c", "late")
#: Names of findings; all but the last are faults.
FOUND = ("gpu.xid", "gpu.lost", "gpu.remap_pending", "clock.offset")
PAST = "cleared IS NOT NULL AND subject = 'y'"


@pytest.fixture(scope="module")
def base() -> Any:
    """Return an empty store."""
    connection = duckdb.connect()
    for _, text in migrations():
        connection.execute(text)
    for index, host in enumerate(HOSTS):
        connection.execute(
            "INSERT INTO hosts (host, node_index, simulated) VALUES (?, ?, false)", [host, index]
        )
    return connection


@dataclass
class Night:
    """A fleet whose findings begin and end as in judging, and a store of them."""

    fleet: Fleet = field(default_factory=Fleet)
    faults: FaultHistory = field(default_factory=FaultHistory)
    rows: dict[Any, Finding] = field(default_factory=dict)
    now_ns: int = START_NS

    def __post_init__(self) -> None:
        self.findings = ActiveFindings(self.fleet)
        for host in HOSTS[:-1]:
            self.register(host)

    def register(self, host: str) -> None:
        if host not in self.fleet.index:
            self.fleet.register(host, simulated=False, boot_id=bytes(16), devices=())

    def toggle(self, host: str, name: str, subject: str) -> None:
        """Begin a finding, or end it."""
        key = host, name, subject
        if key in self.fleet.findings:
            self.fleet.clear_finding(*key)
        else:
            self.register(host)
            self.fleet.add_finding(Finding(host, name, subject, "message", self.now_ns))

    def judged(self) -> None:
        """Judge once, and update the store."""
        standing = open_faults(self.fleet)
        self.faults = self.faults.after(self.fleet.index, standing, self.now_ns // 1000)
        for finding in self.findings.changes(self.now_ns):
            self.rows[finding.host, finding.name, finding.subject, finding.since_ns] = finding

    def stored(self, base: Any) -> Any:
        """Return the store with the findings, some of them past."""
        for table in ("findings", "past_findings"):
            base.execute(f"DELETE FROM {table}")
        base.register("told", rows.findings(self.rows.values()))
        base.execute("INSERT INTO findings BY NAME FROM told")
        base.execute(
            f"INSERT INTO past_findings SELECT host, name, since, cleared FROM findings WHERE {PAST}"
        )
        base.execute(f"DELETE FROM findings WHERE {PAST}")
        return base


steps = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 30), st.integers(0, 30 * 1440)),  # minutes until then
        st.lists(
            st.tuples(st.sampled_from(HOSTS), st.sampled_from(FOUND), st.sampled_from("xy")),
            max_size=3,
        ),
        st.booleans(),  # whether we restart
    ),
    min_size=1,
    max_size=12,
)


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(night=steps)
def test_one_history_gives_the_same_features_to_training_and_to_judging(
    base: Any, night: list[tuple[int, list[tuple[str, str, str]], bool]]
) -> None:
    """A model with other features than in training is sure of unknown things.

    Faults overlap, follow within minutes, stay open; other findings; a new host; restarts.
    """
    night_world = Night()
    for minutes, toggles, restarts in night:
        night_world.now_ns += minutes * MINUTE_NS + SECOND_NS
        for toggle in toggles:
            night_world.toggle(*toggle)
        night_world.judged()
        now_us = night_world.now_ns // 1000 + 1
        store = night_world.stored(base)
        names = tuple(night_world.fleet.names)
        served = features_of(night_world.faults.state(names, now_us))
        try:
            recording = read_recording(store, now_us, simulated=False)
        except EventsError:
            assert not served.any()
            continue
        learned = features_of(state_at(recording.faults, recording.faults.end_days)[1])
        learned = learned[[HOSTS.index(name) for name in names]]
        # Ranks depend on the known hosts: the recording has more.
        assert np.allclose(
            served[:, : len(BASIC_AND_CLASS_NAMES)],
            learned[:, : len(BASIC_AND_CLASS_NAMES)],
            atol=1e-7,
        )
        if restarts:
            night_world.faults = FaultHistory.of(read_incidents(store, now_us))


def test_what_is_older_than_is_looked_back_is_forgotten() -> None:
    """After two years, an aggregator must know the same as a restarted one."""
    faults = FaultHistory.of({"a": [FaultIncident(0.0, DAY_US)]}).after(
        {"a": 0}, frozenset(), 2 * DAY_US
    )
    assert faults.state(("a",), 2 * DAY_US).count.tolist() == [1.0]
    later = faults.after({"a": 0}, frozenset(), (DAYS_BACK_MAX + 1) * DAY_US)
    assert later.state(("a",), (DAYS_BACK_MAX + 1) * DAY_US).count.tolist() == [0.0]


def test_faults_of_others_within_ten_minutes() -> None:
    """If three hosts of a rack fail, the cause lies outside these hosts."""
    index = {"a": 0, "b": 1, "c": 2}
    standing = frozenset({("a", DAY_US, "driver"), ("b", DAY_US, "link")})
    faults = FaultHistory().after(index, standing, DAY_US)
    assert faults.of_others(DAY_US).tolist() == [1.0, 1.0, 2.0]
    assert faults.of_others(DAY_US + 601_000_000).tolist() == [0.0, 0.0, 0.0]


def test_a_fault_counts_and_a_planned_reboot_does_not() -> None:
    """Kernel updates reboot every host: counted as returns, they made a fleet look sick."""
    world = World(hosts=3, gpus=2, seconds=5)
    world.event(world.hosts[0], 79, gpu_of(world.hosts[0], 0))
    world.run(5)
    for host in world.hosts[:2]:  # the first for repair, the second as planned
        host.reboot(world.now_ns)
        world.register(host, 2)
    world.run(30)
    snapshot = evaluate(
        world.fleet, world.now_ns + 86_400 * SECOND_NS, world.snapshot, model=TRAINED
    )
    inputs = [host.inputs for host in snapshot.hosts]
    features = np.array(
        [
            host_inputs.features[: len(HISTORY_FEATURE_NAMES)]
            for host_inputs in inputs
            if host_inputs
        ]
    )
    assert features[0][:3] == pytest.approx([np.exp(-1.0), np.exp(-0.1), 1.0], rel=1e-3)
    assert np.all(features[0, : len(BASIC_FEATURE_NAMES)] > 0) and not features[1:].any()
    names = [name for name in HISTORY_FEATURE_NAMES if features[0, FEATURE_NAMES.index(name)] > 0]
    assert names[len(BASIC_FEATURE_NAMES) :] == ["faults_driver_30d", "fault_rank"]  # an XID 79
    messages = [e.message for e in snapshot.hosts[0].evidence if e.signal.startswith("hazard.")]
    assert "it returned from a fault 1.0 days ago" in messages
    assert "faults, each fading over 7 days: 0.87" in messages


@pytest.mark.slow
async def test_a_model_takes_over_between_two_judgements_and_stands_with_each_score(
    lab: Any, make_agent: Any, until: Any
) -> None:
    """`gangline admin train` printed "in use from now on", and judging used the prior."""
    async with lab.aggregator() as aggregator, lab.agent(aggregator, make_agent()):
        await until(
            lambda: (
                aggregator.snapshot_holder.snapshot and aggregator.snapshot_holder.snapshot.hosts
            )
        )
        (before,) = aggregator.snapshot_holder.snapshot.hosts
        aggregator.models.in_use = TRAINED
        await until(lambda: aggregator.snapshot_holder.snapshot.model == TRAINED.version)
        (after,) = aggregator.snapshot_holder.snapshot.hosts
        assert before.inputs.model == "prior"
        assert after.inputs.model == TRAINED.version
        assert np.exp(after.inputs.log_hazard_base) == pytest.approx(np.exp(-5.0) / 24)
        # a snapshot is stored after it is visible
        shown = aggregator.snapshot_holder.snapshot.version
        await until(lambda: aggregator.snapshot_holder.snapshot.version > shown)
    stored = lab.rows("SELECT DISTINCT hazard_model FROM scores ORDER BY 1")
    assert stored == [("prior",), (TRAINED.version,)]


@pytest.mark.slow
async def test_what_is_on_record_counts_from_the_first_judgement_on(
    lab: Any, make_agent: Any, until: Any
) -> None:
    """After our upgrade, each host that had just returned looked like a host without faults."""
    async with lab.aggregator() as aggregator:
        now_us = aggregator._wall_ns() // 1000
        times = [now_us - 2 * DAY_US, now_us - DAY_US]
        aggregator.store.in_transaction(
            lambda c: c.execute(
                "INSERT INTO past_findings VALUES ('host-1', 'gpu.xid', make_timestamp(?::BIGINT), "
                "make_timestamp(?::BIGINT))",
                times,
            )
        )
    async with lab.aggregator() as aggregator, lab.agent(aggregator, make_agent()):
        await until(
            lambda: (
                aggregator.snapshot_holder.snapshot and aggregator.snapshot_holder.snapshot.hosts
            )
        )
        (host,) = aggregator.snapshot_holder.snapshot.hosts
        expected = [np.exp(-1.0), np.exp(-0.1), 1.0]
        assert host.inputs.features[:3] == pytest.approx(expected, rel=1e-3)
