"""The series of each host for Prometheus: few, current, and the series that the alert rules name."""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import parser as plain_parser
from prometheus_client.openmetrics import parser as openmetrics_parser

from gangline.aggregator.advisories.advisory import Action, Advisory, Basis, Scope
from gangline.aggregator.advisories.advisory import AdvisoryState as Answer
from gangline.aggregator.config import AggregatorConfig
from gangline.aggregator.model import HealthState
from gangline.aggregator.monitoring.host_metrics import (
    FAMILIES,
    JUDGEMENT_SECONDS_MAX,
    PREFIX,
    SERIES_OF_A_HOST_MAX,
    host_families,
)
from gangline.aggregator.server import StartError, metrics_socket
from gangline.contract.exposition import ExpositionFormat
from gangline.contract.server.metric_families import exposition
from tests.aggregator.monitoring.test_metrics import scraped
from tests.promtool import PROMTOOL, needs_promtool
from tests.worlds import World, gpu_of

RULES = Path(__file__).parents[3] / "packaging/prometheus/gangline.rules.yml"


@pytest.fixture(scope="module")
def world() -> World:
    world = World(hosts=3)
    world.run(10)
    world.event(world.hosts[1], 95, gpu_of(world.hosts[1], 0))
    world.run(5)
    return world


def advisory(name: str, action: Action, *hosts: str, state: Answer = Answer.PROPOSED) -> Advisory:
    return Advisory(
        name, f"host {hosts[0]}", hosts, action, Scope.HOST, Basis.DETERMINISTIC, "XID_FATAL", "",
        state, "", 1, 2, 1,
    )  # fmt: skip


ADVISED = [
    advisory("a1", Action.AVOID, "h1", "h2"),
    advisory("a2", Action.EVICT_NOW, "h1", state=Answer.ACCEPTED),
]


def exposed(
    world: World, form: ExpositionFormat = ExpositionFormat.OPENMETRICS, **changes: Any
) -> dict[str, list[Any]]:
    assert world.snapshot is not None
    snapshot = replace(world.snapshot, **changes)
    shown, media_type = exposition(host_families(snapshot, ADVISED, world.now_ns), form.value)
    text = shown.decode()
    assert media_type.startswith(form.value)
    parse: Any = openmetrics_parser if form is ExpositionFormat.OPENMETRICS else plain_parser
    return {family.name: family.samples for family in parse.text_string_to_metric_families(text)}


@pytest.mark.parametrize("form", list(ExpositionFormat))
def test_how_each_host_stands(world: World, form: ExpositionFormat) -> None:
    """Alerts on UNHEALTHY and graphs of a host's speed were impossible: the aggregator exposed only itself."""
    families = exposed(world, form)
    assert set(families) == {PREFIX + name for name in FAMILIES}
    states = {sample.labels["host"]: sample.labels for sample in families[PREFIX + "state"]}
    assert states["h1"]["state"] == "UNHEALTHY" and states["h1"]["reason"] == "XID_FATAL"
    assert {sample.value for sample in families[PREFIX + "state"]} == {1.0}
    score = {sample.labels["host"]: sample.value for sample in families[PREFIX + "score"]}
    assert score["h1"] < 0.1 < score["h0"] <= 1.0
    (h1, h2) = sorted(families[PREFIX + "advice"], key=lambda sample: sample.labels["host"])
    assert h1.labels == {"host": "h1", "action": "EVICT_NOW", "state": "ACCEPTED"}
    assert h2.labels == {"host": "h2", "action": "AVOID", "state": "PROPOSED"}


def test_a_host_has_few_series(world: World) -> None:
    """Ten thousand hosts are in a scrape: Prometheus can take eight series of each."""
    per_host = Counter(
        sample.labels["host"] for samples in exposed(world).values() for sample in samples
    )
    assert set(per_host) == {"h0", "h1", "h2"}
    assert max(per_host.values()) <= len(FAMILIES) <= SERIES_OF_A_HOST_MAX


def test_what_is_not_known_has_no_series(world: World) -> None:
    """A speed of NaN, or of 0, would be averaged with those that are known."""
    world.snapshot = world.run(1)
    for samples in exposed(world).values():
        assert all(sample.value == sample.value for sample in samples)
    idle = World(hosts=1, gpus=0)
    idle.run(10)
    assert exposed(idle)[PREFIX + "relative_speed_ratio"] == []


def test_an_old_judgement_is_not_shown(world: World) -> None:
    """Judging had stopped, and the dashboard stayed green with states of an hour ago."""
    assert world.snapshot is not None
    old_ns = world.now_ns - int((JUDGEMENT_SECONDS_MAX + 1) * 1e9)
    assert host_families(replace(world.snapshot, computed_ns=old_ns), (), world.now_ns) == []
    assert host_families(None, (), world.now_ns) == []


def test_it_is_off_and_needs_a_place(tmp_path: Path) -> None:
    """Names of hosts leave the aggregator only by an explicit setting."""
    assert AggregatorConfig(data=tmp_path).metrics_hosts is False
    with pytest.raises(StartError, match="metrics_listen is empty"):
        metrics_socket(AggregatorConfig(data=tmp_path, metrics_hosts=True))


def test_the_rules_name_what_there_is(world: World) -> None:
    """An alert on a series or a state that was renamed never fires."""
    rules = RULES.read_text()
    named = set(re.findall(r"gangline_host_\w+", rules))
    assert named and named <= set(exposed(world))
    states = {
        state
        for states_text in re.findall(r'state=~?"([A-Z|]+)"', rules)
        for state in states_text.split("|")
    }
    assert states <= {*HealthState.__members__, *Answer.__members__}


@needs_promtool
def test_promtool_has_nothing_to_say(world: World) -> None:
    """promtool's linter checks names, units and help."""
    text = exposition(host_families(world.snapshot, ADVISED, world.now_ns), "text/plain")[
        0
    ].decode()
    done = subprocess.run(
        [PROMTOOL, "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.slow
def test_a_live_aggregator_shows_them_when_told_to(lab: Any, make_agent: Any, until: Any) -> None:
    """The setting changes the exposition; without it no host is shown."""

    async def scrape(on: bool) -> str:
        async with (
            lab.aggregator(metrics_listen="127.0.0.1:0", metrics_hosts=on) as aggregator,
            lab.agent(aggregator, make_agent()) as connection,
        ):
            await connection.send(connection.agent.message(1))
            await until(
                lambda: (
                    aggregator.snapshot_holder.snapshot
                    and len(aggregator.snapshot_holder.snapshot.hosts)
                )
            )
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(None, scraped, aggregator.metrics_port)

    assert 'gangline_host_state{host="host-1",reason="' in asyncio.run(scrape(True))
    assert "gangline_host_" not in asyncio.run(scrape(False))
