"""Fleets with readings set by hand, judged in memory or with a store, and faults for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gangline.aggregator.config import AggregatorConfig
from gangline.aggregator.fleet.fleet import Fleet
from gangline.aggregator.ingest.frame_reader import read_frame
from gangline.aggregator.model import Finding, HealthState, HostScore
from gangline.aggregator.scoring.evaluate import Judgement, evaluate
from gangline.aggregator.store.journal import StoredEvent
from gangline.aggregator.store.rows import HostRecord
from gangline.aggregator.store.store import Store
from gangline.contract import frame
from gangline.contract.block import Block
from gangline.contract.signal import PERIOD_SECONDS, Kind
from gangline.contract.signals import TABLES
from gangline.contract.wire import telemetry_pb2
from gangline.contract.wire.telemetry_pb2 import HealthEvent
from gangline.ext.intake import Received

SECOND_NS = 1_000_000_000
START_NS = 1_700_000_000 * SECOND_NS
UPTIME_NS = 3_600 * SECOND_NS

CLOCK_HERTZ, CLOCK_MAX_HERTZ = 1.755e9, 1.98e9
COMPUTING_WATTS, WAITING_WATTS, IDLE_WATTS, LIMIT_WATTS = 550.0, 150.0, 75.0, 700.0

#: The agent's own figures come at their period, and at once when they change
#: (`agent/self_metrics.py`).
TOLD_AT_ONCE = ("agent_10s", "collector_10s")

Values = dict[str, float]
#: (table, device) -> column -> value
Readings = dict[tuple[str, str], Values]

#: Table -> name -> column, and whether that is a gauge: a world is run by the thousand seconds.
_COLUMNS = {
    table: {
        signal.column: (index, signal.kind is Kind.GAUGE) for index, signal in enumerate(signals)
    }
    for table, signals in TABLES.items()
}
GPUS, STEP_SECONDS = 2, 10
BUSY, WORK = 0.68, 0.34
GPU = ""  # the host's first GPU
W, S, U = HealthState.WATCH, HealthState.SUSPECT, HealthState.UNHEALTHY
GPU_CHANGES, LINKS, C2C = "gpu_10s_changes", "nvlink_10s_changes", "c2c_10s_changes"
FABRIC, NIC = "gpu_fabric_1s_changes", "nic_10s_changes"


@dataclass
class Host:
    """A host's current readings, and the rows of its on-change tables sent last."""

    name: str
    boot_id: bytes = b"B" * 16
    booted_ns: int = START_NS - UPTIME_NS
    readings: Readings = field(default_factory=dict)
    growth: dict[tuple[str, str, str], float] = field(default_factory=dict)
    sent: Readings = field(default_factory=dict)
    sequence: int = 0
    silent: bool = False
    encoder: frame.Encoder = field(default_factory=frame.Encoder, repr=False, compare=False)

    def set(self, table: str, device: str, **values: float) -> None:
        self.readings.setdefault((table, device), {}).update(values)

    def grow(self, table: str, device: str, **per_second: float) -> None:
        """Increase counters at these rates from the current time."""
        for column, rate in per_second.items():
            self.growth[table, device, column] = rate

    def forget(self, table: str) -> None:
        self.readings = {k: v for k, v in self.readings.items() if k[0] != table}
        self.growth = {k: v for k, v in self.growth.items() if k[0] != table}

    def reboot(self, at_ns: int) -> None:
        self.boot_id, self.booted_ns, self.sent = bytes([self.boot_id[0] + 1]) * 16, at_ns, {}


class World:
    """*hosts* hosts of *gpus* GPUs in one synchronous job, all well, after *seconds*."""

    def __init__(
        self,
        hosts: int = 4,
        gpus: int = 8,
        *,
        seconds: int = 0,
        seed: int = 0,
        spread: float = 0.02,
    ) -> None:
        self.fleet = Fleet(epoch=7)
        self.now_ns = START_NS
        self.second = self.events = 0
        self.snapshot: Judgement | None = None
        self.random = np.random.default_rng(seed)
        self.hosts = [Host(f"h{i}") for i in range(hosts)]
        for host in self.hosts:
            self._furnish(host, gpus, spread)
            self.register(host, gpus)
        if seconds:
            self.run(seconds)

    def _furnish(self, host: Host, gpus: int, spread: float) -> None:
        for gpu in range(gpus):
            device = gpu_of(host, gpu)
            part = 1.0 + float(np.clip(self.random.normal(0.0, spread), -0.05, 0.05))
            host.set(
                "gpu_1s", device, sm_clock_hertz=CLOCK_HERTZ * part, power_watts=COMPUTING_WATTS,
                utilization_ratio=1.0, temperature_celsius=66, clock_event_reasons_flags=0,
                violation_thermal_nanoseconds=5e9, violation_power_nanoseconds=7e9, energy_joules=1e9,
                lost_state=0, recovery_action_state=0,
            )  # fmt: skip
            host.grow("gpu_1s", device, energy_joules=COMPUTING_WATTS)
            host.set(
                "gpu_10s", device, sm_clock_max_hertz=CLOCK_MAX_HERTZ, power_limit_watts=LIMIT_WATTS,
                temperature_slowdown_celsius=89, pcie_width_lanes=16, pcie_width_max_lanes=16,
            )  # fmt: skip
            host.set(
                "gpu_1s_changes", device,
                ecc_corrected_volatile_errors=3, ecc_uncorrected_volatile_errors=0,
            )  # fmt: skip
            host.set("gpu_10s_changes", device, remap_pending_state=0, remap_failed_state=0)
        for port in ("mlx5_0/1", "mlx5_1/1"):
            host.set("rdma_1s", port, port_state=4, physical_state=5, transmit_wait_count=9)
            columns = ("ack_timeout_errors", "packet_sequence_errors", "out_of_sequence_packets",
                       "implied_nak_errors", "adaptive_retransmissions_packets",
                       "link_downed_events")  # fmt: skip
            host.set("rdma_1s_changes", port, **dict.fromkeys(columns, 2.0))
            host.set("rdma_10s_changes", port, buffer_overrun_errors=0)
        host.set("host_1s", "host", pressure_cpu_some_ratio=0.02, cpu_steal_ratio=0.0)
        host.set("net_1s", "eth0", carrier_state=1)
        host.set("filesystem_60s", "/", size_bytes=5e11, available_bytes=2e11, read_only_state=0)
        host.set("agent_10s", "agent", spool_dropped_frames=0)
        for collector in ("gpu_1s", "rdma_1s", "host_1s"):
            host.set("collector_10s", collector, outcome_state=0, turn_seconds=0.001)

    def register(self, host: Host, gpus: int = 8, model: str = "H100") -> None:
        devices = [
            telemetry_pb2.Device(
                kind="gpu",
                key=gpu_of(host, gpu),
                attributes={"name": model, "pci_address": f"0000:{gpu:02x}:00.0"},
            )
            for gpu in range(gpus)
        ]
        self.fleet.register(host.name, simulated=False, boot_id=host.boot_id, devices=devices)

    def run(
        self,
        seconds: int,
        each: Callable[[int], None] | None = None,
        every_seconds: int = 5,
        last_seconds: int = 3,
    ) -> Judgement:
        """Advance *seconds* seconds; *each* is called before each of them with the seconds run so far.

        The last *last_seconds* are judged one by one, the earlier ones at every fifth
        (*every_seconds*): judging is nearly the whole cost of a second.
        """
        for passed in range(seconds):
            if each:
                each(passed)
            self.now_ns += SECOND_NS
            self.second += 1
            for host in self.hosts:
                for (table, device, column), rate in host.growth.items():
                    host.readings[table, device][column] += rate
                if not host.silent:
                    self.fleet.observe(host.name, self.frame(host), self.now_ns)
            if seconds - passed <= last_seconds or self.second % every_seconds == 0:
                self.snapshot = evaluate(self.fleet, self.now_ns, self.snapshot)
        assert self.snapshot is not None
        return self.snapshot

    def frame(self, host: Host) -> Received:
        """Return the host's current frame, as decoded from the wire."""
        host.sequence += 1
        boottime_ns = self.now_ns - host.booted_ns
        stamp = frame.Stamp(b"R" * 16, host.boot_id, host.sequence, boottime_ns, self.now_ns)
        return read_frame(host.encoder.encode(stamp, self._blocks(host), deflate=False))

    def _blocks(self, host: Host) -> list[Block]:
        tables: dict[str, list[str]] = {}
        for (table, device), values in host.readings.items():
            period = PERIOD_SECONDS[TABLES[table][0].pace]
            due = not host.sent or self.second % period == 0
            if TABLES[table][0].on_change:
                known = host.sent.get((table, device))
                due = due and (known != values or self.second % 60 == 0)
            if table in TOLD_AT_ONCE and host.sent.get((table, device)) != values:
                due = True
            if due:
                tables.setdefault(table, []).append(device)
                host.sent[table, device] = dict(values)
        return [
            block(t, {d: host.readings[t, d] for d in devices}) for t, devices in tables.items()
        ]

    def event(
        self, host: Host, code: int, device: str, name: str = "gpu.xid", *, ago: float = 0.0,
        lasted: float = 0.0, **more: Any,
    ) -> telemetry_pb2.HealthEvent:  # fmt: skip
        """Report an event of *host* that began *ago* seconds ago, and lasted *lasted* seconds; return it.

        *more*: further fields.
        """
        self.events += 1
        began_ns = self.now_ns - round(ago * SECOND_NS)
        boottime_ns = max(1, began_ns - host.booted_ns)
        fields: dict[str, Any] = {
            "event_id": f"event-{self.events}",
            "device_kind": name.partition(".")[0],
            "message": f"NVRM: Xid (PCI:{device}): {code}" if name == "gpu.xid" else "",
            "wall_time_ns": began_ns,
            "boottime_ns": boottime_ns,
            "last_boottime_ns": boottime_ns + round(lasted * SECOND_NS),
        }
        event = telemetry_pb2.HealthEvent(device=device, name=name, code=code, **(fields | more))
        self.fleet.observe_event(host.name, event, self.now_ns, began_ns)
        return event

    def score(self, host: Host) -> HostScore:
        assert self.snapshot is not None
        return next(h for h in self.snapshot.hosts if h.host == host.name)

    def states(self) -> dict[str, str]:
        assert self.snapshot is not None
        return {h.host: h.state.name for h in self.snapshot.hosts}


def block(table: str, rows: dict[str, Values]) -> Block:
    """Return a block of *rows*, by device and column; unnamed cells are missing."""
    result, columns = Block(table, tuple(rows)), _COLUMNS[table]
    floats, ints, valid = result.floats, result.ints, result.valid
    for row, values in enumerate(rows.values()):
        for name, value in values.items():
            column, is_gauge = columns[name]
            cell = column * result.rows + row
            if is_gauge:
                floats[cell] = value
            else:
                ints[cell] = int(value)
            valid[cell] = 1
    return result


def gpu_of(host: Host, gpu: int) -> str:
    return f"GPU-{host.name}-{gpu}-0000-0000-000000000000"


def all_well(world: World) -> bool:
    return set(world.states().values()) == {"HEALTHY"}


def only_words(world: World) -> str:
    """Return the message of the only evidence against the first host; more than one fails."""
    (evidence,) = world.score(world.hosts[0]).evidence
    return evidence.message


def throttle(host: Host, gpu: int, ratio: float = 0.68) -> None:
    """Reduce a GPU's clock by *ratio* through heat, as an H100 reports it."""
    device = gpu_of(host, gpu)
    clock = host.readings["gpu_1s", device]["sm_clock_hertz"]
    host.set("gpu_1s", device, sm_clock_hertz=clock * ratio, temperature_celsius=88,
             clock_event_reasons_flags=0x20, power_watts=390.0)  # fmt: skip
    host.grow("gpu_1s", device, violation_thermal_nanoseconds=8e8)


def wait_for_others(world: World, slow: Host) -> None:
    """Set all other hosts to half computing, half waiting."""
    for host in world.hosts:
        for gpu in range(8):
            if host is not slow:
                watts = COMPUTING_WATTS if (world.second + gpu) % 2 else WAITING_WATTS
                host.set("gpu_1s", gpu_of(host, gpu), power_watts=watts, utilization_ratio=1.0)


def tell(
    world: World, host: Host, job: str, state: str = "running", gpus: Sequence[int] = range(GPUS)
) -> None:
    """Report a process of *job* on each of these GPUs of *host*."""
    for gpu in gpus:
        device = gpu_of(host, gpu)
        world.event(
            host, 0, device, "gpu.process", event_id=f"/{device}//{job}", process_id=7 + gpu,
            attributes={"state": state, "source": "slurm", "job_id": job},
        )  # fmt: skip


def in_job(hosts: int = 6, *, made: World | None = None, work: bool = True) -> World:
    """Return a world whose hosts run a job of at least two minutes, all alike."""
    world = made or World(hosts=hosts, gpus=GPUS, spread=0.01)
    for host in world.hosts:
        tell(world, host, "1001")
        busy(host, 1.0)
        if not work:
            host.forget("gpu_fast_1s")
            busy_only(host, 1.0)
        host.set("host_1s", "host", pressure_io_some_ratio=0.01)
    pass_steps(world, 4)
    return world


def busy(host: Host, share: float, work: float = 1.0) -> None:
    """Set the SMs of *host* to the share *share* of normal time, at *work* of the normal work."""
    for gpu in range(GPUS):
        host.set("gpu_fast_1s", gpu_of(host, gpu),
                 sm_active_ratio=BUSY * share, tensor_active_ratio=WORK * work)  # fmt: skip


def busy_only(host: Host, share: float) -> None:
    for gpu in range(GPUS):
        host.set("gpu_fast_1s", gpu_of(host, gpu), sm_active_ratio=BUSY * share)


def draw(host: Host, watts: float) -> None:
    for gpu in range(GPUS):
        host.set("gpu_1s", gpu_of(host, gpu), power_watts=watts)
        host.grow("gpu_1s", gpu_of(host, gpu), energy_joules=watts)


def gapped(host: Host, gap: float, **pressures: float) -> None:
    """Leave the GPUs of *host* idle for *gap* of the time."""
    for gpu in range(GPUS):
        host.set("gpu_1s", gpu_of(host, gpu), utilization_ratio=1.0 - gap)
    host.set("host_1s", "host", **pressures)


def pass_steps(world: World, steps: int, each: Callable[[int], None] | None = None) -> None:
    for step in range(steps):
        if each:
            each(step)
        world.now_ns += (STEP_SECONDS - 1) * SECOND_NS
        world.second += STEP_SECONDS - 1
        for host in world.hosts:
            for (table, device, column), rate in host.growth.items():
                host.readings[table, device][column] += (STEP_SECONDS - 1) * rate
        world.run(1)


def blamed(world: World) -> list[str]:
    return [name for name, state in world.states().items() if state not in ("HEALTHY", "UNKNOWN")]


class StoredWorld(World):
    """A world whose hosts' frames, events and findings also go to a real store."""

    def __init__(self, hosts: int, folder: Path, gpus: int = GPUS) -> None:
        self.store: Store | None = None
        super().__init__(hosts, gpus)
        config = AggregatorConfig(data=folder, ops_seconds=3600.0)
        self.store = Store.open(folder, config, lambda: self.now_ns)
        for index, host in enumerate(self.hosts):
            self.keep_host(host, index, gpus)

    def keep_host(self, one: Host, index: int, gpus: int) -> None:
        devices = tuple(("gpu", gpu_of(one, n), {"name": "H100"}) for n in range(gpus))
        record = HostRecord(
            one.name, index, False, b"R" * 16, one.boot_id, "", "", {}, self.now_ns, devices
        )
        assert self.store
        self.store.submit_host(record, {})

    def frame(self, host: Host) -> Received:
        host_frame = super().frame(host)
        if self.store is not None:
            taken = self.store.submit_frame(host.name, host_frame, host.booted_ns, lambda _: None)
            assert taken
        return host_frame

    def event(
        self, host: Host, code: int, device: str, name: str = "gpu.xid", **more: Any
    ) -> HealthEvent:
        event = super().event(host, code, device, name, **more)
        assert self.store
        self.store.append_events([StoredEvent(host.name, self.now_ns, event.wall_time_ns, event)])
        return event

    def find(self, finding: Finding) -> None:
        self.fleet.add_finding(finding)
        assert self.store
        self.store.submit_findings([finding])


@dataclass(frozen=True)
class Fault:
    """`bad` values are set, `grow` counters grow by this rate per second."""

    rule: str
    state: HealthState
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
    rule: str, state: HealthState, table: str, device: str, column: str, well: float, bad: float,
    enter_seconds: int = 0,
) -> Fault:  # fmt: skip
    return Fault(rule, state, table, device, {column: well}, {column: bad}, {}, enter_seconds)


def _count(
    rule: str, state: HealthState, table: str, device: str, column: str, more: float
) -> Fault:
    return Fault(rule, state, table, device, {column: 40.0}, {column: 40.0 + more})


def _rate(rule: str, table: str, device: str, column: str, per_second: float) -> Fault:
    return Fault(rule, W, table, device, {column: 40.0}, {}, {column: per_second}, 20)


FAULTS = (
    _state("gpu.memory_unrepairable", S, GPU_CHANGES, GPU, "unrepairable_memory_state", 0, 1),
    _state("gpu.sram_threshold", S, GPU_CHANGES, GPU, "sram_threshold_exceeded_state", 0, 1),
    _state("gpu.remap_exhausted", W, GPU_CHANGES, GPU, "remap_banks_none_count", 0, 2),
    _state("gpu.repair_pending", W, GPU_CHANGES, GPU, "repair_channel_pending_state", 0, 1),
    _state("gpu.repair_tpc_pending", W, GPU_CHANGES, GPU, "repair_tpc_pending_state", 0, 1),
    _state("gpu.retirement_pending", W, GPU_CHANGES, GPU, "retirement_pending_state", 0, 1),
    _count("gpu.pcie_fatal", S, GPU_CHANGES, GPU, "pcie_fatal_errors", 2),
    _count("gpu.pcie_rollovers", W, GPU_CHANGES, GPU, "pcie_replay_rollovers_count", 2),
    _rate("gpu.pcie_replays", GPU_CHANGES, GPU, "pcie_replays_count", 30),
    _rate("gpu.pcie_naks", GPU_CHANGES, GPU, "pcie_naks_received_count", 30),
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
    _state("gpu_fabric.unregistered", U, FABRIC, GPU, "registration_state", 3, 2, 120),
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
