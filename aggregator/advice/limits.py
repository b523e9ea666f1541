"""How much advice there may be at once, and how long things last. An operator's settings."""

from __future__ import annotations

from dataclasses import dataclass

from ..config import AggregatorConfig

SECOND_NS = 1_000_000_000
HOUR_NS = 3600 * SECOND_NS


@dataclass(frozen=True, slots=True)
class Limits:
    """Hosts are counted whoever took them out. Times are seconds."""

    rack_hosts_max: int = 2
    job_hosts_max: int = 2
    cluster_hosts_min: int = 1  # so many may go of a small fleet, whatever its share
    cluster_share_max: float = 0.02
    hosts_per_hour_max: int = 8
    #: Grants are held for so long once a limit of the hour, or failures, say that we may be wrong; twice as long
    #: each time that the trial fails, up to the maximum.
    breaker_seconds: float = 900.0
    breaker_seconds_max: float = 14_400.0
    failures_max: int = 3  # advice that failed on end: then the breaker opens
    proposal_seconds: float = 3600.0  # a proposal that nobody answers expires
    lease_seconds: float = 600.0  # an owner that is silent for longer has lost it
    hold_seconds: float = 7200.0  # what we set lasts so long; it is renewed while its cause stands
    #: Of a host that shows no fault, and is not well either (silent, or known no more), what we set is renewed for so
    #: long: who was repaired, and not switched on again within a day, is taken to be gone (assumed).
    missed_seconds: float = 86_400.0
    gather_seconds: float = 3.0  # a new case waits so long for others of the same cause
    #: A host that is silent alone may be booting, or its agent is: so long nobody is sent to it.
    silent_seconds: float = 1800.0
    shared_seconds: float = 2.0  # so close they begin
    shared_hosts_min: int = 3
    shared_unplaced_hosts_min: int = 8  # where nobody has said which rack they stand in
    shared_join_seconds: float = 600.0  # a later one is of the same cause, for so long
    verify_seconds: float = 900.0  # a host is well for so long before its return is proposed
    probation_seconds: float = 7 * 86_400.0
    again_seconds: float = 3600.0  # what expired, failed or was done is not proposed again sooner
    rejected_seconds: float = 86_400.0  # what was rejected is not proposed again sooner
    flap_seconds: float = 300.0  # what was withdrawn is not proposed again sooner
    defer_seconds: float = 900.0  # a deferral that names no time
    defer_seconds_max: float = 7 * 86_400.0
    ended_seconds: float = 86_400.0  # what has ended is remembered for so long
    ended_max: int = 10_000
    open_max: int = 1000  # advisories that are open at once

    def cluster_hosts_max(self, hosts: int) -> int:
        """Return how many of *hosts* may be out at once."""
        return max(self.cluster_hosts_min, int(self.cluster_share_max * hosts))


def limits_of(settings: AggregatorConfig) -> Limits:
    """Return what an operator set; the rest is as it is here."""
    return Limits(
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
    """Return *seconds* in nanoseconds."""
    return int(seconds * SECOND_NS)
