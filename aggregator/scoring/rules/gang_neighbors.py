"""Names the neighbor, not the host, if a member of a gang is slow beside a job that was measured to slow it.

A measurement that is too small for the excess of the host explains nothing, and a host that was slow before the neighbor
came stays slow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ....fingerprints.colocation import SLOWDOWN_MIN
from ...fleet.gang_comparison import GangComparison
from ...fleet.jobs import SlowedJob
from ...rule_catalogue import gang as rules
from ...rule_declaration import Rule
from ...sql import quoted
from ..detectors import detects
from ..symptom import Symptom
from ..view import FleetView

#: Rules that blame a host, or watch it, for an excess that a neighbor may cause.
_BLAMES: frozenset[Rule] = frozenset(
    (rules.SLOW, rules.SLOW_GPU, rules.CONTENDED, rules.STALLED, rules.UNKNOWN)
)


@detects(rules.SLOWED)
def hosts_beside_neighbors(view: FleetView) -> Iterator[Symptom]:
    """Name the job that slows another job on each host, the worst pair only."""
    for host, jobs in view.fleet.slowed_by_neighbor.items():
        if not view.awake[host]:
            continue
        worst = max(jobs, key=lambda slowed: slowed.slowdown)
        yield Symptom(
            rule=rules.SLOWED,
            host=host,
            device="host",
            signal=rules.SLOWED.name,
            value=round(worst.slowdown, 3),
            unit="of the speed of the job",
            normal="0",
            message=worst.message,
            sql=(
                "SELECT job, neighbor, since, until, effect, slowdown_ratio, message FROM ops.colocations "
                f"WHERE list_contains(hosts, {quoted(view.fleet.names[host])}) ORDER BY since DESC"
            ),
        )


def attribute_to_neighbor(
    view: FleetView, comparison: GangComparison, symptom: Symptom, lost: float
) -> Symptom:
    """Return *symptom*, or rules.NEIGHBOR in its place if a neighbor explains it.

    *lost*: share of the job's time that the host costs.
    """
    if symptom.rule not in _BLAMES:
        return symptom
    for slowed in _slowed_jobs(view, comparison, symptom.host):
        if lost > slowed.slowdown_upper + SLOWDOWN_MIN or _began_before(view, symptom, slowed):
            continue
        return replace(
            symptom,
            rule=rules.NEIGHBOR,
            device="host",
            signal=rules.NEIGHBOR.name,
            speed=1.0,
            message=f"{symptom.message.partition(':')[0].partition(';')[0]}: {slowed.message}. The host is not blamed",
        )
    return symptom


def lost_share(view: FleetView, comparison: GangComparison, host: int, excess: float) -> float:
    """Return the share of the job's time that *host* costs if it computes longer by *excess*.

    The share of time in which its SMs are busy counts as 1 if it is unknown.
    """
    gpus, fleet = view.fleet.devices["gpu"], view.fleet
    own = (gpus.host == host) & (comparison.of_gpus(gpus.host) == comparison.gang[host])
    rows = fleet.pcie_topology.rows(fleet, "gpu", "gpu_fast")[own]
    busy = fleet.tables["gpu_fast_1s"].gauge_at("sm_active_ratio", rows[rows >= 0])
    known = busy[np.isfinite(busy)]
    share = float(known.mean()) if known.size else 1.0
    return share * excess / (1.0 + excess)


def _slowed_jobs(view: FleetView, comparison: GangComparison, host: int) -> list[SlowedJob]:
    slowed = view.fleet.slowed_by_neighbor.get(host, ())
    gang = int(comparison.gang[host])
    if not slowed or gang < 0:
        return []
    manager, name, _ = view.fleet.gangs.jobs[gang].key
    return [job for job in slowed if (job.manager, job.name) == (manager, name)]


def _began_before(view: FleetView, symptom: Symptom, slowed: SlowedJob) -> bool:
    tracked = view.fleet.active_symptoms.get(symptom.host, {}).get(symptom.key)
    return tracked is not None and tracked.active and tracked.since_ns < slowed.since_ns
