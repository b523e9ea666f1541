"""Rules of NVLinks and links to a Grace CPU that functions detect.

Limits are assumed (no public rates exist for healthy links) and conservative.
"""

from ..model import HealthState, Reason
from ..rule_declaration import (
    Rule,
    ThresholdRule,
    equals,
)
from .faults import RATES, THRESHOLDS

REASON = Reason.NVLINK_ERRORS
CHANGES, C2C = "nvlink_10s_changes", "c2c_10s_changes"
#: A link comes up within seconds after a reset; after this time it is down.
DOWN_SECONDS = 20.0

#: Compared with the host's other GPUs, since the link was never up in this boot.
NEVER_UP = Rule(
    "nvlink.never_up", HealthState.SUSPECT, REASON, "the link is up for 60 s", enter_seconds=DOWN_SECONDS, hazard_factor=30.0,
    reads=("nvlink.link_state", "gpu.mig_mode_state"),
)
BIT_ERRORS = (THRESHOLDS["nvlink.bit_errors"],)
#: Counters of errors of links, and of the link to a Grace CPU.
COUNTERS = tuple(
    RATES[name]
    for name in (
        "nvlink.recovery_failed", "nvlink.recoveries", "nvlink.link_recoveries", "nvlink.crc", "nvlink.replays",
        "c2c.replays",
    )
)


def _down(name: str) -> Rule:
    return Rule(
        name, HealthState.SUSPECT, REASON, "the link is up for 60 s", enter_seconds=DOWN_SECONDS, hazard_factor=30.0,
        reads=("gpu.mig_mode_state", "gpu.utilization_ratio"),
    )


#: (rule, the table's flags of links that were up)
DOWN = (
    (ThresholdRule(_down("nvlink.down"), CHANGES, "link_state", equals(0), "NVLink is down", "1"),
     "nvlinks"),
    (ThresholdRule(_down("c2c.down"), C2C, "link_state", equals(0), "link to its CPU is down", "1"),
     "c2c_links"),
)
