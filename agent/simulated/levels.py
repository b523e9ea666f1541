"""What GPUs in training show, phase by phase: power, clocks, activity. Levels are those of an H100.

    power = idle + dynamic * activity * (clock / unbraked clock) ** 2.2

75 W idle, 150 W waiting, 550 W computing. Those of activity are assumed: a rank that waits in a collective keeps
the few SMs of its communication kernel busy, and no tensor core.
"""

from __future__ import annotations

from enum import IntEnum


class Phase(IntEnum):
    """What a rank is at while it does not wait for others."""

    COMPUTE = 0
    COMMUNICATE = 1
    GAP = 2  # the host prepares the next batch, or a checkpoint is written: no kernel runs


# Clock event reasons (nvml.h, nvmlClocksEventReason*).
REASON_GPU_IDLE = 0x1
REASON_SW_POWER_CAP = 0x4
REASON_HW_SLOWDOWN = 0x8
REASON_SW_THERMAL = 0x20
REASON_POWER_BRAKE = 0x80

#: Dynamic power falls with clock and the voltage that follows it.
POWER_EXPONENT = 2.2
POWER_NOISE = 0.01
CLOCK_HERTZ = 1755e6
CLOCK_STEP_HERTZ = 15e6
CLOCK_IDLE_HERTZ = 345e6
#: Where the brake holds the die of a failed cooler.
BRAKED_CELSIUS = 88.3
#: Readings of the agent's fast lane in a second.
SAMPLES_PER_SECOND = 8

#: Activity, as a share of the dynamic power: of a rank at the phase's own work, and while waiting.
OWN_ACTIVITY = {Phase.COMPUTE: 1.0, Phase.COMMUNICATE: 0.26, Phase.GAP: 0.10}
WAIT_ACTIVITY = 0.16
#: Share of the SMs, and of the warps, that a kernel holds; of a communication kernel while waiting.
WAIT_SM_ACTIVE, WAIT_OCCUPANCY = 0.18, 0.04
OWN_SM_ACTIVE = {Phase.COMPUTE: 0.88, Phase.COMMUNICATE: WAIT_SM_ACTIVE, Phase.GAP: 0.0}
OWN_OCCUPANCY = {Phase.COMPUTE: 0.24, Phase.COMMUNICATE: WAIT_OCCUPANCY, Phase.GAP: 0.0}
OWN_TENSOR = {Phase.COMPUTE: 0.47, Phase.COMMUNICATE: 0.0, Phase.GAP: 0.0}
OWN_BANDWIDTH = {Phase.COMPUTE: 0.42, Phase.COMMUNICATE: 0.10, Phase.GAP: 0.0}
