"""Readings of GPUs in training by phase: power, clocks, activity, at the levels of an H100.

power = idle + dynamic * activity * (clock / unbraked clock) ** 2.2

75 W idle, 150 W waiting, 550 W computing. Activity levels are assumed: a rank that waits in a
collective keeps the few SMs of its communication kernel busy, and no tensor core.
"""

from __future__ import annotations

from enum import IntEnum

# Clock event reasons (nvml.h, nvmlClocksEventReason*).
REASON_GPU_IDLE = 0x1
REASON_SW_POWER_CAP = 0x4
REASON_HW_SLOWDOWN = 0x8
REASON_SW_THERMAL = 0x20
REASON_POWER_BRAKE = 0x80
#: Dynamic power falls with the clock and with the voltage, which follows the clock.
POWER_EXPONENT = 2.2
POWER_NOISE = 0.01
CLOCK_HERTZ = 1755e6
CLOCK_STEP_HERTZ = 15e6
CLOCK_IDLE_HERTZ = 345e6
#: Temperature at which the brake holds the die of a failed cooler.
BRAKED_CELSIUS = 88.3
#: Readings per second of the agent's fast lane.
SAMPLES_PER_SECOND = 10
WAIT_ACTIVITY = 0.16
#: Share of the SMs, and of the warps, that the communication kernel uses while waiting.
WAIT_SM_ACTIVE, WAIT_OCCUPANCY = 0.18, 0.04


class Phase(IntEnum):
    """Activity of a rank that does not wait for others."""

    COMPUTE = 0
    COMMUNICATE = 1
    GAP = 2  # the host prepares the next batch, or a checkpoint is written: no kernel runs


#: Activity as a share of the dynamic power: in each phase, and while waiting.
PHASE_ACTIVITY = {Phase.COMPUTE: 1.0, Phase.COMMUNICATE: 0.26, Phase.GAP: 0.10}
PHASE_SM_ACTIVE = {Phase.COMPUTE: 0.88, Phase.COMMUNICATE: WAIT_SM_ACTIVE, Phase.GAP: 0.0}
PHASE_OCCUPANCY = {Phase.COMPUTE: 0.24, Phase.COMMUNICATE: WAIT_OCCUPANCY, Phase.GAP: 0.0}
PHASE_TENSOR_ACTIVE = {Phase.COMPUTE: 0.47, Phase.COMMUNICATE: 0.0, Phase.GAP: 0.0}
PHASE_BANDWIDTH = {Phase.COMPUTE: 0.42, Phase.COMMUNICATE: 0.10, Phase.GAP: 0.0}
