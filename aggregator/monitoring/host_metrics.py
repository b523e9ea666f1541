"""Series of each host for Prometheus: state, score, hazard, relative speed, silence, open advice. Off by default (`metrics_hosts`)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...contract.metrics_http import Family, escape_label, format_labels
from ..advisories.advisory import Advisory, gravity
from ..model import HealthState, Reason, Snapshot
from ..scoring.results import Columns, Hosts, columns_of

PREFIX = "gangline_host_"
#: A host has at most one series of each of these families, and one of all its labels: what is not known has none.
SERIES_OF_A_HOST_MAX = 8
#: A judgement that is older is not shown: an old state would pass for that of now.
JUDGEMENT_SECONDS_MAX = 60.0

#: Name -> (unit, what it is).
FAMILIES = {
    "state": ("", "1 for the state that the host is in, with the reason of it"),
    "score": ("", "chance that a job runs the horizon (8 h) without a fault of this host"),
    "hazard_per_hour": ("", "expected interruptions of a job in an hour, caused by this host"),
    "relative_speed_ratio": ("ratio", "pace of its slowest GPU against its peers at the same work"),
    "silent_seconds": ("seconds", "age of the last live reading when the host was judged"),
    "advice": ("", "1 for the gravest advisory that is open about the host"),
}


def host_families(
    snapshot: Snapshot | None, advisories: Iterable[Advisory], now_ns: int
) -> list[Family]:
    """Return the families of all hosts that are judged, but simulated ones that have ended; none of an old judgement.

    *advisories*: those that are open. For any thread: a snapshot does not change.
    """
    if snapshot is None or now_ns - snapshot.computed_ns > JUDGEMENT_SECONDS_MAX * 1e9:
        return []
    columns, hosts = columns_of(snapshot), snapshot.hosts
    every = hosts.inputs.names if isinstance(hosts, Hosts) else [one.host for one in hosts]
    received = (
        hosts.inputs.last_received_ns
        if isinstance(hosts, Hosts)
        else [one.last_received_ns for one in hosts]
    )
    shown = np.flatnonzero(~columns.ended[: len(every)])
    names = [escape_label(every[at]) for at in shown.tolist()]
    last_received_ns = np.asarray(received, dtype=np.int64)[shown]
    silent = np.where(
        last_received_ns > 0, np.maximum(snapshot.computed_ns - last_received_ns, 0) / 1e9, np.nan
    )
    kinds = zip(*(column[shown].tolist() for column in _kinds(columns)), strict=True)
    samples = {
        "state": [
            (f'{{host="{name}",{_state(*kind)}}}', "1")
            for name, kind in zip(names, kinds, strict=True)
        ],
        "score": _known(names, columns.score[shown]),
        "hazard_per_hour": _known(names, columns.hazard_per_hour[shown]),
        "relative_speed_ratio": _known(names, columns.relative_speed[shown]),
        "silent_seconds": _known(names, silent),
        "advice": _advice([every[at] for at in shown.tolist()], advisories),
    }
    return [
        Family(PREFIX + name, "gauge", unit, description, samples[name])
        for name, (unit, description) in FAMILIES.items()
    ]


def _known(names: Sequence[str], values: NDArray[Any]) -> list[tuple[str, str]]:
    """Return a sample of each host whose value is a number."""
    return [
        (f'{{host="{name}"}}', repr(value))
        for name, value in zip(names, values.tolist(), strict=True)
        if math.isfinite(value)
    ]


def _kinds(columns: Columns) -> tuple[NDArray[Any], ...]:
    return columns.state, columns.reason, columns.simulated


@cache
def _state(state: int, reason: int, simulated: bool) -> str:
    """Return the labels of a state, beside the host's."""
    about = {
        "state": HealthState(state).name,
        "reason": Reason(reason).name,
        "simulated": "true" if simulated else "false",
    }
    return format_labels(about)[1:-1]


def _advice(names: Sequence[str], advisories: Iterable[Advisory]) -> list[tuple[str, str]]:
    """Return a sample of each of *names* about which something is advised."""
    advised = _gravest(advisories)
    return [
        (format_labels({"host": name, "action": one.action.name, "state": one.state.name}), "1")
        for name in names
        if (one := advised.get(name)) is not None
    ]


def _gravest(advisories: Iterable[Advisory]) -> dict[str, Advisory]:
    """Return the gravest of *advisories* of each host."""
    found: dict[str, Advisory] = {}
    for one in advisories:
        for host in one.hosts:
            before = found.get(host)
            if before is None or gravity(one.action) > gravity(before.action):
                found[host] = one
    return found
