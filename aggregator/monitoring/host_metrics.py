"""Prometheus series of each host: state, score, hazard, relative speed, silence, open advice. Off by default (`metrics_hosts`)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from prometheus_client.core import Metric

from ...contract.server.metric_families import Sample, gauge
from ..advisories.advisory import Advisory, gravity
from ..model import HealthState, Reason, Snapshot
from ..scoring.results import Hosts
from ..scoring.score_columns import columns_of

PREFIX = "gangline_host_"
#: Maximum series per host: one per family and one with all labels. Unknown values have no series.
SERIES_OF_A_HOST_MAX = 8
#: Older scores are not exported, because an old state would look current.
JUDGEMENT_SECONDS_MAX = 60.0

#: Name -> description, and labels in addition to the host.
FAMILIES = {
    "state": ("1 for the current state of the host, with its reason", "state", "reason", "simulated"),
    "score": ("chance that a job runs the horizon (8 h) without a fault of this host",),
    "hazard_per_hour": ("expected interruptions of a job in an hour, caused by this host",),
    "relative_speed_ratio": ("pace of its slowest GPU against its peers at the same work",),
    "silent_seconds": ("age of the last live reading when the host was judged",),
    "advice": ("1 for the most severe open advisory of the host", "action", "state"),
}  # fmt: skip


def host_families(
    snapshot: Snapshot | None, advisories: Iterable[Advisory], now_ns: int
) -> list[Metric]:
    """Return the families of all scored hosts; none if the scores are old.

    Simulated hosts that have ended are left out. *advisories*: the open ones. Any thread may call
    this: a snapshot is immutable.
    """
    if snapshot is None or now_ns - snapshot.computed_ns > JUDGEMENT_SECONDS_MAX * 1e9:
        return []
    columns, hosts = columns_of(snapshot), snapshot.hosts
    host_names = hosts.inputs.names if isinstance(hosts, Hosts) else [host.host for host in hosts]
    if isinstance(hosts, Hosts):
        received = hosts.inputs.last_received_ns
    else:
        received = np.array([host.last_received_ns for host in hosts], dtype=np.int64)
    shown = np.flatnonzero(~columns.ended[: len(host_names)])
    names = [host_names[index] for index in shown.tolist()]
    last_received_ns = received[shown]
    silent = np.where(
        last_received_ns > 0, np.maximum(snapshot.computed_ns - last_received_ns, 0) / 1e9, np.nan
    )
    kinds = (c[shown].tolist() for c in (columns.state, columns.reason, columns.simulated))
    states = [([name, *_state_labels(*kind)], 1) for name, *kind in zip(names, *kinds, strict=True)]
    advised = _gravest(advisories)
    advice = [
        ([name, advisory.action.name, advisory.state.name], 1)
        for name in names
        if (advisory := advised.get(name)) is not None
    ]
    samples: dict[str, Sequence[Sample]] = {
        "state": states,
        "score": _known(names, columns.score[shown]),
        "hazard_per_hour": _known(names, columns.hazard_per_hour[shown]),
        "relative_speed_ratio": _known(names, columns.relative_speed[shown]),
        "silent_seconds": _known(names, silent),
        "advice": advice,
    }
    return [
        gauge(PREFIX + name, description, samples[name], ["host", *labels])
        for name, (description, *labels) in FAMILIES.items()
    ]


def _known(hosts: Sequence[str], values: NDArray[Any]) -> list[Sample]:
    """Return a sample for each host with a finite value."""
    return [([host], v) for host, v in zip(hosts, values.tolist(), strict=True) if math.isfinite(v)]


@cache
def _state_labels(state: int, reason: int, simulated: bool) -> tuple[str, str, str]:
    return HealthState(state).name, Reason(reason).name, "true" if simulated else "false"


def _gravest(advisories: Iterable[Advisory]) -> dict[str, Advisory]:
    """Return the most severe advisory of each host."""
    gravest: dict[str, Advisory] = {}
    for advisory in advisories:
        for host in advisory.hosts:
            before = gravest.get(host)
            if before is None or gravity(advisory.action) > gravity(before.action):
                gravest[host] = advisory
    return gravest
