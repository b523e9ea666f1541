"""Detects the aggregator's own outages: when many hosts go silent at once, their states freeze and the common cause is named."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from ..counter_deltas import Flags, Floats
from ..fleet.fleet import Fleet
from .view import FleetView

#: This many hosts, and so large a share of those that speak or did within 15 minutes, that fall silent in one minute
#: are more likely our own outage than theirs: their states are frozen, for as long as these 15 minutes. All assumed.
HOSTS_MIN, SHARE_MIN = 3, 0.05
WINDOW_SECONDS, OUTAGE_SECONDS_MAX = 60.0, 900.0
#: What silent hosts may all be in, where one looks first -> as people call it.
SHARED_PLACES = {
    "rack": "rack", "nvlink_subdomain": "NVLink subdomain", "nvlink_domain": "NVLink domain", "leaf": "leaf",
    "power_domain": "power domain", "cooling_domain": "cooling domain", "spine": "spine", "core": "core",
}  # fmt: skip


def silent_together(view: FleetView, silent: Floats) -> frozenset[int]:
    """Return the hosts that fell silent together, so many that the fault is more likely ours.

    *silent*: seconds, while we listened. A rack that is switched off in its maintenance window is no news.
    """
    quiet = ~view.awake & (silent <= OUTAGE_SECONDS_MAX) & ~view.ended
    quiet[list(view.fleet.declared.maintenance_windows(view.fleet.names, view.now_ns))] = False
    hosts = np.flatnonzero(quiet)
    hosts = hosts[np.argsort(silent[hosts], kind="stable")]
    enough = max(HOSTS_MIN, SHARE_MIN * int((view.awake | quiet).sum()))
    return frozenset(hosts[_is_crowded(silent[hosts], enough)].tolist())


def _is_crowded(when: Floats, enough: float) -> Flags:
    """Say which of *when*, sorted, are of some minute that has *enough* of them."""
    begins = np.arange(when.size)
    ends = np.searchsorted(when, when + WINDOW_SECONDS, side="right")
    found = ends - begins >= enough
    inside = np.bincount(begins[found], minlength=when.size + 1)
    inside -= np.bincount(ends[found], minlength=when.size + 1)
    return np.asarray(np.cumsum(inside)[:-1] > 0)


def outage_message(fleet: Fleet, frozen: Collection[int]) -> str:
    """Return what is said of the hosts that are *frozen*; "" for none."""
    if not frozen:
        return ""
    place, cause = _shared_place(fleet, frozen), "a fault of the network or the aggregator"
    if place:
        place, cause = f", all in {place},", f"its power or network, or {cause}"
    return f"{len(frozen)} of {len(fleet)} hosts{place} fell silent within a minute of each other: more likely {cause} than theirs; their states are frozen"


def _shared_place(fleet: Fleet, hosts: Collection[int]) -> str:
    """Return what all of *hosts* are in and not all others are, as far as somebody has said; "" for nothing."""
    places = [fleet.declared.place(fleet.names[host]) for host in hosts]
    for field, label in SHARED_PLACES.items():
        names = {getattr(place, field) for place in places}
        name = names.pop() if len(names) == 1 else ""
        others = (getattr(fleet.declared.place(host), field) for host in fleet.names)
        if name and any(other != name for other in others):
            return f"{label} {name}"
    return ""
