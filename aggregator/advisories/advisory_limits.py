"""Limits and durations of advisories, from the settings."""

from __future__ import annotations

from dataclasses import dataclass

from ..config import AggregatorConfig

SECOND_NS = 1_000_000_000
HOUR_NS = 3600 * SECOND_NS


@dataclass(frozen=True, slots=True)
class AdvisoryLimits:
    """An operator's limits of advice, times in seconds. Hosts that others took out count, too."""

    rack_hosts_max: int = 2
    job_hosts_max: int = 2
    cluster_hosts_min: int = 1  # minimum for a small fleet, whatever its share
    cluster_share_max: float = 0.02
    hosts_per_hour_max: int = 8
    #: Grants are withheld for this long after the hourly limit or repeated failures suggest wrong
    #: advice; twice as long after each failed trial, up to the maximum.
    breaker_seconds: float = 900.0
    breaker_seconds_max: float = 14_400.0
    failures_max: int = 3  # failures in a row that open the breaker
    proposal_seconds: float = 3600.0  # an unanswered proposal expires
    lease_seconds: float = 600.0  # a silent owner loses the advisory
    hold_seconds: float = 7200.0  # duration of a hold; it is renewed while its cause lasts
    #: On a host without a fault that is not well (silent, or unknown), our effect is renewed for
    #: this long: a repaired host that is not switched on within a day is assumed to be gone.
    missed_seconds: float = 86_400.0
    #: A new case waits this long for others of the same cause. A certain fault of a host's own
    #: device does not (`proposals.py`).
    gather_seconds: float = 3.0
    #: A host that is silent alone may be booting, as may its agent: INSPECT waits this long.
    silent_seconds: float = 1800.0
    shared_seconds: float = 2.0  # starts of one cause lie within this
    shared_hosts_min: int = 3
    shared_unplaced_hosts_min: int = 8  # if their racks are not declared
    shared_join_seconds: float = 600.0  # later cases join a cause for this long
    verify_seconds: float = 900.0  # a host is well for this long before its return is proposed
    probation_seconds: float = 7 * 86_400.0
    # after EXPIRED, FAILED or DONE, minimum time to the next proposal
    again_seconds: float = 3600.0
    rejected_seconds: float = 86_400.0  # after REJECTED, minimum time to the next proposal
    flap_seconds: float = 300.0  # after WITHDRAWN, minimum time to the next proposal
    defer_seconds: float = 900.0  # a deferral without a time
    defer_seconds_max: float = 7 * 86_400.0
    ended_seconds: float = 86_400.0  # ended advisories are remembered for this long
    ended_max: int = 10_000
    open_max: int = 1000  # open advisories

    def cluster_hosts_max(self, hosts: int) -> int:
        """Return how many of *hosts* may be out at once."""
        return max(self.cluster_hosts_min, int(self.cluster_share_max * hosts))


def limits_of(settings: AggregatorConfig) -> AdvisoryLimits:
    """Return the limits that an operator configured, with the defaults for the rest."""
    return AdvisoryLimits(
        rack_hosts_max=settings.advice_rack_hosts_max,
        job_hosts_max=settings.advice_job_hosts_max,
        cluster_share_max=settings.advice_cluster_share_max,
        hosts_per_hour_max=settings.advice_hosts_per_hour_max,
        proposal_seconds=settings.advice_proposal_seconds,
        lease_seconds=settings.advice_lease_seconds,
        hold_seconds=settings.advice_hold_seconds,
        verify_seconds=settings.advice_verify_seconds,
        probation_seconds=settings.advice_probation_seconds,
    )


def seconds_ns(seconds: float) -> int:
    return int(seconds * SECOND_NS)
