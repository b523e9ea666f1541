"""Missing readings count neither as zero nor as healthy: unread parts, restarts, our outages."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np

from ...contract.signal import Kind
from ...contract.signals import BY_NAME
from ..arrays import Flags, Floats
from ..fleet.fleet import Fleet
from ..model import SEVERITY, HealthState, HostScore, Reason
from .hysteresis import RuleAndDevice, TrackedSymptom, TrackedSymptoms
from .results import Hosts
from .symptom import Symptom
from .view import FleetView

#: Device kinds that belong to a GPU: they exist as long as the host lists the GPU.
OF_GPUS = ("gpu", "gpu_fabric", "nvlink", "c2c")
#: Device kinds that come and go while a host is up, and exist only while the host lists them:
#: mounts, interfaces, disks. Processes on a GPU, and the states of the agent's own collectors, are
#: reported again or are over.
TRANSIENT_KINDS = ("net", "bond", "filesystem", "disk", "gpu_job", "probe", "collector")
#: Inventories list bonds among the interfaces.
LISTED_AS = {"bond": "net"}

#: Time that hosts have to report again before their silence counts, and time that a host must
#: report before it gets a better state: on-change signals are reported again within a minute.
SETTLING_SECONDS = 60
_SETTLING_NS = SETTLING_SECONDS * 1_000_000_000
#: States that the first frame disproves, or does not concern.
_DISPROVED_AT_ONCE = (HealthState.HEALTHY, HealthState.STALE, HealthState.UNKNOWN)
#: If at least this many hosts, and this share of those that report or did within 15 minutes, fall
#: silent in one minute, it is more likely our own outage: their states are frozen, for at most
#: these 15 minutes. All assumed.
HOSTS_MIN, SHARE_MIN = 3, 0.05
WINDOW_SECONDS, OUTAGE_SECONDS_MAX = 60.0, 900.0
#: Places that silent hosts may share, in the order of search -> name in messages.
SHARED_PLACES = {
    "rack": "rack", "nvlink_subdomain": "NVLink subdomain", "nvlink_domain": "NVLink domain", "leaf": "leaf",
    "power_domain": "power domain", "cooling_domain": "cooling domain", "spine": "spine", "core": "core",
}  # fmt: skip


def unread_symptoms(
    view: FleetView, host: int, tracked: TrackedSymptoms, shown: Container[RuleAndDevice]
) -> dict[RuleAndDevice, TrackedSymptom]:
    """Return active symptoms, not *shown*, of parts without current readings of the signal.

    The part was released for repair, its driver hangs, or its collector fails. A part that the host
    no longer has is excluded.
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
    """Return whether the last reading of a row has no value of the signal *name*."""
    signal = BY_NAME[name]
    table = view.fleet.tables[signal.table]
    return signal.column in table.column and not table.known(signal.column)[row]


def _is_read_of(fleet: Fleet, host: int, device: str, name: str, reason: Reason) -> bool:
    """Return whether the signal *name* of *device* could be read, and *host* still has the device.

    Symptoms of blindness are excluded: they need no reading and end when their cause is reported.
    """
    signal = BY_NAME.get(name)
    if signal is None or signal.kind is Kind.EVENT or reason is Reason.BLIND:
        return False
    kind, listed = signal.device_kind, fleet.attributes[host]
    if kind in OF_GPUS:
        return ("gpu", device.partition("/")[0]) in listed
    listed_as = LISTED_AS.get(kind, kind)
    if any(listed_kind == listed_as for listed_kind, _ in listed):
        return (listed_as, device) in listed
    return kind not in TRANSIENT_KINDS


class SettlingHost(NamedTuple):
    """A host that has reported too briefly since the restart: its last score and symptoms."""

    score: HostScore
    symptoms: AbstractSet[RuleAndDevice] = frozenset()


#: By node index.
SettlingHosts = Mapping[int, SettlingHost]


def still_settling(before: SettlingHosts, fleet: Fleet, now_ns: int) -> SettlingHosts:
    """Return the hosts of *before* that have not reported for SETTLING_SECONDS yet."""
    first_ns = fleet.first_received_ns
    return {
        host: settling_host
        for host, settling_host in before.items()
        if not first_ns[host] or now_ns - int(first_ns[host]) < _SETTLING_NS
    }


def awaited_hosts(settling: SettlingHosts, fleet: Fleet, now_ns: int) -> frozenset[int]:
    """Return hosts that have not reported again, until SETTLING_SECONDS after the restart."""
    if now_ns - fleet.restarted_ns >= _SETTLING_NS:
        return frozenset()
    return frozenset(host for host in settling if not fleet.first_received_ns[host])


def silent_while_up(
    settling: SettlingHosts, silent_seconds: Floats, fleet: Fleet, now_ns: int
) -> Floats:
    """Return each host's silence, limited to our running time if it was not STALE before."""
    lost = [
        host
        for host, settling_host in settling.items()
        if not fleet.first_received_ns[host] and settling_host.score.state is not HealthState.STALE
    ]
    seconds = silent_seconds.copy()
    seconds[lost] = np.minimum(seconds[lost], (now_ns - fleet.restarted_ns) / 1e9)
    return seconds


def scores_as_before(
    settling: SettlingHosts, live: Hosts, awaited: Container[int]
) -> dict[int, HostScore]:
    """Return the scores from before the restart that are better or have no successor."""
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
    """Return the message about hosts shown as before; "" if none, or after SETTLING_SECONDS."""
    as_before = sum(
        host in awaited
        or settling_host.score.state not in _DISPROVED_AT_ONCE
        or live.state(host) is HealthState.UNKNOWN
        for host, settling_host in settling.items()
    )
    if not as_before or now_ns - fleet.restarted_ns >= _SETTLING_NS:
        return ""
    restarted_at = datetime.fromtimestamp(fleet.restarted_ns // 1_000_000_000, UTC)
    left = "all of them have reported again"
    if awaited:
        left = f"{len(awaited)} of them have not reported again yet"
    return f"restarted at {restarted_at:%H:%M:%S} UTC: {as_before} of {len(fleet)} hosts are shown as they were before, {left}"


def silent_together(view: FleetView, silent: Floats) -> frozenset[int]:
    """Return the hosts that fell silent together, so that the fault is more likely ours.

    *silent*: seconds, while we listened. Hosts in a declared maintenance window are excluded.
    """
    quiet = ~view.awake & (silent <= OUTAGE_SECONDS_MAX) & ~view.ended
    quiet[list(view.fleet.declared.maintenance_windows(view.fleet.names, view.now_ns))] = False
    hosts = np.flatnonzero(quiet)
    hosts = hosts[np.argsort(silent[hosts], kind="stable")]
    enough = max(HOSTS_MIN, SHARE_MIN * int((view.awake | quiet).sum()))
    return frozenset(hosts[_is_crowded(silent[hosts], enough)].tolist())


def _is_crowded(when: Floats, enough: float) -> Flags:
    """Return which of *when* (sorted, seconds) lie in some minute that has *enough* of them."""
    begins = np.arange(when.size)
    ends = np.searchsorted(when, when + WINDOW_SECONDS, side="right")
    is_crowded = ends - begins >= enough
    inside = np.bincount(begins[is_crowded], minlength=when.size + 1)
    inside -= np.bincount(ends[is_crowded], minlength=when.size + 1)
    return np.cumsum(inside)[:-1] > 0


def outage_message(fleet: Fleet, frozen: Collection[int]) -> str:
    """Return the message about the *frozen* hosts; "" if there are none."""
    if not frozen:
        return ""
    place, cause = _shared_place(fleet, frozen), "a fault of the network or the aggregator"
    if place:
        place, cause = f", all in {place},", f"its power or network, or {cause}"
    return f"{len(frozen)} of {len(fleet)} hosts{place} fell silent within a minute of each other: more likely {cause} than theirs; their states are frozen"


def _shared_place(fleet: Fleet, hosts: Collection[int]) -> str:
    """Return the declared place of all *hosts*, but not of every other host; "" for none."""
    places = [fleet.declared.place(fleet.names[host]) for host in hosts]
    for field, label in SHARED_PLACES.items():
        names = {getattr(place, field) for place in places}
        name = names.pop() if len(names) == 1 else ""
        others = (getattr(fleet.declared.place(host), field) for host in fleet.names)
        if name and any(other != name for other in others):
            return f"{label} {name}"
    return ""
