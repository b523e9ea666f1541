"""What GPUs do within a second: eight samples of clock, power, reasons and GPM, summarised once a second.

A thread of its own takes the samples into a ring. Should it not return from the driver, the turn says
where it is, and nothing else waits for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from ...ext.nvml import Nvml, NvmlError, Sweep
from ...ext.nvml_gpm import Gpm
from ...fingerprints.block import Block
from ...fingerprints.catalogue import Pace, index_of
from ...fingerprints.nvml_fields import fields_of
from ..clock import Clock
from ..hardware.nvml_session import session_of
from ..hardware.roots import Roots
from ..listening import Teller
from ..ring import Ring
from ..turn import Blind, Hung, NoData
from .gpu_open import LOOK_AGAIN_SECONDS, gpus_of, is_complete, keys_of, library_of, open_nvml

T = TypeVar("T")

SECOND_NS = 1_000_000_000
#: 8 Hz: GPM's samples must be more than 100 ms apart (nvml.h), and power is renewed no faster.
PERIOD_NS = 125_000_000
#: A sample that has not returned by then is hung.
DEADLINE_NS = 3 * SECOND_NS
#: After so long without one clock reading, with GPM in error at a GPU that answers, or with a GPU that is missing
#: or nameless, the GPUs are opened anew; as long as that does not help, ever more rarely: it costs those that are well.
AILING_NS, AILING_NS_MAX = 10 * SECOND_NS, 600 * SECOND_NS
CLOSE_SECONDS_MAX = 1.0

#: Readings of a sweep, then GPM metrics (nvml.h, NVML_GPM_METRIC_*) with scale and most: the ring's columns.
SWEPT = ("sm_clock_hertz", "power_watts", "clock_event_reasons_flags")
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
COLUMNS = len(SWEPT) + len(METRICS)
#: Shares of the samples with these bits of the reasons (nvml.h, nvmlClocksEventReason*).
REASONS = {"power_cap_ratio": 0x4, "thermal_ratio": 0x20 | 0x40, "power_brake_ratio": 0x80}


class Sampler:
    """The GPUs that were found, and the last samples of each. `sample` is for one thread."""

    def __init__(self, roots: Roots) -> None:
        """Open NVML and every GPU. Raises NoData, Blind or NvmlError, as a GPU lane does."""
        self._nvml = open_nvml(roots)
        try:
            self._open(roots)
        except BaseException:
            self._nvml.close()
            raise

    def _open(self, roots: Roots) -> None:
        devices = sorted(gpus_of(self._nvml, roots))
        if not devices:
            raise NoData("the NVIDIA driver has no GPU")
        self.keys = keys_of(devices)
        self._complete = is_complete(self._nvml, self.keys)
        rows = len(devices)
        self.ring = Ring(COLUMNS, rows)
        self._cells, self._valid = bytearray(8 * COLUMNS * rows), bytearray(COLUMNS * rows)
        addresses = [device.address for device in devices]
        places = {name: (self._cells, self._valid, at) for at, name in enumerate(SWEPT)}
        self._sweep = Sweep(self._nvml, addresses, places, fields_of(self._nvml.driver_version()))
        handles = [_handle(self._nvml, address) for address in addresses]
        self._gpm = Gpm(
            self._nvml,
            handles,
            [
                (metric, scale, most, self._cells, self._valid, len(SWEPT) + at)
                for at, (metric, (scale, most), _) in enumerate(METRICS)
            ],
        )
        #: When all was well last; 0: never.
        self.well_ns = 0

    def sample(self, now_ns: int) -> None:
        """Read every GPU once into the ring."""
        self._sweep.run()
        self._gpm.run(now_ns)
        self.ring.put(now_ns, self._cells, self._valid)
        answers = self._valid[: len(self.keys)]
        if not self._complete or not any(answers):
            return
        if not any(self._gpm.failing(row) for row, a in enumerate(answers) if a):
            self.well_ns = now_ns

    def whereabouts(self) -> str:
        """Say, from another thread, which call has not returned."""
        return self._sweep.words() if self._sweep.stuck_at() else "GPM samples"

    def close(self) -> None:
        """Let go of the GPUs. Not while `sample` runs."""
        self._gpm.close()
        self._nvml.close()


def _handle(nvml: Nvml, address: str) -> int:
    """Return the GPU's handle; 0, and so no GPM, of one that cannot be opened now."""
    try:
        return nvml.handle_address(address)
    except NvmlError:
        return 0


class GpuFast:
    """The table `gpu_fast_1s`. `collect` never enters the driver: it looks at the ring."""

    name = "gpu_fast_1s"
    pace = Pace.SECOND
    enters_driver = False

    def __init__(self, roots: Roots) -> None:
        """Starts nothing yet: `listen` does."""
        self._roots = roots
        self._clock: Clock | None = None
        self._sampler: Sampler | None = None
        self._nothing: Exception | None = None
        self._began_ns = 0  # of the sample being taken; 0: none is
        self._told_ns = 0  # samples up to here are in an earlier row
        self._patience_ns = AILING_NS
        self._block: Block | None = None
        self._stop = threading.Event()
        self._wanted = threading.Event()  # not set from `release` to the next `collect`
        self._seat = session_of(library_of(roots)).seat(self._let_go)
        self._thread: threading.Thread | None = None

    def listen(self, teller: Teller) -> None:
        """Start sampling, at the pace of *teller*'s clock."""
        self._clock = teller.clock
        self._wanted.set()
        self._thread = threading.Thread(target=self._run, name="gpu-fast", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End sampling; a thread that is in the driver for ever is left behind."""
        self._stop.set()
        self._wanted.set()
        if self._thread:
            self._thread.join(CLOSE_SECONDS_MAX)

    def release(self) -> bool:
        """Let go of all GPUs, so that they can be reset; the next `collect` has them opened again.

        While they are open this is False, and happens after the sample at hand.
        """
        self._wanted.clear()
        return self._seat.vacate()

    def _let_go(self) -> None:
        """The thread has closed what it had open: it does so by itself when it is asked to."""

    def whereabouts(self) -> str:
        """Say, from another thread, which call has not returned."""
        sampler = self._sampler
        return sampler.whereabouts() if sampler else "finding the GPUs"

    def collect(self) -> Sequence[Block]:
        """Return the summary of the samples since the last turn; no block while there is none."""
        if self._clock is None:
            raise NoData("nothing samples: it was never told to listen")
        self._wanted.set()
        self._raise_if_stuck(self._clock)
        sampler, nothing = self._sampler, self._nothing
        if nothing is not None:
            raise nothing.with_traceback(None)
        if sampler is None:
            return ()
        numbers = sampler.ring.since(self._told_ns)
        if not numbers:
            return ()
        self._told_ns = sampler.ring.time_ns(numbers[-1])
        if self._block is None or self._block.devices != tuple(sampler.keys):
            self._block = Block("gpu_fast_1s", sampler.keys)
        summarise(sampler.ring, numbers, self._block)
        return (self._block,)

    def _raise_if_stuck(self, clock: Clock) -> None:
        began_ns, now_ns = self._began_ns, clock.boottime_ns()
        if began_ns and now_ns - began_ns > DEADLINE_NS:
            seconds = (now_ns - began_ns) / SECOND_NS
            raise Hung(f"did not return for {seconds:.1f} s in {self.name}: {self.whereabouts()}")

    def _run(self) -> None:
        """Open, sample until that is of no use or all are to let go, and again; the thread's whole life."""
        assert self._clock is not None
        while self._wanted.wait() and not self._stop.is_set():
            self._seat.begin(wait=True)
            try:
                if self._wanted.is_set():
                    self._hold(self._clock)
            except (NoData, Blind, NvmlError) as reason:
                self._nothing = reason
            except Exception as error:  # noqa: BLE001 - whatever a driver's library does
                self._nothing = RuntimeError(f"{type(error).__name__}: {error}")
            finally:
                self._seat.end()
            if self._nothing is not None:
                self._stop.wait(LOOK_AGAIN_SECONDS)

    def _hold(self, clock: Clock) -> None:
        """Hold the GPUs open, from finding them to letting go."""
        sampler = self._enter(clock, lambda: Sampler(self._roots))
        try:
            self._sampler, self._nothing = sampler, None
            self._sample(sampler, clock)
        finally:
            self._enter(clock, sampler.close)
            self._sampler = None

    def _sample(self, sampler: Sampler, clock: Clock) -> None:
        began_ns = clock.boottime_ns()
        while not self._stop.wait((PERIOD_NS - clock.boottime_ns() % PERIOD_NS) / SECOND_NS):
            now_ns = clock.boottime_ns()
            self._enter(clock, lambda now_ns=now_ns: sampler.sample(now_ns))  # type: ignore[misc]
            if sampler.well_ns > began_ns:
                self._patience_ns = AILING_NS
            if self._seat.is_asked:
                return
            if now_ns - max(sampler.well_ns, began_ns) >= self._patience_ns:
                self._patience_ns = min(2 * self._patience_ns, AILING_NS_MAX)
                return

    def _enter(self, clock: Clock, call: Callable[[], T]) -> T:
        """Make a call that may not return, and let the turn know since when."""
        self._began_ns = clock.boottime_ns()
        try:
            return call()
        finally:
            self._began_ns = 0


def summarise(ring: Ring, numbers: Sequence[int], block: Block) -> None:
    """Fill a row of *block* for each GPU of the ring, from those samples."""
    block.clear()
    for row in range(block.rows):
        values = _swept(ring, numbers, row) | _gpm(ring, numbers, row)
        for name, value in values.items():
            block.put_float(index_of(f"gpu_fast.{name}"), row, value)


def _swept(ring: Ring, numbers: Sequence[int], row: int) -> dict[str, float]:
    clock, power = (ring.floats(numbers, column, row) for column in (0, 1))
    flags = ring.ints(numbers, 2, row)
    values = {"samples_count": float(max(len(clock), len(power), len(flags)))}
    if clock:
        values |= {"sm_clock_mean_hertz": _mean(clock)}
        values |= {"sm_clock_min_hertz": min(clock), "sm_clock_max_hertz": max(clock)}
    if power:
        values |= {"power_mean_watts": _mean(power)}
        values |= {"power_min_watts": min(power), "power_max_watts": max(power)}
    for name, bits in REASONS.items() if flags else ():
        values[name] = sum(bool(flag & bits) for flag in flags) / len(flags)
    return values


def _gpm(ring: Ring, numbers: Sequence[int], row: int) -> dict[str, float]:
    values: dict[str, float] = {}
    for at, (_, _, name) in enumerate(METRICS):
        samples = ring.floats(numbers, len(SWEPT) + at, row)
        if samples:
            values[name] = _share(name, _mean(samples))
        if samples and name == "sm_active_ratio":
            values["sm_active_min_ratio"] = _share(name, min(samples))
            values["sm_active_max_ratio"] = _share(name, max(samples))
    return values


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _share(name: str, value: float) -> float:
    """A share is at most 1: drivers round 100.02 % up."""
    return min(1.0, value) if name.endswith("_ratio") else value
