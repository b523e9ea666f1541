"""What a simulated host is made of: an eight-GPU machine with one InfiniBand port beside each GPU.

PCI addresses and the pairing of GPU and NIC are those of a DGX H100; limits are what nvidia-smi says
of an H100 SXM (slowdown at 89, software slowdown from 87, 700 W, 1980 MHz).
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

import numpy as np

from ...fingerprints.wire import telemetry_pb2

GPUS = 8
GPU_NAME = "NVIDIA H100 80GB HBM3 (simulated)"
GPU_MEMORY_BYTES = 85_520_809_984  # 81559 MiB
SM_CLOCK_MAX_HERTZ = 1980e6
MEMORY_CLOCK_HERTZ = 2619e6
POWER_LIMIT_WATTS = 700.0
#: Software slowdown begins at the highest operating temperature, hardware slowdown at the second.
TEMPERATURE_MAX_CELSIUS = 87.0
TEMPERATURE_SLOWDOWN_CELSIUS = 89.0

_GPU_BUSES = ("1b", "43", "52", "61", "9d", "c3", "d1", "df")
_NIC_BUSES = ("18", "40", "4f", "5e", "9a", "c0", "ce", "dc")

GPU_ADDRESSES = tuple(f"0000:{bus}:00.0" for bus in _GPU_BUSES)
NIC_ADDRESSES = tuple(f"0000:{bus}:00.0" for bus in _NIC_BUSES)
RDMA_PORTS = tuple(f"mlx5_{i}/1" for i in range(GPUS))
#: NUMA node of each GPU, and of the NIC beside it.
NUMA_NODES = (0, 0, 0, 0, 1, 1, 1, 1)
#: Those of a real host, by the names that they have there (a test holds them equal).
COLLECTORS = (
    "host_1s",
    "host_10s",
    "host_60s",
    "numa_10s",
    "numa_60s",
    "pcie_10s",
    "disk_1s",
    "filesystem_60s",
    "net_1s",
    "net_10s",
    "rdma_1s",
    "rdma_10s",
    "rapl_1s",
    "rapl_10s",
    "hwmon_10s",
    "gpu_1s",
    "gpu_10s",
)

#: Device kind -> devices, for all kinds but GPUs, whose names differ from host to host.
_DEVICES: dict[str, tuple[str, ...]] = {
    "collector": COLLECTORS,
    "host": ("host",),
    "numa": ("node0", "node1"),
    "pcie": GPU_ADDRESSES + NIC_ADDRESSES,
    "disk": ("nvme0n1", "nvme1n1"),
    "filesystem": ("/", "/scratch"),
    "net": ("eth0",),
    "rdma": RDMA_PORTS,
    "rapl": ("intel-rapl:0", "intel-rapl:1"),
    "hwmon": ("hwmon0/temp1", "hwmon1/temp1", "hwmon2/power1"),
}
KINDS = (*_DEVICES, "gpu")


@dataclass(frozen=True, slots=True)
class Machine:
    """One simulated host: its name and the UUIDs of its GPUs."""

    name: str
    gpus: tuple[str, ...]

    def devices_of(self, kind: str) -> tuple[str, ...]:
        """Return the keys of its devices of *kind*, in the order of their rows."""
        return self.gpus if kind == "gpu" else _DEVICES[kind]

    def inventory(self) -> list[telemetry_pb2.Device]:
        """Return what RegisterNode carries."""
        gpus = [
            _device(
                "gpu",
                key,
                name=GPU_NAME,
                pci_address=GPU_ADDRESSES[i],
                index=str(i),
                memory_bytes=str(GPU_MEMORY_BYTES),
            )
            for i, key in enumerate(self.gpus)
        ]
        ports = [
            _device("rdma", key, device=f"mlx5_{i}", port="1", link_layer="InfiniBand",
                    pci_address=NIC_ADDRESSES[i])
            for i, key in enumerate(RDMA_PORTS)
        ]  # fmt: skip
        return [_device("host", "host", hostname=self.name, cores="224"), *gpus, *ports]


def _device(kind: str, key: str, **attributes: str) -> telemetry_pb2.Device:
    return telemetry_pb2.Device(kind=kind, key=key, attributes=attributes | {"simulated": "true"})


def build(hosts: int, random: np.random.Generator) -> list[Machine]:
    """Return *hosts* machines, `sim-000` and so on; the GPUs' UUIDs are drawn."""
    return [
        Machine(f"sim-{i:03d}", tuple(f"GPU-{_uuid(random)}" for _ in range(GPUS)))
        for i in range(hosts)
    ]


def _uuid(random: np.random.Generator) -> uuid.UUID:
    return uuid.UUID(bytes=random.bytes(16), version=4)
