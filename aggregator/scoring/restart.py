"""After a restart: what was known before stands until each host was heard long enough to be judged.

Missing is neither zero nor healthy, and our restart is not the hosts' fault.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import MappingProxyType

import numpy as np

from ...contract.signal import Kind
from ...contract.signals import BY_NAME
from ..counter_deltas import Floats
from ..fleet.fleet import Fleet
from ..model import SEVERITY, SIMULATED_SILENT_SECONDS_MAX, Evidence, HealthState, HostScore, Reason
from ..rule_catalogue import ROWS, agent, gang, network
from ..rule_declaration import RateRule, Rule
from .declared import without_maintenance
from .features import FaultHistory
from .results import Hosts
from .rule import (
    RECENT_SECONDS,
    RuleAndDevice,
    Symptom,
    TrackedSymptom,
    TrackedSymptoms,
)
from .view import FleetView

# ----------------------------------------------------------------------
# What counts for a while after it was last there, made anew from the score of before: a restart of
# ours ends it no sooner.
#
# A host is slow for an hour after its job, a port flaps for ten minutes: windows and sums that tell
# it begin at nothing with us.


def _of_ten_minutes(rule: Rule) -> Rule:
    """Return *rule*, of what is seen for LATELY_SECONDS after it happened: the score says when it was seen, not when it was."""
    return replace(rule, leave_seconds=rule.leave_seconds + RECENT_SECONDS)


def _rate_entry(entry: RateRule) -> tuple[str, Rule]:
    rule = entry.rule if entry.per_second else _of_ten_minutes(entry.rule)
    return entry.signal, rule


#: Signal -> the rule that its evidence is of. Not of bursts of corrected errors of a GPU, which may be of two states.
_RULES: Mapping[str, Rule] = {
    gang.SLOW.name: gang.SLOW,
    gang.SLOW_GPU.name: gang.SLOW_GPU,
    "rdma.link_downed_events": _of_ten_minutes(network.PORT_FLAPS),
    **{f"pcie.{column}": _of_ten_minutes(network.AER_LOST) for column in network.LOST},
    f"pcie.{network.CORRECTED}": network.AER_CORRECTED,
    "agent.spool_dropped_frames": _of_ten_minutes(agent.FRAMES_LOST),
    **dict(_rate_entry(row) for row in ROWS if isinstance(row, RateRule)),
}


def restore_symptoms(
    score: HostScore, host: int, now_ns: int
) -> dict[RuleAndDevice, TrackedSymptom]:
    """Return the holds of *host*, by its node index now, that its last score tells of, as old as they were then."""
    symptoms: dict[RuleAndDevice, TrackedSymptom] = {}
    for symptom, evidence in _symptoms(score, host):
        last_seen_ns = min(evidence.observed_ns, now_ns)  # our clock may have been set back
        symptoms[symptom.key] = TrackedSymptom(
            symptom, symptom, last_seen_ns, last_seen_ns, last_seen_ns, active=True
        )
    return symptoms


def _symptoms(score: HostScore, host: int) -> Iterator[tuple[Symptom, Evidence]]:
    for one in score.evidence:
        rule = _RULES.get(one.signal)
        # By another reason it is of another rule, or what somebody takes as noise.
        if rule is not None and rule.reason is one.reason:
            yield (
                Symptom(
                    rule, host, one.device, one.signal, one.value, one.normal, one.words, one.sql,
                    one.unit, one.relative_speed_factor,
                ),
                one,
            )  # fmt: skip


# ----------------------------------------------------------------------
# What was found of a part that nothing reads any more: not looked at is not well.

#: What a GPU is made of: it is one's as long as its host lists the GPU.
OF_GPUS = ("gpu", "gpu_fabric", "nvlink", "c2c")
#: What comes and goes while a host is up, and is its host's only while the host lists it: mounts, interfaces, disks. Who
#: runs on a GPU, and what the agent says of its own collectors, is told anew or is over.
TRANSIENT_KINDS = ("net", "bond", "filesystem", "disk", "gpu_job", "probe", "collector")

#: Bonds are among the interfaces of an inventory.
LISTED_AS = {"bond": "net"}


def unread_symptoms(
    view: FleetView, host: int, tracked: TrackedSymptoms, shown: set[RuleAndDevice]
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
    table = view.fleet.tables[signal.table]
    row = np.array([table.devices.find(host, symptom.device)], dtype=np.intp)
    if row[0] < 0:
        return False
    if view.fresh_at(signal.table, row)[0] and not _is_blank(view, symptom.signal, int(row[0])):
        return False
    return was_read(view.fleet, host, symptom.device, symptom.signal)


def _is_blank(view: FleetView, name: str, row: int) -> bool:
    """Say whether the last reading of a row has no value of the signal *name*."""
    signal = BY_NAME[name]
    table = view.fleet.tables[signal.table]
    return signal.column in table.column and not table.known(signal.column)[row]


def awaits_reading(fleet: Fleet, host: int, evidence: Evidence) -> bool:
    """Say whether *evidence* of before our start is of a part that was not read since, nor in this boot."""
    one = evidence.device, evidence.signal
    return _is_read_of(fleet, host, *one, evidence.reason) and not was_read(fleet, host, *one)


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


def was_read(fleet: Fleet, host: int, device: str, name: str) -> bool:
    """Say whether the table of the signal *name* had readings of *device* in the boot that its host runs in."""
    rows = fleet.tables[BY_NAME[name].table]
    row = rows.devices.find(host, device)
    return row >= 0 and int(rows.boot[row]) == fleet.boot_of(host)


#: So long hosts have to be heard again before their silence counts, and so long a host must be heard
#: before it is better than it was: most symptoms need less to show again.
SETTLING_SECONDS = 60
_SETTLING_NS = SETTLING_SECONDS * 1_000_000_000

#: So long a host is heard again before what was found of it and does not show is taken as gone: what
#: travels on change is told anew within a minute, and some needs as long again to be believed.
_RECHECK_NS = 2 * _SETTLING_NS

#: What a first frame disproves, or says nothing of.
_TRANSIENT_STATES = (HealthState.HEALTHY, HealthState.STALE, HealthState.UNKNOWN)

SymptomsByHost = Mapping[int, TrackedSymptoms]
NO_SYMPTOMS: SymptomsByHost = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class RestartState:
    """The scores of before that still stand, by node index, and when we started again."""

    restarted_ns: int = 0
    scores: Mapping[int, HostScore] = field(default_factory=dict[int, HostScore])
    #: Judged findings of before: (host, name, subject).
    findings: frozenset[tuple[str, str, str]] = frozenset()
    #: What is on record of each host.
    faults: FaultHistory = field(default_factory=FaultHistory)
    #: What was remembered by time (`restart.py`), for the first judgement: later ones have it of the one before.
    tracked_symptoms: SymptomsByHost = field(default_factory=dict[int, TrackedSymptoms])

    def at_clock(self, now_ns: int, jump_ns: int = 0) -> RestartState:
        """Return the same by a clock that says *now_ns*, and was set forward by *jump_ns* just now: it may have been set
        back, too, since we started again."""
        restarted_ns = min(self.restarted_ns + jump_ns, now_ns)
        return (
            self if restarted_ns == self.restarted_ns else replace(self, restarted_ns=restarted_ns)
        )

    def hosts_waiting(self, fleet: Fleet, now_ns: int) -> frozenset[int]:
        """Return the hosts not heard again yet, for as long as that is our doing."""
        if now_ns - self.restarted_ns >= _SETTLING_NS:
            return frozenset()
        return frozenset(host for host in self.scores if not fleet.first_received_ns[host])

    def retains_finding(self, key: tuple[str, str, str], fleet: Fleet, now_ns: int) -> bool:
        """Say whether a finding of before stands though nothing shows it again yet."""
        host = fleet.index.get(key[0])
        if key not in self.findings or host is None:
            return False
        first_ns = int(fleet.first_received_ns[host])
        old = self.scores.get(host)
        is_unread = old is not None and any(
            key[2].startswith(f"{one.device} {one.signal}") for one in _unread(old, host, fleet)
        )
        return not first_ns or now_ns - first_ns < _RECHECK_NS or is_unread

    def silent_since_restart(self, silent_seconds: Floats, fleet: Fleet, now_ns: int) -> Floats:
        """Return for how long each host has been silent while we listened: of those that spoke before
        our restart and not since, no longer than that."""
        lost = [
            host
            for host, score in self.scores.items()
            if not fleet.first_received_ns[host] and score.state is not HealthState.STALE
        ]
        if not lost:
            return silent_seconds
        seconds = silent_seconds.copy()
        since_restart = (now_ns - self.restarted_ns) / 1e9
        seconds[lost] = np.minimum(seconds[lost], since_restart)
        return seconds

    def message(self, hosts: int, waiting: int, now_ns: int) -> str:
        """Say what is not of now; empty once nothing is, or its silence is the host's own."""
        if not self.scores or now_ns - self.restarted_ns >= _SETTLING_NS:
            return ""
        at = datetime.fromtimestamp(self.restarted_ns // 1_000_000_000, UTC)
        left = f"{waiting} of them not heard again yet" if waiting else "all of them heard again"
        return (
            f"restarted at {at:%H:%M:%S} UTC: {len(self.scores)} of {hosts} hosts are shown as they "
            f"were before, {left}"
        )


def restore(fleet: Fleet, last: Iterable[tuple[HostScore, int]], now_ns: int) -> RestartState:
    """Make the hosts of *last* (score, number of GPUs) known to *fleet*; return what stands of them.

    Simulated hosts that had ended do not come back.
    """
    scores: dict[int, HostScore] = {}
    tracked: dict[int, TrackedSymptoms] = {}
    for score, gpus in last:
        silent_seconds = (now_ns - score.last_received_ns) / 1e9
        if score.simulated and silent_seconds > SIMULATED_SILENT_SECONDS_MAX:
            continue
        last_received_ns = min(score.last_received_ns, now_ns)  # our clock may have been set back
        host = fleet.restore(
            score.host, simulated=score.simulated, gpus=gpus, last_received_ns=last_received_ns
        )
        scores[host] = replace(without_maintenance(score), node_index=host)
        for one in score.evidence:
            fleet.ever_up.restore(host, one.device, one.signal)
        if symptoms := restore_symptoms(score, host, now_ns):
            tracked[host] = symptoms
    return RestartState(now_ns, scores, tracked_symptoms=tracked)


def carry_over(
    state: RestartState,
    live: Hosts,
    fleet: Fleet,
    now_ns: int,
    tracked: SymptomsByHost = NO_SYMPTOMS,
) -> tuple[Hosts, RestartState]:
    """Return the hosts as they stand, those of *state* where these still do, and what is left.

    *tracked*: what shows again, some of it not for long enough to count.
    """
    if not state.scores:
        return live, state
    still_valid: dict[int, HostScore] = {}
    remaining = dict(state.scores)
    waiting = state.hosts_waiting(fleet, now_ns)
    for index, old in state.scores.items():
        state_now = live.state(index)
        is_settled = _is_settled(old.state, state_now, int(fleet.first_received_ns[index]), now_ns)
        if is_settled and not _is_pending(old, index, fleet, tracked.get(index, {})):
            del remaining[index]
        elif (
            index in waiting or state_now is HealthState.UNKNOWN or _is_worse(old.state, state_now)
        ):
            still_valid[index] = replace(
                old, last_received_ns=int(live.inputs.last_received_ns[index])
            )
    return live.with_scores(still_valid), replace(state, scores=remaining, tracked_symptoms={})


def _is_settled(old: HealthState, now: HealthState, first_ns: int, now_ns: int) -> bool:
    """Say whether *now*, heard since *first_ns* (0: not heard), is all there is to say.

    A host of which nothing is known for so long is UNKNOWN: its GPUs are not read.
    """
    if not first_ns:
        return False
    is_enough = now_ns - first_ns >= _SETTLING_NS
    return is_enough or (old in _TRANSIENT_STATES and now is not HealthState.UNKNOWN)


def _is_pending(old: HostScore, host: int, fleet: Fleet, tracked: TrackedSymptoms) -> bool:
    """Say whether something of *old* shows again and does not count yet, or is of a GPU that nothing has read again."""
    if old.state in _TRANSIENT_STATES:
        return False
    entering = {(one.worst.device, one.worst.signal) for one in tracked.values() if not one.active}
    shows = any((one.device, one.signal) in entering for one in old.evidence)
    return shows or any(True for _ in _unread(old, host, fleet))


def _unread(old: HostScore, host: int, fleet: Fleet) -> Iterator[Evidence]:
    """Yield what *old* says of GPUs that were not read since; a boot since then ends it."""
    if fleet.booted_ns(host) <= old.last_received_ns:
        yield from (one for one in old.evidence if awaits_reading(fleet, host, one))


def _is_worse(one: HealthState, other: HealthState) -> bool:
    return SEVERITY.index(one) < SEVERITY.index(other)
