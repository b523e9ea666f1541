"""Hardware of a simulated host: an eight-GPU machine with one InfiniBand port per GPU.

PCI addresses and the pairing of GPU and NIC are those of a DGX H100; limits are the limits that nvidia-smi shows for an
H100 SXM (slowdown at 89, software slowdown from 87, 700 W, 1980 MHz).
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

import numpy as np

from ..agent.collectors import SAME_TABLES
from ..contract.wire import telemetry_pb2

GPUS = 8
GPU_NAME = "NVIDIA H100 80GB HBM3 (simulated)"
GPU_MEMORY_BYTES = 85_520_809_984  # 81559 MiB
#: Hosts with AMD GPUs; `amd.py` has their other differences.
AMD_GPU_NAME = "AMD Instinct MI300X (simulated)"
AMD_MEMORY_BYTES = 206_141_652_992  # 196,592 MiB
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
#: NUMA node of each GPU, and of its neighboring NIC.
NUMA_NODES = (0, 0, 0, 0, 1, 1, 1, 1)
#: NVLinks of an H100 (fourth generation): 25 GB/s in each direction.
NVLINKS_PER_GPU = 18
#: Collectors whose signals the model has, by their names on a real host (a test checks them).
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
    "gpu_fast_10s",
)

#: Device kind -> devices, for all kinds except those of GPUs, whose names differ from host to host.
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
#: Collector of NVIDIA's GPUs -> AMD's collector that fills the same tables.
_AMD_COLLECTORS = {theirs: name for name, theirs in SAME_TABLES.items()}
#: Kinds that have a row for each GPU.
_GPU_KINDS = ("gpu", "gpu_fast", "gpu_fabric")
KINDS = (*_DEVICES, *_GPU_KINDS, "nvlink")

#: State of a verified field in `gpu.violation_*_field_state`.
_VERIFIED = 2
_MIB = 1 << 20
#: Memory banks of an H100 with 80 GB: the sum of nvidia-smi's histogram.
BANKS = 2560
GPU_CONSTANTS: dict[str, float] = {
    "gpu.counter_epoch_count": 0,
    "gpu.memory_clock_hertz": MEMORY_CLOCK_HERTZ,
    "gpu.sm_clock_max_hertz": SM_CLOCK_MAX_HERTZ,
    "gpu.graphics_clock_max_hertz": SM_CLOCK_MAX_HERTZ,
    "gpu.memory_clock_max_hertz": MEMORY_CLOCK_HERTZ,
    "gpu.video_clock_max_hertz": 1545e6,
    "gpu.violation_sync_boost_nanoseconds": 0,
    "gpu.violation_sw_thermal_field_state": _VERIFIED,
    "gpu.violation_hw_thermal_field_state": _VERIFIED,
    "gpu.violation_hw_power_brake_field_state": _VERIFIED,
    "gpu.power_limit_watts": POWER_LIMIT_WATTS,
    "gpu.power_limit_requested_watts": POWER_LIMIT_WATTS,
    "gpu.power_limit_default_watts": POWER_LIMIT_WATTS,
    "gpu.power_limit_min_watts": 200.0,
    "gpu.power_limit_max_watts": POWER_LIMIT_WATTS,
    "gpu.temperature_slowdown_celsius": TEMPERATURE_SLOWDOWN_CELSIUS,
    "gpu.temperature_max_celsius": TEMPERATURE_MAX_CELSIUS,
    "gpu.temperature_shutdown_celsius": TEMPERATURE_MAX_CELSIUS + 8,
    "gpu.margin_at_shutdown_celsius": -8.0,
    "gpu.margin_at_slowdown_celsius": (TEMPERATURE_MAX_CELSIUS - TEMPERATURE_SLOWDOWN_CELSIUS),
    "gpu.margin_at_max_celsius": 0.0,
    "gpu.margin_at_memory_max_celsius": 0.0,
    "gpu.memory_total_bytes": GPU_MEMORY_BYTES,
    "gpu.memory_reserved_bytes": 551 * _MIB,
    "gpu.bar1_total_bytes": 131072 * _MIB,
    "gpu.bar1_used_bytes": 4 * _MIB,
    "gpu.encoder_utilization_ratio": 0.0,
    "gpu.decoder_utilization_ratio": 0.0,
    "gpu.jpeg_utilization_ratio": 0.0,
    "gpu.optical_flow_utilization_ratio": 0.0,
    "gpu.pcie_generation_number": 5,
    "gpu.pcie_generation_max_number": 5,
    "gpu.pcie_width_lanes": 16,
    "gpu.pcie_width_max_lanes": 16,
    "gpu.performance_state": 0,
    "gpu.lost_state": 0,
    "gpu.error_code_state": 0,
    "gpu.mig_mode_state": 0,
    "gpu.mig_mode_pending_state": 0,
    "gpu.ecc_mode_state": 1,
    "gpu.ecc_mode_pending_state": 1,
    "gpu.persistence_mode_state": 1,
    "gpu.compute_mode_state": 0,
    "gpu.remap_failed_state": 0,
    "gpu.remap_banks_partial_count": 0,
    "gpu.remap_banks_low_count": 0,
    "gpu.remap_banks_none_count": 0,
    "gpu.sram_threshold_exceeded_state": 0,
    "gpu.repair_channel_pending_state": 0,
    "gpu.repair_tpc_pending_state": 0,
    "gpu.unrepairable_memory_state": 0,
    "gpu_fast.power_brake_ratio": 0.0,
    # Eight GPUs behind NVSwitches are registered; Hopper does not report the health of the fabric.
    "gpu_fabric.registration_state": 3,
    "gpu_fabric.registration_status_code": 0,
    "gpu_fabric.clique_number": 0,
}


@dataclass(frozen=True, slots=True)
class SimulatedMachine:
    """One simulated host: its name and the UUIDs of its GPUs."""

    name: str
    gpus: tuple[str, ...]
    is_amd: bool = False  # else NVIDIA; `amd.py` has the differences

    def devices_of(self, kind: str) -> tuple[str, ...]:
        """Return the keys of its devices of *kind*, in the order of their rows."""
        if kind == "nvlink":
            return tuple(
                f"{gpu}/link{link}" for gpu in self.gpus for link in range(NVLINKS_PER_GPU)
            )
        if kind == "collector" and self.is_amd:
            return tuple(_AMD_COLLECTORS.get(name, name) for name in COLLECTORS)
        return self.gpus if kind in _GPU_KINDS else _DEVICES[kind]

    def inventory(self) -> list[telemetry_pb2.Device]:
        gpus = [
            _device(
                "gpu",
                key,
                name=AMD_GPU_NAME if self.is_amd else GPU_NAME,
                pci_address=GPU_ADDRESSES[i],
                index=str(i),
                memory_bytes=str(AMD_MEMORY_BYTES if self.is_amd else GPU_MEMORY_BYTES),
                **({"vendor": "AMD"} if self.is_amd else {}),
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


def build_machines(
    hosts: int, random: np.random.Generator, amd_ratio: float = 0.0
) -> list[SimulatedMachine]:
    """Return *hosts* machines, `sim-000` and so on, with random GPU UUIDs. The last *amd_ratio* have AMD's."""
    first_amd = hosts - round(hosts * amd_ratio)
    return [
        SimulatedMachine(
            f"sim-{i:03d}", tuple(f"GPU-{_uuid(random)}" for _ in range(GPUS)), i >= first_amd
        )
        for i in range(hosts)
    ]


def _uuid(random: np.random.Generator) -> uuid.UUID:
    return uuid.UUID(bytes=random.bytes(16), version=4)
