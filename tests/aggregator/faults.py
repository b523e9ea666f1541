"""One fault for every rule that is a row of a table: what the device reads when well, and when not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gangline.aggregator.model import State
from tests.aggregator.world import Host, gpu_of

GPU = ""  # the host's first GPU
W, S = State.WATCH, State.SUSPECT


@dataclass(frozen=True)
class Fault:
    """`bad` values are set, `grow` counters grow by so much a second."""

    rule: str
    state: State
    table: str
    device: str
    well: Mapping[str, float]
    bad: Mapping[str, float] = field(default_factory=dict)
    grow: Mapping[str, float] = field(default_factory=dict)
    enter_seconds: int = 0

    def furnish(self, host: Host) -> None:
        host.set(self.table, self._device(host), **self.well)

    def befall(self, host: Host) -> None:
        host.set(self.table, self._device(host), **self.bad)
        host.grow(self.table, self._device(host), **self.grow)

    def _device(self, host: Host) -> str:
        gpu = gpu_of(host, 0)
        return self.device.replace("GPU/", f"{gpu}/") if self.device else gpu


def _state(
    rule: str, state: State, table: str, device: str, column: str, well: float, bad: float,
    enter_seconds: int = 0,
) -> Fault:  # fmt: skip
    return Fault(rule, state, table, device, {column: well}, {column: bad}, {}, enter_seconds)


def _count(rule: str, state: State, table: str, device: str, column: str, more: float) -> Fault:
    return Fault(rule, state, table, device, {column: 40.0}, {column: 40.0 + more})


def _rate(rule: str, table: str, device: str, column: str, per_second: float) -> Fault:
    return Fault(rule, W, table, device, {column: 40.0}, {}, {column: per_second}, 20)


GPUS, LINKS, C2C = "gpu_10s_changes", "nvlink_10s_changes", "c2c_10s_changes"
FABRIC, NIC = "gpu_fabric_1s_changes", "nic_10s_changes"

FAULTS = (
    _state("gpu.memory_unrepairable", S, GPUS, GPU, "unrepairable_memory_state", 0, 1),
    _state("gpu.sram_threshold", S, GPUS, GPU, "sram_threshold_exceeded_state", 0, 1),
    _state("gpu.remap_exhausted", W, GPUS, GPU, "remap_banks_none_count", 0, 2),
    _state("gpu.repair_pending", W, GPUS, GPU, "repair_channel_pending_state", 0, 1),
    _state("gpu.repair_tpc_pending", W, GPUS, GPU, "repair_tpc_pending_state", 0, 1),
    _state("gpu.retirement_pending", W, GPUS, GPU, "retirement_pending_state", 0, 1),
    _count("gpu.pcie_fatal", S, GPUS, GPU, "pcie_fatal_errors", 2),
    _count("gpu.pcie_rollovers", W, GPUS, GPU, "pcie_replay_rollovers_count", 2),
    _rate("gpu.pcie_replays", GPUS, GPU, "pcie_replays_count", 30),
    _rate("gpu.pcie_naks", GPUS, GPU, "pcie_naks_received_count", 30),
    _state("nvlink.down", S, LINKS, "GPU/link0", "link_state", 1, 0, 20),
    _state("c2c.down", S, C2C, "GPU/c2c0", "link_state", 1, 0, 20),
    _count("nvlink.recovery_failed", S, LINKS, "GPU/link1", "link_recovery_failed_events", 2),
    _count("nvlink.recoveries", W, LINKS, "GPU/link2", "recovery_errors", 9),
    _count("nvlink.link_recoveries", W, LINKS, "GPU/link3", "link_recovery_events", 9),
    _rate("nvlink.crc", LINKS, "GPU/link4", "crc_errors", 30),
    _rate("nvlink.replays", LINKS, "GPU/link5", "replay_errors", 30),
    _rate("c2c.replays", C2C, "GPU/c2c1", "replay_errors", 30),
    _state(
        "nvlink.bit_errors", W, LINKS, "GPU/link6", "effective_bit_error_ratio", 1.5e-254, 1e-9, 20
    ),
    _state("gpu_fabric.unregistered", W, FABRIC, GPU, "registration_state", 3, 2, 300),
    _state("gpu_fabric.registration_failed", S, FABRIC, GPU, "registration_status_code", 0, 999, 6),
    _state("gpu_fabric.degraded", S, FABRIC, GPU, "degraded_bandwidth_state", 2, 1, 6),
    _state("gpu_fabric.route_unhealthy", S, FABRIC, GPU, "route_unhealthy_state", 2, 1, 6),
    _state("gpu_fabric.route_recovery", W, FABRIC, GPU, "route_recovery_state", 2, 1, 6),
    _state("gpu_fabric.access_timeout", W, FABRIC, GPU, "access_timeout_recovery_state", 2, 1, 6),
    _state("gpu_fabric.configuration", W, FABRIC, GPU, "incorrect_configuration_code", 1, 4, 6),
    _count("edac.uncorrected", S, "edac_10s_changes", "mc0/dimm1", "uncorrected_errors", 1),
    _count("edac.corrected", W, "edac_10s_changes", "mc0/dimm2", "corrected_errors", 50),
    _state("host.memory_corrupted", W, "host_10s", "host", "memory_corrupted_bytes", 0, 4096),
    _count("nvme.media_errors", W, "nvme_60s", "nvme0", "media_errors", 3),
    _state("nvme.critical_warning", W, "nvme_60s", "nvme1", "critical_warning_flags", 0, 4),
    _state("nvme.dead", W, "nvme_10s", "nvme2", "controller_state", 1, 6, 6),
    _state("clock.offset", W, "clock_10s", "host", "offset_seconds", 1e-5, -0.4, 60),
    _state("clock.unsynchronised", W, "clock_10s", "host", "synchronised_state", 1, 0, 900),
    _count("net.flaps", W, "net_1s_changes", "eth1", "carrier_changes_count", 8),
    _count("link.uncorrectable", W, "link_10s_changes", "eth1", "fec_uncorrectable_errors", 40),
    _count("rdma.symbol_errors", W, "rdma_1s_changes", "mlx5_0/1", "symbol_errors", 40),
    _count("nic.pause_storm", W, NIC, "eth1", "pause_storm_errors_events", 2),
    _count("nic.module", W, NIC, "eth1", "module_overheated_events", 2),
    Fault(
        "nic.pauses", W, NIC, "eth1", {"priority_3_transmitted_pause_frames": 40},
        {}, {"priority_3_transmitted_pause_frames": 50_000}, 40,
    ),
    Fault(
        "bond.slave_down", W, "bond_10s", "bond0", {"slaves_count": 2, "slaves_up_count": 2},
        {"slaves_up_count": 1}, {}, 15,
    ),
    _state("bond.down", S, "bond_10s", "bond1", "link_state", 1, 0, 15),
)  # fmt: skip
