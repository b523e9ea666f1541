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
#: NVLinks of an H100 (fourth generation): 25 GB/s in each direction.
LINKS = 18
#: Those whose signals the model has, by the names that they bear on a real host (a test holds it).
COLLECTORS = (
    "host_1s",
    "host_10s",
    "host_60s",
    "clock_10s",
    "edac_10s",
    "numa_10s",
    "numa_60s",
    "pcie_10s",
    "pcie_60s",
    "disk_1s",
    "filesystem_60s",
    "nvme_10s",
    "nvme_60s",
    "kernel_log_10s",
    "net_1s",
    "net_10s",
    "nic_10s",
    "link_10s",
    "rtnetlink_10s",
    "rdma_1s",
    "rdma_10s",
    "rapl_1s",
    "rapl_10s",
    "hwmon_1s",
    "hwmon_10s",
    "gpu_1s",
    "gpu_10s",
    "gpu_60s",
    "nvlink_10s",
    "gpu_fabric_1s",
    "nvml_events_10s",
    "gpu_fast_1s",
)

#: Device kind -> devices, for all kinds but those of GPUs, whose names differ from host to host.
_DEVICES: dict[str, tuple[str, ...]] = {
    "collector": COLLECTORS,
    "host": ("host",),
    "clock": ("host",),
    "kernel_log": ("host",),
    "rtnetlink": ("host",),
    "nvml_events": ("host",),
    "numa": ("node0", "node1"),
    "edac": tuple(
        f"mc{socket}{part}"
        for socket in range(2)
        for part in ("", *(f"/dimm{slot}" for slot in range(16)))
    ),
    "pcie": GPU_ADDRESSES + NIC_ADDRESSES,
    "disk": ("nvme0n1", "nvme1n1"),
    "nvme": ("nvme0", "nvme1"),
    "filesystem": ("/", "/scratch"),
    "net": ("eth0",),
    "link": ("eth0",),
    "nic": ("eth0",),
    "rdma": RDMA_PORTS,
    "rapl": ("intel-rapl:0", "intel-rapl:1"),
    "hwmon": (
        "coretemp@coretemp.0/temp1",
        "coretemp@coretemp.1/temp1",
        "power_meter@ACPI000D:00/power1",
    ),
}
#: Kinds that have a row for each GPU.
_BY_GPU = ("gpu", "gpu_fast", "gpu_fabric")
KINDS = (*_DEVICES, *_BY_GPU, "nvlink")


@dataclass(frozen=True, slots=True)
class Machine:
    """One simulated host: its name and the UUIDs of its GPUs."""

    name: str
    gpus: tuple[str, ...]

    def devices_of(self, kind: str) -> tuple[str, ...]:
        """Return the keys of its devices of *kind*, in the order of their rows."""
        if kind == "nvlink":
            return tuple(f"{gpu}/link{link}" for gpu in self.gpus for link in range(LINKS))
        return self.gpus if kind in _BY_GPU else _DEVICES[kind]

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
