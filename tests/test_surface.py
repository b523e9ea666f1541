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
    """`python -m gangline` said "No module named gangline.__main__"; in the checkout it must work, too."""
    for folder in (ROOT, tmp_path):
        ended = run_in(folder, "-m", "gangline", "xid", "79")
        assert (ended.returncode, ended.stderr) == (cli.OK, "")
        assert "XID 79" in ended.stdout
