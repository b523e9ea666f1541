"""Rates and magnitudes of the world, from `world.toml` (`scenario_file.py` reads and checks it)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

HOSTS_MAX = 20_000
DAYS_MAX = 400.0

PERS = (
    "gpu_hour",
    "port_hour",
    "host_hour",
    "rack_hour",
    "leaf_hour",
    "cooling_hour",
    "nvlink_hour",
    "job_hour",
    "job_share",
    "share",
)
ENDS = ("self", "repair", "restart", "never")
EXPOSURES = ("always", "job")
#: Groups of classes that a scenario can name.
SORTS = ("faults", "monitoring", "benign")

Pair = tuple[float, float]


class ScenarioError(ValueError):
    """The file does not describe a world; the message has the place and the expected form."""


@dataclass(frozen=True, slots=True)
class FleetLayout:
    """Numbers of hosts per rack and leaf group, of racks per cooling loop, and of leaf groups per spine plane."""

    rack_hosts: int
    cooling_racks: int
    leaf_hosts: int
    spine_leaf_groups: int
    source: str
    assumed: bool


@dataclass(frozen=True, slots=True)
class PartVariation:
    """Differences between healthy parts of one model, as ratios."""

    clock_sigma: float
    clock_limit: float
    outlier_ratio: float
    outlier_low: float
    outlier_high: float
    memory_bound_sigma: float
    source: str
    assumed: bool
    chosen: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JobShapes:
    """Sizes, durations and steps of jobs."""

    hosts: tuple[int, ...]
    weights: tuple[float, ...]
    duration_median_hours: float
    duration_sigma: float
    duration_hours_max: float
    pause_median_minutes: float
    restart_minutes: float
    checkpoint_minutes: Pair
    checkpoint_seconds: Pair
    period_seconds: Pair
    communicate_ratio: Pair
    tensor_ratio: float
    power_ratio: Pair
    memory_bound_ratio: float
    source: str
    assumed: bool


@dataclass(frozen=True, slots=True)
class Repair:
    """Downtime of a host, lognormal."""

    median_hours: float
    sigma: float
    hours_max: float
    drain_minutes: float
    source: str
    assumed: bool
    chosen: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AfterReturn:
    """Faults per 1,000 node-days in the spans since a return that end at `until_days`."""

    until_days: tuple[float, ...]
    per_1000_node_days: tuple[float, ...]
    source: str
    assumed: bool


@dataclass(frozen=True, slots=True)
class Frailty:
    """Gamma distribution of mean 1 for the differences between the rates of hosts."""

    shape: float
    source: str
    assumed: bool


@dataclass(frozen=True, slots=True)
class FaultClass:
    """A class of faults, or of events that resemble faults."""

    name: str
    per: str
    rate: float
    exposure: str
    ends: str
    kills: bool
    onset_seconds: Pair
    duration_median_seconds: float
    duration_sigma: float
    amount: Pair
    amount_is: str
    source: str
    assumed: bool
    chosen: tuple[str, ...] = ()  # fields without a source, although the source has the others
    monitoring: bool = False
    benign: bool = False
    job_hosts: int = 0
    job_ratio: float = 1.0
    onset_silent_ratio: float = 0.0
    remap_failed_ratio: float = 0.0
    stage_after_seconds: float = 0.0  # delay on a stage; a benign class without it is on no stage

    @property
    def sort(self) -> str:
        return "benign" if self.benign else "monitoring" if self.monitoring else "faults"


@dataclass(frozen=True, slots=True)
class Scenario:
    """Size and duration of a world, and its possible incidents."""

    name: str
    hosts: int
    days: float
    rate_factor: float
    parade_seconds: float
    classes: tuple[str, ...]
    about: str
    nvlink_hosts: int = 1  # hosts per NVLink domain; a domain of several hosts is a rack
    amd_ratio: float = 0.0  # share of the hosts with AMD GPUs, the last hosts
    stage_seconds: Pair = (0.0, 0.0)
    jobs: JobShapes | None = None  # replaces the file's shapes


@dataclass(frozen=True, slots=True)
class WorldSettings:
    """The whole file."""

    fleet: FleetLayout
    spread: PartVariation
    jobs: JobShapes
    repair: Repair
    after_return: AfterReturn
    frailty: Frailty
    classes: Mapping[str, FaultClass] = field(default_factory=dict)
    scenarios: Mapping[str, Scenario] = field(default_factory=dict)

    def scenario(self, name: str) -> Scenario:
        """Return a scenario. Raises ScenarioError with the known names."""
        if name not in self.scenarios:
            raise ScenarioError(f"scenario {name!r}: expected one of {', '.join(self.scenarios)}")
        return self.scenarios[name]

    def active_classes(self, scenario: Scenario) -> tuple[FaultClass, ...]:
        """Return the possible classes of *scenario*, in the file's order.

        Classes of shared NVLink domains need domains of several hosts.
        """
        named = set(scenario.classes)
        candidates = [c for c in self.classes.values() if c.name in named or c.sort in named]
        return tuple(c for c in candidates if c.per != "nvlink_hour" or scenario.nvlink_hosts > 1)
