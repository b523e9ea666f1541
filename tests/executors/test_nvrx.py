"""The executor's interfaces for launchers, used by the real client of NVIDIA's resiliency extension."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gangline.executors.launchers.attribution import HealthView
from gangline.executors.launchers.attribution_server import AttributionServer
from gangline.executors.launchers.cycle_info import read_cycle_info
from gangline.executors.launchers.segments import sync
from tests.executors.test_launchers import (
    LOG,
    NEXT,
    NEXT_LOG,
    NOW,
    RUNNING,
    advice,
    board_of,
    cycle,
    seen,
)
from tests.nvrx import MISSING, VERSIONS, has_nvrx, run_nvrx

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not has_nvrx(), reason=MISSING)]

SEGMENTS = "0.7.0"


def test_a_segment_file_keeps_its_segment_out(tmp_path: Path) -> None:
    """Only the first process of a task looks, and only for its own task."""
    environment = {"SLURM_PROCID": "0", "SLURM_ARRAY_JOB_ID": "40", "SLURM_ARRAY_TASK_ID": "2", "SLURM_JOB_ID": "42"}  # fmt: skip

    def healthy(**more: str) -> object:
        return run_nvrx(SEGMENTS, "segment", tmp_path, **{**environment, **more})["healthy"]

    assert healthy() is True
    wanted = {"segment_health_check.40.2": "gangline:v1;act=out;adv=a1;node=n2\n"}
    assert sync(tmp_path, wanted, tidy=True) == []
    assert healthy() is False
    assert healthy(SLURM_ARRAY_TASK_ID="3") is True
    assert healthy(SLURM_PROCID="1") is None
    sync(tmp_path, {}, tidy=True)
    assert healthy() is True


def test_a_job_without_an_array_has_one_file(tmp_path: Path) -> None:
    sync(tmp_path, {"segment_health_check.7.7": "gangline:v1;act=out;adv=a1;node=n2\n"}, tidy=True)
    answer = run_nvrx(SEGMENTS, "segment", tmp_path, SLURM_PROCID="0", SLURM_JOB_ID="7")
    assert answer["healthy"] is False


@pytest.fixture
def server() -> Iterator[AttributionServer]:
    attribution_server = AttributionServer(board_of(HealthView()), "127.0.0.1:0", lambda: NOW)
    attribution_server.start()
    yield attribution_server
    attribution_server.close()


def attribution(version: str, server: AttributionServer, view: HealthView, enforce: str = "enforce") -> dict[str, object]:  # fmt: skip
    server.board.view = view
    return run_nvrx(version, "attribution", f"http://{server.address}", LOG, enforce, 1, SLURM_JOB_ID="7")  # fmt: skip


def log_of(found: dict[str, object]) -> str:
    return json.dumps(found["log"])


def test_the_real_client_stops_only_for_stop_and_only_if_told_to(server: AttributionServer) -> None:
    """STOP, RESTART, wait and UNKNOWN as 0.7 takes them; with the stock setting a STOP is only logged."""
    broken = seen(RUNNING, advice("n2"), cycles={"7": cycle(1, "n1", "n2", started=NOW + 1)})
    answer = attribution("0.7.0", server, broken)
    assert answer["stop_requested"] is True
    assert "recommends stopping the job" in log_of(answer)
    answer = attribution("0.7.0", server, broken, "log")
    assert (answer["stop_requested"], answer["stop_seen"], answer["pending"]) == (False, True, None)
    before = seen(RUNNING, cycles={"7": cycle(0, "n1", "n3")})
    answer = attribution("0.7.0", server, seen(RUNNING, advice("n3"), cycles=NEXT, before=before))
    assert (answer["stop_seen"], answer["pending"]) == (False, None)
    assert "recommends continuing" in log_of(answer)
    answer = attribution("0.7.0", server, seen(RUNNING, advice("n2"), cycles={"7": cycle(0, "n2")}))
    assert (answer["stop_seen"], answer["pending"]) == (False, LOG), "it comes again"
    answer = attribution("0.7.0", server, seen(RUNNING))
    assert (answer["stop_seen"], answer["pending"]) == (False, None)


def test_the_client_of_0_6_shows_the_answer_in_its_log(server: AttributionServer) -> None:
    """The client sends only the log's path, asks once, and ignores the answer."""
    view = seen(RUNNING, advice("n3"), cycles={"7": cycle(0, "n1", "n2")}, before=seen(RUNNING))
    answer = attribution("0.6.0", server, view)
    assert "AttrSvcResult for /logs/train_cycle0.log: status=completed" in log_of(answer)
    assert "RESTART" in log_of(answer) and "n3: GPU 3: XID 79" in log_of(answer)


@pytest.mark.parametrize("version", VERSIONS)
def test_cycle_info_of_the_real_writer(version: str, tmp_path: Path) -> None:
    """Written by its own code: names are ranges, the link leads to the newest, an end is added to the file."""
    record = {
        "job": "7", "attempt": 0, "cycle": 0, "start": "2027-01-15T08:00:00Z", "end": "2027-01-15T08:10:00.25Z", "log": LOG,
        "active": ["n001", "n002.cluster.com", "n004"], "standby": ["n003"], "ranks": "0-2",
    }  # fmt: skip
    run_nvrx(version, "cycles", tmp_path, json.dumps([record]))
    info = read_cycle_info(tmp_path, "7")
    assert info is not None
    assert (info.active, info.standby) == (
        frozenset({"n001", "n002", "n004"}),
        frozenset({"n003"}),
    )
    assert (info.started, info.ended, info.log_file, info.ranks) == (NOW, NOW + 600.25, LOG, "0-2")
    other = {
        **record,
        "cycle": 1,
        "end": "",
        "log": NEXT_LOG,
        "active": ["rack-a", "n1"],
        "standby": [],
    }
    run_nvrx(version, "cycles", tmp_path, json.dumps([record, other]))
    info = read_cycle_info(tmp_path, "7")
    assert info is not None
    assert (info.cycle, info.ended, info.active) == (1, 0.0, frozenset({"rack-a", "n1"}))
    assert info.standby == frozenset()
