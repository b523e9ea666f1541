"""Hosts on which jobs are slow from their first step on: told by earlier runs of the same workloads, with them and without.

Within such a run nothing changes, and where the host was slow from the beginning its gang has no better past. Several
workloads that were slow with one host, and were not without it, tell of the host.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...rule_catalogue import gang as rules
from ...sql import quoted
from ..rule import Symptom, detects
from ..view import FleetView


@detects(rules.SLOW_RUNS)
def slow_hosts(view: FleetView) -> Iterator[Symptom]:
    """Name each host on which runs of several workloads were slower than without it."""
    fleet = view.fleet
    for name, drift in fleet.drifting_hosts.items():
        host = fleet.index.get(name)
        if host is None or not view.awake[host]:
            continue
        loss, least, most = (100 * (1 - one) for one in (drift.ratio, drift.upper, drift.lower))
        yield Symptom(
            rule=rules.SLOW_RUNS,
            host=host,
            device="host",
            signal=rules.SLOW_RUNS.name,
            value=round(drift.ratio, 3),
            unit="of the pace without it",
            normal="1.00",
            message=(
                f"{drift.runs} runs of {drift.workloads} workloads were {loss:.0f} % slower with this host than without it "
                f"(90 % interval {least:.0f} to {most:.0f})"
            ),
            sql=(
                "SELECT begun, job, workload_id, hosts, pace_ratio, verdict FROM ops.runs "
                f"WHERE list_contains(host_names, {quoted(name)}) AND pace_ratio IS NOT NULL ORDER BY begun DESC LIMIT 32"
            ),
            speed=drift.ratio,
        )
