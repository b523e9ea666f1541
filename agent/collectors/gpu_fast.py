"""GPU samples, summarized each second: ten of clock, power and reasons, five of use and GPM.

The samples are taken in C between the sampler's turns, into a ring (`ext/nvml_ring`). Each sample
also goes to the phase tracker (`ext/phases`) and into a history of the last minutes, from which the
period of a job's step is estimated.
"""

from __future__ import annotations

import logging
import weakref
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan, nan

from ...contract.block import Block
from ...contract.nvml_fields import fields_of
from ...contract.recording import GpuRecording, encode_recording, first_since
from ...contract.signals import index_of
from ...ext import phases
from ...ext.nvml import Nvml, NvmlError, Sweep
from ...ext.nvml_gpm import Gpm
from ...ext.nvml_ring import COUNT, LEAST, MEAN, MOST, SHARE, SampleRing
from ...ext.periods import estimate
from ...ext.step_parts import PARTS, split
from ..collector import Collector, NoData
from ..hardware.files import Roots
from .nvml_session import NvmlGpu, NvmlSession, session_of

SECOND_NS = 1_000_000_000
#: 10 Hz: NVML renews power no faster.
PERIOD_NS = 100_000_000
#: GPM's samples must be more than 100 ms apart (nvml.h), so every second sample reads GPM; its
#: means cover all time between. The other samples read the utilization, which NVML renews at most
#: every 1/6 s.
GPM_EVERY = 2
#: GPM's time per second and GPU. A sample takes 0.25 ms on an H200: five would take more than all
#: other reads.
GPM_SECONDS = 400e-6
#: Budget of a sample of all GPUs, in equal parts per GPU. A GPU above its part is left out for a
#: second, then longer.
SAMPLE_SECONDS_MAX = 0.1
#: The handles are opened again after this time without a clock reading, or with GPM errors of a GPU
#: that answers; the time doubles while that does not help.
STUCK_NS, STUCK_NS_MAX = 10 * SECOND_NS, 600 * SECOND_NS

#: Columns of the ring: readings of a sweep, then GPM metrics (nvml.h, NVML_GPM_METRIC_*) with scale
#: and maximum.
SWEEP_READINGS = ("sm_clock_hertz", "power_watts", "clock_event_reasons_flags", "utilization_ratio")
_PERCENT, _MEBIBYTES = (0.01, 101.0), (1048576.0, 1e9)
METRICS: tuple[tuple[int, tuple[float, float], str], ...] = (
    (2, _PERCENT, "sm_active_ratio"),
    (3, _PERCENT, "sm_occupancy_ratio"),
    (5, _PERCENT, "tensor_active_ratio"),
    (10, _PERCENT, "memory_bandwidth_ratio"),
    (20, _MEBIBYTES, "pcie_transmitted_bytes_per_second"),
    (21, _MEBIBYTES, "pcie_received_bytes_per_second"),
    (60, _MEBIBYTES, "nvlink_received_bytes_per_second"),
    (61, _MEBIBYTES, "nvlink_transmitted_bytes_per_second"),
)
COLUMN_NAMES = (*SWEEP_READINGS, *(name for _, _, name in METRICS))
COLUMNS = len(COLUMN_NAMES)
#: Samples of a job from which the step's period is estimated: the last ones, and the minimum.
PERIOD_SAMPLES, PERIOD_SAMPLES_MIN = 3000, 200
PERIOD_SIGNALS = (
    "power_watts",
    "utilization_ratio",
    "sm_active_ratio",
    "tensor_active_ratio",
    "memory_bandwidth_ratio",
    "pcie_bytes_per_second",
    "nvlink_bytes_per_second",
)
#: Turns between estimates: each takes 0.5 ms of CPU for one GPU, so each of eight GPUs has about
#: two per minute.
PERIOD_TURNS = 4
#: Relative difference below which two estimates are of the same step.
STEP_NEAR = 0.1
#: A first step is reported once estimates have agreed on it for FIRST_NS. Another step replaces it
#: once estimates have agreed on the new step, with none near the first, for CHANGED_NS. A step of
#: twice or half the length needs OTHER_JOB_NS: it is a multiple or a part of the step, unless
#: another job runs in the same processes. Within YOUNG_NS FIRST_NS suffices: the first step may
#: have been a multiple.
FIRST_NS, YOUNG_NS, CHANGED_NS, OTHER_JOB_NS = (
    seconds * SECOND_NS for seconds in (20, 90, 90, 300)
)
#: A step is not reported after LOST_NS without an estimate near it, or HUNG_NS without computation
#: of its job.
LOST_NS, HUNG_NS = 300 * SECOND_NS, 30 * SECOND_NS
#: After this time without computation a job pauses: its signals show nothing new about the step.
PAUSED_NS = 3 * SECOND_NS

#: Bytes of a recording besides its samples: names of devices, and zlib's overhead.
RECORDING_HEADER_BYTES = 1 << 16

log = logging.getLogger(__name__)
#: Signal -> bits of the reasons (nvml.h, nvmlClocksEventReason*); it is the share of samples with
#: such a bit.
REASONS = {"power_cap_ratio": 0x4, "thermal_ratio": 0x20 | 0x40, "power_brake_ratio": 0x80}

_SECOND_INDEXES = [index_of(f"gpu_fast.{name}") for name in phases.SECOND_COLUMNS]
_JOB_INDEXES = [index_of(f"gpu_fast.{name}") for name in phases.JOB_COLUMNS]
#: Shares of the parts of a step, and their confidence.
_PARTS_INDEXES = [index_of(f"gpu_fast.step_{name}_ratio") for name in (*PARTS, "parts_confidence")]
_STEP_INDEXES = [index_of(f"gpu_fast.step_{name}") for name in ("seconds", "confidence_ratio")]


def _summary() -> list[tuple[int, int, int, float, int]]:
    """Return each column's plan: form, column of the ring, bits, maximum (0: any), column."""
    rows = [("samples_count", COUNT, 0, 0, 0.0)]
    for source, name in enumerate(("sm_clock", "power")):
        unit = SWEEP_READINGS[source].rpartition("_")[2]
        for form, part in ((MEAN, "mean"), (LEAST, "min"), (MOST, "max")):
            rows.append((f"{name}_{part}_{unit}", form, source, 0, 0.0))
    rows += [(name, SHARE, 2, bits, 0.0) for name, bits in REASONS.items()]
    for source, (_, _, name) in enumerate(METRICS, start=len(SWEEP_READINGS)):
        # A share is at most 1: drivers round 100.02 % up.
        rows.append((name, MEAN, source, 0, 1.0 if name.endswith("_ratio") else 0.0))
    rows += [("sm_active_min_ratio", LEAST, len(SWEEP_READINGS), 0, 1.0)]
    rows += [("sm_active_max_ratio", MOST, len(SWEEP_READINGS), 0, 1.0)]
    return [
        (form, source, bits, maximum, index_of(f"gpu_fast.{n}"))
        for n, form, source, bits, maximum in rows
    ]


class Samples:
    """The open GPUs, and the last samples of each."""

    def __init__(
        self,
        nvml: Nvml,
        gpus: Sequence[NvmlGpu],
        driver_version: str,
        before: Samples | None = None,
    ) -> None:
        """*gpus* is not empty; excluded GPUs are not read.

        The state of *before* is kept if its GPUs are the same.
        """
        rows = len(gpus)
        addresses = [gpu.address for gpu in gpus]
        cells, valid = bytearray(8 * COLUMNS * rows), bytearray(COLUMNS * rows)
        self._sweep = Sweep(
            nvml,
            addresses,
            {name: (cells, valid, column) for column, name in enumerate(SWEEP_READINGS)},
            fields_of(driver_version),
            spared=[gpu.address for gpu in gpus if gpu.excluded],
            budget_seconds=SAMPLE_SECONDS_MAX,
            skips=True,
        )
        self.gpm = Gpm(
            nvml,
            [0 if gpu.excluded else _handle(nvml, gpu.address) for gpu in gpus],
            [
                (metric, scale, maximum, cells, valid, column)
                for column, (metric, (scale, maximum), _) in enumerate(
                    METRICS, start=len(SWEEP_READINGS)
                )
            ],
            addresses=addresses,
        )
        self.keys = tuple(gpu.key for gpu in gpus)
        self.tracker: phases.PhaseTracker
        self.history: phases.SampleHistory
        self.steps: StepPeriods
        self._pids: dict[str, frozenset[int]]  # by key
        if before is not None and before.keys == self.keys:
            self.tracker, self.history, self.steps = before.tracker, before.history, before.steps
            self._pids = before._pids
        else:
            self.tracker, self.history = phases.PhaseTracker(rows), phases.SampleHistory(rows)
            self.steps, self._pids = StepPeriods(self.history, self.tracker), {}
        self.ring = SampleRing(
            self._sweep,
            self.gpm,
            cells,
            valid,
            rows,
            _summary(),
            PERIOD_NS,
            gpm_every=GPM_EVERY,
            gpm_seconds=GPM_SECONDS,
            tracker=self.tracker,
            history=self.history,
            sources=[COLUMN_NAMES.index(name) for name in phases.SIGNALS],
        )
        self.block = Block("gpu_fast_1s", self.keys)

    def follow_jobs(self, processes: Mapping[str, frozenset[int]]) -> None:
        """Begin a job if none of the processes that began the last job remains.

        End the job if no process remains.

        *processes*: compute processes by GPU key, for each GPU that answered. Other processes (a
        checker, a worker of the data loader) that come or go do not change the job.
        """
        for row, key in enumerate(self.keys):
            pids, before = processes.get(key), self._pids.get(key)
            if pids is None or pids == before or (before and pids & before):
                continue
            if pids:
                self.tracker.begin_job(row, is_known=before is not None)
            else:
                self.tracker.end_job(row)
            self._pids[key] = pids

    def record(self, since_ns: float, bytes_max: int) -> GpuRecording:
        """Return the newest samples since a boot time that fit into *bytes_max*. Raises NoData."""
        history = self.history
        times = array("q", bytes(8 * history.length))
        history.copy_times_to(times)
        fitting = bytes_max // (8 + 4 * len(phases.HISTORY_SIGNALS) * history.rows)
        times = times[max(first_since(times, since_ns), len(times) - fitting, 0) :]
        if not times:
            raise NoData("no GPU was sampled in that time")
        values = array("f", bytes(4 * history.rows * len(phases.HISTORY_SIGNALS) * len(times)))
        cells = memoryview(values)
        for row in range(history.rows):
            for column in range(len(phases.HISTORY_SIGNALS)):
                start = (row * len(phases.HISTORY_SIGNALS) + column) * len(times)
                history.copy_to(row, column, cells[start : start + len(times)])
        offsets = array("q", [time_ns - times[0] for time_ns in times])
        return GpuRecording(
            self.keys, phases.HISTORY_SIGNALS, phases.STATES, times[0], offsets, values
        )

    def close(self) -> None:
        self.gpm.close()


#: Current samples by session, for the other collectors of the same process.
_SAMPLES: weakref.WeakKeyDictionary[NvmlSession, Samples] = weakref.WeakKeyDictionary()


def _handle(nvml: Nvml, address: str) -> int:
    """Return the GPU's handle; 0 (no GPM) if the GPU cannot be opened."""
    try:
        return nvml.handle_address(address)
    except NvmlError:
        return 0


@dataclass
class _JobStep:
    job: int
    seconds: float = nan
    confidence: float = 0.0
    accepted_ns: int = 0
    #: Time of the last estimate near the step.
    confirmed_ns: int = 0
    #: Estimates since `other_ns` are near this value, except those near the step.
    other_seconds: float = nan
    other_ns: int = 0
    parts: tuple[float, ...] = ()

    def update(self, now_ns: int, seconds: float, confidence: float) -> None:
        """Take an estimate of the period; NaN: the signals show no period."""
        if isnan(seconds):
            return
        if _is_near(seconds, self.seconds):
            self.seconds, self.confidence, self.confirmed_ns = seconds, confidence, now_ns
            self.other_seconds = nan
            return
        if not _is_near(seconds, self.other_seconds):
            self.other_seconds, self.other_ns = seconds, now_ns
        if now_ns - max(self.other_ns, self.confirmed_ns) >= self._patience_ns(now_ns, seconds):
            self.seconds, self.confidence, self.other_seconds = seconds, confidence, nan
            self.accepted_ns = self.confirmed_ns = now_ns

    def settled_seconds(self, now_ns: int) -> float:
        """Return the step that estimates must contradict before another step counts.

        NaN if there is no step, or the step is young.
        """
        return self.seconds if now_ns - self.accepted_ns >= YOUNG_NS else nan

    def _patience_ns(self, now_ns: int, seconds: float) -> int:
        if isnan(self.seconds) or now_ns - self.accepted_ns < YOUNG_NS:
            return FIRST_NS
        return CHANGED_NS if 0.5 < seconds / self.seconds < 2.0 else OTHER_JOB_NS


def _is_near(seconds: float, other: float) -> bool:
    return abs(seconds - other) <= STEP_NEAR * other


class StepPeriods:
    """The step of each GPU's job, by the last minutes' samples; it outlasts checkpoints."""

    def __init__(self, history: phases.SampleHistory, tracker: phases.PhaseTracker) -> None:
        self._history, self._tracker = history, tracker
        self._columns = [phases.HISTORY_SIGNALS.index(name) for name in PERIOD_SIGNALS]
        self._signals = array("f", bytes(4 * len(self._columns) * PERIOD_SAMPLES))
        self._row = 0
        self._steps: dict[int, _JobStep] = {}

    def estimate_next(self) -> int:
        """Estimate the period of the next row, and return that row. Never raises."""
        row, self._row = self._row, (self._row + 1) % self._history.rows
        job = self._tracker.current_job(row)
        if job is None:
            self._steps.pop(row, None)
            return row
        number, begin_ns, computed_ns = job
        step = self._steps.get(row)
        if step is None or step.job != number:
            step = self._steps[row] = _JobStep(number)
        now_ns = self._history.last_ns
        length = min(self._history.length, PERIOD_SAMPLES, (now_ns - begin_ns) // PERIOD_NS)
        if length < PERIOD_SAMPLES_MIN or now_ns - computed_ns > PAUSED_NS:
            return row
        try:
            signals = self._read(row, length)
            step.update(
                now_ns, *estimate(signals, PERIOD_NS / SECOND_NS, step.settled_seconds(now_ns))
            )
            step.parts = split(signals, PERIOD_NS / SECOND_NS, step.seconds)
        except Exception:
            log.exception(
                "period of row %d could not be read", row, extra={"cause": "gpu_fast.period"}
            )
        return row

    def _read(self, row: int, length: int) -> memoryview[float]:
        cells = memoryview(self._signals)[: len(self._columns) * length].cast("B")
        signals = cells.cast("f", (len(self._columns), length))
        self._history.resample_to(row, self._columns, PERIOD_NS, signals)
        return signals

    def step(self, row: int) -> tuple[float, float] | None:
        """Return seconds and confidence of the step; None: unknown, or the job does not compute."""
        step = self._current(row)
        return (step.seconds, step.confidence) if step is not None else None

    def parts(self, row: int) -> tuple[float, ...] | None:
        """Return the shares of PARTS and their confidence; None: unknown."""
        step = self._current(row)
        return step.parts if step is not None and step.parts and step.parts[-1] > 0 else None

    def _current(self, row: int) -> _JobStep | None:
        step, job = self._steps.get(row), self._tracker.current_job(row)
        if step is None or job is None or step.job != job[0] or isnan(step.seconds):
            return None
        now_ns = self._history.last_ns
        if now_ns - job[2] > HUNG_NS or now_ns - step.confirmed_ns > LOST_NS:
            return None
        return step


class GpuFast(Collector):
    """The table `gpu_fast_1s`: each turn summarizes the samples taken between the turns."""

    name = "gpu_fast_1s"
    enters_driver = True

    def __init__(self, roots: Roots) -> None:
        """Open nothing: the first `collect` does."""
        self._session = session_of(roots)
        self._session.register(self)
        self.samples: Samples | None = None
        self._before: Samples | None = None
        self._created_ns = self._turns = 0
        self._stuck_wait_ns = STUCK_NS

    def collect(self) -> Sequence[Block]:
        """Return the summary; no block without a sample. Raises as `NvmlSession.open` does."""
        self._session.open()
        samples = self.samples
        if samples is not None and self._is_stuck(samples):
            self.release()
            samples = None
        if samples is None:
            self._build()
            return ()
        if not samples.ring.summarise(samples.block):
            return ()
        samples.follow_jobs(self._session.compute_processes)
        samples.tracker.summarise(samples.block, _SECOND_INDEXES)
        self._follow_steps(samples)
        return (samples.block,)

    def _follow_steps(self, samples: Samples) -> None:
        self._turns += 1
        if self._turns % PERIOD_TURNS:
            return
        row = samples.steps.estimate_next()
        samples.tracker.set_step(row, (samples.steps.step(row) or (nan, 0.0))[0])

    def idle(self, until_ns: int) -> None:
        """Sample at 10 Hz until *until_ns* or until a call arrives."""
        self._session.poll_events()
        if self.samples is not None:
            self.samples.ring.rest(until_ns)

    def record(self, seconds: int, bytes_max: int) -> bytes:
        """Return the last seconds of samples as an uncompressed recording. Raises NoData."""
        samples = self.samples or self._before
        if samples is None:
            raise NoData("no GPU of this host is sampled at 10 Hz")
        since_ns = self._session.clock.boottime_ns() - seconds * SECOND_NS
        recording = samples.record(since_ns, bytes_max - RECORDING_HEADER_BYTES)
        return encode_recording(recording, level=0)

    def exclude(self, devices: frozenset[str]) -> None:
        """Skip these GPUs; their rows stay, with missing cells."""
        self._session.exclude(devices)

    def release(self) -> None:
        """Free the samples, before NVML is closed."""
        if self.samples is not None:
            self.samples.close()
            self._before = self.samples
        self.samples = None
        _SAMPLES.pop(self._session, None)

    def _build(self) -> None:
        session = self._session
        if session.nvml is not None:  # else every GPU is excluded
            self.samples = Samples(session.nvml, session.gpus, session.driver_version, self._before)
            self._before = None
            _SAMPLES[session] = self.samples
            self._created_ns = session.clock.boottime_ns()

    def _is_stuck(self, samples: Samples) -> bool:
        """Return whether the handles have been useless for long enough to open them again."""
        now_ns, healthy_ns = self._session.clock.boottime_ns(), samples.ring.well_ns
        if healthy_ns > self._created_ns:
            self._stuck_wait_ns = STUCK_NS
        if now_ns - max(healthy_ns, self._created_ns) < self._stuck_wait_ns:
            return False
        self._stuck_wait_ns = min(2 * self._stuck_wait_ns, STUCK_NS_MAX)
        return True


class GpuFastJobs(Collector):
    """The table `gpu_fast_10s`: the job on each GPU, its step, and its next checkpoint."""

    name = "gpu_fast_10s"
    enters_driver = True

    def __init__(self, roots: Roots) -> None:
        self._session = session_of(roots)
        self._block: Block | None = None

    def collect(self) -> Sequence[Block]:
        """Return the block. Raises NoData without samples, or as `NvmlSession.open` does."""
        self._session.open()
        samples = _SAMPLES.get(self._session)
        if samples is None:
            raise NoData("no samples within the second yet")
        block = self._block
        if block is None or block.devices != samples.keys:
            block = self._block = Block("gpu_fast_10s", samples.keys)
        samples.tracker.summarise_jobs(block, _JOB_INDEXES, self._session.clock.boottime_ns())
        for row in range(block.rows):
            step = samples.steps.step(row)
            for column, value in zip(_STEP_INDEXES, step or (None, None), strict=True):
                block.put_float(column, row, value)
            parts = samples.steps.parts(row)
            for column, value in zip(
                _PARTS_INDEXES, parts or (None,) * len(_PARTS_INDEXES), strict=True
            ):
                block.put_float(column, row, None if value is None or isnan(value) else value)
        return (block,)

    def exclude(self, devices: frozenset[str]) -> None:
        self._session.exclude(devices)
