"""Rules of missing data, of reports about a host, and of differences from its declaration."""

from dataclasses import replace

from ...contract.signals import SIGNALS
from ..model import HealthState, Reason
from ..rule_declaration import FindingWhen, Rule
from .faults import BY_FUNCTION

#: The agent waited before its report, and retries by itself. If a whole driver hangs, its first
#: device is reported a second or two earlier: after `enter_seconds` it is the driver's finding.
DEVICE_HANGS = BY_FUNCTION["device.hung"]
DRIVER_HANGS = BY_FUNCTION["driver.hung"]
NEW = Rule("host.new", HealthState.UNKNOWN, Reason.NONE, "", leave_seconds=0.0, hazard_factor=10.0)
#: Missing telemetry is itself a leading sign of a fault.
SILENT = Rule(
    "host.silent", HealthState.STALE, Reason.STALE_TELEMETRY, "", leave_seconds=0.0, hazard_factor=5.0,
    never_noise="a silent host is never noise: missing is not healthy. If it is off on purpose, declare [[maintenance]]",
)
HANGS = Rule(
    "collector.hung", HealthState.WATCH, Reason.DRIVER_HUNG, "the call returns, and readings arrive for 30 s",
    enter_seconds=3.0, leave_seconds=30.0, reads=("collector.outcome_state", "probe.state"),
)
FAILS = Rule(
    "collector.failed", HealthState.HEALTHY, Reason.BLIND, "the collector reads again",
    leave_seconds=5.0, reads=("collector.outcome_state",),
)
#: One rule for each counter that stays at its ceiling.
STUCK = Rule(
    "counter.saturated", HealthState.HEALTHY, Reason.BLIND, "the counter is cleared and reads less than its ceiling",
    leave_seconds=0.0, reads=tuple(signal.name for signal in SIGNALS if signal.sticks), finding=FindingWhen.ALWAYS,
    is_family=True,
)
UNTRACKED = Rule("devices.left_out", HealthState.HEALTHY, Reason.BLIND, "", finding=FindingWhen.ALWAYS)
FRAMES_LOST = Rule(
    "data.lost", HealthState.WATCH, Reason.DATA_LOST, "the agent loses no frames for 5 minutes",
    leave_seconds=300.0, counts=("agent.spool_dropped_frames",), finding=FindingWhen.ALWAYS,
)
HOST_FINDING = Rule("finding", HealthState.WATCH, Reason.IDENTITY, "", leave_seconds=0.0)
HOST_RETURNED = Rule(
    "host.returned", HealthState.PROBATION, Reason.POLICY, "", leave_seconds=0.0,
    never_noise="probation is never noise: it ends by itself, and `gangline explain HOST` says when",
)
#: Time for an inventory to be complete after a boot or a start of the agent (assumed).
SETTLING_SECONDS = 60.0
#: A rule per declared property. Not a fault of the host: an error in a file would make every host a
#: lemon.
UNEXPECTED = Rule(
    "hardware.unexpected", HealthState.WATCH, Reason.POLICY, "the host has what was declared",
    enter_seconds=SETTLING_SECONDS, leave_seconds=5.0, finding=FindingWhen.COSTLY,
    reads=(
        "rdma.port_state", "rdma.rate_bytes_per_second", "nvlink.link_state",
        "gpu.pcie_width_max_lanes", "gpu.pcie_generation_max_number",
    ),
)
#: By property.
UNEXPECTED_ITEMS = {
    item: replace(UNEXPECTED, name=f"{UNEXPECTED.name}.{item}", reads=(), finding=FindingWhen.NEVER)
    for item in (
        "gpus", "model", "gpu_memory_gigabytes_min", "gpu_pcie_width_lanes", "gpu_pcie_generation",
        "nvlinks_per_gpu", "nvlinks_up", "rdma_ports", "rdma_port_gigabits_per_second", "numa_nodes",
        "cpu_cores", "memory_gigabytes_min", "nvme_drives", "nvidia_drivers", "kernels", "vbioses",
    )
}
