"""What the agent's 8 Hz lane and GPM say of each GPU's second, made from the phases that the second held.

Levels are assumed, after an H100 in training: a rank that waits in a collective keeps the few SMs of
its communication kernel busy, and no tensor core.
"""

from __future__ import annotations

import numpy as np

from .drives import CHECKPOINT_BYTES_PER_SECOND, DATASET_BYTES_PER_SECOND
from .gpus import CLOCK_HERTZ, CLOCK_IDLE_HERTZ, CLOCK_STEP_HERTZ, Gpus
from .job import Phase, Stretch
from .parts import GPUS, SM_CLOCK_MAX_HERTZ
from .tables import Floats, Tables

SAMPLES_PER_SECOND = 8
#: Share of the SMs, and of the warps, that a communication kernel holds.
WAIT_SM_ACTIVE, WAIT_OCCUPANCY = 0.18, 0.04
OWN_SM_ACTIVE = {
    Phase.COMPUTE: 0.88,
    Phase.COMMUNICATE: WAIT_SM_ACTIVE,
    Phase.GAP: 0.0,
    Phase.CHECKPOINT: 0.01,
    Phase.STALL: WAIT_SM_ACTIVE,
}
OWN_OCCUPANCY = {
    Phase.COMPUTE: 0.24,
    Phase.COMMUNICATE: WAIT_OCCUPANCY,
    Phase.GAP: 0.0,
    Phase.CHECKPOINT: 0.0,
    Phase.STALL: WAIT_OCCUPANCY,
}
OWN_TENSOR = {phase: 0.47 * (phase is Phase.COMPUTE) for phase in Phase}
OWN_BANDWIDTH = {
    Phase.COMPUTE: 0.42,
    Phase.COMMUNICATE: 0.10,
    Phase.GAP: 0.0,
    Phase.CHECKPOINT: 0.02,
    Phase.STALL: 0.0,
}
#: A writer of a checkpoint sends its shard over PCIe; all that is read comes in parts to all GPUs.
OWN_WRITTEN = {phase: CHECKPOINT_BYTES_PER_SECOND * (phase is Phase.CHECKPOINT) for phase in Phase}
#: Clock readings of a second stray this far to each side.
CLOCK_STRAYS = 0.004
GPM_NOISE = 0.005


class Fast:
    """The second's extremes, and what counters did in it; arrays are (hosts, 8)."""

    def __init__(self, noise: np.random.Generator, gpus: Gpus) -> None:
        self._noise = noise
        self._gpus = gpus
        self._active = np.zeros(gpus.shape)
        self._thermal_ns, self._power_ns = gpus.thermal_ns.copy(), gpus.power_ns.copy()
        self._moved = {name: np.zeros(gpus.shape) for name in ("port", "nvlink")}
        self._start_window()

    def _start_window(self) -> None:
        most, least = np.full(self._gpus.shape, np.inf), np.full(self._gpus.shape, -np.inf)
        self._watts_min, self._watts_max = most.copy(), least.copy()
        self._speed_min, self._speed_max = most.copy(), least.copy()
        self._active_min, self._active_max = most, least
        self._speed_seconds = np.zeros(self._gpus.shape)

    def _take(self) -> Floats:
        """Take one sample of what there is now; return the pace of the clocks."""
        watts, speed = self._gpus.watts, self._gpus.compute_speed()
        for least, most, now in (
            (self._watts_min, self._watts_max, watts),
            (self._speed_min, self._speed_max, speed),
            (self._active_min, self._active_max, self._active),
        ):
            np.minimum(least, now, out=least)
            np.maximum(most, now, out=most)
        return speed

    def advance(self, stretch: Stretch) -> None:
        """Take note of one stretch that the GPUs have lived through."""
        if stretch.seconds <= 0:
            return
        own = OWN_SM_ACTIVE[stretch.phase] - WAIT_SM_ACTIVE
        self._active = (WAIT_SM_ACTIVE + own * stretch.busy) * self._gpus.alive
        self._speed_seconds += self._take() * stretch.seconds

    def publish(self, tables: Tables, port_bytes: Floats, nvlink_bytes: Floats) -> None:
        """Put this second's summary; before `Gpus.publish`, which ends the second.

        *port_bytes*, *nvlink_bytes*: moved by each GPU's port and NVLinks since the start, the same
        in either direction.
        """
        seconds = max(self._gpus.window_seconds, 1e-9)
        self._take()  # a step may be too short for any other
        tables.put("gpu_fast.samples_count", max(1, round(SAMPLES_PER_SECOND * seconds)))
        self._publish_power(tables, seconds)
        self._publish_clock(tables, seconds)
        self._publish_brakes(tables, seconds)
        self._publish_activity(tables)
        moved = {"port": port_bytes, "nvlink": nvlink_bytes}
        rates = {name: np.floor((now - self._moved[name]) / seconds) for name, now in moved.items()}
        self._moved = {name: now.copy() for name, now in moved.items()}
        for way in ("received", "transmitted"):
            tables.put(f"gpu_fast.nvlink_{way}_bytes_per_second", rates["nvlink"])
        read = DATASET_BYTES_PER_SECOND / GPUS * self._gpus.alive
        written = self._gpus.mean(OWN_WRITTEN, 0.0)
        tables.put("gpu_fast.pcie_received_bytes_per_second", rates["port"] + read)
        tables.put("gpu_fast.pcie_transmitted_bytes_per_second", rates["port"] + written)
        self._start_window()

    def _publish_power(self, tables: Tables, seconds: float) -> None:
        mean = np.clip(self._gpus.window_joules / seconds, self._watts_min, self._watts_max)
        tables.put("gpu_fast.power_mean_watts", np.round(mean, 3))
        tables.put("gpu_fast.power_min_watts", np.round(self._watts_min, 3))
        tables.put("gpu_fast.power_max_watts", np.round(self._watts_max, 3))

    def _publish_clock(self, tables: Tables, seconds: float) -> None:
        step = CLOCK_STEP_HERTZ
        mean = np.clip(self._speed_seconds / seconds, self._speed_min, self._speed_max)
        least = np.floor(CLOCK_HERTZ * self._speed_min * (1 - CLOCK_STRAYS) / step) * step
        most = np.ceil(CLOCK_HERTZ * self._speed_max * (1 + CLOCK_STRAYS) / step) * step
        for name, hertz in (("min", least), ("mean", np.round(CLOCK_HERTZ * mean)), ("max", most)):
            working = np.minimum(hertz, SM_CLOCK_MAX_HERTZ)
            running = np.where(self._gpus.alive, working, CLOCK_IDLE_HERTZ)
            tables.put(f"gpu_fast.sm_clock_{name}_hertz", running)

    def _publish_brakes(self, tables: Tables, seconds: float) -> None:
        """Put the share of the samples that found a brake: what the counters say was held."""
        gpus = self._gpus
        hot = np.minimum((gpus.thermal_ns - self._thermal_ns) / 1e9 / seconds, 1.0)
        capped = np.minimum((gpus.power_ns - self._power_ns) / 1e9 / seconds, 1.0)
        np.copyto(self._thermal_ns, gpus.thermal_ns)
        np.copyto(self._power_ns, gpus.power_ns)
        samples = SAMPLES_PER_SECOND
        tables.put("gpu_fast.thermal_ratio", np.round(hot * samples) / samples)
        tables.put("gpu_fast.power_cap_ratio", self._noise.binomial(samples, capped) / samples)

    def _publish_activity(self, tables: Tables) -> None:
        mean = self._gpus.mean
        stray = 1 + GPM_NOISE * self._noise.standard_normal((3, *self._gpus.shape))
        active = mean(OWN_SM_ACTIVE, WAIT_SM_ACTIVE)
        told = np.clip(active * stray[0], self._active_min, self._active_max)
        ratios = {
            "sm_active": told,
            "sm_active_min": self._active_min,
            "sm_active_max": self._active_max,
            "sm_occupancy": mean(OWN_OCCUPANCY, WAIT_OCCUPANCY),
            "tensor_active": mean(OWN_TENSOR, 0.0) * stray[1],
            "memory_bandwidth": mean(OWN_BANDWIDTH, 0.0) * stray[2],
        }
        for name, ratio in ratios.items():
            tables.put(f"gpu_fast.{name}_ratio", np.round(ratio, 4))
