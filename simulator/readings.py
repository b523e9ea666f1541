"""Readings of one moment as the blocks that agents send: only tables that scoring or operators read."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from ..contract.block import Block
from ..contract.signals import BY_NAME
from . import host_tables
from . import machine as parts
from . import tables as ports
from .faults import Ints
from .incidents import Rows, named_random
from .machine import BANKS, GPU_CONSTANTS, GPUS, NVLINKS_PER_GPU, SimulatedMachine
from .noise import Floats
from .physics import (
    PHASE_OCCUPANCY,
    PHASE_SM_ACTIVE,
    SAMPLES_PER_SECOND,
    WAIT_OCCUPANCY,
    WAIT_SM_ACTIVE,
    FleetHardware,
    GaugeState,
    Phase,
    SimulatedCounters,
    mean_over_step,
)
from .tables import PORT_BYTES_PER_SECOND, RETRANSMISSIONS, Tables
from .window import SimulationWindow, StepState

#: Tables of a host that judgement reads.
SCORED_TABLES = (
    "collector_10s", "host_1s", "clock_10s", "pcie_10s", "disk_1s", "filesystem_60s",
    "net_1s", "net_1s_changes", "rdma_1s", "rdma_1s_changes", "rdma_10s_changes", "gpu_1s", "gpu_10s",
    "gpu_1s_changes", "gpu_10s_changes", "gpu_fabric_1s_changes", "gpu_fast_1s", "gpu_fast_10s",
    "nvlink_10s_changes",
)  # fmt: skip
#: Outcome of a collector that hangs (collector.outcome_state).
HUNG = 4
#: The collectors that read GPUs, by index in `parts.COLLECTORS`.
_GPU_COLLECTORS = [i for i, name in enumerate(parts.COLLECTORS) if name.startswith("gpu")]
IDLE_GENERATION, FULL_GENERATION = 1, 5
IDLE_TRANSFERS, FULL_TRANSFERS = 2.5e9, 32e9
#: State and physical state. A port that is down polls; disabled (3) would be deliberate.
_PORT_UP, _PORT_DOWN = (4, 5), (1, 2)
_NO_GPUS: frozenset[int] = frozenset()
#: Bytes per wait tick of a port without congestion: about 3,000 ticks a second at work (assumed).
BYTES_PER_WAIT_TICK = 2e6


#: Deviation of the phase tracker's error in each share, and its confidence (assumed).
PHASE_ERROR = 0.01
PHASE_CONFIDENCE = 0.95


class WindowReadings:
    """Readings of a window's requested hosts, as blocks."""

    def __init__(
        self,
        window: SimulationWindow,
        hardware: FleetHardware,
        hosts: int,
        rows: Rows,
        tables: Collection[str] = SCORED_TABLES,
    ) -> None:
        """*hosts*: number of the window's first hosts that are reported. *rows*: earlier uncorrectable errors."""
        self._window, self._count = window, hosts
        self._host_indexes = window.hosts[:hosts]
        self._hardware = hardware
        self.machines: Sequence[SimulatedMachine] = [
            hardware.machines[h] for h in self._host_indexes.tolist()
        ]
        self.tables = self._tables = Tables(self.machines, tables)
        self._rows_lost = np.zeros((hosts, GPUS))
        slots = {host: i for i, host in enumerate(self._host_indexes.tolist())}
        for row in rows:
            if (slot := slots.get(int(row["host"]), -1)) >= 0:
                self._rows_lost[slot, int(row["part"])] += 1
        self._hidden: list[frozenset[int]] = [_NO_GPUS] * hosts
        self._lost: list[frozenset[int]] = [_NO_GPUS] * hosts
        self._disk = np.zeros((hosts, 2))
        self._jobs: Ints = np.full(hosts, -1, np.int64)
        self._job_changes = np.zeros(hosts)
        self._publish_constants()

    def _put_all(self, values: Mapping[str, float]) -> None:
        for signal, value in values.items():
            if self._tables.has(signal):
                self._tables.put(signal, value)

    def _publish_constants(self) -> None:
        for constants in (
            GPU_CONSTANTS,
            host_tables.MACHINE_CONSTANTS,
            host_tables.DRIVE_CONSTANTS,
            host_tables.INTERFACE_CONSTANTS,
            host_tables.KERNEL_CONSTANTS,
            host_tables.NVLINK_CONSTANTS,
        ):
            self._put_all(constants)
        tables = self._tables
        tables.put("rdma.rate_bytes_per_second", PORT_BYTES_PER_SECOND)
        self._put_all(
            {"rdma.link_layer_code": 1, "rdma.counter_epoch_count": 0, "rdma.receive_errors": 0}
        )
        for signal, values in host_tables.FILESYSTEMS.items():
            tables.put(signal, [values])
        tables.put("pcie.class_code", [[host_tables.CLASS_GPU] * 8 + [host_tables.CLASS_NIC] * 8])
        tables.put("pcie.numa_node_number", [[*parts.NUMA_NODES, *parts.NUMA_NODES]])

    def publish(self, moment: StepState) -> None:
        gauges, counters = moment.gauges, self._window.physics.counters
        self._publish_gpus(gauges, counters)
        self._publish_memory(gauges, counters)
        self._publish_fast(gauges)
        self._publish_phases(moment)
        self._publish_links(gauges, counters)
        self._publish_ports(gauges, counters)
        self._publish_host(moment)
        effects, count = gauges.effects, self._count
        self._hidden = _flagged_gpus(effects.unread[:count])
        self._lost = _flagged_gpus(effects.lost[:count])

    def blocks(self, slot: int, before_seconds: float, now_seconds: float) -> list[Block]:
        """Return the blocks of a host that became due in (before, now]; all, if before is negative."""
        blocks = self._tables.due(slot, before_seconds, now_seconds)
        if not self._hidden[slot] and not self._lost[slot]:
            return blocks
        readable = (self._readable_rows(slot, block) for block in blocks)
        return [block for block in readable if block.rows]

    def _readable_rows(self, slot: int, block: Block) -> Block:
        """Leave out the rows of unreadable GPUs; of a lost GPU keep only the signal that reports the loss."""
        per = NVLINKS_PER_GPU if block.table.startswith("nvlink") else 1
        if not block.table.startswith(("gpu", "nvlink")):
            return block
        hidden = set(self._hidden[slot])
        if block.table != "gpu_1s":
            hidden |= self._lost[slot]
        part = block.select(row for row in range(block.rows) if row // per not in hidden)
        if block.table == "gpu_1s":
            remaining = [gpu for gpu in range(GPUS) if gpu not in hidden]
            lost_column = part.signal_ids.index(BY_NAME["gpu.lost_state"].signal_id)
            for row in (remaining.index(gpu) for gpu in self._lost[slot] - hidden):
                for column in range(len(part.signal_ids)):
                    part.valid[column * part.rows + row] = column == lost_column
        return part

    def _publish_gpus(self, gauges: GaugeState, counters: SimulatedCounters) -> None:
        slots, tables, shares = slice(self._count), self._tables, gauges.shares
        at_work = shares.at_work[slots, None] * np.ones(GPUS)
        celsius = np.floor(self._window.physics.celsius[slots])
        tables.put("gpu.sm_clock_hertz", gauges.clock_hertz[slots])
        tables.put("gpu.clock_event_reasons_flags", gauges.flags[slots])
        tables.put("gpu.violation_power_nanoseconds", counters.power_ns[slots])
        tables.put("gpu.violation_thermal_nanoseconds", counters.thermal_ns[slots])
        tables.put("gpu.power_watts", np.round(gauges.watts[slots], 3))
        tables.put("gpu.energy_joules", np.round(counters.joules[slots], 3))
        tables.put("gpu.temperature_celsius", celsius)
        tables.put("gpu.memory_temperature_celsius", celsius + 9)
        tables.put("gpu.temperature_margin_celsius", parts.TEMPERATURE_MAX_CELSIUS - celsius)
        tables.put("gpu.utilization_ratio", np.round((1 - shares.gap[slots]) * at_work, 2))
        tables.put("gpu.memory_utilization_ratio", np.round(gauges.bandwidth[slots], 2))
        used = np.where(at_work > 0, 72e9, 6e8)
        tables.put("gpu.memory_used_bytes", used)
        tables.put("gpu.memory_free_bytes", parts.GPU_MEMORY_BYTES - used)
        tables.put("gpu.processes_count", at_work)
        tables.put("gpu.recovery_action_state", gauges.effects.recovery_action[slots])
        tables.put("gpu.lost_state", gauges.effects.lost[slots])
        tables.put("gpu.power_limit_watts", gauges.limit_watts[slots])
        generation = np.where(gauges.link_idle[slots], IDLE_GENERATION, FULL_GENERATION)
        tables.put("gpu.pcie_generation_number", generation * np.ones(GPUS))
        tables.put("gpu.pcie_width_lanes", gauges.effects.lanes[slots])
        tables.put("gpu.violation_sw_thermal_nanoseconds", counters.thermal_ns[slots])
        tables.put("gpu.violation_base_clocks_nanoseconds", counters.thermal_ns[slots])
        tables.put("gpu.violation_hw_power_brake_nanoseconds", counters.brake_ns[slots])

    def _publish_memory(self, gauges: GaugeState, counters: SimulatedCounters) -> None:
        slots, tables, effects = slice(self._count), self._tables, gauges.effects
        corrected, lost = counters.corrected[slots], counters.uncorrected[slots]
        before = self._hardware.corrected[self._host_indexes]
        for kind, since_load, lifetime in (
            ("corrected", corrected, before + corrected),
            ("uncorrected", lost, self._rows_lost + lost),
        ):
            for place in ("", "_device"):  # all errors of the model are DRAM errors
                tables.put(f"gpu.ecc_{kind}_volatile{place}_errors", since_load)
                tables.put(f"gpu.ecc_{kind}_lifetime{place}_errors", lifetime)
        tables.put("gpu.remapped_uncorrectable_rows", self._rows_lost)
        tables.put("gpu.remapped_correctable_rows", 0)
        tables.put("gpu.remap_banks_max_count", BANKS - self._rows_lost)
        tables.put("gpu.remap_banks_high_count", self._rows_lost)
        tables.put("gpu.remap_pending_state", effects.remap_pending[slots])
        tables.put("gpu.remap_failed_state", effects.remap_failed[slots])
        tables.put("gpu.pcie_replays_count", counters.replays[slots])

    def _publish_fast(self, gauges: GaugeState) -> None:
        slots, tables, effects = slice(self._count), self._tables, gauges.effects
        at_work = gauges.shares.at_work[slots, None] * np.ones(GPUS)
        tables.put("gpu_fast.samples_count", SAMPLES_PER_SECOND)
        for name in ("min", "mean", "max"):
            tables.put(f"gpu_fast.sm_clock_{name}_hertz", gauges.mean_clock_hertz[slots])
        least = np.minimum(gauges.mean_watts, gauges.watts)[slots]
        tables.put("gpu_fast.power_min_watts", np.round(least, 3))
        tables.put("gpu_fast.power_mean_watts", np.round(gauges.mean_watts[slots], 3))
        tables.put(
            "gpu_fast.power_max_watts",
            np.round(np.maximum(gauges.mean_watts, gauges.watts)[slots], 3),
        )
        tables.put("gpu_fast.thermal_ratio", np.round(effects.thermal[slots] * at_work, 3))
        tables.put("gpu_fast.power_cap_ratio", np.round(effects.capped[slots] * at_work, 3))
        tables.put("gpu_fast.power_brake_ratio", np.round(effects.braked[slots] * at_work, 3))
        tables.put("gpu_fast.sm_active_ratio", np.round(gauges.sm_active[slots], 4))
        tables.put("gpu_fast.tensor_active_ratio", np.round(gauges.tensor_active[slots], 4))
        tables.put("gpu_fast.memory_bandwidth_ratio", np.round(gauges.bandwidth[slots], 4))
        moved = np.floor(gauges.port_bytes_per_second[slots])
        written = host_tables.CHECKPOINT_BYTES_PER_SECOND * gauges.shares.writes[slots]
        tables.put("gpu_fast.pcie_received_bytes_per_second", moved)
        tables.put("gpu_fast.pcie_transmitted_bytes_per_second", moved + written)
        for direction in ("received", "transmitted"):
            rate = moved * host_tables.BYTES_PER_PORT_BYTE * effects.nvlink[slots]
            tables.put(f"gpu_fast.nvlink_{direction}_bytes_per_second", rate)

    def _publish_phases(self, moment: StepState) -> None:
        """Put the phases of each GPU, with the error of a tracker (PHASE_ERROR)."""
        slots, shares = slice(self._count), moment.gauges.shares
        at_work = shares.at_work[slots, None] & ~moment.gauges.effects.lost[slots]
        writes = at_work & shares.clock.writes[slots, None]
        works = at_work & ~writes
        tick = int(moment.seconds)
        seen = np.stack(
            [
                np.where(works, shares.compute[slots], 0.0),
                np.where(works, (shares.wait + shares.exchange)[slots], 0.0),
                np.where(works, shares.gap[slots], 0.0),
            ]
        )
        for number, part in enumerate(seen):
            part *= 1 + PHASE_ERROR * self._window.noise.normal(tick, 7 + number)[slots]
        seen /= np.maximum(seen.sum(axis=0), 1.0)
        # The remainder that the errors leave counts as waiting.
        seen[1] += np.where(works, np.maximum(1 - seen.sum(axis=0), 0.0), 0.0)
        for name, values in zip(("compute", "wait", "host_stall"), seen, strict=True):
            self._tables.put(f"gpu_fast.{name}_ratio", np.round(values, 4))
        self._tables.put("gpu_fast.checkpoint_ratio", writes)
        self._tables.put("gpu_fast.idle_ratio", ~at_work)
        self._tables.put("gpu_fast.phase_confidence_ratio", PHASE_CONFIDENCE)
        self._publish_jobs(moment, at_work)

    def _publish_jobs(self, moment: StepState, at_work: np.typing.NDArray[np.bool_]) -> None:
        """Put the learned facts of the job: its levels, its step, and its checkpoints after three intervals."""
        slots, gauges, tables = slice(self._count), moment.gauges, self._tables
        if not tables.has("gpu_fast.job_changes_count"):
            return
        jobs = moment.jobs[slots]
        self._job_changes[moment.booted[slots]] = 0
        self._job_changes += (jobs >= 0) & ((jobs != self._jobs) | moment.booted[slots])
        self._jobs = jobs.copy()
        clock = gauges.shares.clock
        interval, age = clock.interval_seconds[slots], clock.age_seconds[slots]
        since = age % interval
        is_regular = at_work & (age >= 3 * interval)[:, None]
        step = clock.step_seconds[slots, None]
        stepping = at_work & np.isfinite(step)
        values = (
            ("compute_watts", np.round(gauges.compute_watts[slots], 1), at_work),
            ("wait_watts", np.round(gauges.wait_watts[slots], 1), at_work),
            ("step_seconds", np.where(np.isfinite(step), step, 0.0), stepping),
            ("step_confidence_ratio", np.array(PHASE_CONFIDENCE), stepping),
            ("checkpoint_interval_seconds", interval[:, None], is_regular),
            ("checkpoint_duration_seconds", clock.duration_seconds[slots, None], is_regular),
            ("next_checkpoint_seconds", (interval - since)[:, None], is_regular),
            ("next_checkpoint_probability_ratio", np.array(PHASE_CONFIDENCE), is_regular),
        )
        for name, value, known in values:
            tables.put_known(f"gpu_fast.{name}", np.where(known, value, np.nan))
        tables.put("gpu_fast.job_changes_count", self._job_changes)

    def _publish_links(self, gauges: GaugeState, counters: SimulatedCounters) -> None:
        """Put the NVLinks: an incident affects a GPU's first link, all other links are healthy."""
        slots, tables = slice(self._count), self._tables
        crc = np.zeros((self._count, GPUS, NVLINKS_PER_GPU))
        crc[:, :, 0] = counters.crc[slots]
        state = np.ones((self._count, GPUS, NVLINKS_PER_GPU))
        state[:, :, 0] = ~gauges.effects.link_down[slots]
        tables.put("nvlink.crc_errors", crc.reshape(self._count, -1))
        tables.put("nvlink.replay_errors", np.floor(crc / 3).reshape(self._count, -1))
        tables.put("nvlink.link_state", state.reshape(self._count, -1))
        for column, slow in (("link_speed", 1.0), ("link_width", 0.0)):
            self._publish_pcie(gauges, column, bool(slow))

    def _publish_pcie(self, gauges: GaugeState, column: str, is_speed: bool) -> None:
        slots, nics = slice(self._count), np.ones((self._count, GPUS))
        if is_speed:
            gpus = np.where(gauges.link_idle[slots], IDLE_TRANSFERS, FULL_TRANSFERS) * np.ones(GPUS)
            values = np.hstack([gpus, nics * FULL_TRANSFERS])
            self._tables.put(f"pcie.{column}_transfers_per_second", values)
        else:
            values = np.hstack([gauges.effects.lanes[slots], nics * 16])
            self._tables.put(f"pcie.{column}_lanes", values)

    def _publish_ports(self, gauges: GaugeState, counters: SimulatedCounters) -> None:
        slots, tables, effects = slice(self._count), self._tables, gauges.effects
        down = effects.port_down[slots]
        tables.put("rdma.port_state", np.where(down, _PORT_DOWN[0], _PORT_UP[0]))
        tables.put("rdma.physical_state", np.where(down, _PORT_DOWN[1], _PORT_UP[1]))
        moved = np.floor(counters.moved[slots] / 4) * 4
        for direction in ("received", "transmitted"):
            tables.put(f"rdma.{direction}_bytes", moved)
        tables.put(
            "rdma.transmit_wait_count",
            np.floor(moved / BYTES_PER_WAIT_TICK) + counters.marked[slots],
        )
        for name, share in RETRANSMISSIONS.items():
            tables.put(name, np.floor(counters.resent[slots] * share))
        tables.put("rdma.symbol_errors", np.minimum(counters.symbols[slots], 65535))
        tables.put("rdma.link_downed_events", np.minimum(counters.downed[slots], 255))
        tables.put("rdma.buffer_overrun_errors", effects.overruns[slots])

    def _publish_host(self, moment: StepState) -> None:
        slots, tables, effects = slice(self._count), self._tables, moment.gauges.effects
        noise = self._window.noise.normal(int(moment.seconds), 6)[slots, 0]
        user = np.clip(
            self._hardware.user[self._host_indexes] + 0.006 * noise + 0.5 * effects.pressure[slots],
            0,
            0.9,
        )
        pressure = self._hardware.pressure[self._host_indexes] + effects.pressure[slots]
        waits = effects.iowait[slots]
        tables.put("host.cpu_user_ratio", user)
        tables.put("host.cpu_system_ratio", 0.03)
        tables.put("host.cpu_iowait_ratio", 0.0004 + 0.1 * waits)
        tables.put("host.cpu_steal_ratio", effects.steal[slots])
        tables.put("host.cpu_idle_ratio", np.maximum(1 - user - 0.03 - effects.steal[slots], 0.0))
        tables.put(
            "host.runnable_count",
            1 + np.floor(host_tables.CORES * (user + effects.pressure[slots])),
        )
        tables.put("host.pressure_cpu_some_ratio", np.round(np.clip(pressure, 0, 1), 4))
        tables.put("host.pressure_io_some_ratio", np.round(0.002 + waits, 4))
        tables.put("host.pressure_io_full_ratio", np.round(0.001 + 0.6 * waits, 4))
        tables.put("host.memory_available_bytes", 0.7 * host_tables.MEMORY_BYTES)
        tables.put("clock.offset_seconds", effects.offset_seconds[slots])
        tables.put("clock.error_max_seconds", 0.02)
        self._publish_disks(moment)
        tables.put("collector.outcome_state", self._outcomes(effects.unread[slots]))
        pass_seconds = np.full((self._count, len(parts.COLLECTORS)), 4e-4)
        pass_seconds[:, _GPU_COLLECTORS] += effects.call_seconds[slots, None]
        tables.put("collector.turn_seconds", pass_seconds)

    def _publish_disks(self, moment: StepState) -> None:
        slots, seconds = slice(self._count), moment.step_seconds
        shares = moment.gauges.shares
        read = (
            host_tables.DATASET_BYTES_PER_SECOND
            * shares.at_work[slots]
            * (1 - 0.5 * moment.gauges.effects.starved[slots])
        )
        written = host_tables.CHECKPOINT_BYTES_PER_SECOND * shares.writes[slots].any(axis=1)
        self._disk += np.stack([read, written], axis=1) * seconds
        row = slice(host_tables.SCRATCH, host_tables.SCRATCH + 1)
        self._tables.put("disk.read_bytes", host_tables.sectors(self._disk[:, :1]), row)
        self._tables.put("disk.written_bytes", host_tables.sectors(self._disk[:, 1:]), row)

    def _outcomes(self, unread: np.typing.NDArray[np.bool_]) -> Floats:
        outcomes = np.zeros((self._count, len(parts.COLLECTORS)))
        outcomes[:, _GPU_COLLECTORS] = np.where(unread.any(axis=1), HUNG, 0)[:, None]
        return outcomes


def _flagged_gpus(flags: np.typing.NDArray[np.bool_]) -> list[frozenset[int]]:
    found = [_NO_GPUS] * len(flags)
    for host, gpu in np.argwhere(flags).tolist():
        found[host] |= {gpu}
    return found


class FullHostTables:
    """The remaining readings of hosts; arrays are (hosts,) or (hosts, 8)."""

    def __init__(self, tables: Tables, seed: int, hosts: int, uptime_seconds: float) -> None:
        """*tables*: all tables; at each step the signals for judgement are put before `publish`."""
        self._tables, self._count = tables, hosts
        self._machine_tables = host_tables.MachineTables(
            named_random(seed, "machines around"), hosts, uptime_seconds
        )
        self._interface_tables = host_tables.InterfaceTables(
            named_random(seed, "interfaces"), hosts
        )
        self._nvlink_tables = host_tables.NvLinkTables(named_random(seed, "nvlinks"), hosts)
        self._kernel_tables = host_tables.KernelTables(named_random(seed, "kernels"), hosts)
        self._idle_ns: Floats = np.zeros((hosts, GPUS))
        self._seconds = 0.0

    def publish(
        self, moment: StepState, counters: SimulatedCounters, xids: Mapping[int, int]
    ) -> None:
        """Put the rest of the moment's readings. *xids*: number of each host's new XIDs."""
        gauges, tables, seconds = moment.gauges, self._tables, moment.step_seconds
        self._seconds += seconds
        self._publish_gpus(gauges, seconds)
        self._publish_fast(gauges)
        slots = slice(self._count)
        self._nvlink_tables.publish(tables, counters.moved[slots])
        ports.publish_ports(tables, counters.moved[slots], counters.resent[slots])
        self._publish_drives()
        writing = np.asarray(gauges.shares.writes[slots].any(axis=1), np.float64)
        watts = gauges.mean_watts[slots].sum(axis=1)
        self._machine_tables.publish(tables, seconds, self._seconds, writing, watts)
        self._interface_tables.publish(tables, seconds)
        for slot, count in xids.items():
            if count:
                self._kernel_tables.add_xids(slot, count, moment.seconds)
        self._kernel_tables.publish(tables, seconds, moment.seconds)

    def _publish_gpus(self, gauges: GaugeState, seconds: float) -> None:
        slots, tables = slice(self._count), self._tables
        at_work = gauges.shares.at_work[slots, None] * np.ones(GPUS)
        self._idle_ns += np.floor((1 - at_work) * seconds * 1e9)
        tables.put("gpu.violation_low_utilization_nanoseconds", self._idle_ns)
        tables.put("gpu.graphics_clock_hertz", gauges.clock_hertz[slots])
        tables.put("gpu.power_average_watts", np.round(gauges.mean_watts[slots], 3))

    def _publish_fast(self, gauges: GaugeState) -> None:
        """Put the minimum and maximum of the second, from the states that it had."""
        slots, tables, shares = slice(self._count), self._tables, gauges.shares
        at_work = shares.at_work[slots, None] & ~gauges.effects.lost[slots]
        computes, pauses = shares.compute[slots] > 0, shares.gap[slots] > 0
        most = np.where(computes, PHASE_SM_ACTIVE[Phase.COMPUTE], WAIT_SM_ACTIVE) * at_work
        least = np.where(pauses, PHASE_SM_ACTIVE[Phase.GAP], WAIT_SM_ACTIVE) * at_work
        tables.put("gpu_fast.samples_count", SAMPLES_PER_SECOND)
        tables.put("gpu_fast.sm_active_max_ratio", most)
        tables.put("gpu_fast.sm_active_min_ratio", least)
        occupied = mean_over_step(shares, PHASE_OCCUPANCY, WAIT_OCCUPANCY)[slots] * at_work
        tables.put("gpu_fast.sm_occupancy_ratio", np.round(occupied, 4))

    def _publish_drives(self) -> None:
        """Put both drives: the scratch drive has its traffic already, the system drive has its logs."""
        read, written = map(self._tables.read, ("disk.read_bytes", "disk.written_bytes"))
        written[:, host_tables.SYSTEM] = host_tables.sectors(
            np.array(host_tables.LOG_BYTES_PER_SECOND * self._seconds)
        )
        host_tables.publish_drives(self._tables, read, written)
