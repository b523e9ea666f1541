"""The commands as an operator meets them: the help, their former spellings, one convention of options."""

from __future__ import annotations

import argparse
import importlib
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from gangline import cli
from gangline.aggregator.commands import plan
from gangline.contract import options
from gangline.contract.client import command_line
from tests.processes import GUARD_SECONDS

ROOT = Path(cli.__file__).parent
#: Columns of the narrowest terminal in which the help keeps its columns.
COLUMNS = 80
TITLES = ["look", "decide", "act", "host", "run the service", "try"]

#: A command line as it was -> the present one.
FORMER = {
    "watch --seconds 5": "hosts --watch 5",
    "watch --once --json": "hosts --json",
    "declared check hosts.toml": "admin declared check hosts.toml",
    "evaluate hazard none.json --train-until 9": "admin evaluate hazard none.json --train-until 9",
}
#: Option -> its metavar in every command; None: it takes no value.
ONE_METAVAR = {
    "--server": "ADDRESS:PORT",
    "--json": None,
    "--data": "DIR",
    "--ca": "FILE",
    "--cert": "FILE",
    "--key": "FILE",
    "--token-file": "FILE",
    "--config": "FILE",
    "--set": "KEY=VALUE",
    "--help-settings": None,
    "--run-folder": "FOLDER",
    "--candidates": "HOSTS",
    "--members": "HOSTS",
    "--force": None,
}
#: Options that take a duration.
DURATIONS = [
    "--for",
    "--last",
    "--ttl",
    "--hours",
    "--days",
    "--timeout",
    "--watch",
    "--seconds",
    "--seconds-max",
    "--checkpoint-age",
    "--reshard",
    "--lost-hours",
]
#: Former name of an option -> the present one, which the help shows.
FORMER_NAMES = {
    "--aggregator": "--server",
    "--out": "--output",
    "--into": "--output",
    "--length": "--for",
    "--why": "--reason",
}
#: Commands without --json, with the reason.
WITHOUT_JSON = {
    "agent": "a service",
    "aggregator": "a service",
    "mirror": "writes a file of its own layout",
    "simulate": "a service",
    "run": "a service and its table; `hosts --json` reads the same",
    "gang": "runs a job's step, and prints the step's output",
    "init": "writes files, and prints commands for a person",
    "admin cert init": "writes files at fixed paths",
    "admin cert server": "writes files at fixed paths",
    "admin cert issue": "writes files at fixed paths",
    "admin cert cluster": "writes files at fixed paths",
    "admin token new": "prints a token as a line, or writes files; `admin token list --json` has the tokens",
    "admin token revoke": "its exit code; `admin token list --json` has the rest",
}
#: Arguments of hosts that are read when the command runs: a missing file is exit code 1.
READ_LATER = {"--members", "--candidates", "--borrow"}


@pytest.fixture(scope="module")
def parsers() -> Iterator[dict[str, argparse.ArgumentParser]]:
    """The parsers of the manual pages, by command."""
    folder = str(ROOT / "packaging" / "build")
    sys.path.insert(0, folder)
    try:
        manuals: ModuleType = importlib.import_module("manuals")
        yield {words: parser for words, _, parser in manuals.parsers()}
    finally:
        sys.path.remove(folder)
        sys.modules.pop("manuals", None)


def run_in(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        timeout=GUARD_SECONDS,
        env={**os.environ, "GANGLINE_AGGREGATOR": "127.0.0.1:1", "COLUMNS": str(COLUMNS)},
    )


def test_the_help_is_in_groups_and_columns(capsys: pytest.CaptureFixture[str]) -> None:
    """`recover` was hard to find among 32 commands in one list, and `reservations` broke the columns."""
    assert cli.main(["--help"]) == cli.OK
    lines = capsys.readouterr().out.splitlines()
    assert [title for title, _, _ in cli.GROUPS] == TITLES
    assert max(map(len, lines)) <= COLUMNS
    rows = [line for line in lines if line.startswith("  ")]
    assert [row.split()[0] for row in rows] == list(cli.COMMANDS)
    column = max(map(len, cli.COMMANDS)) + 4
    assert all(row[column - 2 : column] == "  " and row[column] != " " for row in rows)
    (executor,) = [row for row in rows if row.split()[0] == "executor"]
    assert all(name in executor for name in ("Slurm", "Kubernetes", "HTCondor", "Ray", "Flux"))


def test_each_example_of_the_help_is_valid(parsers: dict[str, argparse.ArgumentParser]) -> None:
    """An example with a renamed option would teach a usage error."""
    for _, example, commands in cli.GROUPS:
        program, command, *rest = shlex.split(example)
        words = f"{command} {rest.pop(0)}" if command == "admin" else command
        parsers[words].parse_args(rest)
        assert program == "gangline" and command in commands


@pytest.mark.parametrize("former", FORMER)
def test_former_spellings_work_and_name_the_present_ones(former: str, tmp_path: Path) -> None:
    """A cron job with `gangline watch --once --json` or `declared check` keeps its exit code and its output."""
    before = run_in(tmp_path, "-m", "gangline", *former.split())
    present = run_in(tmp_path, "-m", "gangline", *FORMER[former].split())
    note, *rest = before.stderr.splitlines(keepends=True)
    assert (before.returncode, before.stdout, "".join(rest)) == (
        present.returncode,
        present.stdout,
        present.stderr,
    )
    assert before.returncode in (cli.FAILED, cli.NO_ANSWER)
    command, _, _ = former.partition(" ")
    assert note == f"gangline {command} is now `gangline {' '.join(cli.FORMER[command])}`\n"


def test_the_package_runs_as_a_module(tmp_path: Path) -> None:
    """`python -m gangline` failed: "No module named gangline.__main__". It works in the checkout, too."""
    for folder in (ROOT, tmp_path):
        ended = run_in(folder, "-m", "gangline", "xid", "79")
        assert (ended.returncode, ended.stderr) == (cli.OK, "")
        assert "XID 79" in ended.stdout


def all_actions(
    parsers: dict[str, argparse.ArgumentParser],
) -> Iterator[tuple[str, argparse.ArgumentParser, argparse.Action]]:
    """Yield (command, its parser, an action) of all parsers and their subparsers."""
    waiting = list(parsers.items())
    for words, parser in waiting:
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                waiting += [(f"{words} {name}", sub) for name, sub in action.choices.items()]
            else:
                yield words, parser, action


def test_the_same_options_have_the_same_purpose(
    parsers: dict[str, argparse.ArgumentParser],
) -> None:
    """`--out` here, `--output` there; `--hours 2` here, `--for 2h` there: each command had to be looked up."""
    seen: set[str] = set()
    without_json = set()
    for words, parser, action in all_actions(parsers):
        for name in action.option_strings:
            where = f"gangline {words} {name}"
            if action.help == argparse.SUPPRESS:
                continue
            seen.add(name)
            assert name not in FORMER_NAMES, where
            if name in ONE_METAVAR:
                assert action.metavar == ONE_METAVAR[name], where
            if name == "--server":
                accepted = parser._option_string_actions
                assert accepted["--aggregator"] is action, where
            if name in ("-o", "--output"):
                assert action.option_strings == ["-o", "--output"], where
                assert action.type is Path or "FILE." in str(action.metavar), where
            if name in DURATIONS and words != "check":
                takes_durations(action, where)
            if name == "--for" and words != "check":
                assert callable(action.type)
                assert action.type("7200") == action.type("2h") == 7200, where
            if name in ("--from", "--to") and action.metavar == "TIME":
                takes_moments(action, where)
        if action.metavar == "HOSTS" and not READ_LATER & {*action.option_strings}:
            assert callable(action.type)
            hosts = action.type("gpu-[001-003],head")
            assert hosts == ["gpu-001", "gpu-002", "gpu-003", "head"], words
        if not parser._subparsers and "--json" not in parser._option_string_actions:
            without_json.add(words)
    assert seen >= {*ONE_METAVAR, *DURATIONS}
    assert without_json == WITHOUT_JSON.keys()


def test_former_options_of_backups_work(parsers: dict[str, argparse.ArgumentParser]) -> None:
    """The units and cron jobs with `backup --to` and `restore --from` must still make backups."""
    backup, restore = parsers["admin backup"], parsers["admin restore"]
    folder = Path("copies")
    for option in ("-o", "--output", "--to"):
        assert backup.parse_args([option, "copies"]).to == folder
    assert restore.parse_args(["copies"]).backup == folder
    assert restore.parse_args(["--from", "copies"]).source == folder
    for wrong in ([], ["copies", "--from", "other"]):
        with pytest.raises(SystemExit):
            restore.parse_args(wrong)


def takes_durations(action: argparse.Action, where: str) -> None:
    assert callable(action.type)
    values = []
    for text in ("90s", "3m", "4h", "5d", "3"):
        try:
            values.append(action.type(text))
        except argparse.ArgumentTypeError as error:
            assert "expected a duration" in str(error) or "expected a multiple" in str(error), where
    assert values, where
    with pytest.raises(argparse.ArgumentTypeError, match="'soon': expected a duration"):
        action.type("soon")


def takes_moments(action: argparse.Action, where: str) -> None:
    assert callable(action.type)
    assert action.type("2026-01-02T03:04") == action.type("2026-01-02T04:04+01:00"), where
    with pytest.raises(argparse.ArgumentTypeError, match="'noon': expected a time in UTC"):
        action.type("noon")


def test_a_set_of_hosts_may_come_from_a_file(tmp_path: Path) -> None:
    """`--members` took only a file and `--failed` only a set; a set in a file is read by both."""
    file = tmp_path / "hosts"
    file.write_text("gpu-[001-002]\nhead\n")
    for read in (command_line.host_set_option, plan.read_host_names):
        assert read(str(file)) == read("gpu-[001-002],head") == ["gpu-001", "gpu-002", "head"]
    names = [f"gpu-{number}-a" for number in range(100)]  # longer than any file's name
    assert plan.read_host_names(",".join(names)) == names
    with pytest.raises(argparse.ArgumentTypeError, match="No such file"):
        command_line.host_set_option("./absent")


def test_durations_and_their_limits() -> None:
    """`--watch 5m` and `--for 1.5h` were usage errors."""
    parse = options.duration(1, 3600, unit="m")
    assert [parse(text) for text in ("2", "90s", "1h", "0.5m")] == [2, 1.5, 60, 0.5]
    for text in ("", "0", "2h", "-1", "1e3", "nan", "5 m", "٣m", "9" * 5000):
        with pytest.raises(argparse.ArgumentTypeError, match="duration from 1s to 1h, such as 90s"):
            parse(text)
    with pytest.raises(argparse.ArgumentTypeError, match="'36h': expected a multiple of 1d"):
        options.whole_duration(1, unit="d")("36h")
