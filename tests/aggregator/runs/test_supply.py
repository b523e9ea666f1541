"""The supply of a host is the same in memory, in SQL and on the page, with degraded parts in their present state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gangline.aggregator.commands.host import supply_text
from gangline.aggregator.runs.supply import HostSupplies, MeasuredSupply
from gangline.aggregator.store.rows import HostRecord
from gangline.contract.wire import telemetry_pb2
from gangline.fingerprints.demand import SHARED_RESOURCES
from tests.worlds import StoredWorld, World, gpu_of

LINK = 32e9 * 16 / 8 * 128 / 130


def furnish(world: World) -> None:
    """Two GPUs behind one switch on h0, with links of their own on h1; h1's first GPU has half of its lanes."""
    for number, host in enumerate(world.hosts):
        devices = []
        for gpu in range(2):
            address = f"0000:{gpu:02x}:00.0"
            parents = ["0000:10:00.0", "0000:11:00.0", "0000:12:00.0"]
            if number:
                parents = [f"0000:2{gpu}:00.0"]
            devices += [
                telemetry_pb2.Device(
                    kind="gpu", key=gpu_of(host, gpu), attributes={"name": "H100", "pci_address": address}
                ),
                telemetry_pb2.Device(
                    kind="pcie", key=address, attributes={"parents": " ".join(parents), "vendor": "0x10de"}
                ),
            ]  # fmt: skip
            lanes = 8 if number and not gpu else 16
            for function in (address, *parents):
                host.set(
                    "pcie_10s", function, link_width_lanes=lanes, link_width_max_lanes=16,
                    link_speed_max_transfers_per_second=32e9,
                )  # fmt: skip
            host.set(
                "gpu_10s",
                gpu_of(host, gpu),
                memory_total_bytes=80e9,
                pcie_width_lanes=lanes,
                pcie_generation_max_number=5,
            )
            host.set("gpu_1s", gpu_of(host, gpu), memory_used_bytes=30e9)
        for port in ("mlx5_0/1", "mlx5_1/1"):
            devices.append(telemetry_pb2.Device(kind="rdma", key=port))
            host.set("rdma_1s", port, rate_bytes_per_second=50e9)
        host.set("rdma_1s", "mlx5_1/1", port_state=1 if number else 4)
        host.set("host_60s", "host", cores_count=64)
        host.set("disk_1s", "nvme0n1", read_bytes=0, written_bytes=0)
        host.grow("disk_1s", "nvme0n1", read_bytes=2e9)
        world.fleet.register(host.name, simulated=False, boot_id=host.boot_id, devices=devices)
        if isinstance(world, StoredWorld) and world.store is not None:
            kinds = tuple((device.kind, device.key, dict(device.attributes)) for device in devices)
            record = HostRecord(
                host.name, number, False, b"R" * 16, host.boot_id, "", "", {}, world.now_ns, kinds
            )
            world.store.submit_host(record, {})


def value(supplies: HostSupplies, host: int, resource: str) -> float:
    return float(supplies.current.values[host, SHARED_RESOURCES.index(resource)])


def test_degraded_parts_count_as_they_are() -> None:
    world = World(hosts=2, gpus=2)
    furnish(world)
    supplies = HostSupplies()
    world.run(65)
    supplies.step(world.fleet, world.now_ns)
    assert value(supplies, 0, "pcie_received") == pytest.approx(LINK, rel=0.01)
    assert value(supplies, 1, "pcie_received") == pytest.approx(LINK / 2, rel=0.01)
    assert value(supplies, 0, "nic_received") == pytest.approx(100e9)
    assert value(supplies, 1, "nic_received") == pytest.approx(50e9), "a port is down"
    assert value(supplies, 0, "cores") == 64
    assert value(supplies, 0, "disk") == pytest.approx(2e9, rel=0.1)
    assert np.isnan(value(supplies, 0, "memory_bandwidth")), "no agent reads it"
    assert supplies.current.hbm_bytes.tolist() == [80e9, 80e9]
    switch = supplies.current.switch.tolist()
    assert switch[0] == pytest.approx(LINK, rel=0.01) and switch[1] == np.inf


def test_the_highest_rate_survives_a_restart() -> None:
    world = World(hosts=1, gpus=2)
    furnish(world)
    world.run(65)
    first, second = HostSupplies(), HostSupplies()
    first.step(world.fleet, world.now_ns)
    (change,) = first.take_changes()
    assert (change.host, change.resource) == ("h0", "disk") and not first.take_changes()
    second.restore(
        [change, MeasuredSupply("h0", "unknown", 1.0), MeasuredSupply("gone", "disk", 1.0)]
    )
    second.step(World(hosts=1, gpus=2).fleet, world.now_ns)
    assert value(second, 0, "disk") == pytest.approx(change.value)


def rows_of(world: StoredWorld, host: str) -> list[dict[str, Any]]:
    assert world.store
    with world.store.reading() as cursor:
        result = cursor.execute(
            "SELECT *, 0.0 AS age_seconds FROM ops.host_supply WHERE host = ?", [host]
        )
        names = [column[0] for column in result.description or ()]
        return [dict(zip(names, values, strict=True)) for values in result.fetchall()]


def test_sql_and_the_page_show_the_same(tmp_path: Path) -> None:
    world = StoredWorld(2, tmp_path)
    furnish(world)
    world.run(70)
    assert world.store
    world.store.in_transaction(lambda connection: None)  # after everything that was submitted
    supplies = HostSupplies()
    supplies.step(world.fleet, world.now_ns)
    rows = rows_of(world, "h1")
    pcie = {row["device"]: row for row in rows if row["resource"] == "pcie"}
    slow, good = (pcie[gpu_of(world.hosts[1], gpu)] for gpu in range(2))
    assert slow["supply"] == pytest.approx(value(supplies, 1, "pcie_received"), rel=0.01)
    assert slow["full_supply"] == good["supply"] == pytest.approx(LINK)
    assert "fewer lanes" in slow["message"] and good["message"] is None
    nic = sum(row["supply"] for row in rows if row["resource"] == "nic")
    assert nic == pytest.approx(value(supplies, 1, "nic_received"))
    assert [row["supply"] for row in rows if row["resource"] == "hbm_bytes"] == [50e9, 50e9]
    shared = [row["shared_with"] for row in rows_of(world, "h0") if row["resource"] == "pcie"]
    assert shared == [[gpu_of(world.hosts[0], 1)], [gpu_of(world.hosts[0], 0)]]
    text = supply_text(rows)
    assert "the port is down" in text and "2 devices" in text and "31.51" in text
    world.store.close()


@pytest.mark.parametrize("generation", [-1.0, -100.0, -1e18, 7.0, 1e18])
def test_a_generation_that_no_link_has_is_an_unknown_rate(generation: float) -> None:
    """A negative one ended the supplies of the whole fleet."""
    world = World(hosts=2, gpus=2)
    furnish(world)
    for gpu in range(2):
        world.hosts[1].set(
            "gpu_10s", gpu_of(world.hosts[1], gpu), pcie_generation_max_number=generation
        )
    world.run(30)
    supplies = HostSupplies()
    supplies.step(world.fleet, world.now_ns)
    rates = supplies.current.values[:, SHARED_RESOURCES.index("pcie_received")]
    assert rates[0] > 0.0 and np.isnan(rates[1])
