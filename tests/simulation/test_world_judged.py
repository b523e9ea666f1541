"""The world and the real judge: culprits are named, and no host while all are healthy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np
import pytest

from gangline.aggregator.declared.reported_inventory import place_of
from gangline.aggregator.fleet.fleet import Fleet
from gangline.aggregator.ingest.frame_reader import read_frame
from gangline.aggregator.model import HealthState
from gangline.aggregator.scoring.evaluate import Judgement, evaluate
from gangline.simulator.sampled_episodes import fault_episodes
from gangline.simulator.world import World

PARADE = World("parade", 1)
#: States that keep work off a host, or end it.
NAMED = (HealthState.DEGRADED, HealthState.SUSPECT, HealthState.UNHEALTHY)


def judged(
    world: World, hosts: Sequence[int], begin: float, end: float
) -> dict[str, set[HealthState]]:
    """Feed the frames of *hosts* to a new fleet, and return the states of each host."""
    fleet, snapshot, boots = Fleet(epoch=1), None, dict[str, bytes]()
    index = {name: i for i, name in enumerate(world.names)}
    states: dict[str, set[HealthState]] = {}
    for step in world.frames(hosts, begin, end):
        for delivery in step.deliveries:
            if boots.get(delivery.host) != delivery.boot_id:
                boots[delivery.host] = delivery.boot_id
                fleet.register(
                    delivery.host,
                    simulated=True,
                    boot_id=delivery.boot_id,
                    devices=world.devices(index[delivery.host]),
                    booted_ns=delivery.booted_ns,
                )
            fleet.observe(delivery.host, read_frame(delivery.frame), step.now_ns)
            for event in delivery.events:
                fleet.observe_event(delivery.host, event, step.now_ns)
        snapshot = evaluate(fleet, step.now_ns, snapshot)
        _note(states, snapshot)
    return states


def _note(states: dict[str, set[HealthState]], snapshot: Judgement) -> None:
    for host in snapshot.hosts:
        states.setdefault(host.host, set()).add(host.state)


def test_hosts_say_where_they_stand() -> None:
    labeled, is_so = place_of(PARADE.labels(37)), PARADE.location(37)
    assert is_so.rack == "rack-009" and len(is_so.rails) == 8
    assert all(
        getattr(labeled, field.name) == getattr(is_so, field.name) for field in fields(is_so)
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "thermal", "power_brake", "hbm", "gsp_hang", "gpu_lost", "pcie_width", "storage_stall",
    ],
)  # fmt: skip
def test_the_culprit_is_named_and_its_victims_are_not(name: str) -> None:
    """The world's frames, tables, units and flags must be those that judging reads."""
    episode = next(e for e in fault_episodes(PARADE, 1) if e.class_name == name)
    hosts = episode.hosts[:12]
    number = next(i for i, c in enumerate(PARADE.schedule.classes) if c.name == name)
    rows = PARADE.schedule.rows[PARADE.schedule.rows["cls"] == number]
    struck = {PARADE.names[h] for h in rows["host"].tolist()}
    end = float((rows["begin"] + rows["onset"]).max()) + 100.0
    # Other faults of the parade must not count against this class.
    others = PARADE.schedule.rows[(PARADE.schedule.rows["cls"] != number)]
    others = others[(others["begin"] < end) & (others["end"] > episode.begin - 600)]
    clean = {PARADE.names[h] for h in hosts} - struck - {PARADE.names[h] for h in others["host"]}
    states = judged(PARADE, hosts, episode.begin, end)
    assert all(states[host] & set(NAMED) for host in struck)
    assert clean and not any(states[host] & set(NAMED) for host in clean)


def test_nobody_is_named_for_a_stall_that_rotates() -> None:
    """At every moment a single host of the job waits for its data, and no host is at fault."""
    number = next(n for n, c in enumerate(PARADE.schedule.classes) if c.name == "rotating_stall")
    rows = PARADE.schedule.rows[PARADE.schedule.rows["cls"] == number]
    begin, hosts = float(rows["begin"].min()), sorted(rows["host"].tolist())
    faults = np.array([class_.sort == "faults" for class_ in PARADE.schedule.classes])
    stood = PARADE.schedule.rows[faults[PARADE.schedule.rows["cls"]]]
    stood = stood[(stood["begin"] < begin + 400.0) & (stood["end"] > begin - 600.0)]
    ill = {PARADE.names[host] for host in stood["host"].tolist()}
    states = judged(PARADE, hosts[:12], begin - 60.0, begin + 400.0)
    assert len(states.keys() - ill) >= 3
    assert not [host for host in states.keys() - ill if states[host] & set(NAMED)]


@pytest.mark.slow
def test_nobody_is_named_in_a_healthy_world() -> None:
    """Stage and sequence imbalance, checkpoints, stalls shared by all, planned reboots, caps at full load."""
    calm = World("healthy", 5, hosts=64)
    for begin in np.linspace(3600.0, calm.seconds - 3600.0, 3).tolist():
        states = judged(calm, range(0, 64, 2), begin, begin + 200.0)
        assert len(states) >= 30
        assert not [host for host, seen in states.items() if seen & set(NAMED)]
