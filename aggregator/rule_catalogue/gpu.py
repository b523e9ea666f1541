"""Rules of GPUs: lost or unread GPUs, slow GPUs, and GPU memory."""

from ..model import HealthState, Reason
from ..rule_declaration import (
    FindingWhen,
    HazardClass,
    Rule,
    ThresholdRule,
    above,
    equals,
    suspect_rule,
    watch_rule,
)

LOST = ThresholdRule(
    Rule("gpu.lost", HealthState.UNHEALTHY, Reason.GPU_UNUSABLE, "the host boots with the GPU back on the bus",
         leave_seconds=10.0, hazard_factor=20_000.0, fault_class=HazardClass.DRIVER),
    "gpu_1s", "lost_state", equals(1), "has fallen off the bus; only a reboot brings it back",
    columns="lost_state, calls_failed_errors", seconds=120.0,
)
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
MISSING = Rule(
    "gpu.missing", HealthState.UNHEALTHY, Reason.GPU_UNUSABLE,
    "the host has as many GPUs as before, or `[[expected]] gpus` declares fewer for it",
    enter_seconds=SETTLING_SECONDS, leave_seconds=10.0, hazard_factor=20_000.0, finding=FindingWhen.COSTLY,
)
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
LOST_DATA = Rule(
    "gpu.ecc_uncorrected", HealthState.WATCH, Reason.ECC_TREND,
    "the GPU is reset, which sets its volatile error counters to zero",
    leave_seconds=5.0, hazard_factor=10.0,
    counts=("gpu.ecc_uncorrected_volatile_errors",), fault_class=HazardClass.MEMORY,
)
RESET, REPLACED = "the GPU is reset, which repairs it", "the GPU is replaced"
CHANGES = "gpu_10s_changes"
#: Memory rows that wait for their replacement, or have none.
REMAPS = (
    ThresholdRule(
        Rule("gpu.remap_pending", HealthState.WATCH, Reason.HBM_REMAP, "the GPU is reset, which replaces the row",
             leave_seconds=5.0, hazard_factor=5.0, fault_class=HazardClass.REMAP),
        CHANGES, "remap_pending_state", equals(1), "has a memory row to replace at its next reset",
    ),
    ThresholdRule(
        Rule("gpu.remap_failed", HealthState.UNHEALTHY, Reason.HBM_REMAP,
             "the GPU is replaced, or a reset shows that the remap succeeded",
             leave_seconds=5.0, hazard_factor=2000.0, fault_class=HazardClass.REMAP),
        CHANGES, "remap_failed_state", equals(1), "has no spare memory row left to replace a bad one",
    ),
    ThresholdRule(
        watch_rule("gpu.remap_exhausted", Reason.HBM_REMAP, REPLACED, 5.0, leave_seconds=5.0),
        CHANGES, "remap_banks_none_count", above(0.0),
        "has {value:.0f} memory banks with no spare row left: the next bad row there cannot be remapped",
    ),
)
#: Reports by the driver about a part's memory. The limits are the driver's, so each report counts
#: by itself.
MEMORY_FAULTS = (
    ThresholdRule(
        suspect_rule("gpu.memory_unrepairable", Reason.HBM_REMAP, REPLACED, 50.0, leave_seconds=5.0),
        CHANGES, "unrepairable_memory_state", equals(1), "has memory that cannot be repaired",
    ),
    ThresholdRule(
        suspect_rule("gpu.sram_threshold", Reason.ECC_TREND, REPLACED, 20.0, leave_seconds=5.0),
        CHANGES, "sram_threshold_exceeded_state", equals(1),
        "has more SRAM errors than NVIDIA's field diagnostic allows",
    ),
    ThresholdRule(
        watch_rule("gpu.repair_pending", Reason.HBM_REMAP, RESET, 2.0, leave_seconds=5.0),
        CHANGES, "repair_channel_pending_state", equals(1), "has a memory channel to repair at its next reset",
    ),
    ThresholdRule(
        watch_rule("gpu.repair_tpc_pending", Reason.ECC_TREND, RESET, 2.0, leave_seconds=5.0),
        CHANGES, "repair_tpc_pending_state", equals(1), "has a cluster of SMs to repair at its next reset",
    ),
    ThresholdRule(
        watch_rule("gpu.retirement_pending", Reason.HBM_REMAP, RESET, 5.0, leave_seconds=5.0),
        CHANGES, "retirement_pending_state", equals(1), "has a memory page to retire at its next reset",
    ),
)
