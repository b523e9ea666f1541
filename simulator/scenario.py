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
#: What a scenario may say for all classes of a sort.
SORTS = ("faults", "monitoring", "benign")

Pair = tuple[float, float]


class ScenarioError(ValueError):
    """The file is no world; the words say where and what would be right."""


@dataclass(frozen=True, slots=True)
class FleetLayout:
    """Hosts of a rack and a leaf group, racks of a cooling loop, leaf groups of a plane of spines."""

    rack_hosts: int
    cooling_racks: int
    leaf_hosts: int
    spine_leaf_groups: int
    source: str
    assumed: bool


@dataclass(frozen=True, slots=True)
class PartVariation:
    """How healthy parts of one model differ, as ratios."""

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
    """How long a host is away, lognormal."""

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
    """The gamma, of mean 1, by which hosts' rates differ."""

    shape: float
    source: str
    assumed: bool


@dataclass(frozen=True, slots=True)
class FaultClass:
    """One way in which something goes wrong, or looks like it."""

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
    chosen: tuple[str, ...] = ()  # fields that the source does not tell, where it tells the others
    monitoring: bool = False
    benign: bool = False
    job_hosts: int = 0
    job_ratio: float = 1.0
    onset_silent_ratio: float = 0.0
    remap_failed_ratio: float = 0.0

    @property
    def sort(self) -> str:
        """Which of SORTS it is."""
        return "benign" if self.benign else "monitoring" if self.monitoring else "faults"


@dataclass(frozen=True, slots=True)
class Scenario:
    """How many hosts, for how long, and what may befall them."""

    name: str
    hosts: int
    days: float
    rate_factor: float
    parade_seconds: float
    classes: tuple[str, ...]
    about: str
    nvlink_hosts: int = 1  # hosts of one NVLink domain; of more than one, a domain is a rack
    amd_ratio: float = 0.0  # of the hosts, the last of them: these have AMD's GPUs
    stage_seconds: Pair = (0.0, 0.0)
    jobs: JobShapes | None = None  # instead of the file's


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
        """Return a scenario. Raises SettingsError, with the names there are."""
        if name not in self.scenarios:
            raise ScenarioError(f"scenario {name!r}: expected one of {', '.join(self.scenarios)}")
        return self.scenarios[name]

    def active_classes(self, scenario: Scenario) -> tuple[FaultClass, ...]:
        """Return the classes that may befall in *scenario*, in the file's order.

        What NVLink domains share befalls where they have hosts that share it.
        """
        named = set(scenario.classes)
        candidates = [c for c in self.classes.values() if c.name in named or c.sort in named]
        return tuple(c for c in candidates if c.per != "nvlink_hour" or scenario.nvlink_hosts > 1)
