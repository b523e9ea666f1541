"""Types of scoring results, and the tables of which names are right for a class."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from gangline.aggregator.advisories.advisory import Action
from gangline.aggregator.fleet.gangs import WINDOW_NS, WINDOWS
from gangline.aggregator.model import HealthState, Reason

#: Actions that take a host from its work; for a host without a fault they are false. AVOID costs
#: less, and is counted separately.
DRAINS = frozenset(
    {
        Action.DRAIN_AFTER_JOB, Action.DRAIN_AT_CHECKPOINT, Action.EVICT_NOW, Action.RESET_GPU, Action.REBOOT,
        Action.DRAIN_P2P, Action.DRAIN_AND_RESET, Action.RECOVER_IMEX_DOMAIN, Action.RUN_DIAGNOSTIC,
    }
)  # fmt: skip
#: Maximum number of an episode's own hosts: affected hosts, their gangs, their racks.
NEAR_MAX = 40
#: Seconds of an episode around a fault after the end of its onset.
AFTER_ONSET_SECONDS = 300.0
#: Findings that begin up to this long after a cause ended may belong to it.
AFTER_SECONDS = 60.0
#: The same for passing events: rules about gangs are silent until WINDOWS windows are full.
PASSED_SECONDS = (WINDOWS + 1) * WINDOW_NS / 1e9 + AFTER_SECONDS
#: States that keep work off a host.
BLAMED = frozenset({HealthState.DEGRADED, HealthState.SUSPECT, HealthState.UNHEALTHY})
NOT_REPORTED = frozenset({HealthState.HEALTHY, HealthState.UNKNOWN})

#: Class -> its right reasons. Classes without symptoms have no reasons.
RIGHT: dict[str, frozenset[Reason]] = {
    name: frozenset(reasons)
    for name, reasons in {
        "thermal": (Reason.THERMAL_THROTTLE,),
        "power_cap": (Reason.POWER_CAP,),
        "power_brake": (Reason.POWER_CAP,),
        "cooling_loop": (Reason.THERMAL_THROTTLE,),
        "cpu_contention": (Reason.HOST_CPU,),
        "storage_stall": (Reason.STORAGE,),
        "slow_host": (Reason.STRAGGLER,),
        "pcie_width": (Reason.PCIE,),
        "nvlink": (Reason.NVLINK_ERRORS, Reason.XID_FATAL),
        "rdma_link": (Reason.FABRIC, Reason.RAIL_DOWN),
        "congestion": (Reason.FABRIC,),
        "flap": (Reason.RAIL_DOWN, Reason.FABRIC),
        "nic": (Reason.RAIL_DOWN,),
        "leaf_down": (Reason.RAIL_DOWN,),
        "rack_dark": (Reason.STALE_TELEMETRY,),
        "hbm": (Reason.ECC_TREND, Reason.HBM_REMAP, Reason.XID_FATAL),
        "gsp_hang": (Reason.DRIVER_HUNG, Reason.XID_FATAL),
        "gpu_lost": (Reason.XID_FATAL, Reason.GPU_UNUSABLE),
        "gpu_fault": (Reason.XID_FATAL,),
        "silent_corruption": (),
        "nvlink_switch": (Reason.NVLINK_ERRORS, Reason.XID_FATAL),
    }.items()
}
#: Class -> domain of its cause, as fields of `Place`; none for causes of a job, which has no place.
DOMAIN = {
    "power_brake": ("rack", "power_domain"),
    "cooling_loop": ("cooling_domain",),
    "leaf_down": ("leaf",),
    "rack_dark": ("rack", "power_domain"),
    "congestion": (),
    "nvlink_switch": ("nvlink_domain", "rack", "power_domain"),
}


@dataclass(frozen=True, slots=True)
class CaseFinding:
    """The result for one cause."""

    class_name: str
    rule: str  # that named it first; "": not named
    delay_seconds: float  # from its begin
    has_part: bool
    part_is_right: bool
    is_blamed: bool  # a culprit was DEGRADED or worse, for any reason
    kills: bool  # it ended a job within the episode
    before_death: bool
    victims: int
    victims_blamed: int
    by_baseline: dict[str, bool]


@dataclass(frozen=True, slots=True)
class Shared:
    """The result for a cause that affected several hosts."""

    class_name: str
    hosts: int
    named: int  # rightly named hosts
    shared: int  # advisories for a shared cause
    right_domain: bool
    alone: int  # advisories for one of its hosts each, drains or others
    drains: int  # drains among them


@dataclass(frozen=True, slots=True)
class Wrong:
    """A wrong finding about a host without a fault.

    "astray": about another fault of the host; "alone": about a fault shared with other hosts;
    "cause": a shared cause of several hosts without one.
    """

    by: str
    what: str  # "drain", "astray", "alone", "avoid", "look", "cause", or "name": a state that keeps work off it
    host: str
    rule: str
    message: str
    about: tuple[str, ...]  # active reporting faults and look-alikes
    is_mistold: bool


@dataclass(slots=True)
class Score:
    """An episode around a cause, or an hour of the whole fleet."""

    class_name: str  # "": an hour
    weight: float
    found: CaseFinding | None = None
    shared: Shared | None = None
    wrong: list[Wrong] = field(default_factory=list[Wrong])
    #: (rule, state) -> number of hosts affected by benign causes.
    named: Counter[tuple[str, HealthState]] = field(
        default_factory=Counter[tuple[str, HealthState]]
    )
    hosts: int = 0  # affected hosts
    #: Passing events on hosts without any cause: kind -> count; and the findings then.
    passed: Counter[str] = field(default_factory=Counter[str])
    named_in_passing: Counter[tuple[str, str, HealthState]] = field(
        default_factory=Counter[tuple[str, str, HealthState]]
    )
    days: float = 0.0  # node-days without a fault
    #: In an hour: hosts without a fault that reported correctly throughout; findings by source.
    calm_hosts: int = 0
    calm_named: Counter[str] = field(default_factory=Counter[str])
    plain_hosts: int = 0  # calm hosts also without a look-alike of a class
    plain_named: Counter[str] = field(default_factory=Counter[str])
    degraded: dict[str, int] = field(default_factory=dict[str, int])
    steps: int = 0


@dataclass(frozen=True, slots=True)
class SimulatedCase:
    """An episode with all data for scoring."""

    class_name: str  # "": an hour of the whole fleet
    sort: str
    cause: int
    weight: float
    hosts: tuple[int, ...]  # hosts with generated readings
    begin: float
    end: float
