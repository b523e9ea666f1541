"""The node check of NVIDIA's launcher, by its real client, against a real agent on its socket."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.agent.test_host_status_live import XID, check, permit
from tests.nvrx import MISSING, VERSIONS, has_nvrx, run_nvrx
from tests.processes import Process, free_port, until

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not has_nvrx(), reason=MISSING)]


def answer(version: str, socket: Path) -> tuple[bool, str]:
    """Return the launcher's verdict on the host, and its log."""
    got = run_nvrx(version, "health", socket, 1)
    return got["answers"][0], " ".join(got["log"])


def test_report_only_is_healthy_enforced_is_not_no_agent_is_healthy(tmp_path: Path) -> None:
    """docs/launchers.md: a host whose GPU fell off the bus joins no rendezvous, if permitted."""
    run, port = tmp_path / "run", free_port()
    kernel = tmp_path / "dev" / "kmsg"
    kernel.parent.mkdir()
    kernel.write_bytes(XID % (1, time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000))
    folders = {n: tmp_path / n for n in ("spool_folder", "events_folder", "state_folder")}
    settings: dict[str, object] = {
        **folders, "run_folder": run, "dev_root": kernel.parent, "enforcing": "xid79", "spool_head_folder": tmp_path,
        "aggregator": f"127.0.0.1:{port}", "collectors_off": "inventory",
    }  # fmt: skip
    agent = ["agent", *(part for k, v in settings.items() for part in ("--set", f"{k}={v}"))]
    serve = ["aggregator", "--listen", f"127.0.0.1:{port}", "--set", f"data={tmp_path / 'data'}"]
    socket = run / "agent.sock"
    for version in VERSIONS:
        assert answer(version, socket) == (True, ""), "no socket: the launcher goes on"
    with Process(serve, tmp_path / "aggregator.log"):
        with Process(agent, tmp_path / "agent.log"):
            until(lambda: "[node_problem] xid79" in check(run)[1], "the finding")
            for version in VERSIONS:
                assert answer(version, socket)[0], "report-only"
            grant = ("grant", "--for", "10m", "--reason", "trial")
            until(lambda: ": trial" in permit(port, *grant)[1], "a grant")
            until(lambda: check(run, "--for", "prolog")[0] == 10, "a check that says no")
            for version in VERSIONS:
                healthy, line = answer(version, socket)
                assert not healthy
                assert "exit_code=1" in line and "xid79 0000:9b:00.0" in line
        for version in VERSIONS:
            assert answer(version, socket)[0], "the agent has ended"
