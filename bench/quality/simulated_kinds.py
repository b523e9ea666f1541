"""Types of scoring results, and the tables of which names are right for a class."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from gangline.aggregator.advisories.advisory import Action
from gangline.aggregator.fleet.gangs import WINDOW_NS, WINDOWS
from gangline.aggregator.model import HealthState, Reason

#: What takes a host from its work: for a host on which no fault stands, false. AVOID costs less, and is counted apart.
DRAINS = frozenset(
    {
        Action.DRAIN_AFTER_JOB, Action.DRAIN_AT_CHECKPOINT, Action.EVICT_NOW, Action.RESET_GPU, Action.REBOOT,
        Action.DRAIN_P2P, Action.DRAIN_AND_RESET, Action.RECOVER_IMEX_DOMAIN, Action.RUN_DIAGNOSTIC,
    }
)  # fmt: skip
#: Of an episode's own hosts: those struck, their gangs, their racks.
NEAR_MAX = 40
#: An episode around a fault ends so long after the onset was over.
AFTER_ONSET_SECONDS = 300.0
#: What begins so long after a cause was over may still be said of it.
AFTER_SECONDS = 60.0
#: The same of what passes: rules about gangs know hosts of a job by so many windows, and say nothing before they are full.
PASSED_SECONDS = (WINDOWS + 1) * WINDOW_NS / 1e9 + AFTER_SECONDS
#: States that keep work off a host.
BLAMED = frozenset({HealthState.DEGRADED, HealthState.SUSPECT, HealthState.UNHEALTHY})
NOT_REPORTED = frozenset({HealthState.HEALTHY, HealthState.UNKNOWN})

#: Class -> the reasons under which it is rightly named. Classes that show nothing have none.
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
#: Class -> the domain that its cause is of, as fields of `Place`; none: of a job, which no place is.
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
    """What became of one cause."""

    class_name: str
    rule: str  # that named it first; "" for not named
    delay_seconds: float  # from its begin
    has_part: bool
    part_is_right: bool
    is_blamed: bool  # a culprit was DEGRADED or worse, whatever the reason
    kills: bool  # it ended a job within the episode
    before_death: bool
    victims: int
    victims_blamed: int
    by_baseline: dict[str, bool]


@dataclass(frozen=True, slots=True)
class Shared:
    """What became of a cause that struck several hosts."""

    class_name: str
    hosts: int
    named: int  # of them, rightly
    shared: int  # advisories for a shared cause
    right_domain: bool
    alone: int  # advisories for one of its hosts each, drains or not
    drains: int  # of them


@dataclass(frozen=True, slots=True)
class Wrong:
    """Something said of a host on which no fault stood; "astray": or another one; "alone": or one that other hosts
    share; "cause": of several, as if they shared one."""

    by: str
    what: str  # "drain", "astray", "alone", "avoid", "look", "cause", or "name": a state that keeps work off it
    host: str
    rule: str
    message: str
    about: tuple[str, ...]  # telling and look-alikes that stood on it
    is_mistold: bool


@dataclass(slots=True)
class Score:
    """An episode around a cause, or an hour of the whole fleet."""

    class_name: str  # "": an hour
    weight: float
    found: CaseFinding | None = None
    shared: Shared | None = None
    wrong: list[Wrong] = field(default_factory=list[Wrong])
    #: Of the hosts struck by what is no fault: rule and state -> hosts.
    named: Counter[tuple[str, HealthState]] = field(
        default_factory=Counter[tuple[str, HealthState]]
    )
    hosts: int = 0  # of those
    #: What passes on hosts on which nothing stands: kind -> how often; and what was said then.
    passed: Counter[str] = field(default_factory=Counter[str])
    named_in_passing: Counter[tuple[str, str, HealthState]] = field(
        default_factory=Counter[tuple[str, str, HealthState]]
    )
    days: float = 0.0  # node-days on which no fault stood
    #: Of an hour: hosts on which no fault stood, and whose telling was right, from begin to end; named by whom.
    calm_hosts: int = 0
    calm_named: Counter[str] = field(default_factory=Counter[str])
    plain_hosts: int = 0  # of those: on which no look-alike of a class stood either
    plain_named: Counter[str] = field(default_factory=Counter[str])
    degraded: dict[str, int] = field(default_factory=dict[str, int])
    steps: int = 0


@dataclass(frozen=True, slots=True)
class SimulatedCase:
    """An episode with all that scoring needs."""

    class_name: str  # "": an hour of the whole fleet
    sort: str
    cause: int
    weight: float
    hosts: tuple[int, ...]  # whose readings are made
    begin: float
    end: float
