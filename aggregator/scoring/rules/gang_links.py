"""Links that slow down a gang: told by a link's errors and by the pace of its gang, which fell as they began.

Errors on a link are watched only: most cost nothing. Where the pace of the whole gang falls as one host's link begins to have
them, and nothing says that a host computes or stalls longer, it is that link.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ....fingerprints.stragglers import outliers_max
from ...fleet.gangs import GangComparison
from ...model import Reason
from ...rule_catalogue import gang as rules
from ...sql import quoted
from ..rule import Symptom, TrackedSymptom, detects, short
from ..view import FleetView
from .gang import HOSTS_MIN

#: Reasons of evidence of links.
LINK_REASONS = (Reason.NVLINK_ERRORS, Reason.FABRIC, Reason.RAIL_DOWN, Reason.PCIE)
#: The errors began so long before the pace was seen to fall, at most, or after.
BEFORE_SECONDS, AFTER_SECONDS = 120.0, 60.0


@detects(rules.SLOW_LINK)
def slow_links(view: FleetView) -> Iterator[Symptom]:
    """Name each host whose link began to have errors as the pace of its gang fell, where nothing else explains the fall."""
    comparison = view.fleet.gangs.comparison
    if comparison is None:
        return
    for gang, fall in view.fleet.gangs.pace_falls.items():
        hosts = np.flatnonzero((comparison.gang == gang) & view.awake[: comparison.gang.size])
        if hosts.size < HOSTS_MIN or _is_explained(comparison, gang):
            continue
        found = {
            host: worst
            for host in hosts.tolist()
            if (worst := _link_symptom(view, host, fall.since_ns)) is not None
        }
        if len(found) > max(int(outliers_max(np.array([hosts.size]))[0]), 1):
            continue
        for host, link in found.items():
            name = view.fleet.gangs.jobs[gang].name
            job = f"job {name}" if name else "its job"
            yield Symptom(
                rule=rules.SLOW_LINK,
                host=host,
                device=link.device,
                signal=rules.SLOW_LINK.name,
                value=round(1.0 - fall.ratio, 3),
                unit="of the pace that its job had",
                normal="1.00",
                message=(
                    f"{job} goes {100 * fall.ratio:.0f} % slower since {short(link.device)} has errors "
                    f"({link.message}): all its hosts wait for this link"
                ),
                sql=_pace_sql(view, hosts.tolist()),
                speed=1.0 - fall.ratio,
                reason=link.rule.reason if link.reason is None else link.reason,
            )


def _is_explained(comparison: GangComparison, gang: int) -> bool:
    """Say whether a host or a GPU of *gang* is known to compute or to stall longer than it did."""
    member = comparison.gang == gang
    size = comparison.gpu_change.is_named.size
    gpus = comparison.gpu_change.is_named & (comparison.gpu_gang[:size] == gang)
    changed = comparison.busy_change.is_named | comparison.gap_change.is_named
    return bool((member & changed).any() or gpus.any())


def _link_symptom(view: FleetView, host: int, fell_ns: int) -> Symptom | None:
    """Return the gravest symptom of a link of *host* that began as the pace fell."""
    found: list[Symptom] = []
    symptoms: dict[tuple[str, str], TrackedSymptom] = dict(view.fleet.active_symptoms.get(host, {}))
    for tracked in symptoms.values():
        symptom = tracked.worst
        reason = symptom.rule.reason if symptom.reason is None else symptom.reason
        began_seconds = (tracked.since_ns - fell_ns) / 1e9
        if (
            tracked.active
            and reason in LINK_REASONS
            and symptom.rule is not rules.SLOW_LINK
            and symptom.speed >= 1.0
            and -BEFORE_SECONDS <= began_seconds <= AFTER_SECONDS
        ):
            found.append(symptom)
    return max(found, key=lambda one: one.weight, default=None)


def _pace_sql(view: FleetView, hosts: list[int]) -> str:
    names = ", ".join(quoted(view.fleet.names[host]) for host in hosts[:32])
    return (
        "SELECT time_bucket(INTERVAL 10 SECOND, time) AS time, median(tensor_active_ratio) AS work FROM readings.gpu_fast_1s "
        f"WHERE host IN ({names}) AND time BETWEEN {view.timestamp_sql(-300)} AND {view.timestamp_sql(5)} "
        "GROUP BY ALL ORDER BY time"
    )
