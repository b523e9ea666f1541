"""Waiting within a job: tensor groups over NVLink, NVLink domains of several hosts, rotating stalls."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gangline.simulator import truth
from gangline.simulator.faults import HostEffects
from gangline.simulator.gang_model import GangModel, TimeShares
from gangline.simulator.incidents import Rows
from gangline.simulator.noise import Noise
from gangline.simulator.scenario_file import load
from gangline.simulator.world import World
from tests.simulation.readings import Reading

SETTINGS = load()

#: The drawn properties of a job.
DRAWN: dict[str, Any] = {
    "communicate_ratio": 0.2, "tensor_ratio": 0.1, "power_ratio": 1.0, "period_seconds": 3.0, "is_memory_bound": False, "begin": 0.0,
    "checkpoint_every_seconds": 1e9, "checkpoint_seconds": 1.0, "writes_alone": True,
}  # fmt: skip


def racks(name: str, hosts: int, **changes: Any) -> World:
    scenario = replace(SETTINGS.scenarios[name], hosts=hosts, nvlink_hosts=8, **changes)
    return World(
        name, 1, settings=replace(SETTINGS, scenarios={**SETTINGS.scenarios, name: scenario})
    )


WORLD = racks("parade", 64)


def rows_of(name: str, world: World = WORLD) -> Rows:
    number = next(n for n, class_ in enumerate(world.schedule.classes) if class_.name == name)
    return np.asarray(world.schedule.rows[world.schedule.rows["cls"] == number])


def shares(domains: list[int], nvlink: dict[int, float]) -> TimeShares:
    """Return the shares of two jobs of three hosts. *nvlink*: by host, the share of the normal
    traffic of its first GPU's links.
    """
    jobs: Any = [SimpleNamespace(number=number, **DRAWN) for number in (0, 1)]
    gangs = GangModel(jobs, [np.arange(3), np.arange(3, 6)], np.array(domains), 1)
    channels = HostEffects(6)
    for host, moves in nvlink.items():
        channels.nvlink[host, 0] = moves
    noise = Noise(1, np.arange(48).reshape(6, 8))
    return gangs.shares(5.0, 5, np.ones((6, 8)), channels, noise)


def test_a_tensor_group_waits_for_its_slowest_link_and_its_gang_for_it() -> None:
    """NVLink CRC errors on a GPU: no rank computes longer, and the whole job waits; other jobs do not."""
    well, ill = shares([0, 0, 0, 0, 1, 1], {}), shares([0, 0, 0, 0, 1, 1], {0: 0.5})
    assert well.pace == pytest.approx(np.ones(6))
    assert ill.pace == pytest.approx([1 / 1.1] * 3 + [1.0] * 3)
    assert (ill.compute[:3] < well.compute[:3]).all() and (ill.wait[:3] > 0.08).all()
    assert np.array_equal(ill.wait[3:], well.wait[3:]), (
        "a host of the domain that works at another job"
    )


def test_two_slow_links_of_one_gang_cost_what_the_slowest_costs() -> None:
    """Tensor groups exchange in parallel: with one domain or two, the step is as long as the longest exchange."""
    alone = shares([0, 0, 0, 1, 1, 1], {0: 0.5})
    for domains in ([0, 0, 0, 1, 1, 1], [0, 1, 1, 2, 2, 2]):
        assert shares(domains, {0: 0.5, 1: 0.8}).pace == pytest.approx(alone.pace)


def test_a_job_that_hangs_writes_no_checkpoint() -> None:
    """All ranks must meet for a checkpoint: a job that hung for a night "wrote" a checkpoint every ten minutes."""
    job: Any = SimpleNamespace(number=0, **{**DRAWN, "checkpoint_every_seconds": 1.0})
    for hangs in (0.0, 1.0):
        gangs = GangModel([job], [np.arange(2)], np.arange(2), 1)
        channels = HostEffects(2)
        channels.hangs[0] = hangs
        result = gangs.shares(
            5.0, 5, np.ones((2, 8)), channels, Noise(1, np.arange(16).reshape(2, 8))
        )
        assert result.writes.any() == result.clock.writes.any() == (not hangs)


@pytest.mark.parametrize(
    ("hosts", "last"), [(1, []), (2, [1]), (3, [2]), (4, [3]), (5, [4]), (8, [6, 7])]
)
def test_a_stage_that_computes_longer_is_of_the_last_hosts_of_its_job(
    hosts: int, last: list[int]
) -> None:
    """A job of two hosts had no last stage: more than a quarter of the causes of `stage_imbalance` showed nothing at all."""
    job: Any = SimpleNamespace(number=0, **DRAWN)
    gangs = GangModel([job], [np.arange(hosts)], np.arange(hosts), 1)
    channels = HostEffects(hosts)
    channels.stage_imbalance[:] = 0.2
    noise = Noise(1, np.arange(hosts * 8).reshape(hosts, 8))
    result = gangs.shares(5.0, 5, np.ones((hosts, 8)), channels, noise)
    longest = result.compute[:, 0] > 1.1 * result.compute[:, 0].min()
    assert np.flatnonzero(longest).tolist() == last
    assert (result.wait[~longest] > 0.05).all() or not last


def test_a_rack_of_72_gpus_is_one_domain() -> None:
    """Hosts of an NVL72 share NVLinks, power and rack: with a domain per host their shared cause would be missed."""
    world = World("nvl72", 1, hosts=90)
    places = [world.location(host) for host in range(90)]
    assert places[0].nvlink_domain == places[8].nvlink_domain != places[9].nvlink_domain
    assert len({(place.rack, place.nvlink_domain) for place in places}) == 10
    assert {place.leaf for place in places[:27]} == {"leaf-00"} != {places[27].leaf}, "whole racks"
    assert World("parade", 1).location(1).nvlink_domain == "nvlink-0001"


def test_an_nvlink_fault_is_of_its_tensor_group() -> None:
    """The truth log names the ranks that wait directly, and the GPU with the faulty link moves less."""
    world = racks("parade", 64, classes=("nvlink",))  # no other fault slows its gang, or ends it
    (row,) = rows_of("nvlink", world)
    line = truth.incident(world, rows_of("nvlink", world))
    job = world.schedule.job_at(int(row["host"]), float(row["begin"]))
    assert job is not None
    domain = {h for h in job.hosts.tolist() if h // 8 == int(row["host"]) // 8}
    assert line["tensor_group"] == [world.names[h] for h in sorted(domain)]
    hosts = [int(row["host"])]
    end = float(row["begin"] + 0.9 * row["onset"])
    view = world.open(hosts, end - 60.0, end + 1.0)
    shares = [view.step(seconds).gauges.shares for seconds in np.arange(end - 50.0, end, 10.0)]
    moved = Reading(view.readings.blocks(0, -1.0, end)).numbers(
        "gpu_fast.nvlink_received_bytes_per_second"
    )
    others = [share for gpu, share in enumerate(moved) if gpu != row["part"]]
    assert moved[row["part"]] < 0.7 * min(others)
    assert 0.85 < max(share.pace[0] for share in shares) < 0.97


def test_a_switch_of_a_domain_takes_all_its_hosts_and_no_other() -> None:
    """Eight hosts of one NVLink domain that fail together are one switch, not eight bad hosts."""
    rows = rows_of("nvlink_switch")
    assert len(rows) == 8 and len({host // 8 for host in rows["host"].tolist()}) == 1
    due = float((rows["begin"] + rows["onset"]).max())
    hosts = sorted(rows["host"].tolist())
    view = WORLD.open(hosts, due - 30.0, due + 30.0)
    shown = []
    for seconds in np.arange(due - 20.0, due + 12.0, 2.0):
        view.step(float(seconds))
        shown += [
            (index, event.code) for index in range(8) for event in view.events(index) if event.code
        ]
    assert sorted(shown) == [(index, 74) for index in range(8)]
    domains = {place.nvlink_domain for place in map(WORLD.location, hosts)}
    assert domains == {f"nvlink-{hosts[0] // 8:04d}"}


def test_a_stall_that_rotates_is_of_another_host_each_time() -> None:
    """At any moment a single host waits for its data; over a minute the stall belongs to no particular host."""
    rows = rows_of("rotating_stall")
    hosts, begin = rows["host"].astype(int).tolist(), float(rows["begin"].max())
    assert len(hosts) >= 4
    view = WORLD.open(hosts, begin, begin + 200.0)
    stalled = []
    for number in range(12):
        moment = view.step(begin + 5.0 + 10.0 * number)
        gaps, own = moment.gauges.effects.starved[: len(hosts)], moment.gauges.shares
        assert (gaps > 0).sum() == 1
        index = int(gaps.argmax())
        stalled.append(index)
        if own.compute.any():
            assert own.gap[index].min() > own.gap[np.arange(len(hosts)) != index].max()
    assert len({*stalled}) >= min(6, len(hosts) - 1)
