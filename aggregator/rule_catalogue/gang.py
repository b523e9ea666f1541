"""Rules of gangs: members that a job waits for, and waits without a fault of any host."""

from ..model import HealthState, Reason
from ..rule_declaration import Rule
from .gpu import PACE

#: Signals that show how long each member of a gang computes, and how much work it does.
COMPUTES = (*PACE, "gpu_fast.sm_active_ratio", "gpu_fast.tensor_active_ratio")
#: Signals that show why the GPUs of a member are empty.
STALLS = ("host.pressure_cpu_some_ratio", "host.pressure_io_some_ratio", "host.cpu_steal_ratio")

SLOW = Rule(
    "gang.slow_host", HealthState.DEGRADED, Reason.STRAGGLER,
    "it computes as fast as the others of its job for a minute or two, or runs no such job for an hour",
    leave_seconds=3600.0, hazard_factor=1.5, reads=COMPUTES,
)
SLOW_GPU = Rule(
    "gang.slow_gpu", HealthState.DEGRADED, Reason.STRAGGLER,
    "it computes as fast as it did for two or three minutes of a job, or runs no such job for an hour",
    leave_seconds=3600.0, hazard_factor=1.5, reads=COMPUTES,
)
CAPPED = Rule(
    "gang.power_limit", HealthState.DEGRADED, Reason.POWER_CAP,
    "its power limit is what it was when its job began, or another job begins", enter_seconds=15.0, reads=PACE,
)
CONTENDED = Rule(
    "gang.cpu_contention", HealthState.DEGRADED, Reason.HOST_CPU,
    "its GPUs are idle no more often than the others of its job for a minute or two", hazard_factor=1.2, reads=(*PACE, *STALLS),
)
STALLED = Rule(
    "gang.storage_stall", HealthState.DEGRADED, Reason.STORAGE,
    "its GPUs are idle no more often than the others of its job for a minute or two", hazard_factor=1.2, reads=(*PACE, *STALLS),
)
UNKNOWN = Rule(
    "gang.unknown", HealthState.WATCH, Reason.STRAGGLER, "it no longer slows down its job", reads=(*COMPUTES, *STALLS),
)
#: Explanations that blame no host.
WORKLOAD = Rule(
    "gang.workload", HealthState.HEALTHY, Reason.NONE, "its share of the work is that of the others", reads=COMPUTES,
)
#: A measured neighbor (`runs/colocations.py`) is the cause: the host is not blamed.
NEIGHBOR = Rule(
    "gang.neighbor", HealthState.HEALTHY, Reason.NEIGHBOR,
    "the other job leaves the host, or its job is as fast as before", reads=COMPUTES,
)
#: A job on the host that another job there slows, also if no gang compares the host.
SLOWED = Rule(
    "runs.neighbor", HealthState.HEALTHY, Reason.NEIGHBOR,
    "the other job leaves the host, or its job is as fast as before", reads=COMPUTES,
)
SHARED = Rule(
    "gang.shared_storage", HealthState.HEALTHY, Reason.NONE, "its job no longer waits for data",
    reads=(*PACE, *STALLS),
)
SLOW_LINK = Rule(
    "gang.slow_link", HealthState.DEGRADED, Reason.FABRIC,
    "its job runs as fast as before, or the link has no errors, for a minute", enter_seconds=10.0, leave_seconds=60.0,
    hazard_factor=1.2, reads=COMPUTES,
)

# A job of one host has no other host to compare with: its cause remains unknown.

_CLEARS = "its GPUs are idle no more than before for two or three minutes"
DATA = Rule("alone.data_wait", HealthState.WATCH, Reason.STORAGE, _CLEARS, reads=(*PACE, *STALLS))
CORES = Rule("alone.cpu_wait", HealthState.WATCH, Reason.HOST_CPU, _CLEARS, reads=(*PACE, *STALLS))
#: Found by comparing runs of workloads with and without a host.
SLOW_RUNS = Rule(
    "runs.slow_host", HealthState.WATCH, Reason.STRAGGLER,
    "its next run of a minute or longer is as fast as earlier ones of the same workload",
)
