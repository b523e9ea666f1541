"""Infers which hosts form a gang when no scheduler reports it: those whose work counters agree in every window.

In a bulk-synchronous gang every rank does the same work in the same wall time, so the rates of work counters (tensor
cycles, bytes on the network) are equal by construction, also while one host slows down all others. Jobs that merely
resemble each other drift apart within a minute. Two gangs of the same program may be merged into a single gang; a
change in either of them still shows, against the members of both.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .group_statistics import Flags, Floats, Indexes

#: A greater relative gap between neighbors in a counter's sorted rates separates two gangs (assumed; the agents' rates
#: have about 1 % of noise).
RATE_TOLERANCE = 0.025
#: Consecutive windows in which the same hosts must agree to become a gang, and in which a gang may disagree before it
#: is dropped.
AGREE_WINDOWS_MIN, TORN_WINDOWS_MAX = 6, 6
#: Two sets of hosts are the same gang if they share at least this part of their union.
SAME_SHARE_MIN = 0.8
#: Smallest gang: two hosts cannot show which of them is the odd host.
HOSTS_MIN = 3


def agreeing_groups(rates: Floats, candidates: Flags) -> Iterator[Indexes]:
    """Yield the indexes of hosts whose *rates* (counters, hosts) all agree. Hosts with a NaN are left out."""
    places = np.flatnonzero(candidates & np.isfinite(rates).all(axis=0) & (rates > 0.0).all(axis=0))
    groups = [places]
    for _ in range(2):  # a split by the second counter may open new gaps in the first
        for rate in rates:
            groups = [part for group in groups for part in _split(group, rate)]
    yield from (np.sort(group) for group in groups if group.size >= HOSTS_MIN)


def _split(group: Indexes, rate: Floats) -> list[Indexes]:
    if group.size < HOSTS_MIN:
        return []
    ordered = group[np.argsort(rate[group], kind="stable")]
    steps = rate[ordered[1:]] / rate[ordered[:-1]] - 1.0
    return np.split(ordered, np.flatnonzero(steps > RATE_TOLERANCE) + 1)


class GangInference:
    """The gangs seen so far. For one thread; its memory is bounded by the number of hosts."""

    def __init__(self) -> None:
        #: Hosts of a gang -> consecutive windows in which they agreed, and in which they did not.
        self._agreed: dict[frozenset[int], tuple[int, int]] = {}

    def update(self, rates: Floats, candidates: Flags) -> list[frozenset[int]]:
        """Take in a window, and return the gangs that are currently known; no two share a host.

        *rates*: (counters, hosts). *candidates*: busy hosts without a known job.
        """
        found = [frozenset(group.tolist()) for group in agreeing_groups(rates, candidates)]
        of_host = {host: group for group in found for host in group}
        standing: dict[frozenset[int], tuple[int, int]] = {}
        for members, (agreed, torn) in self._agreed.items():
            working = frozenset(host for host in members if candidates[host])
            if len(working) < SAME_SHARE_MIN * len(members):
                continue  # it ended
            counts = [of_host[host] for host in working if host in of_host]
            largest = max(set(counts), key=counts.count, default=frozenset[int]())
            if len(largest & members) >= SAME_SHARE_MIN * len(largest | members):
                standing[members] = agreed + 1, 0
                found = [group for group in found if group is not largest]
            elif agreed >= AGREE_WINDOWS_MIN and torn < TORN_WINDOWS_MAX:
                standing[members] = agreed, torn + 1
        taken = {host for members in standing for host in members}
        standing |= {group: (1, 0) for group in found if taken.isdisjoint(group)}
        self._agreed = standing
        return [members for members, (agreed, _) in standing.items() if agreed >= AGREE_WINDOWS_MIN]
