"""Readings of the third world (`pipeline_world`) as from drivers, kernels and agents.

Power: the sensor sees 25 ms of each 100 ms, with a gain error per part (Yang et al. 2024, Part-time
power measurements), smoothed and late; without GPM the mean of a second, as an A100's driver
reports. GPM gives cycles over cycles (nvml.h): a part at a lower clock does the same work in fewer.
Utilization is the share of the last sixth of a second. Phases come from the agent's own tracker.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from bench.quality.pipeline_scenario import GPUS, SLOTS_PER_SECOND, Floats, GangRun, HostFault
from bench.quality.pipeline_world import GangRecord
from bench.quality.straggler_replay import SECOND_NS, UPTIME_NS, SendingHost
from gangline.aggregator.fleet.fleet import Fleet
from gangline.contract.wire import telemetry_pb2
from gangline.ext.phases import JOB_COLUMNS, SECOND_COLUMNS, SIGNALS, PhaseTracker

RATE = 10
#: Bytes a second of a port of 400 Gb/s.
RATE_BYTES = 50e9
SLOTS_PER_SAMPLE = SLOTS_PER_SECOND // RATE
#: Kinds of evidence, by their columns: an ablation removes these.
EVIDENCE: dict[str, tuple[str, ...]] = {
    "GPM": ("sm_active_ratio", "sm_active_min_ratio", "sm_active_max_ratio", "tensor_active_ratio"),
    "phases": (*SECOND_COLUMNS, *JOB_COLUMNS),
    "clock and power": (
        "sm_clock_hertz", "power_watts", "energy_joules", "clock_event_reasons_flags", "violation_thermal_nanoseconds",
        "violation_power_nanoseconds", "temperature_celsius", "power_limit_watts", "power_limit_default_watts",
        "sm_clock_mean_hertz", "sm_clock_min_hertz", "sm_clock_max_hertz", "power_mean_watts", "power_min_watts",
        "power_max_watts", "thermal_ratio", "power_cap_ratio", "power_brake_ratio", "sm_clock_max_hertz",
    ),
    "utilization": ("utilization_ratio",),
    "host pressure": ("pressure_cpu_some_ratio", "pressure_io_some_ratio", "pressure_io_full_ratio", "cpu_steal_ratio"),
    "network": (
        "received_bytes", "transmitted_bytes", "transmit_wait_count", "symbol_errors", "packet_sequence_errors",
        "ack_timeout_errors", "out_of_sequence_packets",
    ),
}  # fmt: skip


class DriverReadings:
    """Readings of all GPUs at 10 Hz, (samples, GPUs), and values per second, (seconds, GPUs)."""

    def __init__(self, record: GangRecord, random: np.random.Generator) -> None:
        self.record, scenario = record, record.scenario
        samples, count = scenario.seconds * RATE, scenario.hosts * GPUS
        older = np.repeat(record.is_older | (not scenario.has_gpm), GPUS)
        self.has_gpm = ~older.reshape(-1, GPUS)[:, 0]

        def by_sample(values: np.ndarray) -> np.ndarray:
            return values.reshape(samples, SLOTS_PER_SAMPLE, count)

        gain = 1 + 0.02 * random.standard_normal(count)
        seen = by_sample(record.watts)[:, int(random.integers(SLOTS_PER_SAMPLE))].astype(float)
        power = _smoothed(seen * gain, 0.6)
        power[:, older] = _mean_of(power[:, older], RATE)
        power += 0.006 * power * random.standard_normal(power.shape)
        delay = int(random.integers(1, 3))
        late = np.concatenate([np.repeat(power[:1], delay, axis=0), power[:-delay]])
        self.power = np.round(late, 1)
        watts = _by_second(by_sample(record.watts).mean(1)).mean(1)
        self.joules = np.cumsum(watts * gain, axis=0) + 1e6
        busy = 1 - record.stall - record.idle
        self.used = np.round(_mean_of(by_sample(busy).mean(1).astype(float), 2), 2)
        high, low = record.sm_levels
        cycles = by_sample(record.clock).mean(1)
        active = high * record.compute + low * np.clip(busy - record.compute, 0, 1)
        noise = 1 + 0.008 * random.standard_normal((samples, count))
        self.active = _mean_of(by_sample(active * record.clock).mean(1) / cycles * noise, 2)
        noise = 1 + 0.008 * random.standard_normal((samples, count))
        self.tensor = _mean_of(by_sample(record.work).mean(1) / cycles * noise, 2)
        noise = 1 + 0.004 * random.standard_normal(cycles.shape)
        self.clock = np.round(cycles * record.clock_hertz * noise / 15e6) * 15e6
        self.has_gpm_gpu = ~older
        self.active[:, older] = self.tensor[:, older] = np.nan
        self.seconds = {
            name: by_form(_by_second(values), axis=1)
            for name, values, by_form in (
                ("power_mean_watts", self.power, np.mean), ("power_min_watts", self.power, np.min),
                ("power_max_watts", self.power, np.max), ("sm_clock_mean_hertz", self.clock, np.mean),
                ("sm_clock_min_hertz", self.clock, np.min), ("sm_clock_max_hertz", self.clock, np.max),
            )
        }  # fmt: skip
        # GPM is read at every second sample.
        active, tensor = _by_second(self.active)[:, 1::2], _by_second(self.tensor)[:, 1::2]
        self.gpm_seconds = {
            "sm_active_ratio": active.mean(1), "sm_active_min_ratio": active.min(1), "sm_active_max_ratio": active.max(1),
            "tensor_active_ratio": tensor.mean(1),
        }  # fmt: skip
        self.moved = np.cumsum(
            record.port_bytes.reshape(scenario.seconds, -1, scenario.hosts).mean(1), axis=0
        )
        self.waits = np.cumsum(record.congestion, axis=0) * 1e5
        self.flags = np.zeros((scenario.seconds, count), dtype=np.uint64)
        seconds = np.arange(scenario.seconds, dtype=np.float64) + 0.5
        for fault in scenario.faults:
            bit = {"thermal": 0x20, "power_cap": 0x4}.get(fault.kind, 0)
            is_on = fault.strength(seconds) > 0.2
            self.flags[is_on, fault.host * GPUS : (fault.host + 1) * GPUS] |= np.uint64(bit)

    def of_second(self, values: Floats) -> Floats:
        """Return (seconds, samples per second, GPUs)."""
        return _by_second(values)

    def samples(self, gpu: int) -> np.ndarray:
        """Return float32 (samples, SIGNALS) of one GPU, as in the agent's ring."""
        result = np.full((len(self.power), len(SIGNALS)), np.nan, dtype=np.float32)
        columns = {
            "power_watts": self.power, "sm_clock_hertz": self.clock, "utilization_ratio": self.used,
            "sm_active_ratio": self.active, "tensor_active_ratio": self.tensor,
        }  # fmt: skip
        for name, values in columns.items():
            result[:, SIGNALS.index(name)] = values[:, gpu]
        result[:, SIGNALS.index("clock_event_reasons_flags")] = np.repeat(self.flags[:, gpu], RATE)
        # GPM at every second sample, utilization at the others.
        result[1::2, SIGNALS.index("sm_active_ratio")] = np.nan
        result[1::2, SIGNALS.index("tensor_active_ratio")] = np.nan
        result[::2, SIGNALS.index("utilization_ratio")] = np.nan
        return result


def _by_second(values: np.ndarray) -> np.ndarray:
    return np.asarray(values.reshape(-1, RATE, *values.shape[1:]))


def _smoothed(values: Floats, weight: float) -> Floats:
    result = np.empty_like(values)
    now = values[0]
    for index, value in enumerate(values):
        now = now + weight * (value - now)
        result[index] = now
    return result


def _mean_of(values: Floats, samples: int) -> Floats:
    total = np.concatenate([np.zeros((1, values.shape[1])), np.cumsum(values, axis=0)])
    at = np.arange(1, len(values) + 1)
    first = np.maximum(at - samples, 0)
    return np.asarray((total[at] - total[first]) / (at - first)[:, None])


class HostAgent(SendingHost):
    """One host's agent: its tracker, and its tables, filled for each second."""

    def __init__(self, readings: DriverReadings, host: int, random: np.random.Generator) -> None:
        names = (
            "gpu_1s", "gpu_10s", "gpu_60s", "gpu_1s_changes", "gpu_10s_changes", "gpu_fast_1s", "gpu_fast_10s", "rdma_1s",
            "rdma_1s_changes", "host_1s", "nvlink_10s_changes",
        )  # fmt: skip
        super().__init__("pipe", host, names)
        self._readings, record = readings, readings.record
        self._rows = slice(host * GPUS, (host + 1) * GPUS)
        self._faults = [fault for fault in record.scenario.faults if fault.host == host]
        self._withheld = {c for name in record.scenario.withheld for c in EVIDENCE.get(name, ())}
        self._has_gpm = bool(readings.has_gpm[host])
        self._violations = np.zeros((2, GPUS))
        self._port_errors = self._replays = 0.0
        #: Error of its wall clock; with `skewed` seconds to minutes, and its frames are late.
        is_skewed = record.scenario.control == "skewed"
        self._skew_ns = int(random.normal(0, 60 if is_skewed else 0.01) * SECOND_NS)
        self.late_seconds = int(random.integers(3)) if is_skewed else 0
        self.tracker = PhaseTracker(GPUS)
        self._samples = [readings.samples(host * GPUS + gpu) for gpu in range(GPUS)]
        #: A lowered limit equals the GPUs' power draw after the onset.
        at = slice(int(max((fault.onset for fault in self._faults), default=0)) * RATE, None)
        high = np.quantile(readings.power[at, self._rows], 0.98) if self._faults else 0.0
        self._capped_watts = float(np.round(high / 5) * 5)
        self._fill_constants()
        self._times = (np.arange(len(readings.power)) * (SECOND_NS // RATE) + UPTIME_NS).astype(
            np.int64
        )

    def frame(self, second: int, now_ns: int) -> bytes:
        self.track(second)
        self._fill_gpus(second)
        self._fill_host(second)
        return self.encode(second, now_ns + self._skew_ns)

    def track(self, second: int) -> None:
        """Run the tracker, with or without a frame of that second."""
        at = slice(second * RATE, (second + 1) * RATE)
        for gpu, samples in enumerate(self._samples):
            self.tracker.push_samples(gpu, self._times[at].data, samples[at].data)

    def _put(self, table: str, **values: float | Floats) -> None:
        self.tables[table].put(**{k: v for k, v in values.items() if k not in self._withheld})

    def _strength(self, kind: str, second: int) -> tuple[float, HostFault | None]:
        for fault in self._faults:
            if fault.kind == kind:
                return float(fault.strength(np.array([second + 0.5]))[0]), fault
        return 0.0, None

    def _fill_constants(self) -> None:
        limit = self._readings.record.limit_watts[self._rows]
        self._put("gpu_1s", lost_state=0, recovery_action_state=0)
        self._put(
            "gpu_10s", sm_clock_max_hertz=1.98e9, power_limit_watts=limit, temperature_slowdown_celsius=89,
            pcie_width_lanes=16, pcie_width_max_lanes=16, pcie_generation_number=5, pcie_generation_max_number=5,
        )  # fmt: skip
        self._put("gpu_60s", power_limit_default_watts=limit)
        self._put(
            "gpu_1s_changes", ecc_corrected_volatile_errors=0, ecc_uncorrected_volatile_errors=0
        )
        self._put(
            "gpu_10s_changes", remap_pending_state=0, remap_failed_state=0, pcie_replays_count=0
        )
        self._put("gpu_fast_1s", samples_count=10, power_brake_ratio=0.0)
        self._put(
            "rdma_1s", port_state=4, physical_state=5, rate_bytes_per_second=np.full(GPUS, RATE_BYTES),
        )  # fmt: skip
        self._put(
            "rdma_1s_changes", symbol_errors=0, packet_sequence_errors=0, ack_timeout_errors=0, out_of_sequence_packets=0,
            implied_nak_errors=0, adaptive_retransmissions_packets=0, link_downed_events=0,
        )  # fmt: skip
        self._put(
            "nvlink_10s_changes", link_state=1, crc_errors=0, replay_errors=0, recovery_errors=0
        )
        self._put("host_1s", cpu_steal_ratio=0.0, cpu_system_ratio=0.03)

    def _fill_gpus(self, second: int) -> None:
        r, rows, last = self._readings, self._rows, (second + 1) * RATE - 1
        flags = r.flags[second, rows].astype(float)
        hot, capped = flags == 0x20, flags == 0x4
        self._violations += SECOND_NS * np.array([hot, capped]) * (r.used[last, rows] > 0.1)
        power, (heat, _) = r.power[last, rows], self._strength("thermal", second)
        self._put(
            "gpu_1s", sm_clock_hertz=r.clock[last, rows], power_watts=power, utilization_ratio=r.used[last, rows],
            temperature_celsius=np.round(38 + 0.05 * power + (40 - 0.02 * power) * heat),
            clock_event_reasons_flags=flags, violation_thermal_nanoseconds=5e9 + self._violations[0],
            violation_power_nanoseconds=7e9 + self._violations[1], energy_joules=np.round(r.joules[second, rows], 3),
        )  # fmt: skip
        self._put(
            "gpu_fast_1s", **{name: values[second, rows] for name, values in r.seconds.items()}
        )
        self._put(
            "gpu_fast_1s", thermal_ratio=hot.astype(float), power_cap_ratio=capped.astype(float)
        )
        if self._has_gpm:
            self._put(
                "gpu_fast_1s",
                **{name: values[second, rows] for name, values in r.gpm_seconds.items()},
            )
        shares = [self.tracker.take_second(gpu) for gpu in range(GPUS)]
        if all(share is not None for share in shares):
            table = np.array(shares, dtype=float)
            self._put("gpu_fast_1s", **dict(zip(SECOND_COLUMNS, table.T, strict=True)))
        if (second + self._host) % 10 == 0:
            jobs = [self.tracker.job(gpu, int(self._times[last])) for gpu in range(GPUS)]
            columns = {name: np.array([job[name] for job in jobs]) for name in JOB_COLUMNS}
            self._put("gpu_fast_10s", **{k: v for k, v in columns.items() if np.isfinite(v).all()})
        if self._faults:
            self._fill_links(second)

    def _fill_links(self, second: int) -> None:
        """Fill readings that show faults of a limit, a PCIe link or a port, as the seed decides."""
        r, rows, shows = self._readings, self._rows, self._readings.record.scenario.seed % 3
        strength, fault = self._strength("power_cap", second)
        if fault is not None:
            self._put(
                "gpu_10s",
                power_limit_watts=self._capped_watts if strength else r.record.limit_watts[rows],
            )
        strength, fault = self._strength("pcie", second)
        if fault is not None:  # fewer lanes, a lower speed, or only resent packets
            lanes, generation, replays = np.full(GPUS, 16.0), np.full(GPUS, 5.0), np.zeros(GPUS)
            lanes[fault.gpu] -= 8 * (shows == 0 and strength > 0)
            generation[fault.gpu] -= 2 * (shows == 1 and strength > 0)
            self._replays += 25 * strength
            replays[fault.gpu] = self._replays
            self._put("gpu_10s", pcie_width_lanes=lanes, pcie_generation_number=generation)
            self._put("gpu_10s_changes", pcie_replays_count=replays)
        strength, fault = self._strength("nic", second)
        if fault is not None:  # errors, a lower rate, or only waiting senders
            rate, errors = np.full(GPUS, RATE_BYTES), np.zeros(GPUS)
            rate[0] *= 0.5 if shows == 1 and strength else 1.0
            self._port_errors += 30 * strength * (shows == 0)
            errors[0] = self._port_errors
            self._put("rdma_1s", rate_bytes_per_second=rate)
            self._put(
                "rdma_1s_changes", symbol_errors=errors, packet_sequence_errors=4 * errors, ack_timeout_errors=errors,
                out_of_sequence_packets=2 * errors,
            )  # fmt: skip

    def _fill_host(self, second: int) -> None:
        r, host, record = self._readings, self._host, self._readings.record
        moved = 1e9 + np.full(GPUS, r.moved[second, host])
        self._put(
            "rdma_1s", received_bytes=moved, transmitted_bytes=moved,
            transmit_wait_count=1e4 + np.full(GPUS, r.waits[second, host]),
        )  # fmt: skip
        cpu, io = record.cpu_pressure[second, host], record.io_pressure[second, host]
        self._put(
            "host_1s", pressure_cpu_some_ratio=cpu, pressure_io_some_ratio=io, pressure_io_full_ratio=0.6 * io,
            cpu_user_ratio=0.1 + 0.3 * cpu, cpu_idle_ratio=0.85 - 0.3 * cpu, runnable_count=2.0 + 30 * cpu,
        )  # fmt: skip

    def register_model(self, fleet: Fleet) -> None:
        """Register the host with its model of GPU."""
        is_older = self._readings.record.is_older[self._host] or not self._has_gpm
        self.register(fleet, "A100" if is_older else "H100")

    def processes(
        self, run: GangRun, number: int, state: str, second: int
    ) -> Iterable[telemetry_pb2.HealthEvent]:
        """Yield the agent's reports of the ranks of a run on this host.

        *number* is the run's: each run has its own processes.
        """
        there: Sequence[int] = run.gpus[run.gpus // GPUS == self._host].tolist()
        for row in there:
            gpu = row % GPUS
            yield self.process(gpu, 4000 + 100 * number + gpu, str(run.job_id), state, second)
