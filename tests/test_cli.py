"""The one command as a shell meets it: encodings, full disks, readers that leave."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gangline import cli

GUARD_SECONDS = 60.0

#: A command that prints a page of what ASCII and Latin-1 lack; in place of one that needs a server.
PRINTS = """
import sys
from types import ModuleType
from gangline import cli
command = ModuleType("command")
command.main = lambda arguments: print("GPU-3f2a\\u2026 h\\u00f4te\\n" * int(arguments[0])) or 0
sys.modules["gangline.command"] = command
cli.COMMANDS["say"] = (".command", "none", "says")
sys.exit(cli.main())
"""


def said(
    lines: int, out: int | Path = subprocess.PIPE, **environment: str
) -> subprocess.CompletedProcess[bytes]:
    """Run the command with standard output to *out*."""
    command = [sys.executable, "-c", PRINTS, "say", str(lines)]
    where = os.open(out, os.O_WRONLY) if isinstance(out, Path) else out
    try:
        return subprocess.run(
            command,
            stdout=where,
            stderr=subprocess.PIPE,
            check=False,
            env={**os.environ, **environment},
            timeout=GUARD_SECONDS,
        )
    finally:
        if isinstance(out, Path):
            os.close(where)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_any_encoding_shows_something(encoding: str) -> None:
    """An ellipsis in a reason ended `gangline hosts` over a serial console with a traceback."""
    ended = said(1, PYTHONIOENCODING=encoding)
    assert (ended.returncode, ended.stderr) == (cli.OK, b"")
    wanted = "GPU-3f2a… hôte".encode(encoding, errors="backslashreplace")
    assert ended.stdout.splitlines()[0] == wanted


@pytest.mark.parametrize("lines", [1, 10_000])
def test_a_full_disk_is_said_in_words(lines: int) -> None:
    """`gangline hosts > /full/disk`: exit code 1 and a line, also when only the last flush fails."""
    ended = said(lines, Path("/dev/full"))
    assert ended.returncode == cli.FAILED
    assert ended.stderr == b"gangline: the output cannot be written: No space left on device\n"


@pytest.mark.parametrize("lines", [1, 10_000])
def test_a_reader_who_left_is_told_nothing(lines: int) -> None:
    """`gangline hosts | head -1`: no traceback, no word."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ended = said(lines, writing)
    finally:
        os.close(writing)
    assert (ended.returncode, ended.stderr) == (cli.FAILED, b"")


def test_help_into_a_full_disk_is_no_success() -> None:
    """`--help` ends by SystemExit: what it could not write must not pass for written."""
    with open("/dev/full", "wb") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "gangline.cli", "hosts", "--help"],
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
            env={**os.environ, "PYTHONUNBUFFERED": ""},  # argparse itself ignores a failed write
            timeout=GUARD_SECONDS,
        )
    assert ended.returncode == cli.FAILED and b"Traceback" not in ended.stderr
