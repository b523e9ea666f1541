"""`gangline sql` at a prompt, through an aggregator, and into files."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from pyarrow import parquet

from gangline import cli
from gangline.aggregator.commands import sql, sql_output
from gangline.aggregator.commands.sql_backends import RemoteBackend, SnapshotBackend
from gangline.aggregator.commands.sql_options import AnswerOptions
from gangline.aggregator.commands.sql_shell import NameCompleter
from gangline.aggregator.query.messages import AnswerSummary
from gangline.contract.client.connection import ADDRESS_DEFAULT, ADDRESS_VARIABLE, FILE_VARIABLE
from tests.aggregator.query.asking import ask_all
from tests.aggregator.query.terminal import Terminal
from tests.aggregator.query.test_processes import DEAF
from tests.processes import GUARD_SECONDS

VALUES = """
SELECT NULL AS nothing, 'nan'::DOUBLE AS nan, 0.1::FLOAT AS f, sum(range) AS huge, 1.50::DECIMAL(9, 2) AS money,
    TIMESTAMP '2026-11-20 03:00:00' AS at, TIMESTAMPTZ '2026-11-20 03:00:00+00' AS zoned,
    TIMESTAMP_NS '2026-11-20 03:00:00.123456789' AS fine, INTERVAL '14 months 1 day 90 seconds' AS span,
    INTERVAL 0 SECOND AS none, DATE '2026-11-20' AS day, 'x\\x00'::BLOB AS bytes, [1, NULL] AS list,
    {'a': TIMESTAMP_NS '2026-11-20 03:00:00.123456789', 'b': INTERVAL 1 DAY} AS struct,
    map {'k': [1]} AS map, 'e'::ENUM('e') AS enum, true AS yes, chr(27) || ']0;mine' || chr(7) AS bell,
    chr(8238) AS turned
FROM range(3)
"""


def run(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "gangline.cli", "sql", *arguments],
        check=False,
        capture_output=True,
        timeout=120,
    )


@pytest.mark.slow
def test_a_session_at_the_prompt(snapshot: Path, tmp_path: Path) -> None:
    """A session of an operator: typing errors, queries on several lines, cancel, history, exit."""
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "TERM": "xterm", "PAGER": "cat"}
    command = [sys.executable, "-m", "gangline.cli", "sql", "--data", str(snapshot)]
    prompt = "gangline>"
    with Terminal(command, environment) as terminal:
        terminal.until(prompt)
        terminal.type("select host,\r")
        terminal.until(r"\.\.\.")
        terminal.type("  chr(27) || '[31mred' as colour from hosts;\r")
        text = terminal.until(r"as of \d+ s ago")
        assert "host-1   [31mred" in text and "(1 row)" in text
        terminal.until(prompt)
        terminal.type("selec 1;\r")
        assert "line 1, column 1: Parser error" in terminal.until(r"\n  \^")
        terminal.until(prompt)
        terminal.type(f"{DEAF};\r")
        terminal.runs_a_query()
        terminal.type("\x03")
        terminal.until("cancelled")
        terminal.until(prompt)
        terminal.type("\\x\r")
        terminal.until("one line per value")
        terminal.until(prompt)
        terminal.type("from ops.wor\t")
        terminal.until(r"st\(")
        terminal.type("n := 1);\r")
        assert "silent_seconds" in terminal.until(r"as of \d+ s ago")
        terminal.until(prompt)
        terminal.type(
            "select repeat('x', 99) || 'end';\r"
        )  # wider than a line, and no pager waits for a key
        terminal.until("xxend")
        terminal.until(r"as of \d+ s ago")
        terminal.until(prompt)
        terminal.type("\\d snapshot\r")
        terminal.until("readings_since")
        terminal.until(prompt)
        terminal.type("\\nonsense\r\\?\r")
        terminal.until("nonsense' is not a command")
        terminal.until("cancel the question")
        terminal.until(prompt)
        terminal.type("not sent\x03")
        terminal.until("not sent")
        terminal.until(prompt)
        assert terminal.end("\x04") == cli.OK
    history = tmp_path / "gangline" / "sql_history"
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    assert (
        "select host,\n+  chr(27)" in history.read_text() and "not sent" not in history.read_text()
    )


@pytest.mark.slow
@pytest.mark.usefixtures("live_operators_files")
def test_through_an_aggregator(lab: Any, tmp_path: Path) -> None:
    """The same command from a laptop: rows, refusals and limits of the server, and an unreachable server."""

    async def way() -> list[subprocess.CompletedProcess[bytes]]:
        async with lab.aggregator(query_rows_max=1500) as aggregator:
            while not (lab.folder / "operators.duckdb").exists():
                await asyncio.sleep(0.005)
            server = f"127.0.0.1:{aggregator.port}"
            command_lines = [
                ("--csv", "SELECT host, 1.5 AS n FROM range(2), (SELECT 'h' AS host)"),
                ("SELEC 1",),
                ("--csv", "FROM range(2000)"),
                ("--output", str(tmp_path / "cut.parquet"), "FROM range(2000)"),
                ("--output", str(tmp_path / "whole.parquet"), "--rows", "1000", "FROM range(2000)"),
                ("--timeout", "3600", "SELECT 1"),
            ]
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv(ADDRESS_VARIABLE, server)
                unnamed = await asyncio.to_thread(run, "--csv", "SELECT 1 AS one")
            assert unnamed.stdout == b"one\n1\n" and server.encode() in unnamed.stderr
            return [
                await asyncio.to_thread(run, "--server", server, *arguments)
                for arguments in command_lines
            ]

    rows, wrong, cut, no_file, file, late = asyncio.run(way())
    assert rows.stdout == b"host,n\nh,1.5\nh,1.5\n" and rows.returncode == cli.OK
    assert b"as of" in rows.stderr
    assert wrong.returncode == cli.USAGE and b"line 1, column 1" in wrong.stderr
    assert cut.returncode == cli.FAILED and b"first 1500 rows" in cut.stderr
    assert no_file.returncode == cli.FAILED and not (tmp_path / "cut.parquet").exists()
    assert b"is not written, because the answer is truncated" in no_file.stderr
    assert file.returncode == cli.OK
    assert parquet.read_table(tmp_path / "whole.parquet").num_rows == 1000
    assert late.returncode == cli.USAGE and f"up to {GUARD_SECONDS:g} s".encode() in late.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"data", "whole.parquet"}
    unreachable = run("--server", "127.0.0.1:1", "SELECT 1")
    assert (
        unreachable.returncode == cli.NO_ANSWER and b"no aggregator answers" in unreachable.stderr
    )
    assert b"--server" in unreachable.stderr and b"--aggregator" not in unreachable.stderr
    shown = run("--log", "--data", str(lab.folder))
    assert b"refused" in shown.stdout and b"SELEC 1" in shown.stdout
    assert shown.stdout.count(b"ok") >= 2 and b"cancelled" not in shown.stdout
    logged = json.loads(run("--log", "1", "--json", "--data", str(lab.folder)).stdout)
    assert [entry["role"] for entry in logged] == ["admin"] and logged[0]["message"]
    nowhere = run("--server", "no-such-name.invalid:7600", "SELECT 1")
    assert (
        nowhere.returncode == cli.NO_ANSWER
        and b"cannot resolve 'no-such-name.invalid'" in nowhere.stderr
    )


@pytest.mark.parametrize(
    ("arguments", "variable", "file", "kind", "name"),
    [
        ([], "", "", RemoteBackend, ADDRESS_DEFAULT),
        ([], "head:1", 'aggregator = "other:2"', RemoteBackend, "head:1"),
        ([], "", 'aggregator = "other:2"', RemoteBackend, "other:2"),
        (["--server", "named:3"], "head:1", "", RemoteBackend, "named:3"),
        (["--data", "store"], "head:1", "", SnapshotBackend, "store"),
    ],
)
def test_it_asks_the_aggregator_of_hosts(
    arguments: list[str],
    variable: str,
    file: str,
    kind: type,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`gangline sql` read ./var/aggregator of an old trial, while `gangline hosts` asked the running aggregator."""
    (tmp_path / "client.toml").write_text(file)
    monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / "client.toml"))
    monkeypatch.setenv(ADDRESS_VARIABLE, variable)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "var" / "aggregator").mkdir(parents=True)
    backend = sql._backend(sql._parser().parse_args(arguments))
    assert (type(backend), backend.name) == (kind, name)


def test_it_says_whose_data_it_shows(snapshot: Path) -> None:
    """Rows of another cluster, by a forgotten GANGLINE_AGGREGATOR, looked like one's own."""
    end = AnswerSummary(1, 1, 0.1, "", time.time_ns() // 1000, "")
    backend = SnapshotBackend(snapshot)
    options = AnswerOptions("csv", None, 0, 0.0)
    assert sql.notes(end, backend, "", options) == ["as of 0 s ago"]
    options = replace(options, source="head:7600")
    assert sql.notes(end, backend, "", options) == ["head:7600, as of 0 s ago"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--log"], cli.OK, "no queries are logged: "),
        (["--log", "--server", "h:1"], cli.USAGE, "on the aggregator's machine"),
        (["--log", "--format", "parquet"], cli.USAGE, "only --format table|csv|json"),
        (["--server", "h"], cli.USAGE, "'h': expected ADDRESS:PORT, such as 127.0.0.1:7600\n"),
    ],
)
def test_what_cannot_be_asked_is_said(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    message: str,
) -> None:
    """A mistyped folder gave an empty table, which looked like "no queries yet"."""
    data = [] if "--server" in arguments else ["--data", str(tmp_path)]
    try:
        assert cli.main(["sql", *data, *arguments]) == code
    except SystemExit as stop:
        assert stop.code == code
    assert message in capsys.readouterr().err


Asked = Callable[..., tuple[int, bytes, str]]


@pytest.fixture
def asked(snapshot: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> Asked:
    def ask(*arguments: str) -> tuple[int, bytes, str]:
        try:
            code = cli.main(["sql", "--data", str(snapshot), *arguments])
        except SystemExit as stop:
            code = int(stop.code or 0)
        out, err = capsysbinary.readouterr()
        return code, out, err.decode()

    return ask


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["csv", "json", "parquet", "arrow", "txt"])
def test_a_file_is_whole_or_not_there(asked: Asked, tmp_path: Path, ending: str) -> None:
    """A cron job's file of last night stays when tonight's question fails in the middle."""
    target = tmp_path / f"a.{ending}"
    assert asked("FROM range(3)", "--output", str(target))[:2] == (cli.OK, b"")
    before = target.read_bytes()
    assert len(before) > 10
    late = "SELECT (range || if(range > 90000, 'x', ''))::INT FROM range(100000)"
    assert asked(late, "--output", str(target), "--rows", "100000")[0] != cli.OK
    assert target.read_bytes() == before and list(tmp_path.iterdir()) == [target]


@pytest.mark.slow
def test_forms_by_name(asked: Asked, tmp_path: Path) -> None:
    """`--format` sets a form that the file's ending does not give; the error for an unsuitable form
    names an alternative.
    """
    code, out, _ = asked("FROM range(3)", "--format", "arrow")
    assert code == cli.OK and pa.ipc.open_stream(io.BytesIO(out)).read_all().num_rows == 3
    assert asked("FROM range(2)", "--csv")[1] == b"range\n0\n1\n"
    target = tmp_path / "b"
    assert asked("FROM range(3)", "--format", "parquet", "--output", str(target))[0] == cli.OK
    assert parquet.read_table(target).to_pydict() == {"range": [0, 1, 2]}
    for arguments, expected, message in (
        (
            ("SELECT INTERVAL 1 DAY", "--output", str(tmp_path / "c.parquet")),
            cli.USAGE,
            "Cast the column",
        ),
        (("SELECT 1", "--output", str(tmp_path / "c.xls")), cli.USAGE, "--format"),
        (("SELECT 1", "--output", str(tmp_path / "no" / "c.csv")), cli.FAILED, "cannot be written"),
        ((DEAF, "--timeout", "0.2"), cli.FAILED, "ran longer than 0.2 s"),
        (("SELECT 1", "--timeout", "nan"), cli.USAGE, "expected a duration from 0.001s"),
    ):
        code, out, err = asked(*arguments)
        assert (code, out) == (expected, b"") and message in err
    assert list(tmp_path.iterdir()) == [target]
    assert "ops.worst" in asked("\\d")[1].decode()


def test_every_kind_of_value_is_shown(snapshot: Path) -> None:
    """NULL is not NaN is not zero; spans, nanoseconds and maps read as what they are; nothing acts on a terminal."""
    (reply,) = ask_all(snapshot, [VALUES])
    (row,) = sql_output._cells(reply.table)
    shown = dict(zip(reply.table.schema.names, row, strict=True))
    assert shown == {
        "nothing": "-", "nan": "nan", "f": "0.1", "huge": "3", "money": "1.50",
        "at": "2026-11-20 03:00:00", "zoned": "2026-11-20 03:00:00+00",
        "fine": "2026-11-20 03:00:00.123456789", "span": "1 year 2 months 1 day 00:01:30", "none": "00:00:00",
        "day": "2026-11-20", "bytes": r"x\x00", "list": "[1, NULL]",
        "struct": "{'a': '2026-11-20 03:00:00.123456789', 'b': 1 day}", "map": "{k=[1]}", "enum": "e",
        "yes": "true", "bell": " ]0;mine ", "turned": " ",
    }  # fmt: skip
    out = io.StringIO()
    sql_output.write_json(reply.table.to_batches(), out)
    (completions,) = json.loads(out.getvalue())
    assert completions["huge"] == 3 and completions["money"] == 1.5 and completions["nan"] == "nan"
    assert (
        completions["list"] == [1, None]
        and completions["map"] == {"k": [1]}
        and completions["nothing"] is None
    )


class Screen(io.StringIO):
    """A terminal, as far as a writer asks."""

    def isatty(self) -> bool:
        """It is."""
        return True


def test_csv_and_json_on_a_terminal_do_not_act_on_it() -> None:
    """A host's own text controlled the operator's terminal: JSON does not escape C1 controls and direction marks."""
    answer = pa.table({"a\x1b": ["x\x9b31m\u202e", "ü"]})
    parts = answer.to_batches()
    for form in ("csv", "json"):
        screen, file = Screen(), io.StringIO()
        for out in (screen, file):
            if form == "csv":
                sql_output.write_csv(answer.schema.names, parts, out)
            else:
                sql_output.write_json(parts, out)
        shown = screen.getvalue()
        assert "ü" in shown and all(
            character.isprintable() or character == "\n" for character in shown
        )
        stored = (
            "\x9b31m\u202e" in file.getvalue()
        )  # a program gets what is stored; JSON escapes nothing less
        assert stored == (form == "json")


def test_a_csv_file_has_no_control_characters_and_no_formulas() -> None:
    """A host's own text became a formula in the operator's spreadsheet, and controlled the terminal
    that showed the file.
    """
    texts = [
        "=cmd|' /C calc'!A0",
        "@SUM(1)",
        "+x",
        "-x",
        "a\x1b[2Jb",
        "-1.5",
        "+2",
        "two\nlines",
        "x=1",
    ]
    answer = pa.table({"=a": texts})
    out = io.StringIO()
    sql_output.write_csv(answer.schema.names, answer.to_batches(), out)
    assert [row for (row,) in csv.reader(io.StringIO(out.getvalue()))] == [
        "'=a", "'=cmd|' /C calc'!A0", "'@SUM(1)", "'+x", "'-x", "a?[2Jb", "-1.5", "+2", "two\nlines", "x=1",
    ]  # fmt: skip


def test_two_columns_of_one_name() -> None:
    """`SELECT a.host, b.host`: CSV and a table have both, an object of JSON the last."""
    answer = pa.Table.from_arrays([pa.array([1]), pa.array([float("inf")])], ["host", "host"])
    out = io.StringIO()
    sql_output.write_csv(answer.schema.names, answer.to_batches(), out)
    assert out.getvalue() == "host,host\n1,inf\n"
    out = io.StringIO()
    sql_output.write_json(answer.to_batches(), out)
    assert json.loads(out.getvalue()) == [{"host": "inf"}]
    assert sql_output.table(answer, 0).splitlines()[1].split() == ["1", "inf"]


def test_rows_as_records() -> None:
    """The widest row of all on the narrowest terminal."""
    text = sql_output.records(pa.table({"a": [1, None], "long\x1bname": ["x\ny", "z"]}))
    assert text.splitlines()[1:3] == ["a          1", "long name  x y"]
    assert text.splitlines()[-1] == "(2 rows)" and "\x1b" not in text


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("from ops.w", ["ops.worst("]),
        ("FROM ", ["ops.worst(", "latest.gpu_1s"]),
        ("select power", ["power_watts"]),
        ("selec", ["SELECT"]),
        ("from latest.gpu_1s where power", ["power_watts"]),
        ("\\", ["\\d", "\\x", "\\rows", "\\timeout", "\\q", "\\?"]),
        ("select 'x' ", []),
    ],
)
def test_what_is_offered(typed: str, offered: list[str]) -> None:
    """After FROM a table is completed, elsewhere a column or a keyword."""
    names = NameCompleter(
        [("macro", "ops.worst("), ("table", "latest.gpu_1s"), ("column", "power_watts")]
    )
    completions = names.get_completions(Document(typed), CompleteEvent())
    assert [completion.text for completion in completions] == offered
