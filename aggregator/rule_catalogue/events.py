"""Rules of events: active XIDs and SXIDs, and reports of kernels, drivers and DCGM.

Only an XID, an SXID, or a GPU that is lost or needs a reset takes a host away by itself: corrected
errors, killed programs and hung tasks are WATCH at most, lost data and failed hardware SUSPECT.
Factors are assumed (no public rates exist) until outcomes calibrate them.
"""

from collections.abc import Mapping

from ...contract.xid.policy import Clears
from ..model import HealthState, Reason
from ..rule_declaration import ClearCondition, EventKind, FindingWhen, HazardClass, Rule

#: Fewer repaired errors within a day are normal on every machine.
CORRECTED_MIN = 10
H, W, S, U = HealthState.HEALTHY, HealthState.WATCH, HealthState.SUSPECT, HealthState.UNHEALTHY
MEMORY, HOST, STORAGE = Reason.ECC_TREND, Reason.HOST_CPU, Reason.STORAGE
RESET, REBOOT = ClearCondition(Clears.RESET), ClearCondition(Clears.REBOOT)
TEN_MINUTES, HOUR, DAY = (ClearCondition(Clears.TIME, seconds) for seconds in (600.0, 3600.0, 86_400.0))
#: Reason of an event -> class of its fault.
FAULT_CLASSES = {
    Reason.NONE: HazardClass.DRIVER, Reason.XID_FATAL: HazardClass.DRIVER, Reason.DRIVER_HUNG: HazardClass.DRIVER,
    Reason.GPU_UNUSABLE: HazardClass.DRIVER, Reason.PCIE: HazardClass.LINK,
    Reason.FABRIC: HazardClass.LINK, Reason.RAIL_DOWN: HazardClass.LINK, Reason.ECC_TREND: HazardClass.MEMORY,
    Reason.HBM_REMAP: HazardClass.MEMORY, Reason.HOST_CPU: HazardClass.HOST, Reason.STORAGE: HazardClass.HOST,
    Reason.BLIND: HazardClass.OTHER,
}

#: Codes of NVIDIA's GPUs and NVSwitches; their policies define the meaning (`contract/xid/`).
XID = Rule(
    "gpu.xid", H, Reason.NONE, "", leave_seconds=0.0, fault_class=HazardClass.DRIVER, is_family=True,
    reads=("gpu.recovery_action_state", "nvlink.link_state"),
)
SXID = Rule(
    "nvswitch.sxid", H, Reason.NONE, "", leave_seconds=0.0, fault_class=HazardClass.LINK, is_family=True,
)



def _kind(
    name: str, state: HealthState, reason: Reason, factor: float, message: str, count_min: int = 1,
    *, is_family: bool = False,
) -> EventKind:
    """Return an event that is a fault of its host."""
    rule = Rule(
        name, state, reason, "", leave_seconds=0.0, hazard_factor=factor, fault_class=FAULT_CLASSES[reason],
        is_family=is_family,
    )
    return EventKind(rule, message, count_min)


def _report(name: str, state: HealthState, factor: float, message: str, finding: FindingWhen) -> EventKind:
    """Return an event that blames no host: a signal repeats it, or an operator's limit made it."""
    return EventKind(
        Rule(name, state, Reason.NONE, "", leave_seconds=0.0, hazard_factor=factor, finding=finding), message
    )


#: Events of one name that were too many to be distinguished (`agent/kernel_log/incidents.py`).
FOLDED = _kind(
    "folded", H, Reason.BLIND, 1.0, "too many at once to list each; read the kernel log (journalctl -k)",
    is_family=True,
)

#: Name of an event -> its clear condition, and the kind of each code. Other events, such as a link
#: that came up, are left to the store and to the readings that report the same.
_EVENTS: Mapping[str, tuple[ClearCondition, Mapping[int, EventKind]]] = {
    "gpu.lost": (RESET, {
        0: _kind("gpu.off_bus", U, Reason.GPU_UNUSABLE, 20_000.0, "has fallen off the bus (reported by its driver)"),
    }),
    "gpu.needs_reset": (RESET, {
        0: _kind("gpu.needs_reset", U, Reason.GPU_UNUSABLE, 1000.0, "its driver reports that a GPU must be reset"),
    }),
    "gpu.needs_reboot": (REBOOT, {
        0: _kind("gpu.needs_reboot", U, Reason.GPU_UNUSABLE, 1000.0, "its driver reports that the host must reboot"),
    }),
    "gpu.driver_message": (TEN_MINUTES, {
        0: _kind("gpu.driver_message", H, Reason.NONE, 1.0, "its driver logged an error"),
        1: _kind("gpu.driver_message.no_response", S, Reason.DRIVER_HUNG, 30.0,
                 "its driver reports that firmware or an engine does not respond"),
        2: _kind("gpu.driver_message.not_started", S, Reason.GPU_UNUSABLE, 100.0,
                 "its driver reports that it cannot initialize the GPU"),
    }),
    "gpu.ras_error": (DAY, {
        0: _kind("gpu.ras_error.corrected", W, MEMORY, 1.5, "it corrected errors (RAS)", CORRECTED_MIN),
        1: _kind("gpu.ras_error.uncorrected", S, MEMORY, 100.0, "it had uncorrectable errors (RAS)"),
        2: _kind("gpu.ras_error.deferred", W, MEMORY, 10.0, "it lost data that has not been read yet (RAS)"),
        3: _kind("gpu.ras_error.replace", S, Reason.HBM_REMAP, 50.0,
                 "it has more bad memory pages than its driver allows: AMD's service guide says whether to replace it"),
    }),
    "gpu.hang": (HOUR, {
        0: _kind("gpu.hang", W, Reason.DRIVER_HUNG, 5.0, "one of its queues hung, and its driver resets it"),
        1: _kind("gpu.hang.recovered", H, Reason.NONE, 1.0, "one of its queues hung, and recovered by itself"),
        2: _kind("gpu.hang.dead", S, Reason.DRIVER_HUNG, 30.0,
                 "a queue, the firmware that schedules queues, or the SMU does not respond"),
    }),
    "gpu.reset": (RESET, {
        0: _kind("gpu.reset", H, Reason.NONE, 1.0, "its driver resets it"),
        1: _kind("gpu.reset_failed", U, Reason.GPU_UNUSABLE, 1000.0,
                 "its driver could not reset it; only a reboot brings it back"),
    }),
    "pcie.aer": (TEN_MINUTES, {
        0: _kind("pcie.aer.corrected", H, Reason.PCIE, 1.0, "PCIe corrected an error (AER)"),
        1: _kind("pcie.aer.nonfatal", S, Reason.PCIE, 30.0, "PCIe lost a transaction (AER, non-fatal)"),
        2: _kind("pcie.aer.fatal", S, Reason.PCIE, 30.0,
                 "PCIe link or device failed (AER, fatal or not recovered), or its slot lost link or card"),
    }),
    "host.hardware_error": (DAY, {
        0: _kind("host.hardware_error.recoverable", W, MEMORY, 3.0, "firmware reports a recoverable error"),
        1: _kind("host.hardware_error.fatal", S, MEMORY, 30.0, "firmware reports a fatal hardware error"),
        2: _kind("host.hardware_error.corrected", W, MEMORY, 1.5, "firmware reports corrected errors", CORRECTED_MIN),
        3: _kind("host.hardware_error.info", H, MEMORY, 1.0, "firmware reports an informational record"),
    }),
    "host.machine_check": (DAY, {
        0: _kind("host.machine_check.corrected", W, MEMORY, 1.5, "processor corrected errors (MCE)", CORRECTED_MIN),
        1: _kind("host.machine_check.uncorrected", S, MEMORY, 30.0,
                 "processor had an uncorrectable error (MCE)"),
    }),
    "host.memory_error": (DAY, {
        0: _kind("host.memory_error.corrected", W, MEMORY, 2.0, "host memory corrected errors (EDAC)", CORRECTED_MIN),
        1: _kind("host.memory_error.uncorrected", S, MEMORY, 30.0,
                 "host memory lost data: an uncorrectable error (EDAC)"),
    }),
    "rdma.driver_error": (TEN_MINUTES, {
        0: _kind("rdma.driver_error", W, Reason.FABRIC, 5.0, "its RDMA driver reports an error"),
        1: _kind("rdma.low_power", H, Reason.FABRIC, 1.0, "its PCIe slot supplies less power than it requests"),
    }),
    "rdma.adapter_failed": (REBOOT, {
        0: _kind("rdma.adapter_failed", S, Reason.RAIL_DOWN, 300.0,
                 "the adapter's firmware does not respond, or its driver disabled it"),
    }),
    "host.out_of_memory": (TEN_MINUTES, {
        0: _kind("host.out_of_memory", W, HOST, 1.2, "the kernel killed a program because memory ran out"),
    }),
    "host.hung_task": (TEN_MINUTES, {
        0: _kind("host.hung_task", W, HOST, 3.0, "a task hangs in the kernel"),
        1: _kind("host.hung_task.lasting", S, HOST, 20.0, "a task has hung in the kernel for ten minutes or longer"),
    }),
    "host.lockup": (HOUR, {
        0: _kind("host.lockup.soft", W, HOST, 3.0, "a core is stuck (soft lockup)"),
        1: _kind("host.lockup.hard", S, HOST, 20.0, "a core is stuck (hard lockup)"),
        2: _kind("host.lockup.rcu", W, HOST, 3.0, "a core is stuck (RCU stall)"),
        3: _kind("host.lockup.lasting", S, HOST, 20.0, "a core has been stuck for two minutes or longer"),
    }),
    "filesystem.error": (HOUR, {
        0: _kind("filesystem.error", W, STORAGE, 3.0, "the file system reported an error"),
        1: _kind("filesystem.error.read_only", W, STORAGE, 5.0, "the file system was made read-only"),
        2: _kind("filesystem.error.unreachable", W, STORAGE, 3.0, "a server of the file system does not respond"),
    }),
    "disk.error": (HOUR, {
        0: _kind("disk.error", W, STORAGE, 3.0, "the disk reported an error"),
        1: _kind("disk.error.removed", S, STORAGE, 20.0, "the kernel removed or disabled the disk, because it does not respond"),
    }),
    "host.kernel_fault": (REBOOT, {
        0: _kind("host.kernel_fault", W, HOST, 5.0, "the kernel hit an internal error (BUG or Oops)"),
    }),
    "host.kernel_log_lost": (TEN_MINUTES, {
        0: _kind("host.kernel_log_lost", H, Reason.BLIND, 1.0,
                 "kernel log was overrun: lines were lost before the agent read them, and an XID may be among them"),
    }),
    "gpu.diagnostic": (DAY, {
        1: _kind("gpu.diagnostic.warning", W, Reason.NONE, 2.0, "a diagnostic of it ended with a warning"),
        2: _kind("gpu.diagnostic.failed", S, Reason.NONE, 30.0, "a diagnostic of it failed"),
    }),
    "net.link": (REBOOT, {2: _kind("net.removed", W, Reason.RAIL_DOWN, 3.0, "the network interface was removed")}),
}
#: Events with codes of another table: name -> kind for any code. A counter or an XID reports the
#: same as NVML's own events; reports of DCGM's watches and policies may depend on limits of an
#: operator.
ANY_CODE: Mapping[str, EventKind] = {
    "gpu.driver_event": _report("gpu.driver_event", H, 1.0, "its driver reported an event", FindingWhen.NEVER),
    "gpu.dcgm_failure": _report(
        "gpu.dcgm_failure", S, 30.0, "DCGM's health watch reports a failure", FindingWhen.COSTLY),
    "gpu.dcgm_warning": _report("gpu.dcgm_warning", W, 3.0, "DCGM's health watch warns", FindingWhen.COSTLY),
    "gpu.dcgm_policy": _report(
        "gpu.dcgm_policy", W, 2.0, "a DCGM policy was violated", FindingWhen.COSTLY),
}
#: (Name, code) of an event -> kind.
EVENT_KINDS: Mapping[tuple[str, int], EventKind] = {
    (name, code): kind for name, (_, kinds) in _EVENTS.items() for code, kind in kinds.items()
}
#: Name of an event -> its clear condition.
EVENT_POLICY: Mapping[str, ClearCondition] = {
    **{name: clears for name, (clears, _) in _EVENTS.items()}, **dict.fromkeys(ANY_CODE, TEN_MINUTES),
}
