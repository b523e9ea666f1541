"""Activity of each GPU, its clock during each activity, and its resets.

A GPU's clock is meaningful only while it computes. An idle GPU clocks down by itself. A GPU that waits for others shows 100 %
utilization at low power (H100: about 150 W against 550 W), and its clock means nothing.
"""

from __future__ import annotations

import numpy as np

from ..arrays import Codes, Flags, Floats, Indexes, Times
from ..counter_deltas import grown, smoothing
from .devices import Devices
from .tables import DeviceTable

#: Bits of `gpu.clock_event_reasons_flags` (nvml.h, nvmlClocksEventReason*).
REASON_SETTING, REASON_POWER_CAP, REASON_HARDWARE = 0x2, 0x4, 0x8
REASON_SOFTWARE_THERMAL, REASON_HARDWARE_THERMAL, REASON_POWER_BRAKE = 0x20, 0x40, 0x80
REASON_THERMAL = REASON_SOFTWARE_THERMAL | REASON_HARDWARE_THERMAL

#: A GPU that computes runs a kernel and draws much more power than while it waits (0.21 of the
#: limit on an H100; with a lowered limit it waits at the same watts, therefore the default limit
#: counts, too).
UTILIZATION_MIN = 0.5
POWER_SHARE_MIN, POWER_DEFAULT_SHARE_MIN = 0.35, 0.25
#: A GPU is at its power limit above AT_LIMIT_SHARE, or with the driver's cap flag above
#: CAPPED_SHARE: the power is a mean over a second that includes collectives, and the limit is the
#: current one (assumed).
AT_LIMIT_SHARE, CAPPED_SHARE = 0.95, 0.75
#: A GPU counts as limited if it was at its limit for this share of the clock's mean.
AT_LIMIT_TIME = 0.25
#: Time constant of the mean clock; a fault shows within two of them.
CLOCK_SECONDS = 4.0
#: Time constant of the mean clock without throttling.
BASELINE_SECONDS = 600.0
#: After this long without computing the mean restarts: another job has other clocks.
RESET_SECONDS = 60.0

#: Volatile counters in `gpu_1s_changes`, which a reset sets to zero.
VOLATILE = ("ecc_corrected_volatile_errors", "ecc_uncorrected_volatile_errors")


class Activity:
    """The mean SM clock of every GPU while it computes, and the number of its resets."""

    def __init__(self, devices: Devices) -> None:
        self.devices = devices
        capacity = devices.capacity
        self._clock: Floats = np.full(capacity, np.nan)
        self._baseline: Floats = np.full(capacity, np.nan)
        self._at_limit: Floats = np.zeros(capacity)  # share of the clock's mean
        self._loaded_ns: Times = np.zeros(capacity, dtype=np.int64)
        self._loaded: Flags = np.zeros(capacity, dtype=bool)
        self._boot: Codes = np.zeros(capacity, dtype=np.int32)
        self._energy: Floats = np.zeros(capacity)
        self._energy_boot: Codes = np.zeros(capacity, dtype=np.int32)
        self._reset: Codes = np.zeros(capacity, dtype=np.int32)

    def _fit(self) -> None:
        before, capacity = self._loaded.shape[0], self.devices.capacity
        if before < capacity:
            for name, array in vars(self).items():
                if isinstance(array, np.ndarray):
                    setattr(self, name, grown(array, capacity))
            self._clock[before:] = self._baseline[before:] = np.nan

    def advance(
        self, rows: Indexes, second: DeviceTable, ten: DeviceTable, minute: DeviceTable
    ) -> None:
        """Add the new readings of *rows* of the GPUs' one-second table."""
        self._fit()
        loaded = loaded_now(second, ten, minute)[rows]
        time_ns, boot = second._boottime_ns[rows], second._boot[rows]
        seconds = (time_ns - self._loaded_ns[rows]) / 1e9
        fresh = (boot == self._boot[rows]) & (seconds <= RESET_SECONDS)
        before, now = self._clock[rows], second.gauge("sm_clock_hertz")[rows]
        weight = np.where(fresh & np.isfinite(before), smoothing(seconds, CLOCK_SECONDS), 1.0)
        counted = loaded & np.isfinite(now)
        mean = np.where(weight < 1.0, before, 0.0) * (1.0 - weight) + now * weight
        self._clock[rows] = np.where(counted, mean, before)
        share = self._at_limit[rows]
        limited = share * (1.0 - weight) + is_at_limit(second, ten)[rows] * weight
        self._at_limit[rows] = np.where(counted, limited, share)
        self._update_baseline(
            rows, counted & ~is_throttled(second)[rows], now, np.where(fresh, seconds, np.inf)
        )
        self._loaded_ns[rows] = np.where(counted, time_ns, self._loaded_ns[rows])
        self._boot[rows] = np.where(counted, boot, self._boot[rows])
        self._loaded[rows] = loaded
        self._detect_reset(rows, second)

    def _update_baseline(
        self, rows: Indexes, unthrottled: Flags, now: Floats, seconds: Floats
    ) -> None:
        """Add the clocks of unthrottled *rows* to the baseline, which restarts with another job."""
        before = self._baseline[rows]
        weight = np.where(np.isfinite(before), smoothing(seconds, BASELINE_SECONDS), 1.0)
        mean = np.where(weight < 1.0, before, 0.0) * (1.0 - weight) + now * weight
        restarted = np.where(np.isfinite(seconds), before, np.nan)
        self._baseline[rows] = np.where(unthrottled, mean, restarted)

    def _detect_reset(self, rows: Indexes, second: DeviceTable) -> None:
        # Energy counts since the driver was loaded: a decrease in a boot is a reset or a reload.
        energy = np.nan_to_num(second.gauge("energy_joules")[rows], nan=-1.0)
        known, boot = energy >= 0.0, second._boot[rows]
        fell = (energy < self._energy[rows]) & (boot == self._energy_boot[rows])
        self._reset[rows] += known & fell
        self._energy[rows] = np.where(known, energy, self._energy[rows])
        self._energy_boot[rows] = np.where(known, boot, self._energy_boot[rows])

    @property
    def loaded(self) -> Flags:
        """Return which GPUs computed at their last reading."""
        self._fit()
        return self._loaded[: self.devices.count]

    @property
    def at_limit(self) -> Flags:
        """Return which GPUs were at their power limit during the mean of `clock`."""
        self._fit()
        return np.asarray(self._at_limit[: self.devices.count] >= AT_LIMIT_TIME, dtype=bool)

    @property
    def resets(self) -> Codes:
        """Return how often each GPU's energy restarted within a boot."""
        self._fit()
        return self._reset[: self.devices.count]

    def clock(self, boot: Codes, now_ns: Times) -> Floats:
        """Return each GPU's mean SM clock while computing; NaN after a minute without computing."""
        self._fit()
        count, host = self.devices.count, self.devices.host
        age = (now_ns[host] - self._loaded_ns[:count]) / 1e9
        fresh = (self._boot[:count] == boot[host]) & (age <= RESET_SECONDS)
        return np.where(fresh, self._clock[:count], np.nan)

    @property
    def baseline_clock(self) -> Floats:
        """Return each GPU's mean clock in its current job while it computed without throttling."""
        self._fit()
        return self._baseline[: self.devices.count]


def is_throttled(second: DeviceTable) -> Flags:
    """Return which GPUs the driver reports as throttled by heat or the hardware's brake."""
    flags = second.state("clock_event_reasons_flags")
    throttle_flags = flags & np.uint64(REASON_THERMAL | REASON_POWER_BRAKE | REASON_HARDWARE)
    return np.asarray(throttle_flags != 0, dtype=bool)


def is_at_limit(second: DeviceTable, ten: DeviceTable) -> Flags:
    """Return which GPUs are at their power limit and not throttled otherwise."""
    with np.errstate(invalid="ignore", divide="ignore"):
        share = second.gauge("power_watts") / ten.gauge("power_limit_watts")
    capped = (second.state("clock_event_reasons_flags") & np.uint64(REASON_POWER_CAP)) != 0
    is_near_limit = (share >= AT_LIMIT_SHARE) | capped & (share >= CAPPED_SHARE)
    return np.asarray(is_near_limit & ~is_throttled(second), dtype=bool)


def loaded_now(second: DeviceTable, ten: DeviceTable, minute: DeviceTable) -> Flags:
    """Return which GPUs computed at their last readings.

    A throttled GPU may draw as little as a waiting one, but its clock event reasons show it.
    Utilization alone does not suffice: a waiting GPU shows 100 %.
    """
    drawing = second.gauge("power_watts") >= loaded_watts_min(ten, minute)
    busy = second.gauge("utilization_ratio") >= UTILIZATION_MIN
    return np.asarray(busy & (drawing | is_throttled(second)), dtype=bool)


def loaded_watts_min(ten: DeviceTable, minute: DeviceTable) -> Floats:
    """Return the minimum power of each GPU while it computes; NaN if no limit is known."""
    limit, default = ten.gauge("power_limit_watts"), minute.gauge("power_limit_default_watts")
    return np.asarray(np.fmax(POWER_SHARE_MIN * limit, POWER_DEFAULT_SHARE_MIN * default))


class GpuResets:
    """Time of each GPU's last reset in the current boot.

    A reset is reported by the agent, or visible as a decrease of energy or volatile errors. A boot
    also sets these to zero but does not count as a reset: it ends more conditions.
    """

    def __init__(self, activity: Activity, second: DeviceTable, changes: DeviceTable) -> None:
        self._activity, self._second, self._changes = activity, second, changes
        self._devices = second.devices
        self._count: Codes = np.zeros(self._devices.capacity, dtype=np.int32)
        self._boot: Codes = np.zeros(self._devices.capacity, dtype=np.int32)
        self._at_ns: Times = np.zeros(self._devices.capacity, dtype=np.int64)

    def _fit(self) -> None:
        if self._boot.shape[0] < self._devices.capacity:
            for name, array in vars(self).items():
                if isinstance(array, np.ndarray):
                    setattr(self, name, grown(array, self._devices.capacity))

    def advance(self, boottime_ns: Times) -> None:
        """Record the GPUs reset since the last call. *boottime_ns*: last frame of each host."""
        self._fit()
        rows = slice(0, self._devices.count)
        counts = self._activity.resets + self._devices.renewals
        for column in VOLATILE:
            counts = counts + self._changes.resets(column)
        boot = self._second.boot
        same = boot == self._boot[rows]
        reset = same & (counts > self._count[rows])
        now_ns = boottime_ns[self._devices.host]
        self._at_ns[rows] = np.where(reset, now_ns, np.where(same, self._at_ns[rows], 0))
        self._count[rows], self._boot[rows] = counts, boot

    def has_read(self, row: int, boot: int) -> bool:
        """Return whether the GPU in *row* was read in *boot*."""
        return row < self._boot.shape[0] and int(self._boot[row]) == boot

    def at_ns(self, row: int, boot: int) -> int:
        """Return the boot time of the last reset of the GPU in *row*; 0: none in *boot*."""
        return int(self._at_ns[row]) if self.has_read(row, boot) else 0
