"""Results of judging a fleet: evidence, a score per host, and an immutable snapshot of all.

The enumerations equal those of `contract/wire/score.proto`; a test compares them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from math import exp, nan
from typing import Any, Protocol, TypeVar

#: Host of findings about the aggregator itself: no host of the fleet.
AGGREGATOR_HOST = "(aggregator)"
#: Finding that two active hosts have the same GPU; its subject is the later host.
DUPLICATE_GPU = "identity.duplicate_gpu"
#: `clears_when` of a finding that ended because the later host keeps the GPU.
GPU_RELEASED = "the other was silent, or registered without it"
#: An unchanged score is stored again after this time; hosts are spread over it by index.
UNCHANGED_SCORE_SECONDS = 300
#: Device kind in the store of a GPU that the host had before but did not register.
EXPECTED_KIND = "gpu_expected"
T = TypeVar("T")
#: If all simulated hosts are silent for longer, `gangline simulate` has ended, and they are not
#: listed. A single silent host stays listed, like a real host.
SIMULATED_SILENT_SECONDS_MAX = 60.0


@cache
def gangline_version() -> str:
    """Return the installed version."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("gangline")
    except PackageNotFoundError:
        return "unknown"


class TransactionalStore(Protocol):
    """The store's interface for lower modules. Connections are DuckDB's."""

    def in_transaction(self, work: Callable[[Any], T], *, ahead: bool = False) -> T:
        """Run *work* durably, before (*ahead*) or after the waiting writes."""
        ...

    def reading(self) -> AbstractContextManager[Any]:
        """Return a context with a cursor for reading."""
        ...


class HealthState(IntEnum):
    """The wire's HealthState."""

    HEALTHY = 1
    WATCH = 2
    DEGRADED = 3
    SUSPECT = 4
    UNHEALTHY = 5
    PROBATION = 6
    MAINTENANCE = 7
    STALE = 8
    UNKNOWN = 9


#: Worst to best: tables are sorted by it, then by score.
SEVERITY = (
    HealthState.UNHEALTHY,
    HealthState.SUSPECT,
    HealthState.DEGRADED,
    HealthState.STALE,
    HealthState.WATCH,
    HealthState.PROBATION,
    HealthState.UNKNOWN,
    HealthState.MAINTENANCE,
    HealthState.HEALTHY,
)


class Reason(IntEnum):
    """The wire's ReasonCode."""

    NONE = 0
    XID_FATAL = 1
    ECC_TREND = 2
    NVLINK_ERRORS = 3
    RAIL_DOWN = 4
    THERMAL_THROTTLE = 5
    POWER_CAP = 6
    STRAGGLER = 7
    STORAGE = 8
    LEMON = 9
    STALE_TELEMETRY = 10
    POLICY = 11
    PCIE = 12
    HBM_REMAP = 13
    DRIVER_HUNG = 14
    FABRIC = 15
    HOST_CPU = 16
    BLIND = 17
    IDENTITY = 18
    CLOCK = 19
    DATA_LOST = 20
    GPU_UNUSABLE = 21
    NEIGHBOR = 22


@dataclass(frozen=True, slots=True)
class SharedCause:
    """A fault outside the hosts that show it, with a `subject` such as "leaf leaf-00 network"."""

    subject: str
    advisory: str
    hosts_count: int
    since_ns: int


#: Host, name of the reason, and device of a fault with a shared cause.
SharedCauseKey = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Evidence:
    """A contribution to a score.

    A host's log deltas add up, in the order of addition, to ln(hazard / base hazard); its hazard
    deltas add up to hazard - base hazard in any order.
    """

    signal: str
    device: str
    value: float
    unit: str
    normal: str  # description of normal values: "below 83"
    log_hazard_delta: float
    relative_speed_factor: float  # 1.0: full speed
    score_delta: float  # score minus the score without this evidence; negative: it lowers the score
    reason: Reason
    message: str  # description: "GPU-3f.. clock at 68 % of its peers, held down by heat"
    observed_ns: int  # aggregator's clock
    sql: str  # query of its input rows
    #: State of the GPU in this evidence, if stored (`scoring/score_rows.py`).
    gpu_state: HealthState | None = None
    #: Amount that this fault adds to the hazard per hour. NaN: stored before version 13.
    hazard_delta: float = 0.0
    #: Number of the host's devices with this fault. Above 1 they share its cause.
    shared_count: int = 1


@dataclass(frozen=True, slots=True)
class Inputs:
    """The inputs of a score besides its evidence; together they reproduce its value."""

    model: str  # hazard model; "prior": untrained
    log_hazard_base: float  # ln(hazard) without evidence
    hazard_spread: float  # factor up and down to the bounds of the 90 % interval
    measured_speed: (
        float  # the slowest computing GPU's, relative to a typical host; NaN without any
    )
    speed_error: float  # standard error of measured_speed
    features: tuple[
        float, ...
    ] = ()  # the model's inputs, and further ones; names: hazard.features.SCORE_FEATURE_NAMES
    log_hazard_outcomes: float = (
        0.0  # contribution of outcomes to ln(hazard), included in the evidence
    )
    #: Change of ln(hazard) if all symptoms had one cause (<= 0), and if no devices shared a cause
    #: (>= 0).
    log_hazard_one_cause: float = 0.0
    log_hazard_own_causes: float = 0.0

    def hazard_interval(self, hazard_per_hour: float) -> tuple[float, float]:
        """Return the 90 % interval of a hazard computed from these inputs."""
        lowest, highest = exp(self.log_hazard_one_cause), exp(self.log_hazard_own_causes)
        return (
            hazard_per_hour * lowest / self.hazard_spread,
            hazard_per_hour * highest * self.hazard_spread,
        )


@dataclass(frozen=True, slots=True)
class GpuScore:
    """A GPU's score at a time. Intervals are of 90 %."""

    gpu: str
    host: int  # node index
    state: HealthState
    reason: Reason
    hazard_per_hour: float
    hazard_lower: float
    hazard_upper: float
    relative_speed: float  # NaN if unknown
    speed_lower: float
    speed_upper: float


@dataclass(frozen=True, slots=True)
class HostScore:
    """A host's score at a time."""

    host: str
    node_index: int
    simulated: bool
    score: float  # P(no health-caused interruption over the horizon)
    score_lower: float
    score_upper: float
    state: HealthState
    hazard_per_hour: float
    relative_speed: float  # NaN if unknown
    reason: Reason
    reason_message: str
    clears_when: str
    last_received_ns: int  # last live frame, aggregator's clock; 0: never
    evidence: tuple[Evidence, ...] = ()
    speed_lower: float = nan  # 90 % interval of the relative speed
    speed_upper: float = nan
    inputs: Inputs | None = None  # None: stored by a version without inputs
    shared_cause: SharedCause | None = (
        None  # cause of the reason; not stored, found again after a restart
    )

    @property
    def hazard_interval(self) -> tuple[float, float]:
        """The 90 % interval of the hazard per hour; NaN if stored without inputs."""
        if self.inputs is None:
            return nan, nan
        return self.inputs.hazard_interval(self.hazard_per_hour)

    @property
    def rank(self) -> tuple[int, float]:
        """Sort key, worst first."""
        return SEVERITY.index(self.state), self.score


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All judged hosts at a time, ordered by node index; replaced as a whole."""

    version: int
    computed_ns: int
    horizon_seconds: float
    hosts: Sequence[HostScore]
    degraded_reason: str = ""  # not empty: old, frozen, or incomplete
    alarms: tuple[str, ...] = ()  # messages about the aggregator itself
    simulation_ended: bool = False  # no simulated host reported within SIMULATED_SILENT_SECONDS_MAX

    def is_listed(self, host: HostScore) -> bool:
        """Return whether *host* is listed: ended simulated hosts are not."""
        return not (host.simulated and self.simulation_ended and host.last_received_ns)


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem that is not a reading: two hosts of the same name, a clock an hour off."""

    host: str
    name: str  # identity.duplicate_name, clock.offset: unique per host and subject
    subject: str  # related object: the other host's address, a device; may be empty
    message: str  # the problem and its remedy
    since_ns: int
    cleared_ns: int = 0  # 0: still active
    clears_when: str = ""  # condition that ends it: "the GPU is reset, or the host boots"
