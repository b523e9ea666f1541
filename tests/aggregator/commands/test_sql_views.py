"""Operators' questions: the views of the operators' file, and the command that queries it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from gangline.aggregator.commands import sql, sql_backends, sql_options, sql_output
from gangline.aggregator.ingest.findings import ActiveFindings
from gangline.aggregator.query import sandbox
from gangline.contract.wire import telemetry_pb2 as wire
from tests.aggregator.conftest import Lab, wait_until
from tests.aggregator.query.asking import rows_of
from tests.processes import GUARD_SECONDS

pytestmark = pytest.mark.usefixtures("operators_files")

#: The query of each view, and a cell of its first row.
OPS = [
    ("FROM ops.worst(n := 1)", "state", "UNHEALTHY"),
    ("FROM ops.hosts", "host", "host-1"),
    ("FROM ops.scores_now", "state", "UNHEALTHY"),
    ("FROM ops.explain('host-1')", "reason", "XID_FATAL"),
    ("FROM ops.freshness", "host", "host-1"),
    ("FROM ops.last_seen", "host", "host-1"),
    ("FROM ops.findings", "is_active", True),
    ("FROM ops.aggregator", "figure", "breaker_open"),
    ("FROM ops.aggregator_history('findings')", "rise_per_second", None),
    ("FROM ops.faults", "code", 79),
    ("FROM ops.gpu_history('GPU-0')", "power_watts", 1.0),
    ("FROM ops.jobs", "job", "123"),
    ("FROM ops.job(123)", "rank", 3),
    ("FROM ops.gpu_processes", "source", "slurm"),
    ("FROM ops.gpu_allocations", "other_processes_count", 1),
    ("FROM ops.changed_last_hour", "host", "host-1"),
    ("FROM latest.gpu_1s WHERE device = 'GPU-1'", "power_watts", 2.0),
    ("SELECT ops.severity('UNHEALTHY') AS worst", "worst", 1),
]
REFUSED = [
    ("DELETE FROM hosts", "SUMMARIZE is taken, not DELETE:"),
    ("WITH gone AS (DELETE FROM hosts RETURNING *) FROM gone", ""),
    ("EXPLAIN ANALYZE DELETE FROM hosts", "statements that write cannot be explained"),
    ("CREATE TABLE mine (a INT)", "SUMMARIZE is taken, not CREATE:"),
    ("COPY hosts TO 'hosts.csv'", "SUMMARIZE is taken, not COPY:"),
    ("ATTACH 'other.duckdb'", "SUMMARIZE is taken, not ATTACH:"),
    ("SET enable_external_access = true", "SUMMARIZE is taken, not SET:"),
    ("INSTALL httpfs", "not INSTALL"),
    ("-- tidy up\n/* now */ checkpoint", "not CHECKPOINT"),
    (
        "PRAGMA database_list; SELECT 1",
        "VALUES, EXPLAIN, DESCRIBE, SHOW or SUMMARIZE is taken, not 2 statements",
    ),
    (";", "0 statements"),
    (
        "FROM read_csv('/etc/passwd')",
        "line 1, column 6: the function read_csv in FROM is not allowed",
    ),
    ("FROM '/etc/passwd.csv'", "are not accessible"),
    ("FROM '/etc/passwd'", "does not exist"),
    ("SELEC 1", "syntax error"),
    ("SELECT hots FROM ops.hosts", "hint: DESCRIBE"),
    ("FROM ops.nothing", "hint: `gangline sql '\\d'` lists"),
    ("FROM nosuch", "hint: `gangline sql '\\d'` lists"),
    ("FROM ops.wurst", "hint: did you mean ops.worst?"),
    ("FROM ops.worst", "hint: it is asked as FROM ops.worst(n); "),
    ("DESCRIBE ops.explain", "hint: it is asked as FROM ops.explain(host_name); "),
    ("FROM ops.hosts()", "hint: it is asked as FROM ops.hosts; "),
    ("FROM history.by_prt('x')", "hint: did you mean history.by_part?"),
    ("FROM latest.gpu_2s", "hint: did you mean"),
    ("FROM ops.told_by_boot", "hint: told_by_boot is now ops.boot_reports; "),
    ("FROM ops.heard ORDER BY host", "hint: heard is now ops.last_seen; "),
    ("SELECT host, HEARD FROM ops.hosts", "hint: heard is now last_seen; "),
    ("SELECT f.still_so FROM ops.findings AS f", "hint: still_so is now is_active; "),
    ("SELECT * EXCLUDE (tells) FROM ops.aggregator", "hint: tells is now description; "),
]
#: A process of its own that may not take more address space than this: a mistake must not end the machine.
MEMORY_BYTES_MAX = 2 << 30


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with two hosts, an XID, a finding, and the operators' file over it."""
    lab = Lab(tmp_path_factory.mktemp("made") / "data")

    async def way() -> None:
        async with lab.aggregator() as aggregator, lab.agent(aggregator) as agent:
            await agent.send(agent.agent.message(1), agent.agent.message(2))
            xid = wire.HealthEvent(
                event_id="e1",
                device_kind="gpu",
                device="GPU-0",
                name="gpu.xid",
                code=79,
                message="fell off the bus",
                wall_time_ns=time.time_ns(),
                boottime_ns=time.time_ns() - agent.agent.booted_ns,
            )
            events = [xid, *_who_runs(agent.agent.booted_ns)]
            request = wire.ReportEventsRequest(events=events)
            await agent.stub.ReportEvents(request, metadata=agent.metadata)
            now_ns = time.time_ns()
            ActiveFindings(aggregator.fleet).find(
                "host-1", "clock.offset", "off", now_ns, expires=False
            )
            await wait_until(lambda: _unhealthy(aggregator.snapshot_holder.snapshot))
            # An aggregator without time at its end writes no file, and does not wait for a running
            # write.
            await asyncio.to_thread(aggregator.store.write_ops)

    asyncio.run(way())
    return lab.folder


@pytest.fixture
def store(made: Path, tmp_path: Path) -> Path:
    """Return a modifiable copy with a current time: for an older copy the command reports the age."""
    folder = Path(shutil.copytree(made, tmp_path / "data"))
    with duckdb.connect(str(folder / "operators.duckdb")) as connection:
        now_us = time.time_ns() // 1000
        connection.execute("UPDATE snapshot SET taken = make_timestamp(?)", [now_us])
    return folder


def _who_runs(booted_ns: int) -> list[wire.HealthEvent]:
    """Return a process of a job, and a pod that holds a GPU."""
    job = {"state": "running", "source": "slurm", "job_id": "123", "rank": "3", "world_size": "16"}
    pod = {"state": "held", "namespace": "ml", "pod": "trainer-0", "container": "main"}
    return [
        wire.HealthEvent(
            event_id=f"/{name}",
            device_kind="gpu",
            device="GPU-0",
            name=name,
            wall_time_ns=time.time_ns(),
            boottime_ns=time.time_ns() - booted_ns,
            attributes=attributes,
        )
        for name, attributes in (("gpu.process", job), ("gpu.allocation", pod))
    ]


def _unhealthy(snapshot: Any) -> bool:
    return bool(snapshot and snapshot.hosts and snapshot.hosts[0].state.name == "UNHEALTHY")


@pytest.mark.slow
@pytest.mark.parametrize("file", ["gangline.duckdb", "operators.duckdb"])
def test_the_same_questions_of_both_files(store: Path, file: str) -> None:
    """In the day the operators' file, in the post mortem the store itself: the same SQL answers."""
    with duckdb.connect(str(store / file), read_only=True) as connection:
        for query, column, expected in OPS:
            cursor = connection.execute(query)
            names = [column[0] for column in cursor.description or ()]
            rows = cursor.fetchall()
            assert rows, query
            assert rows[0][names.index(column)] == expected, query
        named = connection.execute(sql_options.LIST_QUERY).fetchall()
    queried = {query.split("ops.")[1].split("(")[0] for query, _, _ in OPS if "FROM ops." in query}
    documented = {ask.partition("ops.")[2].split("(")[0] for ask, answers in named if answers}
    assert queried <= documented


def test_every_piece_of_evidence_shows_its_rows(store: Path) -> None:
    """An operator runs the SQL that came with the evidence, word for word."""
    with sandbox.open_snapshot(store / "operators.duckdb") as connection:
        _, queries = rows_of(connection, "SELECT sql FROM evidence")
        assert queries
        for (query,) in queries:
            names, _ = rows_of(connection, query)
            assert names


@pytest.mark.slow
@pytest.mark.parametrize(("query", "message"), REFUSED, ids=[query[:24] for query, _ in REFUSED])
def test_what_is_not_a_question_is_refused(
    store: Path, capsys: pytest.CaptureFixture[str], query: str, message: str
) -> None:
    """SQL that writes, reads files, or is wrong: a message on stderr, nothing on stdout, exit 2."""
    before = (store / "operators.duckdb").read_bytes()
    assert sql.main([query, "--data", str(store)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and message in err and "Traceback" not in err
    assert len(err.splitlines()) <= 7 and "pg_" not in err
    assert (store / "operators.duckdb").read_bytes() == before


@pytest.mark.slow
def test_each_former_sql_name_is_known() -> None:
    """A dashboard with a former column must learn the new one: docs/stability.md lists them all."""
    page = (Path(__file__).parents[3] / "docs" / "stability.md").read_text()
    rows = [line.split("|")[1:4] for line in page.partition("| former name")[2].splitlines()[2:]]
    cells = [re.sub(r"\(.*?\)", "", former) for former, _, where in rows if "SQL" in where]
    names = {name.removeprefix("ops.") for cell in cells for name in re.findall("`(.+?)`", cell)}
    assert names == sandbox.FORMER_NAMES.keys()


def test_a_table_json_and_csv(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For a person, for a program, for a spreadsheet; how old it is goes to stderr."""
    query = "SELECT host, labels, score > 2 AS no, NULL AS nothing FROM ops.hosts"
    assert sql.main([query, "--data", str(store)]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[0].split() == ["host", "labels", "no", "nothing"]
    assert out.splitlines()[-1] == "(1 row)"
    assert "s ago" in err and "no aggregator" not in err
    assert sql.main([query, "--data", str(store), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {"host": "host-1", "labels": {"rack": "r1"}, "no": False, "nothing": None}
    ]
    assert sql.main(["SELECT host, NULL AS n FROM hosts", "--data", str(store), "--csv"]) == 0
    assert capsys.readouterr().out == "host,n\nhost-1,\n"


def test_no_file_and_an_old_file(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The aggregator is down: exit 3 when there was never one, a warning when it stopped writing."""
    assert sql.main(["FROM hosts", "--data", str(tmp_path / "nowhere")]) == 3
    assert "gangline aggregator" in capsys.readouterr().err
    with duckdb.connect(str(store / "operators.duckdb")) as connection:
        connection.execute("UPDATE snapshot SET taken = taken - INTERVAL 2 MINUTE")
    assert sql.main(["SELECT 1", "--data", str(store)]) == 0
    assert "no aggregator runs in" in capsys.readouterr().err
    (store / "operators.duckdb").write_bytes(b"no database" * 100)
    assert sql.main(["SELECT 1", "--data", str(store)]) == 1
    message = capsys.readouterr().err
    assert "cannot be opened" in message and "rewrites it" in message


def _answer(names: list[str], rows: list[Any]) -> Any:
    return pa.table([pa.array(column) for column in zip(*rows, strict=True)], names)


def test_a_table_fits_the_terminal() -> None:
    """A long reason must not wrap every line; control characters of a host must not reach the screen."""
    rows = [("host-1", 0.123456789, "word " * 40), ("h\x1b[31m", None, "short")]
    lines = sql_output.table(_answer(["host", "score", "why"], rows), 60).splitlines()
    assert max(map(len, lines)) <= 60
    assert lines[1].endswith("…") and "0.123457" in lines[1]
    assert "\x1b" not in lines[2] and " -  short" in lines[2]
    assert sql_output.table(pa.table({"a": pa.array([], pa.int32())}), 10).splitlines() == [
        "a",
        "(0 rows)",
    ]


def test_a_table_with_more_columns_than_the_terminal_has_room_for() -> None:
    """Every column was cut alike: `1770000…` for a clock, `2026-11…` for a time, and no full text was left."""
    moment = datetime(2026, 11, 21, 3, 0, 1)
    names = ["host", "time", "sm_clock_hertz", "reason", "boottime_ns", "labels"]
    rows = [
        ("sim-002", moment, 1_770_000_000, "its SM clock is held down by heat", 51196130, {"a": 1})
    ]
    text = sql_output.table(_answer(names, rows), 74)
    head, line, count, left_out = text.splitlines()
    assert (
        "2026-11-21 03:00:01" in line
        and "1770000000" in line
        and "its SM clock is hel" in line
        and "…" in line
    )
    assert "sm_cloc" in head and max(map(len, (head, line))) <= 74 and count == "(1 row)"
    assert left_out.startswith("no room for 1 more: labels (all: ")
    assert len(sql_output.table(_answer(names, rows), 0).splitlines()) == 3
    assert sql_output.table(pa.table({"text": ["x" * 99]}), 10).splitlines()[1] == "x" * 9 + "…"


def _run(store: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """Start `gangline sql` with a bound on its memory."""
    bound = (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX)
    code = (
        f"import resource, sys; resource.setrlimit(resource.RLIMIT_AS, {bound}); "
        "from gangline.cli import main; sys.exit(main())"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code, "sql", *arguments, "--data", str(store)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


@pytest.mark.parametrize("form", ["--csv", "--json"])
def test_a_reader_that_goes_ends_an_endless_answer(store: Path, form: str) -> None:
    """`gangline sql "FROM range(100000000)" | head -3` took 23 GB, and the machine with it."""
    with _run(store, "FROM range(100000000000)", form) as child:
        assert child.stdout and child.stderr
        lines = [child.stdout.readline() for _ in range(3)]
        child.stdout.close()
        assert "Traceback" not in child.stderr.read()
        assert child.wait(GUARD_SECONDS) == 1
    assert lines[1].strip("\n ,") in ("0", '{"range": 0}')


def test_a_table_shows_the_first_rows(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sql.main(["FROM range(100000000000)", "--data", str(store)]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[1].strip() == "0" and out.splitlines()[-1] == "(1000 rows)"
    assert "first 1000 rows; --csv or --rows N for more" in err
    assert sql.main(["FROM range(1000)", "--data", str(store)]) == 0
    assert "first 1000" not in capsys.readouterr().err
    assert sql.main(["FROM range(9)", "--rows", "3", "--csv", "--data", str(store)]) == 0
    out, err = capsys.readouterr()
    assert out.split() == ["range", "0", "1", "2"] and "first 3 rows; --rows N" in err
    for wrong in ("0", "-1", "many", "1" * 30):
        with pytest.raises(SystemExit):
            sql.main(["FROM hosts", "--rows", wrong, "--data", str(store)])
        assert "1 to 100000" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        sql.main(["FROM hosts", "--rows", "100001", "--data", str(store)])
    assert "a table has 1 to 100000 rows" in capsys.readouterr().err


def test_a_question_too_big_for_memory(
    store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sort of everything: words and exit 1, not a host that runs out of memory."""
    monkeypatch.setattr(sql_backends, "MEMORY_BYTES_MAX", 64 << 20)
    query = "FROM range(20000000) ORDER BY hash(range)"
    assert sql.main([query, "--data", str(store)]) == 1
    out, err = capsys.readouterr()
    assert out == "" and "more than 64 MB of memory" in err and "WHERE" in err


@pytest.mark.slow
def test_a_cell_too_big_for_memory(store: Path) -> None:
    """One cell of sixty million numbers: past DuckDB's limit unseen, 4 GB of Python's."""
    with _run(store, "SELECT range(60000000) AS numbers") as child:
        out, err = child.communicate(timeout=180)  # only a guard
    assert child.returncode == 1 and out == ""
    assert "of memory, the limit" in err or "more than the 4.0 MiB a row may" in err
    assert "Traceback" not in err


def test_a_plan_is_printed_as_it_is_drawn(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """EXPLAIN's boxes on a single line are unreadable."""
    assert sql.main(["EXPLAIN FROM hosts", "--data", str(store)]) == 0
    lines = capsys.readouterr().out.splitlines()
    # DuckDB 1.5 and 2.0 draw their corners differently.
    assert lines[0].startswith(("┌", "╭")) and lines[0].endswith(("┐", "╮")) and len(lines) > 4


def test_columns_holds_in_a_pipe(
    store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a pipe nothing is cut, unless COLUMNS says how wide the page is."""
    query = ["SELECT repeat('x', 300) AS long", "--data", str(store)]
    monkeypatch.delenv("COLUMNS", raising=False)
    assert sql.main(query) == 0
    assert "x" * 300 in capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", "40")
    assert sql.main(query) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) == 40


def test_what_changed_costs_no_more_in_a_year(store: Path, tmp_path: Path) -> None:
    """Each query of changes sorted every stored score, after a year a year of them. Now it reads a day."""
    copy = tmp_path / "copy" / "gangline.duckdb"
    copy.parent.mkdir()
    shutil.copy(store / "gangline.duckdb", copy)
    with duckdb.connect(str(copy)) as base:
        base.execute(
            "CREATE OR REPLACE TABLE scores AS SELECT * REPLACE (now()::TIMESTAMP - to_hours(hours) AS time, "
            "hours::UBIGINT AS version, host || n AS host, state_then AS state) FROM (FROM main.scores LIMIT 1), (VALUES "
            "(1, 72, 'SUSPECT'), (1, 40, 'HEALTHY'), (1, 20, 'HEALTHY'), (1, 0, 'HEALTHY'), "
            "(2, 40, 'HEALTHY'), (2, 3, 'STALE'), (2, 0, 'HEALTHY')) AS v(n, hours, state_then)"
        )
        base.execute("UPDATE scores SET time = time - INTERVAL 1 MINUTE")
        since = base.execute(
            "SELECT host, state, date_sub('hour', since, now()::TIMESTAMP), or_longer FROM ops.state_since"
        ).fetchall()
        assert [(state, hours, longer) for _, state, hours, longer in since] == [
            ("HEALTHY", 20, True), ("HEALTHY", 0, False),
        ]  # fmt: skip
        changed = base.execute("SELECT state_before, state FROM ops.changed_last_hour").fetchall()
        assert changed == [("STALE", "HEALTHY")]
        ((host,),) = base.execute("SELECT host FROM main.hosts LIMIT 1").fetchall()
        base.execute(f"UPDATE scores SET host = '{host}' WHERE host LIKE '%1'")
        page = f"SELECT message FROM ops.host('{host}') WHERE about = 'state'"
        assert "(or longer)" in str(base.execute(page).fetchall()), (
            "weeks are not the day looked at"
        )
        base.execute(
            "INSERT INTO scores SELECT * REPLACE (time + INTERVAL 9999 DAY AS time, 'ahead' AS host) FROM scores LIMIT 1"
        )
        row = base.execute("SELECT count(*) FROM ops.state_since").fetchone()
        assert row == (3,), "a clock that was years ahead for a minute hid every host"
