"""Rules of GPUs that functions detect: unread and slow GPUs, errors of GPU memory."""

from ..model import HealthState, Reason
from ..rule_declaration import (
    HazardClass,
    Rule,
)
from .faults import BY_FUNCTION

RECOVERY = Rule(
    "gpu.recovery_action", HealthState.UNHEALTHY, Reason.GPU_UNUSABLE, "the driver no longer asks for a recovery action",
    enter_seconds=2.0, leave_seconds=10.0, hazard_factor=1000.0,
    reads=("gpu.recovery_action_state",), fault_class=HazardClass.DRIVER,
)
#: UNKNOWN, or UNHEALTHY for codes of an unusable GPU. A GPU that is being reset answers like this
#: for seconds.
NO_ANSWER = Rule(
    "gpu.no_answer", HealthState.UNKNOWN, Reason.GPU_UNUSABLE, "the GPU answers NVML's calls again for 10 s",
    enter_seconds=10.0, leave_seconds=10.0, hazard_factor=10.0,
    reads=("gpu.error_code_state",), fault_class=HazardClass.DRIVER,
)
UNSEEN = Rule(
    "gpu.unseen", HealthState.WATCH, Reason.BLIND, "readings of the GPU arrive again",
    leave_seconds=10.0, hazard_factor=3.0,
    reads=("probe.state", "probe.hung_seconds", "gpu.probe_hung_seconds"),
)
#: Reloading a driver, or resetting all GPUs, takes less (assumed).
SETTLING_SECONDS = 120.0
#: Not a fault of the host: a person may have removed GPUs.
MISSING = BY_FUNCTION["gpu.missing"]
UNREAD = Rule(
    "gpu.none_read", HealthState.UNKNOWN, Reason.BLIND, "readings of its GPUs arrive for 5 s",
    leave_seconds=5.0, hazard_factor=10.0,
)

#: Signals that show whether a GPU computes, how fast, and its comparable peers.
PACE = (
    "gpu.sm_clock_hertz", "gpu.sm_clock_max_hertz", "gpu.sm_application_clock_hertz", "gpu.utilization_ratio",
    "gpu.power_watts", "gpu.power_limit_watts", "gpu.power_limit_default_watts", "gpu.energy_joules",
    "gpu.mig_mode_state", "gpu.clock_event_reasons_flags",
)
SLOW_CLEARS = "its SM clock stays within {:.0f} % of {} for 60 s"
THERMAL = Rule(
    "gpu.thermal", HealthState.DEGRADED, Reason.THERMAL_THROTTLE, SLOW_CLEARS.format(10, "its peers'"),
    enter_seconds=4.0, hazard_factor=3.0, shared="cooling",
    reads=(
        *PACE, "gpu.temperature_celsius", "gpu.memory_temperature_celsius", "gpu.temperature_slowdown_celsius",
        "gpu.temperature_margin_celsius",
    ),
    counts=("gpu.violation_thermal_nanoseconds",),
)
POWER = Rule(
    "gpu.power", HealthState.DEGRADED, Reason.POWER_CAP, SLOW_CLEARS.format(10, "its peers'"),
    enter_seconds=6.0, hazard_factor=1.5, shared="power", reads=PACE, counts=("gpu.violation_power_nanoseconds",),
)
SETTING = Rule(
    "gpu.clock_setting", HealthState.WATCH, Reason.POLICY, "its clock setting is that of its peers for 60 s",
    enter_seconds=20.0, reads=PACE,
)
STRAGGLER = Rule(
    "gpu.straggler", HealthState.DEGRADED, Reason.STRAGGLER, SLOW_CLEARS.format(10, "its peers'"),
    enter_seconds=20.0, hazard_factor=1.5, reads=PACE,
)

ECC = Rule(
    "gpu.ecc_burst", HealthState.WATCH, Reason.ECC_TREND, "no burst of corrected errors for 5 minutes",
    enter_seconds=2.0, leave_seconds=300.0, hazard_factor=5.0, counts=("gpu.ecc_corrected_volatile_errors",),
)
LOST_DATA = BY_FUNCTION["gpu.ecc_uncorrected"]
