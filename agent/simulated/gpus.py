"""GPUs: power, clock, temperature, utilisation and energy that belong together.

    power       = idle + dynamic * activity * (clock / unbraked clock) ** 2.2
    temperature : first-order lag to ambient + resistance * power
    brake       : from the highest operating temperature the clock falls until the heat is held
    energy      = integral of power

Levels are those of an H100 in training (75 W idle, 150 W waiting, 550 W computing); the spread
between parts is that of the public studies (clock IQR 2-3 %, 2-3 % of parts outliers by 5-7 %).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from . import parts
from .job import Job, Phase, Stretch
from .tables import Floats, Tables

Flags = npt.NDArray[np.bool_]

# Clock event reasons (nvml.h, nvmlClocksEventReason*).
REASON_GPU_IDLE = 0x1
REASON_SW_POWER_CAP = 0x4
REASON_HW_SLOWDOWN = 0x8
REASON_SW_THERMAL = 0x20
REASON_HW_THERMAL = 0x40

#: Activity, as a share of the dynamic power: of a rank at the phase's own work, and while waiting.
OWN_ACTIVITY = {
    Phase.COMPUTE: 1.0,
    Phase.COMMUNICATE: 0.26,
    Phase.GAP: 0.10,
    Phase.CHECKPOINT: 0.145,
    Phase.STALL: 0.16,
}
WAIT_ACTIVITY = 0.16
#: Share of time a kernel is resident during the phase's own work; while waiting it is 1.
OWN_RESIDENCY = {
    Phase.COMPUTE: 1.0,
    Phase.COMMUNICATE: 1.0,
    Phase.GAP: 0.0,
    Phase.CHECKPOINT: 0.03,
    Phase.STALL: 1.0,
}
OWN_MEMORY_SHARE = {
    Phase.COMPUTE: 0.46,
    Phase.COMMUNICATE: 0.12,
    Phase.GAP: 0.0,
    Phase.CHECKPOINT: 0.02,
    Phase.STALL: 0.0,
}
#: Dynamic power falls with clock and the voltage that follows it.
POWER_EXPONENT = 2.2
CLOCK_HERTZ = 1755e6
CLOCK_STEP_HERTZ = 15e6
CLOCK_IDLE_HERTZ = 345e6
POWER_NOISE = 0.01
#: The brake lets go this far below where it bit.
BRAKE_HYSTERESIS_CELSIUS = 4.0
BRAKE_SECONDS = 0.8
#: A failed cooler is drawn so that the brake holds the die here.
BRAKED_CELSIUS = 88.3
#: Memory in use where nothing runs: the driver's own.
IDLE_BYTES = 6e8
#: The share of computing time that a part near its power limit is held by it. Not a fault.
POWER_CAPPED_SHARE = 0.05


class Gpus:
    """All GPUs of the fleet; arrays are (hosts, 8)."""

    def __init__(self, random: np.random.Generator, noise: np.random.Generator, hosts: int) -> None:
        """*random* draws the parts, *noise* what flickers."""
        self._noise = noise
        shape = self.shape = (hosts, parts.GPUS)
        self.clock_ratio = draw_clock_ratios(random, shape)
        self.idle_watts = random.normal(75.0, 2.0, shape)
        self.dynamic_watts = random.normal(475.0, 9.0, shape)
        self.power_capped = self.dynamic_watts > 475.0 + 1.3 * 9.0
        self.ambient_celsius = random.uniform(25.0, 31.0, (hosts, 1)) + random.uniform(0, 3, shape)
        self.resistance = random.uniform(0.058, 0.072, shape)  # kelvin per watt
        self.lag_seconds = random.uniform(20.0, 60.0, shape)
        self.brake_depth = random.uniform(0.26, 0.38, shape)
        self.brake = np.ones(shape)  # clock over unbraked clock
        self.braked: Flags = np.zeros(shape, bool)
        self.alive: Flags = np.ones(shape, bool)
        self.celsius = self.ambient_celsius + 30.0
        self._memory_offset = random.uniform(7.0, 12.0, shape)
        self.memory_celsius = self.celsius + self._memory_offset
        self.watts = self.idle_watts.copy()
        self.joules = random.uniform(1e8, 3e9, shape)
        self.thermal_ns = np.floor(random.uniform(0, 1, shape) ** 8 * 2e11)
        self.power_ns = np.floor(random.uniform(0, 2e12, shape)) * self.power_capped
        self.hardware_thermal_ns = np.zeros(shape)
        self._idle_ns = np.zeros(shape)
        self._used_bytes = np.floor(random.normal(72e9, 5e7, shape))
        self._at_work: Flags = np.zeros(shape, bool)
        self.start_window()

    def settle(self, job: Job) -> None:
        """Set temperatures to where the job has brought them, as if it had run for an hour."""
        compute, exchange = job.expected_shares(self.compute_speed())
        dynamic = compute + exchange * OWN_ACTIVITY[Phase.COMMUNICATE]
        dynamic = dynamic + (1 - compute - exchange) * WAIT_ACTIVITY
        watts = self.idle_watts + self.dynamic_watts * dynamic
        self.celsius = self.ambient_celsius + self.resistance * watts
        self.memory_celsius = self.celsius + self._memory_offset

    def compute_speed(self) -> Floats:
        """Return each rank's pace at compute; 1.0 is the nominal clock."""
        return self.clock_ratio * self.brake

    def fail_cooling(self, host: int, gpu: int, depth: float, onset_seconds: float) -> None:
        """Part the die from its cooler: it reaches the brake in about *onset_seconds*, which then
        holds it by taking *depth* of the clock."""
        at = (host, gpu)
        headroom = BRAKED_CELSIUS - self.ambient_celsius[at]
        # Under the brake the slowest rank computes almost all the time: about 0.88 of the step.
        braked = self._mean_watts(at, 0.88, (1 - depth) ** POWER_EXPONENT)
        self.resistance[at] = headroom / braked
        aim = self.ambient_celsius[at] + self.resistance[at] * self._mean_watts(at, 0.8, 1.0)
        to_go = (aim - self.celsius[at]) / (aim - parts.TEMPERATURE_MAX_CELSIUS)
        self.lag_seconds[at] = onset_seconds / np.log(to_go)
        self.brake_depth[at] = depth

    def _mean_watts(self, at: tuple[int, int], duty: float, power_ratio: float) -> float:
        activity = duty * power_ratio + (1 - duty) * OWN_ACTIVITY[Phase.COMMUNICATE]
        return float(self.idle_watts[at] + self.dynamic_watts[at] * activity)

    def lose(self, host: int, gpu: int) -> None:
        """The process on this GPU is gone: it idles from now on."""
        self.alive[host, gpu] = False

    def start_window(self) -> None:
        """Begin a new second for what is averaged over one."""
        self.window_seconds = 0.0
        self._busy_seconds = np.zeros((len(Phase), *self.shape))
        self.window_joules = np.zeros(self.shape)

    def mean(self, own: Mapping[Phase, float], waiting: float) -> Floats:
        """Return the mean over this second of what is *own* of each phase's work, and of *waiting*."""
        weights = np.array([own[phase] - waiting for phase in Phase])
        share = np.tensordot(weights, self._busy_seconds, 1) / max(self.window_seconds, 1e-9)
        return np.asarray(np.maximum(waiting + share, 0.0) * self.alive)

    def advance(self, stretch: Stretch) -> None:
        """Live through one stretch of the job."""
        seconds, phase = stretch.seconds, stretch.phase
        if seconds <= 0:
            return
        busy = stretch.busy
        own = WAIT_ACTIVITY + (OWN_ACTIVITY[phase] - WAIT_ACTIVITY) * busy
        activity = own * self.alive
        noise = 1 + POWER_NOISE * self._noise.standard_normal(self.shape)
        dynamic = self.dynamic_watts * activity * self.brake**POWER_EXPONENT
        self.watts = (self.idle_watts + dynamic) * noise
        joules = self.watts * seconds
        self.joules += joules
        self.window_joules += joules
        self._heat(seconds)
        self._hold_clock(seconds)
        self.window_seconds += seconds
        self._busy_seconds[phase] += busy * seconds
        self._at_work = self.alive & (busy > 0.5) & (phase is Phase.COMPUTE)
        if phase is Phase.COMPUTE:
            capped = busy * self.power_capped * self.alive
            self.power_ns += np.floor(capped * seconds * POWER_CAPPED_SHARE * 1e9)

    def _heat(self, seconds: float) -> None:
        aim = self.ambient_celsius + self.resistance * self.watts
        self.celsius += (aim - self.celsius) * -np.expm1(-seconds / self.lag_seconds)
        memory_aim = self.celsius + self._memory_offset
        self.memory_celsius += (memory_aim - self.memory_celsius) * -np.expm1(-seconds / 15.0)

    def _hold_clock(self, seconds: float) -> None:
        bites = self.celsius >= parts.TEMPERATURE_MAX_CELSIUS
        holds = self.celsius > parts.TEMPERATURE_MAX_CELSIUS - BRAKE_HYSTERESIS_CELSIUS
        self.braked = bites | (self.braked & holds)
        self.thermal_ns += np.floor(self.braked * seconds * 1e9)
        if bites.any():
            hot = self.celsius >= parts.TEMPERATURE_SLOWDOWN_CELSIUS
            self.hardware_thermal_ns += np.floor(hot * seconds * 1e9)
        # The hotter, the harder; within what these parts were seen to do (25 to 40 % of the clock).
        depth = np.clip(self.brake_depth + 0.02 * (self.celsius - BRAKED_CELSIUS), 0.25, 0.40)
        aim = np.where(self.braked, 1 - depth, 1.0)
        self.brake += (aim - self.brake) * -np.expm1(-seconds / BRAKE_SECONDS)

    def reasons(self) -> npt.NDArray[np.int64]:
        """Return the clock event reasons of this moment as NVML's bits."""
        hot = self.celsius >= parts.TEMPERATURE_SLOWDOWN_CELSIUS
        capped = self._at_work & self.power_capped & (self._noise.random(self.shape) < 0.3)
        flags = np.zeros(self.shape, np.int64)
        flags[~self.alive] |= REASON_GPU_IDLE
        flags[self.braked] |= REASON_SW_THERMAL
        flags[hot] |= REASON_HW_THERMAL | REASON_HW_SLOWDOWN
        flags[capped] |= REASON_SW_POWER_CAP
        return flags

    def clock_hertz(self) -> Floats:
        """Return the SM clocks of this moment, on the steps that the hardware has."""
        wander = 1 + 0.002 * self._noise.standard_normal(self.shape)
        hertz = np.minimum(CLOCK_HERTZ * self.compute_speed() * wander, parts.SM_CLOCK_MAX_HERTZ)
        steps = np.round(np.where(self.alive, hertz, CLOCK_IDLE_HERTZ) / CLOCK_STEP_HERTZ)
        return np.asarray(steps * CLOCK_STEP_HERTZ)

    def publish(self, tables: Tables) -> None:
        """Put this second's readings, rounded as NVML rounds them, and begin a new window."""
        seconds = max(self.window_seconds, 1e-9)
        hertz = self.clock_hertz()
        tables.put("gpu.sm_clock_hertz", hertz)
        tables.put("gpu.graphics_clock_hertz", hertz)
        self._publish_brakes(tables)
        tables.put("gpu.power_watts", np.round(self.watts, 3))
        tables.put("gpu.power_average_watts", np.round(self.window_joules / seconds, 3))
        tables.put("gpu.energy_joules", np.round(self.joules, 3))
        tables.put("gpu.temperature_celsius", np.floor(self.celsius))
        margin = parts.TEMPERATURE_MAX_CELSIUS - np.floor(self.celsius)
        tables.put("gpu.temperature_margin_celsius", margin)
        tables.put("gpu.memory_temperature_celsius", np.floor(self.memory_celsius))
        tables.put("gpu.utilization_ratio", np.round(self.mean(OWN_RESIDENCY, 1.0), 2))
        tables.put("gpu.memory_utilization_ratio", np.round(self.mean(OWN_MEMORY_SHARE, 0.0), 2))
        used = np.where(self.alive, self._used_bytes, IDLE_BYTES)
        tables.put("gpu.memory_used_bytes", used)
        tables.put("gpu.memory_free_bytes", parts.GPU_MEMORY_BYTES - used)
        tables.put("gpu.processes_count", self.alive)
        self.start_window()

    def _publish_brakes(self, tables: Tables) -> None:
        """Put why the clock is not higher, as flags and as time. Every brake of heat takes the clock
        below its base."""
        self._idle_ns += np.floor(~self.alive * self.window_seconds * 1e9)
        tables.put("gpu.clock_event_reasons_flags", self.reasons())
        tables.put("gpu.violation_power_nanoseconds", self.power_ns)
        tables.put("gpu.violation_low_utilization_nanoseconds", self._idle_ns)
        tables.put("gpu.violation_hw_thermal_nanoseconds", self.hardware_thermal_ns)
        for name in ("thermal", "thermal_check", "sw_thermal", "base_clocks"):
            tables.put(f"gpu.violation_{name}_nanoseconds", self.thermal_ns)


def draw_clock_ratios(random: np.random.Generator, shape: tuple[int, int]) -> Floats:
    """Return clocks over nominal: median 1.00, IQR 2.5 %, and 2.5 % of the parts off by 5 to 7 %."""
    ratios = 1 + np.clip(random.normal(0, 0.0185, shape), -0.04, 0.04)
    outlier = random.random(shape) < 0.025
    sign = np.where(random.random(shape) < 0.5, -1.0, 1.0)
    return np.where(outlier, 1 + sign * random.uniform(0.05, 0.07, shape), ratios)
