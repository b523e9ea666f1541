"""The schema `ops` and the page over it, on a night with faults: every example runs and shows them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from gangline.aggregator.commands import night as night_before
from gangline.aggregator.query import sandbox
from gangline.aggregator.store.live_tables import actions
from gangline.contract.faults.table import builtin
from gangline.contract.xid.policy import policy
from gangline.simulator.night import (
    FLAPPING_HOST,
    REMAPPING_HOST,
    SILENT_HOST,
    WRONG_CLOCK_HOST,
    NightWorld,
)
from tests.aggregator import sql_page
from tests.aggregator.night import night
from tests.aggregator.query.asking import rows_of

pytestmark = pytest.mark.usefixtures("operators_files")

Rows = list[dict[str, Any]]
Connection = duckdb.DuckDBPyConnection
_EXAMPLE = re.compile(r": ((?:FROM|SELECT) .+)$")

#: Findings that do not occur on a good night, nor in this one.
NONE_TONIGHT = {
    "SELECT host, port, active, rate_gigabits_per_second FROM ops.ports WHERE NOT active OR rate_gigabits_per_second < 400",
    "SELECT host, device AS collector, outcome_state FROM latest.collector_10s WHERE outcome_state >= 2",
}
#: Question of the page -> text of the first row of its answer, by the faults that the night has.
TRUTH = {
    1: night_before.DEAD, 9: night_before.SLOW, 11: night_before.SLOW, 13: "sim-004", 14: FLAPPING_HOST,
    17: night_before.SLOW, 21: "gpu.xid 94", 23: night_before.DEAD, 24: night_before.SLOW, 27: SILENT_HOST,
    30: WRONG_CLOCK_HOST, 38: night_before.DEAD, 40: night_before.DEAD,
}  # fmt: skip
NOBODY = "no host of this name has registered: SELECT host FROM ops.hosts lists them"
#: Each view with its example's content: a query, and what it must say.
SHOWN: list[tuple[str, Rows]] = [
    ("SELECT host, state FROM ops.worst(n := 1)", [{"host": "sim-000", "state": "UNHEALTHY"}]),
    (
        "SELECT reason FROM ops.explain('sim-006')",
        [{"reason": "THERMAL_THROTTLE"}],
    ),
    (
        "SELECT what FROM ops.host('sim-006') WHERE about IN ('state', 'evidence', 'job')",
        [{"what": "DEGRADED"}, {"what": "THERMAL_THROTTLE"}, {"what": "123"}],
    ),
    (
        (
            "SELECT about, count(*) AS n FROM ops.host('sim-000') WHERE about IN ('GPU', 'port', 'fault', 'clock') "
            "GROUP BY about ORDER BY about"
        ),
        [
            {"about": "GPU", "n": 8},
            {"about": "clock", "n": 2},
            {"about": "fault", "n": 3},
            {"about": "port", "n": 8},
        ],
    ),
    (
        "SELECT count(*) AS n, min(device) = max(device) AS one FROM ops.gpu_history('GPU-38df83f5')",
        [{"n": 240, "one": True}],
    ),
    (
        "SELECT host, reason FROM ops.job_hosts(123) LIMIT 1",
        [{"host": "sim-006", "reason": "THERMAL_THROTTLE"}],
    ),
    ("SELECT host FROM ops.freshness LIMIT 1", [{"host": SILENT_HOST}]),
    (
        "SELECT host FROM ops.hosts WHERE abs(clock_offset_seconds) > 1",
        [{"host": WRONG_CLOCK_HOST}],
    ),
    (
        "SELECT host, what, times_count AS n FROM ops.flapping",
        [
            {"host": FLAPPING_HOST, "what": "interface lost its carrier", "n": 3},
            {"host": FLAPPING_HOST, "what": "RDMA port went down", "n": 2},
        ],
    ),
    (
        "SELECT host, severity, action FROM ops.advisories WHERE severity = 'fatal' LIMIT 1",
        [
            {
                "host": "sim-000",
                "severity": "fatal",
                "action": "drain and reset the GPU",
            }
        ],
    ),
    (
        "SELECT action FROM ops.advisories WHERE host = 'sim-006'",
        [{"action": "look at fans, airflow or coolant of this host"}],
    ),
    (
        "SELECT host FROM ops.part('GPU-3d4c4be0') WHERE what = 'event'",
        [{"host": "sim-002"}, {"host": "sim-000"}, {"host": "sim-000"}, {"host": "sim-000"}],
    ),
    (
        "SELECT state, job FROM ops.gpu_users('GPU-38df83f5')",
        [{"state": "ended", "job": "119"}, {"state": "running", "job": "123"}],
    ),
    (
        "SELECT host, pending FROM ops.remaps WHERE host = 'sim-001'",
        [{"host": REMAPPING_HOST, "pending": True}],
    ),
    (
        "SELECT host, held_down_by FROM ops.throttled",
        [{"host": "sim-006", "held_down_by": "heat (software)"}],
    ),
    (
        "SELECT rails, links_count, nvlink_peers FROM ops.topology WHERE host = 'sim-001' LIMIT 1",
        [
            {
                "rails": "mlx5_0/1",
                "links_count": 18,
                "nvlink_peers": [f"switch 0000:{7 + n:02x}:00.0" for n in range(4)],
            }
        ],
    ),
    (
        "SELECT hosts_count, gpus_count, healthy_ratio, states['DEGRADED'] AS degraded FROM ops.fleet",
        [{"hosts_count": 8, "gpus_count": 64, "healthy_ratio": 0.125, "degraded": 1}],
    ),
    (
        "SELECT driver, hosts_count FROM ops.versions",
        [
            {"driver": "580.65.06", "hosts_count": 7},
            {"driver": "570.124.06", "hosts_count": 1},
        ],
    ),
    (
        "SELECT what, count(*) AS n FROM ops.changes WHERE host = 'sim-005' GROUP BY what ORDER BY what",
        [
            {"what": "fell silent", "n": 1},
            {"what": "process began", "n": 8},
            {"what": "registered", "n": 1},
            {"what": "state", "n": 3},
        ],
    ),
    (
        "SELECT host, state, or_longer FROM ops.state_since WHERE host = 'sim-005'",
        [{"host": SILENT_HOST, "state": "STALE", "or_longer": False}],
    ),
    (
        (
            "SELECT count(*) AS n, bool_and(reading_value BETWEEN 1.2e9 AND 1.3e9) AS slow FROM "
            "ops.score_at('sim-006', TIMESTAMP '2023-11-14 22:16:00', around_seconds := 2)"
        ),
        [{"n": 5, "slow": True}],
    ),
    ("SELECT readings_count AS n FROM ops.window(minutes := 1)", [{"n": 7 * 8 * 60}]),
    (
        "SELECT host, present FROM history.by_part('GPU-3d4c4be0')",
        [{"host": "sim-002", "present": False}, {"host": "sim-000", "present": True}],
    ),
    ("SELECT places_count AS n FROM history.moved", [{"n": 2}]),
    ("SELECT drivers FROM ops.fleet", [{"drivers": ["570.124.06", "580.65.06"]}]),
    (
        "SELECT about, what, message FROM ops.host('sim-06')",
        [{"about": "state", "what": "NOT KNOWN", "message": NOBODY}],
    ),
    ("SELECT count(*) AS n FROM ops.host('(aggregator)') WHERE about = 'state'", [{"n": 0}]),
    (
        "SELECT count(*) AS n FROM ops.ports WHERE active AND rate_gigabits_per_second = 400",
        [{"n": 64}],
    ),
    (
        "SELECT status, faults, split_part(why, ': ', 2) AS why FROM ops.models",
        [
            {"status": "in use", "faults": 31, "why": ""},
            {"status": "refused", "faults": 32, "why": "worse, so the one in use stays"},
            {"status": "replaced", "faults": None, "why": "no model was trained here before"},
        ],
    ),
    ("SELECT ops.clock_reasons(4::UBIGINT) AS why", [{"why": "power cap"}]),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("night")
    with night(folder):
        pass
    return folder


@pytest.fixture(scope="module")
def operators(folder: Path) -> Iterator[Connection]:
    """Its operators' file, as `gangline sql` opens it; once, as that takes longer than most queries."""
    with sandbox.open_snapshot(folder / "operators.duckdb") as connection:
        yield connection


def objects(folder: Path, file: str = "operators.duckdb") -> dict[str, str]:
    """Return ops.NAME, history.NAME -> comment of all views and macros; "" without a comment."""
    with duckdb.connect(str(folder / file), read_only=True) as connection:
        rows = connection.execute(
            "SELECT schema_name || '.' || view_name, comment FROM duckdb_views() "
            "WHERE schema_name IN ('ops', 'history') UNION ALL "
            "SELECT schema_name || '.' || function_name, comment FROM duckdb_functions() "
            "WHERE schema_name IN ('ops', 'history')"
        ).fetchall()
    return {name: comment or "" for name, comment in rows}


def asked(connection: Connection, query: str) -> Rows:
    names, rows = rows_of(connection, query)
    return [dict(zip(names, row, strict=True)) for row in rows]


def test_each_question_of_the_page_has_a_number_of_its_own() -> None:
    """Two questions had the number 41, and readers looked at the wrong one."""
    numbers = re.findall(r"^\*\*(\d+)\. ", sql_page.PAGE.read_text(), re.MULTILINE)
    assert [int(number) for number in numbers] == list(range(1, len(numbers) + 1))


@pytest.mark.slow
def test_every_object_says_what_it_is_with_an_example_that_runs(
    folder: Path, operators: Connection
) -> None:
    page = sql_page.PAGE.read_text()
    existing = objects(folder)
    assert len(existing) >= 35 and existing == objects(folder, "gangline.duckdb")
    live = duckdb.connect(str(folder / "gangline.duckdb"), read_only=True)
    for name, comment in existing.items():
        example = _EXAMPLE.search(comment)
        assert example and name in example[1], (
            f"{name}: its comment ends in no example: {comment!r}"
        )
        assert asked(operators, example[1]), f"{name}: its example shows nothing"
        assert f"`{name}" in page, f"{name} is not in docs/sql.md"
        live.execute(example[1]).fetchall()
    live.close()


def test_the_page_is_what_the_night_answers(folder: Path) -> None:
    """Handwritten output showed columns that no longer exist; `make docs` writes the page."""
    page = sql_page.PAGE.read_text()
    queries = sql_page.queries(page)
    assert len(queries) >= 20 and len(set(queries)) == len(queries)
    assert len(queries) == page.count("$ gangline sql ")
    assert sql_page.answered(page, sql_page.asking(folder)) == page, "run `make docs`"


def test_no_example_of_the_page_is_empty(folder: Path) -> None:
    """24 of 48 examples had no row on a newcomer's data; `gangline run --scenario night` plays this night."""
    assert set(sql_page.empty(sql_page.PAGE.read_text(), folder)) == NONE_TONIGHT


def test_the_answers_of_the_page_are_true() -> None:
    """Question 11 asks who is to blame, and put a waiting host on top."""
    questions = re.split(r"^\*\*(\d+)\. ", sql_page.PAGE.read_text(), flags=re.MULTILINE)
    first_rows = {
        int(number): text.split("```\n$ gangline sql", 1)[1].splitlines()[2]
        for number, text in zip(questions[1::2], questions[2::2], strict=True)
        if int(number) in TRUTH
    }
    wrong = {number: row for number, row in first_rows.items() if TRUTH[number] not in row}
    assert not wrong


def test_no_example_names_a_moment(folder: Path) -> None:
    """The night of `gangline run --scenario night` is tonight: a query about 2023 shows nothing of it."""
    queries = sql_page.queries(sql_page.PAGE.read_text())
    assert not [query for query in queries if re.search(r"\b20\d\d-", query)]


def test_the_night_that_is_played_is_the_one_of_the_page() -> None:
    """Names, job and GPUs of the page are those of `gangline run --scenario night`."""
    played = NightWorld()
    assert tuple(played.names) == night_before.HOSTS
    assert played.affected_gpu("hbm") == (night_before.DEAD, night_before.BROKEN)
    assert played.affected_gpu("thermal")[0] == night_before.SLOW
    sent_events = [event for _ in range(2) for _, _, events in played.step(1.0) for event in events]
    jobs = [event.attributes["job_id"] for event in sent_events if event.name == "gpu.process"]
    assert sorted(jobs) == ["119", *["123"] * 64], "told once"
    assert len({event.event_id for event in sent_events}) == len(sent_events)
    hosts_sending = [name for name, blocks, _ in played.step(200.0) if blocks]
    assert sorted({*played.names} - {*hosts_sending}) == [SILENT_HOST]


@pytest.mark.parametrize(("query", "rows"), SHOWN, ids=[query[:60] for query, _ in SHOWN])
def test_what_a_view_shows(operators: Connection, query: str, rows: Rows) -> None:
    """A view that runs and shows another host's fault sends the wrong host to repair."""
    assert asked(operators, query) == rows


def test_a_score_and_its_readings_of_a_time_before_there_was_any(operators: Connection) -> None:
    """Asked of a moment before the first score: nothing, not the score of later."""
    query = "FROM ops.score_at('sim-006', TIMESTAMP '2023-11-14 22:00:00')"
    assert asked(operators, query) == []


def test_actions_are_those_of_the_policy(operators: Connection) -> None:
    """SQL that recommends what the policy does not is worse than none."""
    rows = asked(operators, "SELECT * EXCLUDE (source) FROM ops.actions")
    assert [tuple(row.values()) for row in rows] == [row[:-1] for row in actions()]
    action_of = {(row["signal"], row["code"]): row["action"] for row in rows}
    assert all(action_of["gpu.xid", code] == action.action for code, action in policy().items())
    assert {row.action for row in builtin().rows if row.action} <= {row["action"] for row in rows}
    assert action_of["gpu.recovery_action_state", 1] == action_of["gpu.recovery_action_state", 4]
    assert action_of["gpu.remap_pending_state", 1] == "reset the GPU at the end of the job"
