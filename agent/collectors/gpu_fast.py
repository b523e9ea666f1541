"""What GPUs do within a second: eight samples of clock, power, reasons and GPM, summarised once a second.

The samples are taken while the sampler rests between its turns, in C and into a ring (`ext/nvml_ring`).
"""

from __future__ import annotations

from collections.abc import Sequence

from ...contract.block import Block
from ...contract.nvml_fields import fields_of
from ...contract.signal import Pace
from ...contract.signals import index_of
from ...ext.nvml import Nvml, NvmlError, Sweep
from ...ext.nvml_gpm import Gpm
from ...ext.nvml_ring import COUNT, LEAST, MEAN, MOST, SHARE, SampleRing
from ..hardware.files import Roots
from .nvml_session import NvmlGpu, session_of

SECOND_NS = 1_000_000_000
#: 8 Hz: GPM's samples must be more than 100 ms apart (nvml.h), and power is renewed no faster.
PERIOD_NS = 125_000_000
#: What a sample of all GPUs may take, each GPU its share. One that is over it is left out for a second, then longer.
SAMPLE_SECONDS_MAX = 0.1
#: After so long without one clock reading, or with GPM in error at a GPU that answers, the handles are asked for anew;
#: as long as that does not help, ever more rarely.
STUCK_NS, STUCK_NS_MAX = 10 * SECOND_NS, 600 * SECOND_NS

#: Readings of a sweep, then GPM metrics (nvml.h, NVML_GPM_METRIC_*) with scale and most: the ring's columns.
SWEEP_READINGS = ("sm_clock_hertz", "power_watts", "clock_event_reasons_flags")
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
COLUMNS = len(SWEEP_READINGS) + len(METRICS)
#: Shares of the samples with these bits of the reasons (nvml.h, nvmlClocksEventReason*).
REASONS = {"power_cap_ratio": 0x4, "thermal_ratio": 0x20 | 0x40, "power_brake_ratio": 0x80}


def _summary() -> list[tuple[int, int, int, float, int]]:
    """Return how each column of the table is made: form, column of the ring, bits, most (0: any), column."""
    rows = [("samples_count", COUNT, 0, 0, 0.0)]
    for at, name in enumerate(("sm_clock", "power")):
        unit = SWEEP_READINGS[at].rpartition("_")[2]
        for form, part in ((MEAN, "mean"), (LEAST, "min"), (MOST, "max")):
            rows.append((f"{name}_{part}_{unit}", form, at, 0, 0.0))
    rows += [(name, SHARE, 2, bits, 0.0) for name, bits in REASONS.items()]
    for at, (_, _, name) in enumerate(METRICS, start=len(SWEEP_READINGS)):
        # A share is at most 1: drivers round 100.02 % up.
        rows.append((name, MEAN, at, 0, 1.0 if name.endswith("_ratio") else 0.0))
    rows += [("sm_active_min_ratio", LEAST, len(SWEEP_READINGS), 0, 1.0)]
    rows += [("sm_active_max_ratio", MOST, len(SWEEP_READINGS), 0, 1.0)]
    return [(form, at, bits, most, index_of(f"gpu_fast.{n}")) for n, form, at, bits, most in rows]


class Samples:
    """The GPUs that were found, and the last samples of each."""

    def __init__(self, nvml: Nvml, gpus: Sequence[NvmlGpu], driver_version: str) -> None:
        """*gpus*: one or more, of which those that are spared are not asked."""
        rows = len(gpus)
        addresses = [gpu.address for gpu in gpus]
        cells, valid = bytearray(8 * COLUMNS * rows), bytearray(COLUMNS * rows)
        self._sweep = Sweep(
            nvml,
            addresses,
            {name: (cells, valid, at) for at, name in enumerate(SWEEP_READINGS)},
            fields_of(driver_version),
            spared=[gpu.address for gpu in gpus if gpu.excluded],
            budget_seconds=SAMPLE_SECONDS_MAX,
            skips=True,
        )
        self.gpm = Gpm(
            nvml,
            [0 if gpu.excluded else _handle(nvml, gpu.address) for gpu in gpus],
            [
                (metric, scale, most, cells, valid, at)
                for at, (metric, (scale, most), _) in enumerate(METRICS, start=len(SWEEP_READINGS))
            ],
            addresses=addresses,
        )
        self.ring = SampleRing(self._sweep, self.gpm, cells, valid, rows, _summary(), PERIOD_NS)
        self.block = Block("gpu_fast_1s", [gpu.key for gpu in gpus])

    def close(self) -> None:
        """Free the samples of GPM."""
        self.gpm.close()


def _handle(nvml: Nvml, address: str) -> int:
    """Return the GPU's handle; 0, and so no GPM, of one that cannot be opened now."""
    try:
        return nvml.handle_address(address)
    except NvmlError:
        return 0


class GpuFast:
    """The table `gpu_fast_1s`: a turn sums up what was sampled while the sampler rested since the one before."""

    name = "gpu_fast_1s"
    pace = Pace.SECOND
    enters_driver = True

    def __init__(self, roots: Roots) -> None:
        """Opens nothing yet: the first `collect` does."""
        self._session = session_of(roots)
        self._session.register(self)
        self.samples: Samples | None = None
        self._created_ns = 0
        self._stuck_wait_ns = STUCK_NS

    def collect(self) -> Sequence[Block]:
        """Return the summary; no block while there is no sample. Raises as a lane of the GPUs does."""
        self._session.open()
        samples = self.samples
        if samples is not None and self._is_stuck(samples):
            self.release()
            samples = None
        if samples is None:
            self._build()
            return ()
        return (samples.block,) if samples.ring.summarise(samples.block) else ()

    def idle(self, until_ns: int) -> None:
        """Sample eight times a second until then, or until somebody calls."""
        self._session.poll_events()
        if self.samples is not None:
            self.samples.ring.rest(until_ns)

    def exclude(self, devices: frozenset[str]) -> None:
        """Ask these GPUs nothing; their rows remain, and are missing."""
        self._session.exclude(devices)

    def release(self) -> None:
        """Free the samples, before NVML is closed."""
        if self.samples is not None:
            self.samples.close()
        self.samples = None

    def _build(self) -> None:
        session = self._session
        if session.nvml is not None:  # else every GPU is spared
            self.samples = Samples(session.nvml, session.gpus, session.driver_version)
            self._created_ns = session.clock.boottime_ns()

    def _is_stuck(self, samples: Samples) -> bool:
        """Say whether to ask for the handles anew: as they are, they have been of no use for long enough."""
        now_ns, healthy_ns = self._session.clock.boottime_ns(), samples.ring.well_ns
        if healthy_ns > self._created_ns:
            self._stuck_wait_ns = STUCK_NS
        if now_ns - max(healthy_ns, self._created_ns) < self._stuck_wait_ns:
            return False
        self._stuck_wait_ns = min(2 * self._stuck_wait_ns, STUCK_NS_MAX)
        return True
