"""A real agent with stand-in GPUs, a real aggregator, real sockets: the files of `gangline record`."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from gangline import cli
from gangline.agent.collectors.nvml_events import REGISTERED_TYPES
from gangline.aggregator.commands import record
from tests.agent.sampler.real_agent import RealAgent
from tests.aggregator.process import Process as Aggregator
from tests.fake_nvml.parts_scenario import with_gpm
from tests.fake_nvml.scenario import gpus
from tests.processes import free_port, until

GPUS = 2


@pytest.fixture
def aggregator(tmp_path: Path) -> Iterator[Aggregator]:
    process = Aggregator(tmp_path / "aggregator", "--listen", f"127.0.0.1:{free_port()}")
    yield process
    process.end(signal.SIGTERM)


@pytest.fixture
def agent(
    tmp_path: Path, aggregator: Aggregator, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RealAgent]:
    folder = tmp_path / "agent"
    folder.mkdir()
    monkeypatch.setenv("GANGLINE_FAKE_NVML", str(folder / "scenario"))
    devices = [with_gpm(gpu) for gpu in gpus(GPUS)]
    for gpu in devices:
        gpu.values["events_supported"] = REGISTERED_TYPES
    devices[1].lines.append("event 3 8 79")
    address = f"127.0.0.1:{aggregator.port}"
    with RealAgent(folder, devices, aggregator=address) as process:
        yield process


def recorded(aggregator: Aggregator, *arguments: str) -> int:
    return record.main(["here", *arguments, "--aggregator", f"127.0.0.1:{aggregator.port}"])


@pytest.mark.slow
def test_the_last_seconds_of_a_host_are_fetched(
    tmp_path: Path, aggregator: Aggregator, agent: RealAgent, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ten samples a second of each GPU reach the operator's disk, also after a restart."""
    path = tmp_path / "a.parquet"

    def is_recorded() -> bool:
        return recorded(aggregator, "--last", "5s", "-o", str(path)) == cli.OK

    until(is_recorded, "a recording")
    agent.scenario.step(1)
    until(lambda: is_recorded() and _rows(path) >= 80, "five seconds of samples")
    rows = duckdb.sql(
        f"SELECT count(DISTINCT gpu), count(DISTINCT time), count(power_watts), max(sm_active_ratio), "
        f"median(epoch_ms(gap)), count(sm_active_ratio), count(utilization_ratio), count(state) FROM (SELECT *, time - lag(time) OVER (PARTITION BY gpu ORDER BY time) AS gap "
        f"FROM '{path}')"
    ).fetchone()
    assert rows is not None
    assert rows[0] == GPUS and rows[1] <= 51 and rows[2] >= 80
    assert rows[3] == pytest.approx(0.97, abs=0.01)
    assert rows[4] == pytest.approx(100, abs=20)
    assert rows[5] == pytest.approx(rows[2] / 2, abs=4) and rows[6] + rows[5] <= rows[2]
    assert rows[7] == rows[2]
    assert recorded(aggregator, "--last", "5s", "-o", str(tmp_path / "a.svg")) == cli.OK
    capsys.readouterr()
    assert recorded(aggregator, "--list", "--json") == cli.OK
    assert json.loads(capsys.readouterr().out)["recordings"] == []
    assert not list(agent.folder.glob("recordings/*"))
    port = aggregator.port
    aggregator.end(signal.SIGKILL)
    aggregator.__init__(tmp_path / "aggregator", "--listen", f"127.0.0.1:{port}")  # type: ignore[misc]
    until(is_recorded, "a recording after a restart of the aggregator")
    assert not agent.said().count("Traceback")


def _rows(path: Path) -> int:
    row = duckdb.sql(f"SELECT count(*) FROM '{path}'").fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.slow
def test_an_xid_leaves_a_recording_on_the_host(
    tmp_path: Path, aggregator: Aggregator, agent: RealAgent, capsys: pytest.CaptureFixture[str]
) -> None:
    """Thirty seconds after the driver reported it the list names it; it is fetched by its name."""
    until(lambda: agent.series("gangline_gpu_temperature_celsius", "uuid"), "an agent that samples")
    agent.scenario.step(3)

    def stored() -> list[dict[str, str]]:
        capsys.readouterr()
        if recorded(aggregator, "--list", "--json") != cli.OK:
            return []
        result: list[dict[str, str]] = json.loads(capsys.readouterr().out)["recordings"]
        return result

    until(stored, "a stored recording")
    (one,) = stored()
    assert f"gpu.xid 79 {gpus(GPUS)[1].uuid}" in one["reason"]
    assert len(list(agent.folder.glob("recordings/*.glrec"))) == 1
    path = tmp_path / "kept.parquet"
    assert recorded(aggregator, "--kept", one["name"], "-o", str(path)) == cli.OK
    assert _rows(path) > 100
