"""Rules of NVLinks and links to a Grace CPU, and of a GPU's registration in its fabric.

Limits are assumed (no public rates exist for healthy links) and conservative.
"""

from ..model import HealthState, Reason
from ..rule_declaration import (
    RateRule,
    Rule,
    ThresholdRule,
    above,
    equals,
    suspect_rule,
    watch_rule,
)

REASON = Reason.NVLINK_ERRORS
CHANGES, C2C, FABRIC = "nvlink_10s_changes", "c2c_10s_changes", "gpu_fabric_1s_changes"
#: A link comes up within seconds after a reset; after this time it is down.
DOWN_SECONDS = 20.0
#: Errors per second from which a link is WATCH, and their minimum ratio to the peers'.
ERRORS_PER_SECOND, PEERS_RATIO = 1.0, 10.0
#: Bit errors left after correction, per bit: the limit of Ethernet and InfiniBand is 1e-12 (IEEE
#: 802.3); a healthy NVLink 5 reports 1.5e-254.
BIT_ERROR_RATIO = 1e-12
#: Registration takes seconds; a fabric manager that starts with the host, a minute (assumed).
REGISTRATION_SECONDS = 120.0
QUIET = "no further one within 10 minutes"

#: Compared with the host's other GPUs, since the link was never up in this boot.
NEVER_UP = Rule(
    "nvlink.never_up", HealthState.SUSPECT, REASON, "the link is up for 60 s", enter_seconds=DOWN_SECONDS, hazard_factor=30.0,
    reads=("nvlink.link_state", "gpu.mig_mode_state"),
)
BIT_ERRORS = (
    ThresholdRule(
        watch_rule("nvlink.bit_errors", REASON, "its bit error ratio is below 1e-12 for 5 minutes", 3.0,
              enter_seconds=15.0, leave_seconds=300.0),
        CHANGES, "effective_bit_error_ratio", above(BIT_ERROR_RATIO),
        "NVLink has a bit error ratio of {value:.1e} after correction", "below 1e-12",
    ),
)



def _down(name: str) -> Rule:
    return Rule(
        name, HealthState.SUSPECT, REASON, "the link is up for 60 s", enter_seconds=DOWN_SECONDS, hazard_factor=30.0,
        reads=("gpu.mig_mode_state", "gpu.utilization_ratio"),
    )


def _noisy(name: str) -> Rule:
    clears = "less than one a second, or as many as its peers, for 5 minutes"
    return watch_rule(name, REASON, clears, 3.0, enter_seconds=15.0, leave_seconds=300.0)


#: (rule, the table's flags of links that were up)
DOWN = (
    (ThresholdRule(_down("nvlink.down"), CHANGES, "link_state", equals(0), "NVLink is down", "1"),
     "nvlinks"),
    (ThresholdRule(_down("c2c.down"), C2C, "link_state", equals(0), "link to its CPU is down", "1"),
     "c2c_links"),
)
COUNTERS = (
    RateRule(
        suspect_rule("nvlink.recovery_failed", REASON, QUIET, 20.0, leave_seconds=300.0),
        CHANGES, "link_recovery_failed_events", "NVLink could not be recovered and was abandoned",
    ),
    RateRule(
        watch_rule("nvlink.recoveries", REASON, QUIET, 5.0, leave_seconds=300.0),
        CHANGES, "recovery_errors", "NVLink had to be retrained", 3.0,
    ),
    RateRule(
        watch_rule("nvlink.link_recoveries", REASON, QUIET, 5.0, leave_seconds=300.0),
        CHANGES, "link_recovery_events", "NVLink had to be recovered", 3.0,
    ),
    RateRule(
        _noisy("nvlink.crc"), CHANGES, "crc_errors", "NVLink checksum errors",
        ERRORS_PER_SECOND, True, PEERS_RATIO,
    ),
    RateRule(
        _noisy("nvlink.replays"), CHANGES, "replay_errors", "NVLink transmissions repeated",
        ERRORS_PER_SECOND, True, PEERS_RATIO,
    ),
    RateRule(
        _noisy("c2c.replays"), C2C, "replay_errors", "transmissions to its CPU repeated",
        ERRORS_PER_SECOND, True, PEERS_RATIO,
    ),
)


def _fabric(
    name: str, clears: str, factor: float, *, grave: bool = False, enter: float = 5.0
) -> Rule:
    make = suspect_rule if grave else watch_rule
    return make(f"gpu_fabric.{name}", REASON, clears, factor, enter_seconds=enter)
FABRICS = (
    ThresholdRule(
        Rule("gpu_fabric.unregistered", HealthState.UNHEALTHY, REASON, "its registration is complete",
             enter_seconds=REGISTRATION_SECONDS, hazard_factor=1000.0),
        FABRIC, "registration_state", equals(1, 2),
        "has not joined its NVLink fabric (registration state {value:.0f}): CUDA fails with error 802", "3",
    ),
    ThresholdRule(
        _fabric("registration_failed", "its registration succeeds", 20.0, grave=True),
        FABRIC, "registration_status_code", above(0),
        "could not join its NVLink fabric (nvmlReturn {value:.0f})",
    ),
    ThresholdRule(
        _fabric("degraded", "the fabric's bandwidth is whole for 60 s", 5.0, grave=True),
        FABRIC, "degraded_bandwidth_state", equals(1), "has less NVLink bandwidth than it should",
    ),
    ThresholdRule(
        _fabric("route_unhealthy", "the route is healthy for 60 s", 20.0, grave=True),
        FABRIC, "route_unhealthy_state", equals(1), "has an unhealthy route in its NVLink fabric",
    ),
    ThresholdRule(
        _fabric("route_recovery", "no route is being recovered for 60 s", 5.0),
        FABRIC, "route_recovery_state", equals(1), "is recovering a route of its NVLink fabric",
    ),
    ThresholdRule(
        _fabric("access_timeout", "no access is being recovered for 60 s", 5.0),
        FABRIC, "access_timeout_recovery_state", equals(1),
        "is recovering from an NVLink access that timed out",
    ),
    ThresholdRule(
        _fabric("configuration", "the configuration is right", 3.0),
        FABRIC, "incorrect_configuration_code", above(1),
        "is configured wrongly for its NVLink fabric (code {value:.0f})", "1",
    ),
)
