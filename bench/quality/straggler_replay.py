"""One episode of a gang through the real fleet and judge: the agents' frames, and the hosts that
are named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import mean

import numpy as np

from bench.quality import bsp_world as bsp
from bench.quality.bsp_world import Episode, Floats, Plan
from gangline.aggregator.fleet.fleet import Fleet
from gangline.aggregator.ingest.frame_reader import read_frame
from gangline.aggregator.model import HealthState, Reason
from gangline.aggregator.scoring.evaluate import Judgement, evaluate
from gangline.contract import frame
from gangline.contract.block import Block
from gangline.contract.signal import Kind
from gangline.contract.signals import TABLES
from gangline.contract.wire import telemetry_pb2

SECOND_NS = 1_000_000_000
START_NS = 1_700_000_000 * SECOND_NS
UPTIME_NS = 3_600 * SECOND_NS
#: Finding on every new host, which does not count.
NEW_HOST = "host.new"
#: NVLinks of a GPU with errors.
LINKS = 2
#: Interval of judging; readings are taken each second, like in service.
JUDGE_SECONDS = 5
#: Simpler detectors; the seconds that they average, and their limits.
NAIVE = ("utilization outlier", "mean power z-score", "SM time, peers only")
NAIVE_SECONDS, UTILIZATION_LESS, Z_MAX = 120, 0.03, 3.0
GRAVE = frozenset((HealthState.DEGRADED, HealthState.SUSPECT, HealthState.UNHEALTHY))
#: Reasons that name each kind's cause; a straggler's is right only if no rule names a cause.
REASONS: dict[str, frozenset[Reason]] = {
    "heat": frozenset({Reason.THERMAL_THROTTLE}),
    "cap": frozenset({Reason.POWER_CAP}),
    "cpu": frozenset({Reason.HOST_CPU}),
    "storage": frozenset({Reason.STORAGE}),
    "pcie": frozenset({Reason.PCIE}),
    "link": frozenset({Reason.FABRIC, Reason.RAIL_DOWN}),
    "nvlink": frozenset({Reason.NVLINK_ERRORS}),
    "silent": frozenset({Reason.STRAGGLER}),
    "gpu": frozenset({Reason.STRAGGLER}),
}


class SentTable:
    """One table of one host, its columns by name."""

    def __init__(self, name: str, devices: Sequence[str]) -> None:
        self.block = Block(name, devices)
        shape = len(self.block.signal_ids), self.block.rows
        self._ints = np.frombuffer(self.block.cells, np.uint64).reshape(shape)
        self._floats = self._ints.view(np.float64)
        self._valid = np.frombuffer(self.block.valid, np.uint8).reshape(shape)
        self._columns = {
            s.column: (index, s.kind is Kind.GAUGE) for index, s in enumerate(TABLES[name])
        }

    def put(self, **values: float | Floats) -> None:
        for name, value in values.items():
            at, is_gauge = self._columns[name]
            if is_gauge:
                self._floats[at] = value
            else:
                self._ints[at] = np.asarray(value).astype(np.uint64)
            self._valid[at] = 1


class SendingHost:
    """One host's agent: its tables, and the frames that it sends of them."""

    def __init__(self, prefix: str, host: int, tables: Sequence[str]) -> None:
        self.name, self._host = f"{prefix}-{host:03d}", host
        self.gpus = [f"GPU-{host:08d}-0000-0000-0000-{gpu:012d}" for gpu in range(bsp.GPUS)]
        devices = {
            "gpu": self.gpus, "gpu_fast": self.gpus, "host": ["host"],
            "rdma": [f"mlx5_{port}/1" for port in range(bsp.GPUS)],
            "nvlink": [f"{gpu}/link{link}" for gpu in self.gpus for link in range(LINKS)],
        }  # fmt: skip
        self.tables = {
            name: SentTable(name, devices[TABLES[name][0].device_kind]) for name in tables
        }
        self.boot_id = bytes([1 + host % 250]) * 16
        self._encoder, self._sequence = frame.Encoder(), 0
        self._last: dict[str, tuple[bytes, bytes]] = {}  # content of tables sent on change

    def encode(self, second: int, wall_ns: int) -> bytes:
        """Return the frame of the tables that are due in *second*."""
        due, blocks = second + self._host, []
        for name, sent in self.tables.items():
            period = {"10s": 10, "60s": 60}.get(TABLES[name][0].pace.value, 1)
            if due % period and self._sequence:
                continue
            if TABLES[name][0].on_change:
                now = bytes(sent.block.cells), bytes(sent.block.valid)
                if self._last.get(name) == now and due % 60:
                    continue
                self._last[name] = now
            blocks.append(sent.block)
        self._sequence += 1
        boottime_ns = UPTIME_NS + (second + 1) * SECOND_NS
        stamp = frame.Stamp(b"R" * 16, self.boot_id, self._sequence, boottime_ns, wall_ns)
        return self._encoder.encode(stamp, blocks, deflate=False)

    def register(self, fleet: Fleet, model: str = "H100") -> None:
        """Register the host, with its GPUs."""
        devices = [
            telemetry_pb2.Device(
                kind="gpu", key=key, attributes={"name": model, "pci_address": f"0000:{index:02x}:00.0"}
            )
            for index, key in enumerate(self.gpus)
        ]  # fmt: skip
        fleet.register(self.name, simulated=False, boot_id=self.boot_id, devices=devices)

    def process(
        self, gpu: int, pid: int, job_id: str, state: str, second: int
    ) -> telemetry_pb2.HealthEvent:
        """Return the report of a rank on one GPU."""
        key, now_ns = self.gpus[gpu], UPTIME_NS + second * SECOND_NS
        return telemetry_pb2.HealthEvent(
            event_id=f"/{key}//{pid}", device_kind="gpu", device=key, name="gpu.process",
            process_id=pid, boottime_ns=now_ns, last_boottime_ns=now_ns, revision=1 + second,
            attributes={"state": state, "source": "slurm", "job_id": job_id},
        )  # fmt: skip


class Reader:
    """Readings of drivers and kernel in an episode, second by second: (seconds, hosts, ...)."""

    def __init__(self, episode: Episode, random: np.random.Generator) -> None:
        plan, self.episode = episode.plan, episode
        seconds = plan.seconds

        def by_second(values: Floats) -> Floats:
            return np.asarray(values.reshape(seconds, bsp.SLOTS_PER_SECOND, *values.shape[1:]))

        noise = 1 + 0.01 * random.standard_normal(episode.watts.shape)
        power = episode.watts * noise
        if not plan.has_gpm:  # the driver's mean of a second
            kernel = np.ones(bsp.SLOTS_PER_SECOND) / bsp.SLOTS_PER_SECOND
            power = np.apply_along_axis(
                lambda column: np.convolve(column, kernel)[: column.size], 0, power
            )
        delay = episode.delay_slots + (not plan.has_gpm)
        power = np.round(np.concatenate([np.repeat(power[:1], delay, axis=0), power[:-delay]]), 1)
        each = by_second(power)
        self.power, self.power_min, self.power_max = each.mean(1), each.min(1), each.max(1)
        self.last_power = each[:, -1]
        self.joules = 1e6 + np.cumsum(by_second(episode.watts).sum(1) * bsp.SLOT_SECONDS, axis=0)
        shares = by_second(episode.shares)
        resident = shares[..., (bsp.COMPUTE, bsp.WAIT, bsp.EXCHANGE)].sum(-1)
        writes = shares[..., bsp.CHECKPOINT].copy()
        writes[:, :, 0, 0] *= 0.03  # the writer's GPU is empty
        self.used = np.clip((resident + writes).mean(1), 0.0, 1.0)
        levels = episode.sm_levels
        active = shares[..., bsp.COMPUTE] * levels[0]
        active += shares[..., (bsp.WAIT, bsp.EXCHANGE, bsp.CHECKPOINT)].sum(-1) * levels[1]
        active *= 1 + 0.01 * random.standard_normal(active.shape)
        self.active, self.active_min, self.active_max = active.mean(1), active.min(1), active.max(1)
        self.work = by_second(episode.work).mean(1) * (
            1 + 0.004 * random.standard_normal(active.mean(1).shape)
        )
        clock = by_second(episode.clock) * episode.clock_hertz
        self.clock, self.clock_min, self.clock_max = clock.mean(1), clock.min(1), clock.max(1)
        self.moved = np.cumsum(by_second(episode.port_bytes).sum(1), axis=0) * bsp.SLOT_SECONDS
        self.waits = np.cumsum(by_second(episode.congested).sum(1), axis=0) * 1e5
        self.pressure = by_second(episode.pressure).mean(1)
        runs = self.used.max(axis=(1, 2)) > 0.02
        self.runs = runs
        self.on = np.array([plan.onset <= second < plan.heals for second in range(seconds)])


class Agent(SendingHost):
    """One host's agent: its tables, filled for each second."""

    def __init__(self, reader: Reader, host: int) -> None:
        names = (
            "gpu_1s", "gpu_10s", "gpu_60s", "gpu_1s_changes", "gpu_10s_changes", "gpu_fast_1s", "rdma_1s",
            "rdma_1s_changes", "host_1s", "nvlink_10s_changes",
        )  # fmt: skip
        super().__init__("bsp", host, names)
        self._reader, plan = reader, reader.episode.plan
        self._is_culprit = host in plan.culprits and plan.kind in bsp.NODE_KINDS
        self._thermal_ns = np.zeros(bsp.GPUS)
        self._power_ns = np.zeros(bsp.GPUS)
        self._symbols = self._link_errors = 0.0

    def frame(self, second: int, now_ns: int) -> bytes:
        """Return the frame of *second*."""
        self._fill(second)
        return self.encode(second, now_ns)

    def _fill(self, second: int) -> None:
        r, host, plan = self._reader, self._host, self._reader.episode.plan
        episode = r.episode
        is_on = bool(r.on[second]) and self._is_culprit
        hot, capped = is_on and plan.kind == "heat", is_on and plan.kind == "cap"
        held = 1.0 - np.clip(r.clock[second, host] / np.median(r.clock[second]), 0.0, 1.0)
        self._thermal_ns += SECOND_NS * (held > 0.02) * hot
        self._power_ns += SECOND_NS * (held > 0.02) * capped
        flags = 0x20 * hot + 0x4 * capped
        limit = episode.limit_watts
        celsius = 86.0 if hot else 45.0 + 0.04 * r.power[second, host]
        self.tables["gpu_1s"].put(
            sm_clock_hertz=np.round(r.clock[second, host] / 15e6) * 15e6, power_watts=r.last_power[second, host],
            utilization_ratio=np.round(r.used[second, host], 2), temperature_celsius=celsius,
            clock_event_reasons_flags=flags, violation_thermal_nanoseconds=5e9 + self._thermal_ns,
            violation_power_nanoseconds=7e9 + self._power_ns, energy_joules=np.round(r.joules[second, host], 3),
            lost_state=0, recovery_action_state=0,
        )  # fmt: skip
        self.tables["gpu_10s"].put(
            sm_clock_max_hertz=1.98e9, power_limit_watts=episode.capped_watts if capped else limit, temperature_slowdown_celsius=89,
            pcie_width_lanes=4 if is_on and plan.kind == "pcie" else 16, pcie_width_max_lanes=16,
        )  # fmt: skip
        self.tables["gpu_60s"].put(power_limit_default_watts=limit)
        self.tables["gpu_1s_changes"].put(
            ecc_corrected_volatile_errors=0, ecc_uncorrected_volatile_errors=0
        )
        self.tables["gpu_10s_changes"].put(remap_pending_state=0, remap_failed_state=0)
        fast = self.tables["gpu_fast_1s"]
        fast.put(
            samples_count=10, sm_clock_mean_hertz=r.clock[second, host], sm_clock_min_hertz=r.clock_min[second, host],
            sm_clock_max_hertz=r.clock_max[second, host], power_mean_watts=r.power[second, host],
            power_min_watts=r.power_min[second, host], power_max_watts=r.power_max[second, host],
            thermal_ratio=float(hot), power_cap_ratio=float(capped), power_brake_ratio=0.0,
        )  # fmt: skip
        if plan.has_gpm:
            fast.put(
                sm_active_ratio=r.active[second, host], sm_active_min_ratio=r.active_min[second, host],
                sm_active_max_ratio=r.active_max[second, host], tensor_active_ratio=r.work[second, host],
            )  # fmt: skip
        moved = 1e9 + np.full(bsp.GPUS, r.moved[second, host])
        bad_link = is_on and plan.kind == "link"
        self._symbols += 40.0 * bad_link
        errors = np.zeros(bsp.GPUS)
        errors[0] = np.floor(self._symbols)
        self.tables["rdma_1s"].put(
            port_state=4, physical_state=5, rate_bytes_per_second=50e9, received_bytes=moved, transmitted_bytes=moved,
            transmit_wait_count=1e4 + np.full(bsp.GPUS, r.waits[second, host]) + 50 * errors,
        )  # fmt: skip
        self.tables["rdma_1s_changes"].put(
            symbol_errors=errors, packet_sequence_errors=5 * errors, ack_timeout_errors=errors,
            out_of_sequence_packets=3 * errors, implied_nak_errors=0, adaptive_retransmissions_packets=0,
            link_downed_events=0,
        )  # fmt: skip
        self._link_errors += 200.0 * (is_on and plan.kind == "nvlink")
        crc = np.zeros(LINKS * bsp.GPUS)
        crc[1] = self._link_errors
        self.tables["nvlink_10s_changes"].put(
            link_state=1, crc_errors=crc, replay_errors=0.1 * crc, recovery_errors=0
        )
        cpu, io = r.pressure[second, host]
        self.tables["host_1s"].put(
            pressure_cpu_some_ratio=cpu, pressure_io_some_ratio=io, pressure_io_full_ratio=0.6 * io, cpu_steal_ratio=0.0,
            cpu_user_ratio=0.1, cpu_system_ratio=0.03, cpu_idle_ratio=0.85, runnable_count=2.0,
        )  # fmt: skip


@dataclass
class Told:
    """Reports about one host: first second, worst state, rules."""

    named: float = -1.0  # after the cause's begin
    watched: float = -1.0  # the same, or WATCH; at any time
    is_early: bool = False  # named before the cause
    reasons: set[Reason] = field(default_factory=set[Reason])
    rules: dict[str, float] = field(default_factory=dict[str, float])
    devices: set[str] = field(default_factory=set[str])


@dataclass
class Outcome:
    """Results of one episode."""

    plan: Plan
    of_host: dict[int, Told] = field(default_factory=dict[int, Told])
    naive: dict[str, frozenset[int]] = field(default_factory=dict[str, frozenset[int]])
    pace_lost: float = 0.0

    def is_named(self, host: int) -> bool:
        report = self.of_host.get(host)
        return report is not None and report.named >= 0.0

    def is_watched_only(self, host: int) -> bool:
        report = self.of_host.get(host)
        return report is not None and report.watched >= 0 and not self.is_named(host)

    @property
    def wrong(self) -> list[int]:
        """Return the wrongly named hosts: without a fault, or before it."""
        culprits = self.plan.culprits if self.plan.kind in bsp.NODE_KINDS else ()
        return [
            host for host, report in self.of_host.items()
            if report.is_early or (report.named >= 0.0 and host not in culprits)
        ]  # fmt: skip

    @property
    def node_days(self) -> float:
        """Return the days of all hosts without a fault."""
        culprits = len(self.plan.culprits) if self.plan.kind in bsp.NODE_KINDS else 0
        return (self.plan.hosts - culprits) * self.plan.seconds / 86400.0


def judge(plan: Plan) -> Outcome:
    return judge_readings(Reader(bsp.play(plan), np.random.default_rng([plan.seed, 7])))


def judge_readings(reader: Reader) -> Outcome:
    """Judge an episode, second by second, with the frames of its agents."""
    episode, plan = reader.episode, reader.episode.plan
    fleet, outcome, judged = Fleet(epoch=1), Outcome(plan), None
    agents = [Agent(reader, host) for host in range(plan.hosts)]
    for agent in agents:
        agent.register(fleet)
    for second in range(plan.seconds):
        now_ns = START_NS + (second + 1) * SECOND_NS
        for host, agent in enumerate(agents):
            if host in plan.silent_hosts and second > 60:
                continue
            if plan.is_attributed and second == 0:
                for gpu in range(bsp.GPUS):
                    event = agent.process(gpu, 4000 + gpu, "77", "running", second)
                    fleet.observe_event(agent.name, event, now_ns, now_ns)
            fleet.observe(agent.name, read_frame(agent.frame(second, now_ns)), now_ns)
        fleet.advance(now_ns)
        if second % JUDGE_SECONDS == 0 or second < 5:
            judged = evaluate(fleet, now_ns, judged)
            _note(outcome, judged, second)
    outcome.naive = naive(min(plan.heals, plan.seconds), reader.used, reader.power, reader.active)
    ends = episode.steps
    before = float(((ends > plan.onset - 100) & (ends < plan.onset)).sum())
    after = float(((ends > plan.onset + 40) & (ends < plan.onset + 140)).sum())
    outcome.pace_lost = 1.0 - after / before if before else 0.0
    return outcome


def _note(outcome: Outcome, judged: Judgement, second: int) -> None:
    for host, tracked in judged.tracked_symptoms.items():
        for score in tracked.values():
            worst = score.worst
            if not score.active or worst.host_state is HealthState.HEALTHY:
                continue
            report = outcome.of_host.setdefault(host, Told())
            report.rules.setdefault(worst.rule.name, float(second))
            reason = worst.rule.reason if worst.reason is None else worst.reason
            if worst.rule.name != NEW_HOST:
                report.watched = second if report.watched < 0 else report.watched
            if worst.host_state not in GRAVE and worst.speed >= 1.0:
                continue
            report.devices.add(worst.device)
            if second >= outcome.plan.onset:
                report.reasons.add(reason)
                report.named = second if report.named < 0 else report.named
            else:
                report.is_early = True


def naive(end: float, *readings: Floats) -> dict[str, frozenset[int]]:
    """Return the hosts named by simpler detectors, in the last two minutes before *end*.

    *readings*: utilization, power and SM activity, each (seconds, hosts, values of a host).
    """
    span = slice(max(int(end) - NAIVE_SECONDS, 0), int(end))
    used, power, active = (values[span].mean(axis=(0, 2)) for values in readings)
    flags = (
        used < np.median(used) - UTILIZATION_LESS,
        np.abs(_z_scores(power)) > Z_MAX,
        _z_scores(active) > Z_MAX,  # NaN without GPM
    )
    result = zip(NAIVE, flags, strict=True)
    return {name: frozenset(np.flatnonzero(flag).tolist()) for name, flag in result}


def _z_scores(values: Floats) -> Floats:
    middle = np.median(values)
    return np.asarray((values - middle) / (1.4826 * np.median(np.abs(values - middle)) + 1e-9))


def causes_f1(
    reports: Iterable[tuple[frozenset[Reason], set[Reason]]],
    causes: Collection[frozenset[Reason]],
    stragglers: frozenset[Reason],
) -> float:
    """Return the mean F1 over *causes*. *reports*: each culprit's cause, and its reported reasons.

    A culprit named for another cause counts against both, but a straggler's reason beside a cause
    is no other cause.
    """
    hits, named, totals = (Counter[frozenset[Reason]]() for _ in range(3))
    for wanted, reasons in reports:
        totals[wanted] += 1
        claimed = {cause for cause in causes if reasons & cause}
        if len(claimed) > 1:
            claimed.discard(stragglers)
        named.update(claimed)
        hits[wanted] += wanted in claimed
    # F1 is 2 TP / (TP + FP + TP + FN); it is 0 for a cause that was never named.
    return mean(2 * hits[cause] / (named[cause] + total) for cause, total in totals.items())
