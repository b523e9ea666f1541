"""A moment of a window as the blocks that agents would send: only tables that judgement or people read."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from ....fingerprints.block import Block
from ....fingerprints.catalogue import BY_NAME
from .. import drives, interfaces, kernel, machines, nvlinks, parts
from ..gpu_constants import BANKS, GPU
from ..parts import GPUS, LINKS, Machine
from ..ports import RATE_BYTES_PER_SECOND, RETRANSMISSIONS
from ..tables import Tables
from .hardware import Hardware
from .incidents import Rows
from .noise import Floats
from .physics import Counters, Now
from .window import Moment, Window

#: What a window makes of a host: those that judgement keeps signals of.
TABLES = (
    "collector_10s", "host_1s", "clock_10s", "pcie_10s", "disk_1s", "filesystem_60s",
    "net_1s", "net_1s_changes", "rdma_1s", "rdma_1s_changes", "rdma_10s_changes", "gpu_1s", "gpu_10s",
    "gpu_1s_changes", "gpu_10s_changes", "gpu_fabric_1s_changes", "gpu_fast_1s", "nvlink_10s_changes",
)  # fmt: skip
#: Outcome of a collector that hangs (collector.outcome_state).
HUNG = 4
#: The collectors that read GPUs, by their place in `parts.COLLECTORS`.
_OF_GPUS = [i for i, name in enumerate(parts.COLLECTORS) if name.startswith("gpu")]
IDLE_GENERATION, FULL_GENERATION = 1, 5
IDLE_TRANSFERS, FULL_TRANSFERS = 2.5e9, 32e9
#: State, physical state. One that is down polls; disabled (3) would be on purpose.
_PORT_UP, _PORT_DOWN = (4, 5), (1, 2)
_NONE: frozenset[int] = frozenset()
#: A port that nothing crowds waits a tick in so many bytes: some 3,000 a second at work (assumed).
BYTES_PER_WAIT = 2e6


class Readings:
    """The hosts that a window was asked for, as blocks."""

    def __init__(
        self,
        window: Window,
        hardware: Hardware,
        hosts: int,
        rows: Rows,
        tables: Collection[str] = TABLES,
    ) -> None:
        """*hosts*: of the window's, the first so many are told of. *rows*: earlier uncorrectable errors."""
        self._window, self._count = window, hosts
        self._own = window.hosts[:hosts]
        self._hardware = hardware
        self.machines: Sequence[Machine] = [hardware.machines[h] for h in self._own.tolist()]
        self.tables = self._tables = Tables(self.machines, tables)
        self._rows_lost = np.zeros((hosts, GPUS))
        slots = {host: i for i, host in enumerate(self._own.tolist())}
        for row in rows:
            if (slot := slots.get(int(row["host"]), -1)) >= 0:
                self._rows_lost[slot, int(row["part"])] += 1
        self._hidden: list[frozenset[int]] = [_NONE] * hosts
        self._lost: list[frozenset[int]] = [_NONE] * hosts
        self._disk = np.zeros((hosts, 2))
        self._publish_constants()

    def _put(self, values: Mapping[str, float]) -> None:
        for signal, value in values.items():
            if self._tables.has(signal):
                self._tables.put(signal, value)

    def _publish_constants(self) -> None:
        for constants in (
            GPU,
            machines.CONSTANTS,
            drives.CONSTANTS,
            interfaces.CONSTANTS,
            kernel.CONSTANTS,
            nvlinks.CONSTANTS,
        ):
            self._put(constants)
        tables = self._tables
        tables.put("rdma.rate_bytes_per_second", RATE_BYTES_PER_SECOND)
        self._put(
            {"rdma.link_layer_code": 1, "rdma.counter_epoch_count": 0, "rdma.receive_errors": 0}
        )
        for signal, values in drives.FILESYSTEMS.items():
            tables.put(signal, [values])
        tables.put("pcie.class_code", [[machines.CLASS_GPU] * 8 + [machines.CLASS_NIC] * 8])
        tables.put("pcie.numa_node_number", [[*parts.NUMA_NODES, *parts.NUMA_NODES]])

    def publish(self, moment: Moment) -> None:
        """Put the moment's readings."""
        now, counters = moment.now, self._window.physics.counters
        self._publish_gpus(now, counters)
        self._publish_memory(now, counters)
        self._publish_fast(now)
        self._publish_links(now, counters)
        self._publish_ports(now, counters)
        self._publish_host(moment)
        channels, count = now.channels, self._count
        self._hidden = _sets(channels.unread[:count])
        self._lost = _sets(channels.lost[:count])

    def blocks(self, slot: int, before_seconds: float, now_seconds: float) -> list[Block]:
        """Return the blocks of a host whose turn came in (before, now]; all, if before is negative."""
        blocks = self._tables.due(slot, before_seconds, now_seconds)
        if not self._hidden[slot] and not self._lost[slot]:
            return blocks
        seen = (self._seen(slot, block) for block in blocks)
        return [block for block in seen if block.rows]

    def _seen(self, slot: int, block: Block) -> Block:
        """Leave out the rows of GPUs that nothing can be read of; of lost ones, all but that they are."""
        per = LINKS if block.table.startswith("nvlink") else 1
        if not block.table.startswith(("gpu", "nvlink")):
            return block
        gone = set(self._hidden[slot])
        if block.table != "gpu_1s":
            gone |= self._lost[slot]
        part = block.select(row for row in range(block.rows) if row // per not in gone)
        if block.table == "gpu_1s":
            keep = [gpu for gpu in range(GPUS) if gpu not in gone]
            told = part.signal_ids.index(BY_NAME["gpu.lost_state"].signal_id)
            for row in (keep.index(gpu) for gpu in self._lost[slot] - gone):
                for column in range(len(part.signal_ids)):
                    part.valid[column * part.rows + row] = column == told
        return part

    def _publish_gpus(self, now: Now, counters: Counters) -> None:
        own, tables, shares = slice(self._count), self._tables, now.shares
        at_work = shares.at_work[own, None] * np.ones(GPUS)
        celsius = np.floor(self._window.physics.celsius[own])
        tables.put("gpu.sm_clock_hertz", now.clock_hertz[own])
        tables.put("gpu.clock_event_reasons_flags", now.flags[own])
        tables.put("gpu.violation_power_nanoseconds", counters.power_ns[own])
        tables.put("gpu.violation_thermal_nanoseconds", counters.thermal_ns[own])
        tables.put("gpu.power_watts", np.round(now.watts[own], 3))
        tables.put("gpu.energy_joules", np.round(counters.joules[own], 3))
        tables.put("gpu.temperature_celsius", celsius)
        tables.put("gpu.memory_temperature_celsius", celsius + 9)
        tables.put("gpu.temperature_margin_celsius", parts.TEMPERATURE_MAX_CELSIUS - celsius)
        tables.put("gpu.utilization_ratio", np.round((1 - shares.gap[own]) * at_work, 2))
        tables.put("gpu.memory_utilization_ratio", np.round(now.bandwidth[own], 2))
        used = np.where(at_work > 0, 72e9, 6e8)
        tables.put("gpu.memory_used_bytes", used)
        tables.put("gpu.memory_free_bytes", parts.GPU_MEMORY_BYTES - used)
        tables.put("gpu.processes_count", at_work)
        tables.put("gpu.recovery_action_state", now.channels.asks[own])
        tables.put("gpu.lost_state", now.channels.lost[own])
        tables.put("gpu.power_limit_watts", now.limit_watts[own])
        generation = np.where(now.narrow[own], IDLE_GENERATION, FULL_GENERATION)
        tables.put("gpu.pcie_generation_number", generation * np.ones(GPUS))
        tables.put("gpu.pcie_width_lanes", now.channels.lanes[own])
        tables.put("gpu.violation_sw_thermal_nanoseconds", counters.thermal_ns[own])
        tables.put("gpu.violation_base_clocks_nanoseconds", counters.thermal_ns[own])
        tables.put("gpu.violation_hw_power_brake_nanoseconds", counters.brake_ns[own])

    def _publish_memory(self, now: Now, counters: Counters) -> None:
        own, tables, channels = slice(self._count), self._tables, now.channels
        corrected, lost = counters.corrected[own], counters.uncorrected[own]
        before = self._hardware.corrected[self._own]
        for kind, since_load, of_life in (
            ("corrected", corrected, before + corrected),
            ("uncorrected", lost, self._rows_lost + lost),
        ):
            for place in ("", "_device"):  # all errors of the model are those of DRAM
                tables.put(f"gpu.ecc_{kind}_volatile{place}_errors", since_load)
                tables.put(f"gpu.ecc_{kind}_lifetime{place}_errors", of_life)
        tables.put("gpu.remapped_uncorrectable_rows", self._rows_lost)
        tables.put("gpu.remapped_correctable_rows", 0)
        tables.put("gpu.remap_banks_max_count", BANKS - self._rows_lost)
        tables.put("gpu.remap_banks_high_count", self._rows_lost)
        tables.put("gpu.remap_pending_state", channels.remap_pending[own])
        tables.put("gpu.remap_failed_state", channels.remap_failed[own])
        tables.put("gpu.pcie_replays_count", counters.replays[own])

    def _publish_fast(self, now: Now) -> None:
        own, tables, channels = slice(self._count), self._tables, now.channels
        at_work = now.shares.at_work[own, None] * np.ones(GPUS)
        tables.put("gpu_fast.samples_count", 8)
        for name in ("min", "mean", "max"):
            tables.put(f"gpu_fast.sm_clock_{name}_hertz", now.mean_clock_hertz[own])
        least = np.minimum(now.mean_watts, now.watts)[own]
        tables.put("gpu_fast.power_min_watts", np.round(least, 3))
        tables.put("gpu_fast.power_mean_watts", np.round(now.mean_watts[own], 3))
        tables.put(
            "gpu_fast.power_max_watts", np.round(np.maximum(now.mean_watts, now.watts)[own], 3)
        )
        tables.put("gpu_fast.thermal_ratio", np.round(channels.thermal[own] * at_work, 3))
        tables.put("gpu_fast.power_cap_ratio", np.round(channels.capped[own] * at_work, 3))
        tables.put("gpu_fast.power_brake_ratio", np.round(channels.braked[own] * at_work, 3))
        tables.put("gpu_fast.sm_active_ratio", np.round(now.sm_active[own], 4))
        tables.put("gpu_fast.tensor_active_ratio", np.round(now.tensor_active[own], 4))
        tables.put("gpu_fast.memory_bandwidth_ratio", np.round(now.bandwidth[own], 4))
        moved = np.floor(now.port_bytes_per_second[own])
        written = drives.CHECKPOINT_BYTES_PER_SECOND * now.shares.writes[own]
        tables.put("gpu_fast.pcie_received_bytes_per_second", moved)
        tables.put("gpu_fast.pcie_transmitted_bytes_per_second", moved + written)
        for way in ("received", "transmitted"):
            rate = moved * nvlinks.BYTES_PER_PORT_BYTE * channels.nvlink[own]
            tables.put(f"gpu_fast.nvlink_{way}_bytes_per_second", rate)

    def _publish_links(self, now: Now, counters: Counters) -> None:
        """Put the NVLinks: an incident is of a GPU's first link, its neighbours are well."""
        own, tables = slice(self._count), self._tables
        crc = np.zeros((self._count, GPUS, LINKS))
        crc[:, :, 0] = counters.crc[own]
        state = np.ones((self._count, GPUS, LINKS))
        state[:, :, 0] = ~now.channels.link_down[own]
        tables.put("nvlink.crc_errors", crc.reshape(self._count, -1))
        tables.put("nvlink.replay_errors", np.floor(crc / 3).reshape(self._count, -1))
        tables.put("nvlink.link_state", state.reshape(self._count, -1))
        for column, slow in (("link_speed", 1.0), ("link_width", 0.0)):
            self._publish_pcie(now, column, bool(slow))

    def _publish_pcie(self, now: Now, column: str, is_speed: bool) -> None:
        own, nics = slice(self._count), np.ones((self._count, GPUS))
        if is_speed:
            gpus = np.where(now.narrow[own], IDLE_TRANSFERS, FULL_TRANSFERS) * np.ones(GPUS)
            values = np.hstack([gpus, nics * FULL_TRANSFERS])
            self._tables.put(f"pcie.{column}_transfers_per_second", values)
        else:
            values = np.hstack([now.channels.lanes[own], nics * 16])
            self._tables.put(f"pcie.{column}_lanes", values)

    def _publish_ports(self, now: Now, counters: Counters) -> None:
        own, tables, channels = slice(self._count), self._tables, now.channels
        down = channels.port_down[own]
        tables.put("rdma.port_state", np.where(down, _PORT_DOWN[0], _PORT_UP[0]))
        tables.put("rdma.physical_state", np.where(down, _PORT_DOWN[1], _PORT_UP[1]))
        moved = np.floor(counters.moved[own] / 4) * 4
        for way in ("received", "transmitted"):
            tables.put(f"rdma.{way}_bytes", moved)
        tables.put(
            "rdma.transmit_wait_count",
            np.floor(moved / BYTES_PER_WAIT) + counters.marked[own],
        )
        for name, share in RETRANSMISSIONS.items():
            tables.put(name, np.floor(counters.resent[own] * share))
        tables.put("rdma.symbol_errors", np.minimum(counters.symbols[own], 65535))
        tables.put("rdma.link_downed_events", np.minimum(counters.downed[own], 255))
        tables.put("rdma.buffer_overrun_errors", channels.overruns[own])

    def _publish_host(self, moment: Moment) -> None:
        own, tables, channels = slice(self._count), self._tables, moment.now.channels
        noise = self._window.noise.normal(int(moment.seconds), 6)[own, 0]
        user = np.clip(
            self._hardware.user[self._own] + 0.006 * noise + 0.5 * channels.pressure[own], 0, 0.9
        )
        pressure = self._hardware.pressure[self._own] + channels.pressure[own]
        waits = channels.iowait[own]
        tables.put("host.cpu_user_ratio", user)
        tables.put("host.cpu_system_ratio", 0.03)
        tables.put("host.cpu_iowait_ratio", 0.0004 + 0.1 * waits)
        tables.put("host.cpu_steal_ratio", channels.steal[own])
        tables.put("host.cpu_idle_ratio", np.maximum(1 - user - 0.03 - channels.steal[own], 0.0))
        tables.put(
            "host.runnable_count", 1 + np.floor(machines.CORES * (user + channels.pressure[own]))
        )
        tables.put("host.pressure_cpu_some_ratio", np.round(np.clip(pressure, 0, 1), 4))
        tables.put("host.pressure_io_some_ratio", np.round(0.002 + waits, 4))
        tables.put("host.pressure_io_full_ratio", np.round(0.001 + 0.6 * waits, 4))
        tables.put("host.memory_available_bytes", 0.7 * machines.MEMORY_BYTES)
        tables.put("clock.offset_seconds", channels.offset_seconds[own])
        tables.put("clock.error_max_seconds", 0.02)
        self._publish_disks(moment)
        tables.put("collector.outcome_state", self._outcomes(channels.unread[own]))
        turns = np.full((self._count, len(parts.COLLECTORS)), 4e-4)
        turns[:, _OF_GPUS] += channels.call_seconds[own, None]
        tables.put("collector.turn_seconds", turns)

    def _publish_disks(self, moment: Moment) -> None:
        own, seconds = slice(self._count), moment.step_seconds
        shares = moment.now.shares
        read = (
            drives.DATASET_BYTES_PER_SECOND
            * shares.at_work[own]
            * (1 - 0.5 * moment.now.channels.starved[own])
        )
        written = drives.CHECKPOINT_BYTES_PER_SECOND * shares.writes[own].any(axis=1)
        self._disk += np.stack([read, written], axis=1) * seconds
        row = slice(drives.SCRATCH, drives.SCRATCH + 1)
        self._tables.put("disk.read_bytes", drives.sectors(self._disk[:, :1]), row)
        self._tables.put("disk.written_bytes", drives.sectors(self._disk[:, 1:]), row)

    def _outcomes(self, unread: np.typing.NDArray[np.bool_]) -> Floats:
        outcomes = np.zeros((self._count, len(parts.COLLECTORS)))
        outcomes[:, _OF_GPUS] = np.where(unread.any(axis=1), HUNG, 0)[:, None]
        return outcomes


def _sets(flags: np.typing.NDArray[np.bool_]) -> list[frozenset[int]]:
    """Return which GPUs of each host are flagged."""
    found = [_NONE] * len(flags)
    for host, gpu in np.argwhere(flags).tolist():
        found[host] |= {gpu}
    return found
