"""What is not read counts neither as zero nor as healthy: parts that nothing reads, hosts after a restart, and our own outage."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np

from ...contract.signal import Kind
from ...contract.signals import BY_NAME
from ..counter_deltas import Flags, Floats
from ..fleet.fleet import Fleet
from ..model import SEVERITY, HealthState, HostScore, Reason
from .results import Hosts
from .symptom import RuleAndDevice, Symptom, TrackedSymptom, TrackedSymptoms
from .view import FleetView

# ----------------------------------------------------------------------
# What was found of a part that nothing reads any more: a missing reading does not clear a fault.

#: What a GPU is made of: it is one's as long as its host lists the GPU.
OF_GPUS = ("gpu", "gpu_fabric", "nvlink", "c2c")
#: What comes and goes while a host is up, and is its host's only while the host lists it: mounts, interfaces, disks. Who
#: runs on a GPU, and what the agent says of its own collectors, is reported again or is over.
TRANSIENT_KINDS = ("net", "bond", "filesystem", "disk", "gpu_job", "probe", "collector")
#: Bonds are among the interfaces of an inventory.
LISTED_AS = {"bond": "net"}


def unread_symptoms(
    view: FleetView, host: int, tracked: TrackedSymptoms, shown: Container[RuleAndDevice]
) -> dict[RuleAndDevice, TrackedSymptom]:
    """Return what counts, is not *shown*, and is of a part whose readings stopped in this boot, or no longer have the signal.

    It was released for its repair, its driver hangs, its collector fails. One that the host no longer has lets go.
    """
    return {
        key: tracked_symptom
        for key, tracked_symptom in tracked.items()
        if tracked_symptom.active
        and key not in shown
        and _is_unread(view, host, tracked_symptom.worst)
    }


def _is_unread(view: FleetView, host: int, symptom: Symptom) -> bool:
    reason = symptom.rule.reason if symptom.reason is None else symptom.reason
    if not _is_read_of(view.fleet, host, symptom.device, symptom.signal, reason):
        return False
    signal = BY_NAME[symptom.signal]
    row = view.fleet.tables[signal.table].devices.find(host, symptom.device)
    if row >= 0:
        is_fresh = view.fresh_at(signal.table, np.array([row], dtype=np.intp))[0]
        if is_fresh and not _is_blank(view, symptom.signal, row):
            return False
    return view.fleet.was_read(host, symptom.device, symptom.signal)


def _is_blank(view: FleetView, name: str, row: int) -> bool:
    """Say whether the last reading of a row has no value of the signal *name*."""
    signal = BY_NAME[name]
    table = view.fleet.tables[signal.table]
    return signal.column in table.column and not table.known(signal.column)[row]


def _is_read_of(fleet: Fleet, host: int, device: str, name: str, reason: Reason) -> bool:
    """Say whether *name* is read of *device*, a part that *host* has.

    That nothing is read of it needs no reading: it ends where somebody says why.
    """
    signal = BY_NAME.get(name)
    if signal is None or signal.kind is Kind.EVENT or reason is Reason.BLIND:
        return False
    kind, listed = signal.device_kind, fleet.attributes[host]
    if kind in OF_GPUS:
        return ("gpu", device.partition("/")[0]) in listed
    listed_as = LISTED_AS.get(kind, kind)
    if any(each == listed_as for each, _ in listed):
        return (listed_as, device) in listed
    return kind not in TRANSIENT_KINDS


# ----------------------------------------------------------------------
# Settling after a restart: a host gets no better state than before until it has reported for a minute.
#
# Missing data is neither zero nor healthy, and an aggregator restart is not the hosts' fault.

#: This long the hosts have to report again before their silence counts, and this long a host must report before it is better
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


# ----------------------------------------------------------------------
# The aggregator's own outages: when many hosts go silent at once, their states freeze and the common cause is named.

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
