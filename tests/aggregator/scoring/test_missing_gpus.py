"""GPUs that a host lost, or was declared to have; and hosts without readings of any GPU."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

from gangline.aggregator.model import HealthState, HostScore, Reason
from gangline.aggregator.rule_catalogue import RULES
from gangline.aggregator.rule_catalogue.faults import EVENT_KINDS
from gangline.aggregator.scoring.score_columns import columns_of
from gangline.contract.gpu_set import update_expected
from gangline.contract.wire import telemetry_pb2
from tests.aggregator.declared.test_judged import declare
from tests.worlds import SECOND_NS, Host, World, gpu_of

GPU_TABLES = ("gpu_1s", "gpu_10s", "gpu_1s_changes", "gpu_10s_changes")
#: Longer than a boot, and than the time after which a missing GPU counts.
LONG_SECONDS = 440

DISK = telemetry_pb2.Device(kind="disk", key="sda", attributes={"model": "disk"})
EIGHT = '[[expected]]\nname = "8 x H100"\nhosts = ["h0"]\ngpus = 8\n'


def gpu(host: Host, number: int, uuid: str = "", **told: str) -> telemetry_pb2.Device:
    attributes = {"name": "H100", "pci_address": f"0000:{number:02x}:00.0", **told}
    return telemetry_pb2.Device(kind="gpu", key=uuid or gpu_of(host, number), attributes=attributes)


def function(number: int, driver: str = "") -> telemetry_pb2.Device:
    attributes = {"vendor": "0x10de", "class": "0x030200", "driver": driver}
    return telemetry_pb2.Device(kind="pcie", key=f"0000:{number:02x}:00.0", attributes=attributes)


def registers(world: World, host: Host, devices: Sequence[telemetry_pb2.Device]) -> None:
    """Register *host* with *devices* and a disk, so that its inventory is not empty."""
    devices = [*devices, DISK]
    world.fleet.register(host.name, simulated=False, boot_id=host.boot_id, devices=devices)


def loses(world: World, host: Host, numbers: Sequence[int], *, boots: bool) -> None:
    """Remove *numbers* of the first eight GPUs from the readings and the inventory of *host*."""
    lost = {gpu_of(host, number) for number in numbers}
    host.readings = {k: v for k, v in host.readings.items() if k[1].partition("/")[0] not in lost}
    host.growth = {k: v for k, v in host.growth.items() if k[1].partition("/")[0] not in lost}
    if boots:
        host.reboot(world.now_ns)
    registers(world, host, [gpu(host, n) for n in range(8) if n not in numbers])


def is_allowed(world: World, host: Host) -> bool:
    assert world.snapshot is not None
    return bool(columns_of(world.snapshot).allowed(0.0)[world.score(host).node_index])


def missing(score: HostScore) -> list[str]:
    return [evidence.message for evidence in score.evidence if evidence.signal == "gpu.missing"]


@pytest.mark.slow
@pytest.mark.parametrize("boots", [True, False], ids=["another boot", "the same boot"])
@pytest.mark.parametrize("numbers", [[3], range(8)], ids=["7 of 8", "0 of 8"])
def test_lost_gpus_are_never_health(numbers: Sequence[int], boots: bool) -> None:
    """With 7 of 8 GPUs a host was HEALTHY 0.9987, more than with 8; with none it ranked first."""
    world = World(hosts=2)
    host, other = world.hosts
    world.run(20)
    before = world.score(host).score
    loses(world, host, numbers, boots=boots)
    score = world.score(host)
    for _ in range(LONG_SECONDS // 20):
        world.run(20)
        score = world.score(host)
        assert score.score <= before + 1e-9 and score.state is not HealthState.HEALTHY
    assert score.state is HealthState.UNHEALTHY and not is_allowed(world, host)
    (message,) = missing(score)
    assert message.startswith(f"{8 - len(numbers)} GPUs, it had 8: GPU-h0-")
    assert "missing" in message
    assert score.reason is Reason.GPU_UNUSABLE
    assert ("h0", "gpu.missing", "host gpu.missing") in world.fleet.findings
    assert world.score(other).state is HealthState.HEALTHY
    # The GPUs are back.
    for number in numbers:
        for (table, device), values in list(other.readings.items()):
            if device == gpu_of(other, number):
                host.set(table, gpu_of(host, number), **values)
    registers(world, host, [gpu(host, number) for number in range(8)])
    world.run(80)
    assert world.score(host).state is HealthState.HEALTHY and not world.fleet.findings


def test_no_rule_but_that_of_xids_blames_an_xid() -> None:
    """GPUs missing after a reboot had the reason XID_FATAL: operators searched for an XID."""
    rules = [*RULES.values(), *(kind.rule for kind in EVENT_KINDS.values())]
    assert [rule.name for rule in rules if rule.reason is Reason.XID_FATAL] == []
    world = World(hosts=2)
    host = world.hosts[0]
    world.run(10)
    world.event(host, 79, gpu_of(host, 3))
    world.run(5)
    assert world.score(host).reason is Reason.XID_FATAL
    loses(world, host, [3], boots=True)
    world.run(300)
    assert missing(world.score(host)) and world.score(host).reason is Reason.GPU_UNUSABLE


def _is_replaced(world: World, host: Host) -> None:
    for (table, device), values in list(host.readings.items()):
        if device == gpu_of(host, 3):
            host.set(table, "GPU-new", **values)
    loses(world, host, [3], boots=True)
    registers(world, host, [gpu(host, n, "GPU-new" if n == 3 else "") for n in range(8)])


def _is_updated(world: World, host: Host) -> None:
    for number in range(8):
        host.set("gpu_1s_changes", gpu_of(host, number), driver_updating_state=1)
    registers(world, host, [])


def _lets_go(world: World, host: Host) -> None:
    loses(world, host, range(8), boots=False)
    host.set("probe_1s", "gpu", hung_seconds=0.0, abandoned_count=0, state=6)


def _lets_go_of_one(world: World, host: Host) -> None:
    loses(world, host, [3], boots=False)
    host.set("gpu_1s_probe", gpu_of(host, 3), probe_hung_seconds=0.0)


def _has_no_inventory_yet(world: World, host: Host) -> None:
    host.reboot(world.now_ns)
    world.fleet.register(host.name, simulated=False, boot_id=host.boot_id, devices=[])


def _cannot_list_them(world: World, host: Host) -> None:
    registers(world, host, [])
    world.event(
        host,
        3,
        "inventory",
        "collector.outcome",
        message="RuntimeError: GPUs: NVMLError_NoPermission",
    )
    host.set("collector_10s", "inventory", outcome_state=3)


def _hides_one(world: World, host: Host) -> None:
    loses(world, host, [3], boots=False)
    registers(
        world,
        host,
        [gpu(host, n, **({"hidden": "no permission"} if n == 3 else {})) for n in range(8)],
    )


def _passes_one_through(world: World, host: Host) -> None:
    loses(world, host, [3], boots=True)
    functions = [function(n, "vfio-pci" if n == 3 else "nvidia") for n in range(8)]
    registers(world, host, [*(gpu(host, n) for n in range(8) if n != 3), *functions])


def _comes_back_late(world: World, host: Host) -> None:
    """Its driver is built and loaded for four minutes."""
    readings = dict(host.readings)
    loses(world, host, range(8), boots=True)
    world.run(240)
    assert world.score(host).state is HealthState.UNKNOWN
    host.readings = readings
    registers(world, host, [gpu(host, number) for number in range(8)])


@pytest.mark.slow
@pytest.mark.parametrize(
    "what",
    [
        _is_replaced, _is_updated, _lets_go, _lets_go_of_one, _has_no_inventory_yet, _cannot_list_them,
        _hides_one, _passes_one_through, _comes_back_late,
    ],
)  # fmt: skip
def test_what_looks_like_lost_gpus_and_is_not(what: Callable[[World, Host], None]) -> None:
    """A replacement, a driver update, `gangline release` or a virtual machine is not a loss."""
    world = World(hosts=2, seconds=20)
    what(world, world.hosts[0])
    for _ in range(LONG_SECONDS // 20):
        world.run(20)
        assert missing(world.score(world.hosts[0])) == []
    assert world.score(world.hosts[0]).state is not HealthState.UNHEALTHY


@pytest.mark.slow
def test_a_gpu_that_its_driver_lists_and_that_does_not_answer_is_lost_if_it_did_before() -> None:
    """After a boot the driver could not start GPU 3: /proc lists it, NVML does not."""
    world = World(hosts=2, seconds=20)
    host = world.hosts[0]
    loses(world, host, [3], boots=True)
    registers(
        world,
        host,
        [gpu(host, n, **({"problem": "no answer"} if n == 3 else {})) for n in range(8)],
    )
    world.run(LONG_SECONDS)
    assert world.score(host).state is HealthState.UNHEALTHY


def declared_eight(world: World, text: str = EIGHT) -> None:
    declare(world, text)


def test_a_host_without_the_gpus_that_are_declared_is_not_allowed() -> None:
    """A new host declared with 8 GPUs, without its driver, was WATCH 0.9999, first of the fleet."""
    world = World(hosts=2)
    host = world.hosts[0]
    host.readings = {k: v for k, v in host.readings.items() if not k[1].startswith("GPU-")}
    host.growth.clear()
    world.fleet.known_gpus.restore("h0", {})
    registers(world, host, [])
    declared_eight(world)
    world.run(LONG_SECONDS)
    score = world.score(host)
    assert score.state is HealthState.UNHEALTHY and not is_allowed(world, host)
    assert missing(score)[0].startswith("0 GPUs, 8 declared (a.toml:1)")


@pytest.mark.slow
def test_gpus_that_were_taken_out_are_retired_by_a_declaration() -> None:
    """`gpus = 7` retires a removed GPU, live; without that line the GPU is expected again."""
    world = World(hosts=2)
    host = world.hosts[0]
    world.run(20)
    loses(world, host, [3], boots=True)
    world.run(LONG_SECONDS)
    assert world.score(host).state is HealthState.UNHEALTHY
    declared_eight(world, EIGHT.replace("gpus = 8", "gpus = 7"))
    world.run(60)
    assert world.score(host).state is HealthState.HEALTHY
    declared_eight(world, EIGHT.replace("h0", "h1"))
    world.run(140)
    assert world.score(host).state is HealthState.UNHEALTHY


def test_a_gpu_host_of_which_no_gpu_was_ever_read_is_unknown_and_never_first() -> None:
    """A new host without its driver was HEALTHY 0.9999 and ranked first: a black hole for jobs."""
    world = World(hosts=3)
    new, cpu_only, _ = world.hosts
    for host in (new, cpu_only):
        host.readings = {k: v for k, v in host.readings.items() if not k[1].startswith("GPU-")}
        host.growth.clear()
        world.fleet.known_gpus.restore(host.name, {})
    registers(world, new, [function(number) for number in range(8)])
    registers(world, cpu_only, [])
    world.run(40)
    assert world.snapshot is not None
    columns, well = columns_of(world.snapshot), world.score(world.hosts[2])
    score = world.score(new)
    assert score.state is HealthState.UNKNOWN and score.score < well.score
    assert score.score_lower < 0.3 and score.score_upper > 0.999
    assert "none of its 8 GPUs has readings" in score.reason_message
    # A host that never had GPUs may take work without GPUs, and ranks behind all hosts that have
    # some.
    assert world.score(cpu_only).state is HealthState.HEALTHY and is_allowed(world, cpu_only)
    assert columns.bucket.tolist() == [2, 2, 0]


@pytest.mark.parametrize(
    ("expected", "found", "after"),
    [
        ({}, {"a": "1", "b": "2"}, {"a", "b"}),
        ({"a": "1", "b": "2"}, {"a": "1"}, {"a", "b"}),
        ({"a": "1", "b": "2"}, {}, {"a", "b"}),
        ({"a": "1", "b": "2"}, {"a": "1", "c": "2"}, {"a", "c"}),
        ({"a": "1", "b": "2"}, {"a": "1", "c": "7"}, {"a", "c"}),
        ({"a": "1", "b": "2", "d": "3"}, {"c": "2"}, {"a", "c", "d"}),
        ({"a": "", "b": ""}, {"c": ""}, {"a", "b", "c"}),
    ],
)
def test_who_is_expected_after(
    expected: dict[str, str], found: dict[str, str], after: set[str]
) -> None:
    """A GPU replaced at its address or by number is no longer expected; a missing GPU is."""
    assert set(update_expected(expected, found)) == after


def test_a_lost_gpu_is_counted_once_where_only_its_address_is_told() -> None:
    """XID 79 names a PCI address that is no longer in the inventory: the GPU was listed twice."""
    world = World(hosts=2, seconds=20)
    host = world.hosts[0]
    loses(world, host, [3], boots=False)
    host.set("gpu_1s", gpu_of(host, 3), lost_state=1)
    world.event(host, 79, "0000:03:00.0")
    world.run(10)
    named = {evidence.device for evidence in world.score(host).evidence}
    assert named == {gpu_of(host, 3)}


@pytest.mark.slow
def test_the_store_has_what_is_expected(lab: Any, make_agent: Any) -> None:
    """The aggregator restarts between registrations, once while the inventory is still empty."""
    host, hosts = Host("gpu-01"), []

    async def registers_with(*numbers: int) -> None:
        async with lab.aggregator() as aggregator:
            agent = make_agent(host="gpu-01", run_id=b"r" * 16)
            devices = [gpu(host, number) for number in numbers]
            agent.registration = partial(agent.registration, devices=devices)
            async with lab.agent(aggregator, agent):
                known = aggregator.fleet.known_gpus.of("gpu-01")
                hosts.append((len(known.expected), len(known.missing_gpus)))

    for numbers in (range(8), range(7), (), range(3), range(8)):
        asyncio.run(registers_with(*numbers))
    assert hosts == [(8, 0), (8, 1), (8, 0), (8, 5), (8, 0)]
    rows = lab.rows("SELECT kind, count(*) FROM devices WHERE host = 'gpu-01' GROUP BY kind")
    assert rows == [("gpu", 8)]


@pytest.mark.slow
def test_after_our_restart_it_is_the_same() -> None:
    """A minute after an update of the aggregator a host with 7 of 8 GPUs was HEALTHY."""
    world = World(hosts=2)
    host = world.hosts[0]
    world.run(20)
    loses(world, host, [3], boots=True)
    world.run(LONG_SECONDS)
    from tests.aggregator.scoring.test_restart import restarted

    known = world.fleet.known_gpus.of("h0").expected
    restarted(world)
    world.fleet.known_gpus.restore("h0", known)
    registers(world, host, [gpu(host, n) for n in range(8) if n != 3])
    world.register(world.hosts[1])
    for _ in range(20):
        world.run(10)
        assert world.score(host).state is HealthState.UNHEALTHY
    assert np.isfinite(world.score(host).score) and world.now_ns > SECOND_NS
