"""Settling after a restart: a host gets no better state than before until it has reported for a minute.

Missing data is neither zero nor healthy, and an aggregator restart is not the hosts' fault.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np

from ..counter_deltas import Floats
from ..fleet.fleet import Fleet
from ..model import SEVERITY, HealthState, HostScore
from .results import Hosts
from .rule import RuleAndDevice

#: This long the hosts have to report again before their silence counts, and so long a host must report before it is better
#: than it was: what travels on change is reported again within a minute.
SETTLING_SECONDS = 60
_SETTLING_NS = SETTLING_SECONDS * 1_000_000_000
#: What a first frame disproves, or says nothing of.
_DISPROVED_AT_ONCE = (HealthState.HEALTHY, HealthState.STALE, HealthState.UNKNOWN)


class SettlingHost(NamedTuple):
    """A host from before the restart that has not reported for long enough: its last score then, and its symptoms."""

    score: HostScore
    symptoms: AbstractSet[RuleAndDevice] = frozenset()


#: By node index.
SettlingHosts = Mapping[int, SettlingHost]


def still_settling(before: SettlingHosts, fleet: Fleet, now_ns: int) -> SettlingHosts:
    """Return those of *before* that were not heard for SETTLING_SECONDS yet."""
    first_ns = fleet.first_received_ns
    return {
        host: one
        for host, one in before.items()
        if not first_ns[host] or now_ns - int(first_ns[host]) < _SETTLING_NS
    }


def awaited_hosts(settling: SettlingHosts, fleet: Fleet, now_ns: int) -> frozenset[int]:
    """Return the hosts that did not report again yet, for as long as that is our doing."""
    if now_ns - fleet.restarted_ns >= _SETTLING_NS:
        return frozenset()
    return frozenset(host for host in settling if not fleet.first_received_ns[host])


def silent_while_up(
    settling: SettlingHosts, silent_seconds: Floats, fleet: Fleet, now_ns: int
) -> Floats:
    """Return for how long each host was silent while we ran: a host that was not STALE before, no longer than we run."""
    lost = [
        host
        for host, one in settling.items()
        if not fleet.first_received_ns[host] and one.score.state is not HealthState.STALE
    ]
    seconds = silent_seconds.copy()
    seconds[lost] = np.minimum(seconds[lost], (now_ns - fleet.restarted_ns) / 1e9)
    return seconds


def scores_as_before(
    settling: SettlingHosts, live: Hosts, awaited: Container[int]
) -> dict[int, HostScore]:
    """Return the scores from before the restart that still apply: nothing newer is known, or it is better."""
    return {
        host: replace(score, last_received_ns=int(live.inputs.last_received_ns[host]))
        for host, (score, _) in settling.items()
        if host in awaited
        or live.state(host) is HealthState.UNKNOWN
        or SEVERITY.index(score.state) < SEVERITY.index(live.state(host))
    }


def restart_message(
    settling: SettlingHosts, live: Hosts, awaited: frozenset[int], fleet: Fleet, now_ns: int
) -> str:
    """Say what is not of now; "" once all is, or the silence of a host is its own."""
    as_before = sum(
        host in awaited
        or one.score.state not in _DISPROVED_AT_ONCE
        or live.state(host) is HealthState.UNKNOWN
        for host, one in settling.items()
    )
    if not as_before or now_ns - fleet.restarted_ns >= _SETTLING_NS:
        return ""
    at = datetime.fromtimestamp(fleet.restarted_ns // 1_000_000_000, UTC)
    left = (
        f"{len(awaited)} of them have not reported again yet"
        if awaited
        else "all of them have reported again"
    )
    return f"restarted at {at:%H:%M:%S} UTC: {as_before} of {len(fleet)} hosts are shown as they were before, {left}"
