"""An evidence query returns exactly the rows from which its value was computed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from math import exp, log1p
from pathlib import Path
from statistics import median
from typing import Any

import duckdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.aggregator.hazard.features import (
    FEATURES,
    HISTORY_FEATURES,
    RANK_FEATURE,
    features_of,
)
from gangline.aggregator.hazard.measured import MEASURED
from gangline.aggregator.hazard.store_history import read_incidents
from gangline.aggregator.model import Evidence, Finding
from gangline.aggregator.query import sandbox
from gangline.aggregator.rule_catalogue import faults_sql
from gangline.aggregator.scoring.evaluate import evaluate
from gangline.aggregator.scoring.evidence_sql import query_of
from gangline.aggregator.scoring.features import FaultHistory, evidence_of
from gangline.aggregator.scoring.view import FleetView
from gangline.aggregator.store.duckdb_file import migrations, script
from gangline.aggregator.store.rows import HostRecord
from tests.aggregator.declared.test_judged import EXPECTED, declare
from tests.aggregator.query.asking import rows_of
from tests.aggregator.scoring.test_recompute import MEASURING
from tests.worlds import CLOCK_HERTZ, IDLE_WATTS, SECOND_NS, Host, StoredWorld, gpu_of, throttle

pytestmark = pytest.mark.usefixtures("operators_files")

Rows = list[dict[str, Any]]

FOUND = (
    "gpu.xid",
    "gpu.lost",
    "gpu.ecc_uncorrected",
    "data.lost",
    "hardware.unexpected",
    "identity.duplicate_name",
)
NOW_US = 1_700_000_000_000_000
HISTORIES: tuple[list[Any], ...] = (
    [],
    [("a", "gpu.xid", 49_995, 2, False), ("a", "gpu.lost", 50_003, None, False)],
    [
        ("a", "gpu.xid", 40_000, 30, True), ("a", "gpu.lost", 40_010, 40, False),
        ("b'c", "gpu.ecc_uncorrected", 100, 20_000, True), ("b'c", "gpu.xid", 49_000, None, True),
        ("a", "data.lost", 49_100, 5, False), ("a", "identity.duplicate_name", 10, None, False),
        ("a", "gpu.xid", 60_000, None, False), ("b'c", "gpu.xid", 49_999, 0, False),
    ],
)  # fmt: skip


def asked(connection: Any, sql: str) -> Rows:
    names, rows = rows_of(connection, sql)
    return [dict(zip(names, row, strict=True)) for row in rows]


class Answers:
    """The evidence of a world that has ended, and the operators' file over it."""

    def __init__(self, world: StoredWorld, folder: Path) -> None:
        assert world.store
        self.world = world
        self.snapshot = evaluate(world.fleet, world.now_ns, world.snapshot, model=MEASURING)
        world.store.submit_findings(list(world.fleet.findings.values()))
        present = FleetView(world.fleet, world.now_ns)
        self.relative = dict(
            zip(world.fleet.devices["gpu"].names, present.speeds.relative.tolist(), strict=True)
        )
        self.now_ns = world.now_ns
        for host in world.hosts:  # later readings must not change any value
            for (table, device), values in host.readings.items():
                if table == "gpu_1s":
                    hotter = values["temperature_celsius"] + 9
                    host.set(table, device, sm_clock_hertz=9e8, temperature_celsius=hotter)
        world.run(6)
        world.store.close(60.0)  # writes the file, on a busy machine too
        self.connection = sandbox.open_snapshot(folder / "operators.duckdb")

    def evidence(self, host: Host, signal: str) -> Evidence:
        score = next(
            host_evidence
            for host_evidence in self.snapshot.hosts
            if host_evidence.host == host.name
        )
        return next(
            host_evidence for host_evidence in score.evidence if host_evidence.signal == signal
        )

    def rows(self, host: Host, signal: str) -> tuple[Evidence, Rows]:
        evidence = self.evidence(host, signal)
        return evidence, asked(self.connection, evidence.sql)


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Answers]:
    """Eight hosts of two GPUs: throttled, retransmitting, without readings, with several codes."""
    folder = tmp_path_factory.mktemp("data")
    world = StoredWorld(8, folder)
    hosts = world.hosts
    for number, host in enumerate(hosts):
        host.grow("rdma_1s_changes", "mlx5_0/1", packet_sequence_errors=1.0 + number % 3)
        host.set("rdma_1s_changes", "mlx5_0/1", symbol_errors=2)
        host.set("gpu_10s_changes", gpu_of(host, 1), remap_banks_none_count=0)
    hosts[2].set("gpu_1s", gpu_of(hosts[2], 0), power_watts=IDLE_WATTS, utilization_ratio=0.0,
                 sm_clock_hertz=3e8)  # fmt: skip
    world.event(hosts[1], 95, gpu_of(hosts[1], 1), ago=5.0)  # another GPU
    world.event(hosts[1], 94, gpu_of(hosts[1], 0))  # another code
    world.event(hosts[1], 0, "host", "host.out_of_memory", ago=1500.0)  # has faded
    world.run(60, every_seconds=1)
    throttle(hosts[0], 1)
    hosts[3].grow("rdma_1s_changes", "mlx5_0/1", packet_sequence_errors=300.0, symbol_errors=4.0)
    hosts[3].grow("gpu_1s_changes", gpu_of(hosts[3], 1), ecc_corrected_volatile_errors=3.0)
    hosts[4].set("gpu_10s_changes", gpu_of(hosts[4], 1), remap_banks_none_count=2)
    hosts[4].set("gpu_1s", gpu_of(hosts[4], 1), temperature_celsius=84)
    hosts[5].silent = True
    world.run(15, every_seconds=1)
    hosts[6].readings.pop(("gpu_1s", gpu_of(hosts[6], 1)))
    hosts[6].growth.pop(("gpu_1s", gpu_of(hosts[6], 1), "energy_joules"))
    world.event(
        hosts[1], 95, "0000:00:00.0", lasted=2.0, count=7
    )  # as the kernel names its first GPU
    world.run(20, every_seconds=1)
    world.event(hosts[1], 95, gpu_of(hosts[1], 0), count=2)
    world.event(hosts[1], 0, "host", "host.out_of_memory", ago=30.0)
    hosts[3].set("rdma_1s_changes", "mlx5_0/1", link_downed_events=5)
    world.run(5)
    result = Answers(world, folder)
    yield result
    result.connection.close()


@pytest.mark.slow
def test_events_are_those_of_the_device_and_of_what_still_stands(answers: Answers) -> None:
    """`gangline explain` reported 9 XIDs 95 of a GPU; its query showed all GPUs, of any day."""
    host = answers.world.hosts[1]
    score = next(
        host_score for host_score in answers.snapshot.hosts if host_score.host == host.name
    )
    for device, counts in ((gpu_of(host, 0), [2, 7]), (gpu_of(host, 1), [1])):
        evidence = next(
            e for e in score.evidence if (e.signal, e.value, e.device) == ("gpu.xid", 95.0, device)
        )
        assert [row["count"] for row in asked(answers.connection, evidence.sql)] == counts
        assert sum(counts) == 1 or f"{sum(counts)} times" in evidence.message
    killed = next(e for e in score.evidence if e.signal == "host.out_of_memory")
    assert len(asked(answers.connection, killed.sql)) == 1
    assert len(asked(answers.connection, "FROM events WHERE name = 'host.out_of_memory'")) == 2


@pytest.mark.slow
def test_events_are_shown_after_our_clock_was_set(tmp_path: Path) -> None:
    """The clock was set forward by 1 h: the query searched an hour too late, and found nothing."""
    world = StoredWorld(2, tmp_path)
    host = world.hosts[0]
    world.run(10)
    world.event(host, 95, gpu_of(host, 0), count=3)
    world.run(5)
    hour_ns = 3600 * SECOND_NS
    world.now_ns += hour_ns
    world.fleet.apply_clock_jump(hour_ns, world.now_ns)
    shifted = Answers(world, tmp_path)
    assert [row["count"] for row in shifted.rows(host, "gpu.xid")[1]] == [3]
    shifted.connection.close()


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Answers]:
    """Two addresses under one host's name; a drifting clock, with an XID in each hour of a day."""
    folder = tmp_path_factory.mktemp("told")
    world = StoredWorld(3, folder)
    twice, drifting = world.hosts[0], world.hosts[1]
    drifting.booted_ns -= 86_400 * SECOND_NS
    world.run(10)
    for subject in ("10.0.0.1", "10.0.0.2"):
        name = "identity.duplicate_name"
        world.find(Finding(twice.name, name, subject, f"also at {subject}", world.now_ns))
    for hours in range(20, -1, -1):
        ago = 3600.0 * hours
        drifted_ns = world.now_ns - round((ago + 0.3 * hours) * SECOND_NS)
        world.event(drifting, 95, gpu_of(drifting, 0), ago=ago, wall_time_ns=drifted_ns)
    world.run(5)
    result = Answers(world, folder)
    yield result
    result.connection.close()


@pytest.mark.slow
def test_events_of_a_host_whose_clock_drifts_are_all_shown(told: Answers) -> None:
    """The query finds XIDs by time: the oldest is six seconds off by the host's drifting clock."""
    evidence, rows = told.rows(told.world.hosts[1], "gpu.xid")
    assert "21 times" in evidence.message and len(rows) == 21


def test_a_clock_is_shown_beside_those_of_its_peers(answers: Answers) -> None:
    """ "68 % of its 13 peers": the query showed only that GPU, not the peers."""
    host = answers.world.hosts[0]
    evidence, rows = answers.rows(host, "gpu.sm_clock_hertz")
    own, gpu = rows[0], gpu_of(host, 1)
    assert (own["host"], own["device"]) == (host.name, gpu)
    assert own["sm_clock_hertz"] == pytest.approx(evidence.value, rel=1e-3)
    usual = median(row["sm_clock_hertz"] for row in rows)
    assert own["median_hertz"] == pytest.approx(usual)
    assert own["sm_clock_hertz"] / usual == pytest.approx(answers.relative[gpu], rel=1e-3)
    assert f"of {len(rows) - 1} peers" in evidence.normal
    assert gpu_of(answers.world.hosts[2], 0) not in [row["device"] for row in rows]  # it idles


def test_a_rate_is_shown_beside_those_of_its_peers(answers: Answers) -> None:
    """The rows include all ports whose median is compared with the retransmitting port."""
    host = answers.world.hosts[3]
    evidence, rows = answers.rows(host, "rdma.packet_sequence_errors")
    assert (rows[0]["host"], rows[0]["device"]) == (host.name, "mlx5_0/1")
    rates = [row["errors_per_second"] for row in rows]
    assert rates[0] == pytest.approx(evidence.value, rel=0.05)
    assert rows[0]["last"] - rows[0]["first"] > 0
    assert f"its peers' median is {median(rates):.1f}" in evidence.normal
    assert len(rows) == 14  # both ports of seven hosts: the eighth is silent


def features(answers: Answers, name: str) -> tuple[list[float], list[Rows]]:
    """Return a feature's value of each host, and the rows of its query."""
    column = [feature.name for feature in FEATURES].index(name)
    values: list[float] = []
    rows: list[Rows] = []
    for host in answers.snapshot.hosts:
        assert host.inputs is not None
        values.append(host.inputs.features[column])
        sql = evidence_of(column, host.host, 1.0, 0.1, -0.01, answers.now_ns).sql
        rows.append(asked(answers.connection, sql))
    return values, rows


@pytest.mark.slow
@pytest.mark.parametrize("name", ["corrected_errors", "link_errors", "link_downs"])
def test_a_counted_feature_computes_again(answers: Answers, name: str) -> None:
    """The rows are the counts per device; the maximum is the feature."""
    values, all_rows = features(answers, name)
    known_values = []
    for value, rows in zip(values, all_rows, strict=True):
        if np.isnan(value):  # silent: not known
            continue
        again = max((row["in_10_min"] for row in rows), default=0.0)
        assert again == pytest.approx(value, rel=0.02, abs=0.01)
        assert all(row["new"] > 0 for row in rows)
        known_values.append(value)
    assert sum(value > 0.5 for value in known_values) == 1  # only one host had any


def test_remaps_that_wait_compute_again(answers: Answers) -> None:
    """Each GPU has a row; the GPUs that wait are the feature."""
    values, all_rows = features(answers, "remaps_waiting")
    for value, rows in zip(values, all_rows, strict=True):
        assert np.isnan(value) or sum(row["waits"] for row in rows) == value
    assert [row["device"] for row in all_rows[4] if row["waits"]] == [
        gpu_of(answers.world.hosts[4], 1)
    ]
    assert len(all_rows[4]) == 2


def test_the_pace_computes_again(answers: Answers) -> None:
    """Without a GPU name it is the pace of the host's slowest GPU."""
    values, all_rows = features(answers, "speed")
    for value, rows in zip(values, all_rows, strict=True):
        if not np.isnan(value):
            usual = median(row["sm_clock_hertz"] for row in rows)
            assert rows[0]["sm_clock_hertz"] / usual == pytest.approx(value, rel=1e-3)
    assert values[0] < 0.8 and len(all_rows[0]) == 13


def test_the_headroom_computes_again(answers: Answers) -> None:
    """The minimum over the host's GPUs, each with its own limit."""
    values, all_rows = features(answers, "headroom_celsius")
    for value, rows in zip(values, all_rows, strict=True):
        if not np.isnan(value):
            left = [
                row["temperature_slowdown_celsius"] - row["temperature_celsius"] for row in rows
            ]
            assert min(left) == value == rows[0]["headroom_celsius"]
    assert values[4] == 5


def test_silence_and_gpus_unread_compute_again(answers: Answers) -> None:
    """The rows are the last reading of each GPU, and the last frame of the host."""
    unread, rows_unread = features(answers, "gpus_unread")
    for value, rows in zip(unread, rows_unread, strict=True):
        assert len(rows) == 2
        assert np.isnan(value) or sum(row["seconds_ago"] > 15 for row in rows) == value
    assert unread[6] == 1 and rows_unread[6][0]["device"] == gpu_of(answers.world.hosts[6], 1)
    silent, rows_silent = features(answers, "silent_seconds")
    for value, rows in zip(silent, rows_silent, strict=True):
        assert min(row["seconds_ago"] for row in rows) == pytest.approx(value, abs=1.0)
    assert silent[5] > 15


def test_faults_of_others_compute_again(answers: Answers) -> None:
    """Each incident of another host in the last ten minutes is a row; own ones are left out."""
    values, all_rows = features(answers, "faults_of_others")
    for number, (value, rows) in enumerate(zip(values, all_rows, strict=True)):
        assert len(rows) == value
        assert f"h{number}" not in [row["host"] for row in rows]
    assert max(values) > 0


def test_every_feature_of_a_model_has_a_test_here() -> None:
    """A new feature without a test would look right on any rows."""
    tested = {"corrected_errors", "link_errors", "link_downs", "remaps_waiting", "speed", "headroom_celsius",
              "gpus_unread", "silent_seconds", "faults_of_others"}  # fmt: skip
    assert tested == {feature.name for feature in MEASURED}
    assert all(query_of(feature.name, "h", 1) for feature in FEATURES)


@pytest.fixture(scope="module")
def base() -> Any:
    """An empty live file in memory, with its views."""
    connection = duckdb.connect()
    for _, text in migrations():
        connection.execute(text)
    connection.execute(script("live.sql"))
    parts = (script("ops_10_counters.sql") + faults_sql() + script("ops_30_faults.sql")).split(
        ";\n"
    )
    for part in parts:
        if any(name in part for name in ("ops.taken()", "ops.is_fault", "ops.incidents")):
            connection.execute(part)
    return connection


#: Host, name, minutes since the beginning, duration in minutes (None: still active), whether it is
#: past.
findings = st.lists(
    st.tuples(
        st.sampled_from(("a", "b'c")), st.sampled_from(FOUND), st.one_of(st.integers(0, 60), st.integers(0, 60_000)),
        st.one_of(st.none(), st.integers(0, 40), st.integers(0, 20_000)), st.booleans(),
    ),
    max_size=12,
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(told=findings)
def test_the_features_of_a_history_compute_again(base: Any, told: list[Any]) -> None:
    """Histories hold non-faults, related faults, other hosts, and faults after the moment."""
    compute_again(base, told)


@pytest.mark.parametrize("told", HISTORIES, ids=["none", "at the moment", "of all kinds"])
def test_the_features_of_these_histories_compute_again(base: Any, told: list[Any]) -> None:
    """A few fixed histories, in each run of the tests."""
    compute_again(base, told)


def compute_again(base: Any, told: list[Any]) -> None:
    """Insert *told* into the empty file; check that each feature follows from its query's rows."""
    for table in ("findings", "past_findings"):
        base.execute(f"DELETE FROM {table}")
    # so that no finding begins or ends exactly at the moment
    began_us = NOW_US - 50_000 * 60_000_000 - 30_000_000
    for host, name, since, stood, is_past in told:
        since_us = began_us + since * 60_000_000
        cleared_us = None if stood is None else since_us + stood * 60_000_000
        table = "past_findings" if is_past and cleared_us is not None else "findings"
        base.execute(
            f"INSERT INTO {table} (host, name, since, cleared) "
            "VALUES (?, ?, make_timestamp(?), make_timestamp(?))",
            [host, name, since_us, cleared_us],
        )
    hosts = ("a", "b'c")
    known = read_incidents(base, NOW_US)
    values = features_of(_of(known, hosts).state(hosts, NOW_US))
    rows_of = cache(lambda query: asked(base, query))  # features share queries
    ranked = HISTORY_FEATURES.index(RANK_FEATURE)
    for column, feature in enumerate(HISTORY_FEATURES):
        for number, host in enumerate(hosts):
            rows = rows_of(evidence_of(column, host, 1.0, 0.1, -0.01, NOW_US * 1000).sql)
            if column == ranked:  # the rank needs rows of all hosts that failed
                assert [row["host"] for row in rows if row["host"] == host] == [row["host"] for row in rows[:1] if values[number].any()]  # fmt: skip
                again = {row["host"]: (row["faults_30d"], row["faults"]) for row in rows}
                state = _of(known, hosts).state(hosts, NOW_US)
                expected = (state.decayed[30.0][number], state.count[number])
                assert again.get(host, (0.0, 0.0)) == pytest.approx(expected, abs=1e-6)
                continue
            assert _again(feature.name, [row["days_ago"] for row in rows]) == pytest.approx(
                values[number, column], abs=1e-6
            )


def test_of_a_host_with_too_many_findings_the_newest_are_told(base: Any) -> None:
    """Each incident copies those before it: a host with many must not use up the query's time."""
    for table in ("findings", "past_findings"):
        base.execute(f"DELETE FROM {table}")
    moment = f"make_timestamp({NOW_US})"
    base.execute(
        "INSERT INTO findings (host, name, since, cleared) SELECT 'a', 'gpu.xid', since, since + INTERVAL 1 MINUTE "
        f"FROM (SELECT {moment} - to_minutes(i * 15) AS since FROM range(1, 5101) AS t(i))"
    )
    incidents = asked(base, f"FROM ops.incidents_at({moment})")
    assert len(incidents) == 5000
    (newest,) = asked(base, f"SELECT {moment} - INTERVAL 15 MINUTE AS began")
    assert incidents[0]["began"] == newest["began"]


def _of(known: Any, hosts: tuple[str, ...]) -> FaultHistory:
    faults = FaultHistory.of(known)
    return faults.after({host: number for number, host in enumerate(hosts)}, frozenset(
        (host, int(incidents[-1].start_us), min(incidents[-1].classes))
        for host, incidents in known.items() if incidents[-1].end_us == np.inf
    ), NOW_US)  # fmt: skip


def _again(feature: str, days_ago: list[float]) -> float:
    """Compute a feature of the history from the days in the rows of its query."""
    if feature.startswith("faults_"):
        span = "" if feature == "faults_last_7d" else feature.rpartition("_")[2]
        fading = {"7d": 7.0, "30d": 30.0, "90d": 90.0}.get(span)
        return log1p(sum(exp(-days / fading) if fading else 1.0 for days in days_ago))
    if not days_ago:
        return 0.0
    (days,) = days_ago
    return {
        "returned_1d": exp(-days), "returned_10d": exp(-days / 10), "failed_before": 1.0,
        "returned": log1p(30 / (days + 0.25)),
    }[feature]  # fmt: skip


def test_a_finding_is_shown_and_not_another_of_its_name(told: Answers) -> None:
    """Two addresses under one name are two findings, each with its own row."""
    score = next(item for item in told.snapshot.hosts if item.host == "h0")
    findings = [item for item in score.evidence if item.unit == "finding"]
    assert len(findings) == 2
    for item in findings:
        (row,) = asked(told.connection, item.sql)
        assert row["message"] == item.message


@pytest.mark.slow
def test_what_differs_from_what_was_declared_computes_again(tmp_path: Path) -> None:
    """The rows are the host's ports, links and slots; the value is their count or minimum."""
    world = StoredWorld(2, tmp_path)
    declare(world, EXPECTED.replace("gpus = 8", "gpus = 2"))
    for host in world.hosts:
        for port in ("mlx5_0/1", "mlx5_1/1"):
            host.set("rdma_1s", port, rate_bytes_per_second=50e9)
        for link in (0, 1):
            for gpu in (0, 1):
                link_of = f"{gpu_of(host, gpu)}/link{link}"
                host.set("nvlink_10s_changes", link_of, link_state=1)
    ill = world.hosts[0]
    ill.set("rdma_1s", "mlx5_1/1", port_state=1, physical_state=3)
    ill.set("rdma_1s", "mlx5_0/1", rate_bytes_per_second=25e9)
    ill.set("nvlink_10s_changes", f"{gpu_of(ill, 0)}/link1", link_state=0)
    ill.set("gpu_10s", gpu_of(ill, 1), pcie_width_max_lanes=8, pcie_width_lanes=8)
    world.run(75)
    stored_answers = Answers(world, tmp_path)

    def rows(item: str) -> tuple[float, Rows]:
        evidence, item_rows = stored_answers.rows(ill, f"expected.{item}")
        return evidence.value, item_rows

    value, item_rows = rows("rdma_ports")
    assert [row["active"] for row in item_rows].count(True) == value == 1 and len(item_rows) == 2
    value, item_rows = rows("rdma_port_gigabits_per_second")
    assert min(row["gigabits_per_second"] for row in item_rows if row["active"]) == value == 200
    value, item_rows = rows("nvlinks_up")
    assert sum(row["link_state"] for row in item_rows) == value == 3 and len(item_rows) == 4
    value, item_rows = rows("gpu_pcie_width_lanes")
    assert min(row["pcie_width_max_lanes"] for row in item_rows) == value == 8
    assert len(item_rows) == 2
    stored_answers.connection.close()


@pytest.mark.slow
def test_peers_are_those_that_judging_compares(tmp_path: Path) -> None:
    """With mixed drivers, limits and models, SQL finds the same peers and medians as judging."""
    world = StoredWorld(16, tmp_path)
    for number, host in enumerate(world.hosts):
        index = world.fleet.index[host.name]
        for gpu in range(2):
            key = "gpu", gpu_of(host, gpu)
            model = "H200" if number < 2 else "H100"
            driver = "570" if number < 5 else "580" if number == 12 else "575"
            gpu_attributes = {"name": model, "driver": driver, "vbios": str(max(number, 7))}
            world.fleet.attributes[index][key] = gpu_attributes
            if number in (6, 7):
                host.set("gpu_10s", key[1], power_limit_watts=600.0)
            if number in (9, 10, 11):  # at the limit that others have too
                host.set("gpu_1s", key[1], sm_clock_hertz=CLOCK_HERTZ * (0.8 + gpu / 50),
                         power_watts=660.0, clock_event_reasons_flags=4)  # fmt: skip
            if number > 12:  # a power-capped rack in which one host works
                host.set("gpu_10s", key[1], power_limit_watts=400.0)
            if number > 13:
                host.set("gpu_1s", key[1], power_watts=IDLE_WATTS, utilization_ratio=0.0)
            if number == 5:
                host.set("gpu_60s", key[1], sm_application_clock_hertz=1.2e9)
                host.set("gpu_1s", key[1], sm_clock_hertz=CLOCK_HERTZ * 0.7)
        devices = tuple(
            (kind, name, attributes)
            for (kind, name), attributes in world.fleet.attributes[index].items()
            if kind == "gpu"
        )
        record = HostRecord(
            host.name, index, False, b"R" * 16, host.boot_id, "", "", {}, world.now_ns, devices
        )
        assert world.store
        world.store.submit_host(record, {})
    world.fleet.shape_version += 1
    world.run(12)
    unread = world.hosts[9]  # its GPUs were not read for a while; they are not idle
    for gpu in range(2):
        unread.readings.pop(("gpu_1s", gpu_of(unread, gpu)))
        unread.growth.pop(("gpu_1s", gpu_of(unread, gpu), "energy_joules"))
    world.run(20)
    stored_answers = Answers(world, tmp_path)
    moment = f"TIMESTAMP '1970-01-01' + to_microseconds({stored_answers.now_ns // 1000})"
    rows = asked(stored_answers.connection, f"FROM ops.clocks({moment})")
    assert {row["width"] for row in rows} == {0, 1, 2, 3, None}
    assert len(rows) == 28
    for row in rows:
        expected = stored_answers.relative[row["device"]]
        if row["width"] is None:
            assert row["ratio"] is None and math.isnan(expected) and row["host"] == "h13"
            continue
        assert row["ratio"] == pytest.approx(expected, rel=1e-3)
    stored_answers.connection.close()


@pytest.mark.slow
def test_peers_of_a_port_at_work_are_those_at_work(tmp_path: Path) -> None:
    """The median excludes idle ports and ports of another link layer."""
    world = StoredWorld(8, tmp_path)
    for number, host in enumerate(world.hosts):
        for port in ("mlx5_0/1", "mlx5_1/1"):
            host.set("rdma_1s", port, received_bytes=0, transmitted_bytes=0)
            host.set("rdma_10s", port, link_layer_code=1 + (number < 7))
            if number < 3 or number == 7:
                host.grow("rdma_1s", port, received_bytes=1e10)
                host.grow("rdma_1s_changes", port, packet_sequence_errors=4.0 + number)
    world.hosts[2].grow("rdma_1s_changes", "mlx5_0/1", packet_sequence_errors=300.0)
    world.run(60, every_seconds=1)
    stored_answers = Answers(world, tmp_path)
    evidence, rows = stored_answers.rows(world.hosts[2], "rdma.packet_sequence_errors")
    assert {row["host"] for row in rows} == {"h0", "h1", "h2"} and len(rows) == 6
    assert rows[0]["errors_per_second"] == pytest.approx(evidence.value, rel=0.02)
    assert f"median is {rows[0]['median']:.1f}" in evidence.normal
    stored_answers.connection.close()
