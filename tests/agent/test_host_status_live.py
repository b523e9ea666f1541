"""The agent and the command like an operator runs them: real processes, a real file, kill -9."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.processes import GUARD_SECONDS, Process, free_port, until

XID = (
    b"4,%d,%d,-;NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', name=<unknown>, "
    b"GPU has fallen off the bus.\n"
)


def run_cli(*arguments: str) -> tuple[int, str, str]:
    """Run the command; return its exit code, output and error output."""
    ended = subprocess.run(
        [sys.executable, "-m", "gangline.cli", *arguments],
        capture_output=True, text=True, check=False, timeout=GUARD_SECONDS,
    )  # fmt: skip
    return ended.returncode, ended.stdout, ended.stderr


def check(folder: Path, *arguments: str) -> tuple[int, str]:
    code, output, error = run_cli("check", "--run-folder", str(folder), *arguments)
    assert error == ""
    return code, output


def as_of_earlier(file: Path, seconds: int) -> None:
    """Make the file *seconds* older, without waiting."""
    fields: dict[str, Any] = json.loads(file.read_bytes())
    fields["boottime_ns"] -= seconds * 1_000_000_000
    file.write_text(json.dumps(fields))


@pytest.mark.slow
def test_the_agent_answers_is_killed_and_ends_in_order(tmp_path: Path) -> None:
    """After kill -9 the host is reported as down; after a stop as not running. Always exit 0."""
    run = tmp_path / "run"
    settings = {name: tmp_path / name for name in ("spool_folder", "events_folder", "state_folder")}
    settings |= {"run_folder": run, "aggregator": f"127.0.0.1:{free_port()}", "enforcing": "xid79"}  # type: ignore[dict-item]
    settings |= {"collectors_off": "inventory", "spool_head_folder": tmp_path}  # type: ignore[dict-item]
    arguments = ["agent", *(part for k, v in settings.items() for part in ("--set", f"{k}={v}"))]
    with Process(arguments, tmp_path / "log") as agent:
        until((run / "status.json").exists, "a status file")
        code, line = check(run, "--json")
        shown = json.loads(line)
        assert (code, shown["known"], shown["enforcing"]) == (0, True, ["xid79"])
        agent.kill()
        as_of_earlier(run / "status.json", 31)
        code, line = check(run, "--for", "prolog")
        assert code == 0
        assert line.startswith(f"gangline: the agent is down, or hangs: {run}/status.json: it is 3")
        agent.start()
        until(lambda: '"known": true' in check(run, "--json")[1], "a status of the new agent")
        assert agent.stop() == 0
        code, line = check(run)
        assert (code, line.partition(". ")[0]) == (
            0,
            f"gangline: no agent runs here: there is no {run}/status.json",
        )
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_an_unknown_name_is_said_at_the_start(tmp_path: Path) -> None:
    """The agent does not start with an unknown name in `enforcing`, which would never act."""
    names = ("spool_folder", "events_folder", "state_folder", "run_folder")
    settings = [*(f"{name}={tmp_path / name}" for name in names), "enforcing=gpu_lots"]
    code, _, error = run_cli("agent", *(word for text in settings for word in ("--set", text)))
    assert code == 2
    assert "enforcing: no finding is called 'gpu_lots'; did you mean 'gpu_lost'?" in error


@pytest.mark.slow
def test_a_permit_reaches_the_host_and_leaves_it(tmp_path: Path) -> None:
    """A permit makes the host's check fail; after the revocation it passes despite the finding."""
    run, port = tmp_path / "run", free_port()
    kernel = tmp_path / "dev" / "kmsg"
    kernel.parent.mkdir()
    kernel.write_bytes(XID % (1, time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000))
    folders = {n: tmp_path / n for n in ("spool_folder", "events_folder", "state_folder")}
    settings = {**folders, "run_folder": run, "dev_root": kernel.parent, "enforcing": "xid79"}
    settings |= {"aggregator": f"127.0.0.1:{port}", "collectors_off": "inventory"}
    settings["spool_head_folder"] = tmp_path
    agent = ["agent", *(part for k, v in settings.items() for part in ("--set", f"{k}={v}"))]
    serve = ["aggregator", "--listen", f"127.0.0.1:{port}", "--set", f"data={tmp_path / 'data'}"]
    with Process(serve, tmp_path / "aggregator.log"), Process(agent, tmp_path / "agent.log"):
        until(lambda: "[node_problem] xid79" in check(run)[1], "the finding")
        assert check(run)[0] == 0
        until(
            lambda: ": trial" in permit(port, "grant", "--for", "10m", "--reason", "trial")[1],
            "a grant",
        )
        until(lambda: check(run, "--for", "prolog")[0] == 10, "a check that says no")
        code, line = check(run, "--for", "healthcheck")
        assert (code, line) == (10, "gangline:v1;act=drain;cause=xid79;dev=0000:9b:00.0;ttl=3600\n")
        assert permit(port, "revoke", "--reason", "enough")[0] == 0
        until(lambda: check(run)[0] == 0, "a check that says yes")
        assert "the aggregator gives no permit" in check(run)[1]


def permit(port: int, *arguments: str) -> tuple[int, str]:
    return run_cli("permit", *arguments, "--aggregator", f"127.0.0.1:{port}")[:2]
