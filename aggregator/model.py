"""Results of judging a fleet: evidence, a score per host, and an immutable snapshot of all.

The enumerations follow `contract/wire/score.proto`, number by number (a test holds it).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from math import exp, nan
from typing import Any, Protocol, TypeVar


@cache
def gangline_version() -> str:
    """Return the version that is installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("gangline")
    except PackageNotFoundError:
        return "unknown"


#: What findings about the aggregator itself have in a host's place: it is none of the fleet's, even where an agent runs
#: beside it.
AGGREGATOR_HOST = "(aggregator)"
#: Finding about ourselves: two hosts that are heard have one GPU; its subject is the one that came later.
DUPLICATE_GPU = "identity.duplicate_gpu"
#: What ended it, where the one that came later has the GPU now: history follows it.
GPU_RELEASED = "the other was silent, or registered without it"


#: An unchanged score is written again after this long; hosts are spread over it by their index.
UNCHANGED_SCORE_SECONDS = 300
#: The kind of a GPU among a host's devices in the store that the host had, and did not register with.
EXPECTED_KIND = "gpu_expected"

T = TypeVar("T")


class TransactionalStore(Protocol):
    """The store, to those below it. A connection is DuckDB's."""

    def in_transaction(self, work: Callable[[Any], T], *, ahead: bool = False) -> T:
        """Run *work* durably; *ahead* of what waits to be stored, or behind it."""
        ...

    def reading(self) -> AbstractContextManager[Any]:
        """Return a context with a cursor for reading."""
        ...


class HealthState(IntEnum):
    """HealthState of the wire."""

    HEALTHY = 1
    WATCH = 2
    DEGRADED = 3
    SUSPECT = 4
    UNHEALTHY = 5
    PROBATION = 6
    MAINTENANCE = 7
    STALE = 8
    UNKNOWN = 9


#: Bad to good: how tables are sorted before the score decides.
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
    """ReasonCode of the wire."""

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


@dataclass(frozen=True, slots=True)
class SharedCause:
    """A fault outside the hosts that show it: a leaf, the power of a rack. `subject`: "leaf leaf-00 network"."""

    subject: str
    advisory: str
    hosts_count: int
    since_ns: int


#: Host, name of the reason, and device of a fault that has a shared cause.
SharedCauseKey = tuple[str, str, str]


#: If all simulated hosts are silent for longer, `gangline simulate` has ended: they are no longer listed. A single host that
#: falls silent stays, as a real host does: its silence is news.
SIMULATED_SILENT_SECONDS_MAX = 60.0


@dataclass(frozen=True, slots=True)
class Evidence:
    """One contribution to a score.

    Log deltas of one host add up to ln(hazard / base hazard) in the order in which they were added, and hazard deltas to
    hazard - base hazard, in any order.
    """

    signal: str
    device: str
    value: float
    unit: str
    normal: str  # what is normal, as text: "below 83"
    log_hazard_delta: float
    relative_speed_factor: float  # 1.0 costs no speed
    score_delta: float  # what taking it away would give back; negative: it speaks against the host
    reason: Reason
    words: str  # for a person: "GPU-3f.. clock at 68 % of its peers, held down by heat"
    observed_ns: int  # aggregator's clock
    sql: str  # returns the rows it was computed from
    #: State of the GPU that this reason names, as far as it is stored (`scoring/score_rows.py`).
    gpu_state: HealthState | None = None
    #: What it adds to the hazard per hour: without its fault the hazard is lower by this. NaN: stored before version 13.
    hazard_delta: float = 0.0
    #: How many devices of the host show this one fault. More than 1: they share its cause, and none of them is at fault.
    shared_count: int = 1


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a score was computed from beside its evidence: with it, it computes again to the same number."""

    model: str  # of the hazard; "prior": none was trained
    log_hazard_base: float  # ln(hazard) with no evidence
    hazard_spread: float  # factor up and down of the 90 % interval
    measured_speed: (
        float  # of the slowest computing GPU, against a typical host's; NaN where none computes
    )
    speed_error: float  # its standard error
    features: tuple[
        float, ...
    ] = ()  # as the model had them, and more; their names are `judgement.features.NAMES`
    log_hazard_outcomes: float = 0.0  # what outcomes added, of all that evidence adds
    #: What ln(hazard) would change by, if all symptoms had one cause (<= 0), and if no devices shared one (>= 0).
    log_hazard_one_cause: float = 0.0
    log_hazard_own_causes: float = 0.0

    def hazard_interval(self, hazard_per_hour: float) -> tuple[float, float]:
        """Return the 90 % interval of a hazard that was computed from these."""
        fewest, most = exp(self.log_hazard_one_cause), exp(self.log_hazard_own_causes)
        return (
            hazard_per_hour * fewest / self.hazard_spread,
            hazard_per_hour * most * self.hazard_spread,
        )


@dataclass(frozen=True, slots=True)
class GpuScore:
    """What is known of one GPU at one time. Intervals are of 90 %."""

    gpu: str
    host: int  # node index
    state: HealthState
    reason: Reason
    hazard_per_hour: float
    hazard_lower: float
    hazard_upper: float
    relative_speed: float  # NaN where nothing is known
    speed_lower: float
    speed_upper: float


@dataclass(frozen=True, slots=True)
class HostScore:
    """What is known of one host at one time."""

    host: str
    node_index: int
    simulated: bool
    score: float  # P(no health-caused interruption over the horizon)
    score_lower: float
    score_upper: float
    state: HealthState
    hazard_per_hour: float
    relative_speed: float  # NaN where nothing is known
    reason: Reason
    reason_message: str
    clears_when: str
    last_received_ns: int  # last live frame, aggregator's clock; 0: never
    evidence: tuple[Evidence, ...] = ()
    speed_lower: float = nan  # 90 % interval of the relative speed
    speed_upper: float = nan
    inputs: Inputs | None = None  # None: stored before they were kept
    shared_cause: SharedCause | None = (
        None  # of its reason; not stored: known again a turn after a restart
    )

    @property
    def hazard_interval(self) -> tuple[float, float]:
        """The 90 % interval of the hazard per hour; NaN where it was stored without inputs."""
        if self.inputs is None:
            return nan, nan
        return self.inputs.hazard_interval(self.hazard_per_hour)

    @property
    def rank(self) -> tuple[int, float]:
        """Sort key, worst first."""
        return SEVERITY.index(self.state), self.score


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All hosts as judged at one time; swapped whole. `hosts` is ordered by node index."""

    version: int
    computed_ns: int
    horizon_seconds: float
    hosts: Sequence[HostScore]
    degraded_reason: str = ""  # not empty: old, frozen, or not complete
    alarms: tuple[str, ...] = ()  # findings about the aggregator itself, as text
    simulation_ended: bool = (
        False  # no simulated host has reported for SIMULATED_SILENT_SECONDS_MAX
    )

    def is_listed(self, host: HostScore) -> bool:
        """Return whether *host* belongs in a list of hosts: a simulated one that has ended does not."""
        return not (host.simulated and self.simulation_ended and host.last_received_ns)


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong that is not a reading: two hosts of one name, a clock an hour off."""

    host: str
    name: str  # identity.duplicate_name, clock.offset: one of a kind per host and subject
    subject: str  # what else it is about: the other's address, a device; may be empty
    message: str  # what is wrong and what to do
    since_ns: int
    cleared_ns: int = 0  # 0: still so
    clears_when: str = ""  # what ends it, as text: "the GPU is reset, or the host boots"
