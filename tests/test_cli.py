"""The one command as a shell meets it: encodings, full disks, readers that leave."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gangline import cli
from gangline.aggregator.commands.admin import SUBCOMMANDS
from tests.processes import GUARD_SECONDS

#: A command that prints characters outside ASCII and Latin-1; in place of a command that needs a
#: server.
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

#: Runs a command where only the extra `agent` is installed.
AGENT_ONLY = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
ABSENT = {"cryptography", "duckdb", "grpc", "grpc_health", "grpc_reflection", "numpy", "prometheus_client", "prompt_toolkit", "pyarrow", "rich"}
sys.meta_path.insert(0, Missing())
from gangline import cli
sys.exit(cli.main())
"""
#: Arguments that take each command past its options, on a machine without a running Gangline.
ARGUMENTS = {
    "hosts": ["--json"],
    "job": [],
    "explain": ["gpu-007"],
    "host": ["gpu-007", "--supply"],
    "advise": [],
    "sql": ["SELECT 1"],
    "check": ["--for", "prolog"],
    "doctor": [],
    "gang": ["--nodes", "2", "--", "srun", "true"],
    "xid": ["79"],
    "permit": ["show"],
    "plan": ["--nodes", "2"],
    "recover": ["--job", "train"],
    "resize": ["--job", "train", "--sizes", "8..64"],
    "reservations": [],
    "executor": ["slurm", "status"],
    "why": ["17"],
    "mirror": ["nodes", "--once"],
    "record": ["gpu-007", "--list"],
    "run": ["--once"],
    "aggregator": ["--data", "store", "--listen", "127.0.0.1:0"],
    "init": ["trial"],
    "agent": ["--help-settings"],
    "diag": ["import", "no-such-file"],
    "release": ["--status"],
    "resume": [],
    "simulate": ["--hosts", "1"],
    "admin backup": ["--to", "copies"],
    "admin health": [],
    "admin restore": ["--from", "copies", "--data", "store"],
    "admin verify": ["copies"],
    "admin compact": [],
    "admin train": ["--out", "model"],
    "admin cert": ["cluster", "--aggregator", "head"],
    "admin token": ["list"],
    "admin declared": ["check", "hosts.toml"],
    "admin evaluate": ["hazard"],
}
#: Commands that work on an agent's host, with their exit codes there. `gang` ends with 1 outside a
#: job of Slurm. `doctor` too, because no agent runs. `diag` ends with 2 without its file.
OF_THE_AGENT = {
    "check": 0,
    "doctor": 1,
    "gang": 1,
    "xid": 0,
    "agent": 0,
    "diag": 2,
    "release": 0,
    "resume": 0,
}
#: Commands that write JSON by other means, with the reason.
WITHOUT_FORMAT = {
    "init.py": "settings files, and files for kubectl and helm",
    "sql_output.py": "rows: an array, or values within a cell",
    "admin_access.py": "an array: nothing can be put beside its elements",
    "check.py": "the document's own format; a prolog imports no more than it must",
}


def said(
    lines: int, out: int | Path = subprocess.PIPE, **environment: str
) -> subprocess.CompletedProcess[bytes]:
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
    """`gangline hosts | head -1`: no traceback, no message."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ended = said(lines, writing)
    finally:
        os.close(writing)
    assert (ended.returncode, ended.stderr) == (cli.FAILED, b"")


def test_a_closed_standard_output_is_like_dev_null() -> None:
    """`gangline hosts >&-` in a cron job ended with a traceback, and the exit code of a failure."""
    program = "import sys; from gangline import cli; cli.main(['--version']); sys.stdout.isatty()"
    ended = subprocess.run(
        ["sh", "-c", 'exec "$0" -c "$1" <&- >&-', sys.executable, program],
        stderr=subprocess.PIPE,
        check=False,
        timeout=GUARD_SECONDS,
    )
    assert (ended.returncode, ended.stderr) == (cli.OK, b"")


def test_an_unreadable_file_that_no_command_reports(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Below a folder of root, `Path.exists` raises: five commands ended with a traceback."""

    def run(_: list[str]) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/root/secret")

    monkeypatch.setattr(cli, "_run", run)
    assert cli.main(["hosts"]) == cli.FAILED
    assert capsys.readouterr().err == "gangline: /root/secret: Permission denied\n"


def test_help_into_a_full_disk_is_no_success() -> None:
    """`--help` ends by SystemExit: a failed write must still be an error."""
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


def test_each_command_is_looked_at() -> None:
    """A new command must say which extra it needs, too."""
    whole = {*cli.COMMANDS, *(f"admin {name}" for name in SUBCOMMANDS)} - {"admin"}
    assert whole == set(ARGUMENTS)


@pytest.mark.parametrize("command", ARGUMENTS)
def test_without_its_extra_a_command_says_which(command: str, tmp_path: Path) -> None:
    """`gangline aggregator` and `gangline admin backup` ended with a traceback on a host with the agent alone.

    The name on the package index is not Gangline's, so the message must not recommend it.
    """
    arguments = command.split()
    ended = subprocess.run(
        [sys.executable, "-c", AGENT_ONLY, *arguments, *ARGUMENTS[command]],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        timeout=GUARD_SECONDS,
    )
    if command in OF_THE_AGENT:
        assert (ended.returncode, "SOURCE[" in ended.stderr) == (OF_THE_AGENT[command], False)
        return
    assert ended.returncode == cli.FAILED, ended.stderr
    (line,) = ended.stderr.splitlines()
    extra = cli.COMMANDS[arguments[0]][1]
    assert line.startswith(f"gangline {arguments[0]} needs ")
    assert f'install it with: pip install "SOURCE[{extra}]"' in line
    assert "gangline[" not in line


def test_json_says_of_which_form_it_is() -> None:
    """A script read keys of an old version; only `check` declared the version of its JSON."""
    root = Path(cli.__file__).parent
    files = [*root.glob("agent/commands/*.py"), *root.glob("aggregator/commands/*.py")]
    by_hand = {path.name for path in files if "json.dumps(" in path.read_text()}
    assert by_hand <= set(WITHOUT_FORMAT), "print an object with cli.json_object"
    page = (root / "docs/stability.md").read_text()
    assert "gangline sql --json" in page and "gangline admin token list --json" in page
    assert cli.json_object({"a": [1]}) == '{"format": 1, "a": [1]}'


@pytest.mark.parametrize(
    "arguments",
    [
        ["xid", "79", "--json"],
        ["xid", "--json"],
        ["check", "--json"],
        ["agent", "status", "--json"],
    ],
)
def test_json_without_an_aggregator(
    arguments: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    place = ["--run-folder", str(tmp_path)] if arguments[0] != "xid" else []
    cli.main([*arguments, *place])
    assert json.loads(capsys.readouterr().out)["format"] == cli.JSON_FORMAT


@pytest.mark.parametrize(
    ("command", "part", "package"),
    [("hosts", "aggregator", "gangline-aggregator"), ("check", "agent", "gangline-agent")],
)
def test_a_command_of_a_package_that_is_not_installed_names_it(
    command: str,
    part: str,
    package: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`gangline hosts` on a GPU host, which has the agent alone, ended with a traceback."""

    def missing(*_: object) -> None:
        raise ModuleNotFoundError(name=f"gangline.{part}")

    monkeypatch.setattr("importlib.import_module", missing)
    assert cli.main([command]) == cli.FAILED
    assert f"needs the package {package}" in capsys.readouterr().err
