"""Requirements of a gang: size, constraints, preferences, and costs of a lost hour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from math import nan

from ..scoring.node_facts import DOMAIN_FIELDS
from ..scoring.reported_factors import NOTHING_REPORTED, ReportedFactors
from .scaling import ElasticSizes
from .stranding import RequestShape

#: Limits of a request.
NODES_MAX = 100_000
GPUS_PER_NODE_MAX = 64
HOURS_MAX = 8760.0
SEGMENT_NODES_MAX = 4096
_RATE_UNITS = {
    "stranded_gpu_rate": "an hour of a stranded GPU",
    "delay_rate": "an hour of delay",
    "currency_rate": "a unit of currency",
}


class Tier(IntEnum):
    """Tier of the wire (`contract/wire/placement.proto`)."""

    NVLINK_DOMAIN = 1
    RACK = 2
    LEAF = 3
    SPINE = 4
    CORE = 5
    POWER_DOMAIN = 6
    COOLING_DOMAIN = 7

    @property
    def row(self) -> int:
        """Row in `NodeDomains.ids`."""
        return DOMAIN_FIELDS.index(self.name.lower())

    @property
    def title(self) -> str:
        """Name in a sentence."""
        return self.name.lower().replace("_", " ").replace("nvlink", "NVLink")

    @property
    def plural(self) -> str:
        """Plural name in a sentence."""
        return "leaves" if self is Tier.LEAF else f"{self.title}s"


#: Tiers with a price of crossing, the widest first: the order of the search.
PRICED_TIERS = (Tier.CORE, Tier.SPINE, Tier.LEAF, Tier.RACK, Tier.NVLINK_DOMAIN)


@dataclass(frozen=True, slots=True)
class MemoryRequirements:
    """Memory that a node must have, in bytes; 0: not requested. `source`: names the origin of `hbm_bytes`."""

    hbm_bytes: float = 0.0  #: per GPU
    smaller_batch_hbm_bytes: float = 0.0  #: with a smaller batch that the job may use; 0: none
    page_cache_bytes: float = 0.0
    source: str = "the request"

    @property
    def is_requested(self) -> bool:
        """Whether any memory is requested."""
        return self.hbm_bytes > 0.0 or self.page_cache_bytes > 0.0


NO_MEMORY = MemoryRequirements()


@dataclass(frozen=True, slots=True)
class GangRequirements:
    """A gang, checked by `service/placement_messages.py`. Hours are NaN if unknown."""

    nodes: int
    gpus_per_node: int = 0  #: 0: all GPUs of a node
    hours: float = 24.0
    #: Invariants. None, 1, False, 0: not requested.
    within: Tier | None = None
    segment_nodes: int = 1
    segment_tier: Tier | None = None
    same_rails: bool = False
    spread_over: Tier | None = None
    spread_nodes_max: int = 0
    #: Minimum health: each node's over 8 hours, and the gang's over its hours.
    score_min: float = 0.0
    survival_min: float = 0.0
    #: Cost of an interruption, in hours.
    detect_hours: float = nan
    decide_hours: float = nan
    restart_hours: float = nan
    checkpoint_interval_hours: float = nan
    checkpoint_write_hours: float = nan
    repair_hours: float = nan
    #: Exposed share of a step; NaN: the workload's, or assumed.
    communication_share: float = nan
    #: GPU-hours for each domain of a tier after the first.
    preferences: Mapping[Tier, float] = field(default_factory=dict)
    #: Exchange rates in GPU-hours: of a stranded GPU per hour, an hour of delay, and a unit of the
    #: operators' currency; 0: not counted.
    stranded_gpu_rate: float = 0.0
    delay_rate: float = 0.0
    currency_rate: float = 0.0
    #: Origin of each of these rates, as text.
    rate_origins: Mapping[str, str] = field(default_factory=dict)
    #: Share of each GPU, and cores and bytes of the node, per member: a node must have these free
    #: if `Candidates.room` is known.
    gpu_share: float = 1.0
    cores: float = 0.0
    memory_bytes: float = 0.0
    memory: MemoryRequirements = NO_MEMORY
    #: Parallelism, in GPUs; 0: unknown.
    tensor_parallel: int = 0
    pipeline_parallel: int = 0
    data_parallel: int = 0
    #: Relative traffic of their groups; all 0: assumed.
    tensor_traffic: float = 0.0
    pipeline_traffic: float = 0.0
    data_traffic: float = 0.0
    #: Higher is more important; None: unknown.
    priority: int | None = None
    #: Several allowed sizes, of which `nodes` is the largest. None: `nodes` only.
    elastic: ElasticSizes | None = None
    #: Values from scheduler reports in place of assumed constants.
    reports: ReportedFactors = NOTHING_REPORTED

    @property
    def shape(self) -> RequestShape:
        """Resources of one member on its node."""
        return RequestShape(self.gpus_per_node, self.gpu_share, self.cores, self.memory_bytes)

    def rate_text(self, name: str) -> str:
        """Return the exchange rate of a field and its origin, as text."""
        origin = self.rate_origins.get(name, "the request")
        return f"{getattr(self, name):g} GPU-hours {_RATE_UNITS[name]} ({origin})"

    def allows(self, nodes: int) -> bool:
        """Return whether *nodes* is a requested size."""
        return nodes in self.elastic.allowed if self.elastic else nodes == self.nodes

    @property
    def has_groups(self) -> bool:
        """Whether tensor, pipeline or data groups of more than one GPU are requested."""
        return max(self.tensor_parallel, self.pipeline_parallel, self.data_parallel) > 1

    def groups_make_up(self, gpus: int) -> bool:
        """Return whether groups add up to *gpus*; data groups may have more members."""
        tensor, pipeline = max(self.tensor_parallel, 1), max(self.pipeline_parallel, 1)
        return gpus % (tensor * pipeline * max(self.data_parallel, 1)) == 0

    @property
    def nodes_max(self) -> int:
        """The largest requested size."""
        return self.elastic.allowed[-1] if self.elastic else self.nodes
