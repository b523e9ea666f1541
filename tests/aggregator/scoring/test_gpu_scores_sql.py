"""`ops.gpu_scores` computes each GPU's score from stored rows, equal to the API's."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import exp, isnan
from pathlib import Path
from typing import Any

import duckdb
import pytest

from gangline.aggregator.fleet.fleet import Fleet
from gangline.aggregator.model import HealthState, Reason
from gangline.aggregator.query import sandbox
from gangline.aggregator.scoring.calibration import Calibration
from gangline.aggregator.scoring.checkpoint import restore
from gangline.aggregator.scoring.evaluate import Judgement, evaluate
from gangline.aggregator.scoring.results import Gpus, Hosts
from gangline.aggregator.scoring.score import (
    EVIDENCE_MAX,
    HAZARD_PER_HOUR_MAX,
    OutcomeFeedback,
    Return,
)
from gangline.aggregator.scoring.score_rows import with_gpu_states
from gangline.aggregator.service.score import ScoreService
from gangline.aggregator.store.restored_state import LastScore
from gangline.aggregator.store.rows import snapshot_scores
from gangline.contract.wire import score_pb2
from tests.aggregator.query.asking import rows_of
from tests.aggregator.scoring.test_recompute import MEASURING
from tests.aggregator.scoring.test_restart import back
from tests.worlds import GPUS, START_NS, Host, StoredWorld, World, gpu_of, throttle

pytestmark = pytest.mark.usefixtures("operators_files")

Key = tuple[str, str]
Row = dict[str, Any]
WELL, HOT, BROKEN, SILENT, UNREAD, NEVER, LINKED, HUSHED, BACK, AISLE = range(10)
HOSTS = 10
#: When all hosts were HEALTHY.
BEFORE = "TIMESTAMP '2023-11-14 22:13:45'"

RETURNED = {f"h{BACK}": Return(START_NS, START_NS + 7 * 86_400 * 10**9)}
SEEN = OutcomeFeedback(RETURNED, Calibration(factors=(2.5, 2.0, 0.5, 0.5)))


@dataclass
class Holder:
    snapshot: Judgement | None


class Played:
    """A fleet with GPU faults, its store and its operators' file."""

    def __init__(self, folder: Path, model: Any, experience: OutcomeFeedback) -> None:
        self.folder, world = folder, StoredWorld(HOSTS, folder)
        assert world.store
        try:
            link = f"{gpu_of(world.hosts[LINKED], 0)}/link4"
            world.hosts[LINKED].set("nvlink_10s_changes", link, crc_errors=5.0)
            world.store.submit_scores(first := world.run(20), with_gpu_states(first, first.hosts))
            self._befall(world)
            world.run(40)
            world.hosts[SILENT].silent = world.hosts[HUSHED].silent = True
            world.run(40)
            self.judged = evaluate(
                world.fleet, world.now_ns, world.snapshot, model=model, feedback=experience
            )
            world.store.submit_scores(self.judged, with_gpu_states(self.judged, self.judged.hosts))
        finally:
            world.store.close(60.0)  # commits all rows and writes the operators' file

    def _befall(self, world: StoredWorld) -> None:
        throttle(world.hosts[HOT], 1)
        for gpu in range(GPUS):
            throttle(world.hosts[AISLE], gpu)
        for host in (BROKEN, HUSHED):
            world.event(world.hosts[host], 79, gpu_of(world.hosts[host], 0))
        world.hosts[BROKEN].set(
            "gpu_10s_changes", gpu_of(world.hosts[BROKEN], 0), remap_pending_state=1
        )
        world.hosts[BROKEN].set(
            "gpu_10s_changes", gpu_of(world.hosts[BROKEN], 1), remap_pending_state=1
        )
        del world.hosts[UNREAD].readings["gpu_1s", gpu_of(world.hosts[UNREAD], 1)]
        world.hosts[UNREAD].growth.clear()
        world.register(world.hosts[NEVER], GPUS + 1)
        world.keep_host(world.hosts[NEVER], NEVER, GPUS + 1)
        link = f"{gpu_of(world.hosts[LINKED], 0)}/link4"
        world.hosts[LINKED].grow("nvlink_10s_changes", link, crc_errors=30.0)

    def told(self) -> dict[Key, Any]:
        """Return the API's message of each GPU."""
        service = ScoreService(Holder(self.judged))
        request = score_pb2.ListNodeScoresRequest(view=score_pb2.FULL)
        reply = asyncio.run(service.ListNodeScores(request, None))
        return {
            (node.node.removeprefix("nodes/"), gpu.gpu): gpu
            for node in reply.node_scores
            for gpu in node.gpus
        }

    def asked(self, query: str) -> dict[Key, Row]:
        with sandbox.open_snapshot(self.folder / "operators.duckdb") as connection:
            names, rows = rows_of(connection, query)
        records = [dict(zip(names, row, strict=True)) for row in rows]
        return {(row["host"], row["gpu"]): row for row in records}


@pytest.fixture(
    scope="module",
    params=[(None, OutcomeFeedback(RETURNED)), (MEASURING, SEEN)],
    ids=["the prior", "a trained model"],
)
def played(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Played:
    return Played(tmp_path_factory.mktemp("gpus"), *request.param)


def states(rows: Mapping[Key, Row], host: int) -> list[str]:
    return [row["state"] for (name, _), row in sorted(rows.items()) if name == f"h{host}"]


@pytest.mark.slow
def test_the_view_says_of_each_gpu_what_the_api_says(played: Played) -> None:
    """A scheduler received a GPU's score, but the operator's SQL had only hosts."""
    gpu_messages, rows = played.told(), played.asked("FROM ops.gpu_scores")
    never = ("h5", gpu_of(Host("h5"), GPUS))
    assert rows.keys() - gpu_messages.keys() == {never} and gpu_messages.keys() <= rows.keys()
    assert len({gpu.state for gpu in gpu_messages.values()}) >= 5
    for key, gpu in gpu_messages.items():
        row = rows[key]
        assert (row["state"], row["reason"]) == (
            HealthState(gpu.state).name,
            Reason(gpu.reason).name,
        ), key
        hazards = [row[name] for name in ("hazard_per_hour", "hazard_lower", "hazard_upper")]
        expected = [gpu.hazard_per_hour, gpu.hazard_lower, gpu.hazard_upper]
        assert hazards == pytest.approx(expected, rel=1e-6), key
        scores = [row[name] for name in ("score", "score_upper", "score_lower")]
        assert scores == pytest.approx([exp(-8 * hazard) for hazard in expected]), key
    assert rows[never]["state"] == "UNKNOWN" and rows[never]["read"] is None
    # A GPU without any reading is evidence; the API reports it only with the host.
    assert rows[never]["evidence_count"] == 1 and rows[never]["hazard_per_hour"] > 1e-4


def test_the_pace_of_a_gpu_is_that_of_its_evidence(played: Played) -> None:
    """A pace that was not stored must be NULL, not 1.00; a stored pace has its interval."""
    gpu_messages, rows = played.told(), played.asked("FROM ops.gpu_scores")
    slow, silent = (
        ("h1", gpu_of(Host("h1"), 1)),
        [key for key in gpu_messages if key[0] in ("h3", "h7")],
    )
    held = [slow, *(key for key in gpu_messages if key[0] == f"h{AISLE}")]
    for key, gpu in gpu_messages.items():
        row, expected = rows[key], [gpu.relative_speed_lower, gpu.relative_speed_upper]
        interval = [row["relative_speed_lower"], row["relative_speed_upper"]]
        assert (row["relative_speed"] is None) == (key not in held), key
        assert interval == (pytest.approx(expected) if key in [*held, *silent] else [None, None]), (
            key
        )
    assert rows[slow]["relative_speed"] == pytest.approx(gpu_messages[slow].relative_speed)
    assert all(isnan(gpu_messages[key].relative_speed) for key in silent)
    assert rows[slow]["relative_speed_upper"] < 0.8


def test_its_strongest_evidence_is_told(played: Played) -> None:
    """For a GPU that fell off the bus and has a pending remap, the page begins with the former."""
    rows = played.asked("FROM ops.gpu_scores")
    broken = rows["h2", gpu_of(Host("h2"), 0)]
    assert broken["state"] == "UNHEALTHY" and broken["evidence_count"] == 2
    assert "XID 79" in broken["message"]
    assert next(iter(rows.values()))["state"] == "UNHEALTHY"
    assert states(rows, HOT) == ["HEALTHY", "DEGRADED"]
    assert states(rows, SILENT) == ["STALE", "STALE"]
    assert states(rows, HUSHED) == ["UNHEALTHY", "STALE"]
    assert states(rows, UNREAD)[0] == "HEALTHY" != states(rows, UNREAD)[1]
    assert states(rows, WELL) == ["HEALTHY", "HEALTHY"]


def test_what_gpus_share_is_none_of_theirs_and_what_they_do_not_adds_up(played: Played) -> None:
    """Eight GPUs with a pending remap summed to 0.0058 per hour, and their host had 60."""
    rows = played.asked("FROM ops.gpu_scores")
    hosts = played.judged.hosts
    assert isinstance(hosts, Hosts)
    own = hosts.calm_hazards_per_hour(hosts.computed_scores)
    share = own * 2.2e-5 / (GPUS * 2.2e-5 + 5e-6)

    def added(host: int) -> list[float]:
        hazards = [row["hazard_per_hour"] for (name, _), row in sorted(rows.items()) if name == f"h{host}"]  # fmt: skip
        return [hazard - share[host] for hazard in hazards]

    assert added(AISLE) == [pytest.approx(0.0, abs=1e-9)] * GPUS
    assert hosts[AISLE].hazard_per_hour == pytest.approx(3 * own[AISLE])
    assert added(HOT) == [pytest.approx(0.0, abs=1e-9), pytest.approx(2 * own[HOT], rel=1e-5)]
    broken = hosts[BROKEN].hazard_per_hour - own[BROKEN]
    assert sum(added(BROKEN)) == pytest.approx(broken, rel=1e-5)
    if hosts[BROKEN].hazard_per_hour < 0.99 * HAZARD_PER_HOUR_MAX:
        assert added(BROKEN)[1] == pytest.approx(4 * own[BROKEN], rel=1e-5)


def test_a_moment_and_a_horizon(played: Played) -> None:
    """The states of an earlier moment, and scores over a day."""
    now = played.asked("FROM ops.gpu_scores_at(TIMESTAMP '2099-01-01', hours := 24)")
    then = played.asked(f"FROM ops.gpu_scores_at({BEFORE})")
    for row in now.values():
        assert row["score"] == pytest.approx(exp(-24 * row["hazard_per_hour"]))
    assert states(now, HOT) == ["HEALTHY", "DEGRADED"] and states(then, HOT) == ["HEALTHY"] * 2
    assert states(then, BROKEN) == ["HEALTHY"] * 2
    assert {row["judged"] for row in then.values()}.isdisjoint(
        row["judged"] for row in now.values()
    )


def test_both_files_answer_the_same(played: Played) -> None:
    """In a post mortem days later the store answers itself: its GPUs did not go unread since."""
    query = "SELECT host, gpu, state, reason, hazard_per_hour, score FROM ops.gpu_scores"
    results = []
    for name in ("gangline.duckdb", "operators.duckdb"):
        with duckdb.connect(str(played.folder / name), read_only=True) as connection:
            results.append(connection.execute(query).fetchall())
    assert results[0] == results[1]


def test_a_question_of_scores_and_their_evidence_names_one_state(played: Played) -> None:
    """The upgrade made "state" ambiguous in a dashboard's query that had joined both for a year."""
    joined = (
        "SELECT host, device AS gpu, state FROM evidence JOIN scores USING (host, time, version)"
    )
    assert played.asked(joined)["h2", gpu_of(Host("h2"), 1)]["state"] == "UNHEALTHY"


@contextmanager
def changed(played: Played, folder: Path, *statements: str) -> Iterator[Any]:
    """Yield a connection to a copy of the operators' file of *played*, changed by *statements*."""
    copy = folder / "operators.duckdb"
    copy.write_bytes((played.folder / "operators.duckdb").read_bytes())
    with duckdb.connect(str(copy)) as connection:
        for statement in statements:
            connection.execute(statement)
        yield connection


def test_evidence_of_before_says_no_state(played: Played, tmp_path: Path) -> None:
    """A GPU that broke before the upgrade must not be HEALTHY after it."""
    with changed(played, tmp_path, "UPDATE evidence SET gpu_state = NULL") as connection:
        gpu_states = connection.execute(
            "SELECT gpu, state FROM ops.gpu_scores WHERE host = 'h2' ORDER BY gpu"
        ).fetchall()
    assert gpu_states == [(gpu_of(Host("h2"), 0), None), (gpu_of(Host("h2"), 1), None)]


def test_evidence_of_before_version_13_gives_a_gpu_the_hazard_of_then(
    played: Played, tmp_path: Path
) -> None:
    """Such evidence has the factor of the hazard, not the difference."""
    forgotten = "UPDATE evidence SET hazard_delta = NULL, shared_count = NULL"
    query = "SELECT hazard_per_hour FROM ops.gpu_scores WHERE host = 'h1' ORDER BY gpu"
    with changed(played, tmp_path, forgotten) as connection:
        hazards = [value for (value,) in connection.execute(query).fetchall()]
    now = [row["hazard_per_hour"] for key, row in sorted(played.asked("FROM ops.gpu_scores").items()) if key[0] == "h1"]  # fmt: skip
    assert hazards == pytest.approx(now)


def test_a_score_without_its_inputs_gives_its_gpus_no_hazard(
    played: Played, tmp_path: Path
) -> None:
    """Scores of versions before 9 gave each of eight GPUs the hazard of all eight together."""
    forgotten = "UPDATE scores SET log_hazard_base = NULL WHERE host = 'h0'"
    with changed(played, tmp_path, forgotten) as connection:
        records = connection.execute(
            "SELECT hazard_per_hour, score, hazard_upper, state FROM ops.gpu_scores WHERE host = 'h0'"
        ).fetchall()
    assert records == [(None, None, None, "HEALTHY")] * 2


@pytest.mark.parametrize(
    ("count", "state"), [(EVIDENCE_MAX - 1, "HEALTHY"), (EVIDENCE_MAX, None)], ids=["all", "cut"]
)
def test_a_gpu_whose_evidence_may_have_been_cut_has_no_state(
    played: Played, tmp_path: Path, count: int, state: str | None
) -> None:
    """144 links of a host failed: GPUs whose links came after the 48th were HEALTHY."""
    more = f"""
        INSERT INTO evidence BY NAME (
            SELECT time, host, version, 'nic' AS device, 'fabric' AS signal, 0.0 AS log_hazard_delta
            FROM scores, range({count}) AS more(n) WHERE host = 'h0'
        )"""
    with changed(played, tmp_path, more) as connection:
        records = connection.execute(
            "SELECT state, hazard_per_hour > 0, evidence_count FROM ops.gpu_scores WHERE host = 'h0'"
        ).fetchall()
    assert records == [(state, True, 0)] * 2


@pytest.mark.parametrize("state", [HealthState.UNHEALTHY, None], ids=["as stored", "of before"])
def test_what_was_known_before_a_restart_is_stored_again_as_it_was(
    state: HealthState | None,
) -> None:
    """A GPU broke; for a minute after a deployment SQL showed it as HEALTHY."""
    world = World(seconds=20)
    world.event(world.hosts[0], 95, gpu_of(world.hosts[0], 0))
    snapshot = world.run(2)
    scores = [
        score for _, score in snapshot_scores(snapshot, with_gpu_states(snapshot, snapshot.hosts))
    ]
    assert [e.gpu_state for e in scores[0].evidence] == [HealthState.UNHEALTHY]
    scores[0] = replace(scores[0], evidence=(replace(scores[0].evidence[0], gpu_state=state),))
    world.fleet = Fleet(epoch=8)
    before = restore(world.fleet, [LastScore(score, 8) for score in scores], world.now_ns)
    world.snapshot = evaluate(world.fleet, world.now_ns, before)
    back(world)
    snapshot = world.run(5)
    # no evidence of the fault has returned yet
    assert next(snapshot.gpus.of(0)).state is HealthState.HEALTHY
    [(_, again)] = snapshot_scores(snapshot, with_gpu_states(snapshot, [snapshot.hosts[0]]))
    assert again.state is HealthState.UNHEALTHY and again.evidence == scores[0].evidence


def test_hosts_that_change_together_are_looked_up_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """10,000 hosts changed in one second: for each, all GPUs were searched, on the loop."""
    world = World(hosts=4, gpus=2, seconds=5)
    late = gpu_of(world.hosts[0], 2)  # its row is behind those of all other hosts
    world.register(world.hosts[0], gpus=3)
    for key in ("gpu_1s", "gpu_10s"):
        readings = world.hosts[0].readings
        readings[key, late] = dict(readings[key, gpu_of(world.hosts[0], 0)])
    world.run(10)
    sick = [late, *(gpu_of(host, 1) for host in world.hosts[1:])]
    for host, gpu in zip(world.hosts, sick, strict=True):
        world.event(host, 95, gpu)
    snapshot = world.run(2)
    monkeypatch.setattr(Gpus, "of", None)
    all_evidence = [
        e
        for _, host in snapshot_scores(snapshot, with_gpu_states(snapshot, snapshot.hosts))
        for e in host.evidence
    ]
    states = {e.device: e.gpu_state for e in all_evidence if e.signal == "gpu.xid"}
    assert states == dict.fromkeys(sick, HealthState.UNHEALTHY)
