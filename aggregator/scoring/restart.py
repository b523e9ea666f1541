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
from ...contract.signals import BY_NAME, TABLES
from ..counter_deltas import Floats
from ..fleet.fleet import Fleet
from ..model import SEVERITY, SIMULATED_SILENT_SECONDS_MAX, Evidence, HostScore, Reason, State
from .declared import without_maintenance
from .features import Faults
from .results import Hosts
from .rule import LATELY_SECONDS, Counted, Hold, Holds, Key, Rule, Symptom
from .rules import agent, fabric, gang, nvlink, pcie
from .rules import host as parts
from .view import Present

# ----------------------------------------------------------------------
# What counts for a while after it was last there, made anew from the score of before: a restart of
# ours ends it no sooner.
#
# A host is slow for an hour after its job, a port flaps for ten minutes: windows and sums that tell
# it begin at nothing with us.

_TABLES = (
    *pcie.GPU_ERRORS, *nvlink.COUNTS, *parts.MEMORY_COUNTS, *parts.DRIVE_COUNTS, *parts.NETWORK_COUNTS,
)  # fmt: skip


def _of_ten_minutes(rule: Rule) -> Rule:
    """Return *rule*, of what is seen for LATELY_SECONDS after it happened: the score says when it was seen, not when it was."""
    return replace(rule, leave_seconds=rule.leave_seconds + LATELY_SECONDS)


def _counted(entry: Counted) -> tuple[str, Rule]:
    rule = entry.rule if entry.per_second else _of_ten_minutes(entry.rule)
    return f"{TABLES[entry.table][0].device_kind}.{entry.column}", rule


#: Signal -> the rule that its evidence is of. Not of bursts of corrected errors of a GPU, which may be of two states.
_RULES: Mapping[str, Rule] = {
    gang.SLOW.name: gang.SLOW,
    "rdma.link_downed_events": _of_ten_minutes(fabric.PORT_FLAPS),
    **{f"pcie.{column}": _of_ten_minutes(fabric.AER_LOST) for column in fabric.LOST},
    f"pcie.{fabric.CORRECTED}": fabric.AER_CORRECTED,
    "agent.spool_dropped_frames": _of_ten_minutes(agent.FRAMES_LOST),
    **dict(map(_counted, _TABLES)),
}


def lasting(score: HostScore, host: int, now_ns: int) -> dict[Key, Hold]:
    """Return the holds of *host*, by its node index now, that its last score tells of, as old as they were then."""
    held: dict[Key, Hold] = {}
    for symptom, evidence in _symptoms(score, host):
        seen_ns = min(evidence.observed_ns, now_ns)  # our clock may have been set back
        held[symptom.key] = Hold(symptom, symptom, seen_ns, seen_ns, seen_ns, active=True)
    return held


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
PASSING = ("net", "bond", "filesystem", "disk", "gpu_job", "probe", "collector")

#: Bonds are among the interfaces of an inventory.
LISTED_AS = {"bond": "net"}


def unread(present: Present, host: int, holds: Holds, shown: set[Key]) -> dict[Key, Hold]:
    """Return what counts, is not *shown*, and is of a part whose readings stopped in this boot, or no longer have the signal.

    It was released for its repair, its driver hangs, its collector fails. One that the host no longer has lets go.
    """
    return {
        key: hold
        for key, hold in holds.items()
        if hold.active and key not in shown and _is_unread(present, host, hold.worst)
    }


def _is_unread(present: Present, host: int, symptom: Symptom) -> bool:
    reason = symptom.rule.reason if symptom.reason is None else symptom.reason
    if not _is_read_of(present.fleet, host, symptom.device, symptom.signal, reason):
        return False
    signal = BY_NAME[symptom.signal]
    table = present.fleet.tables[signal.table]
    row = np.array([table.devices.find(host, symptom.device)], dtype=np.intp)
    if row[0] < 0:
        return False
    if present.fresh_at(signal.table, row)[0] and not _is_blank(
        present, symptom.signal, int(row[0])
    ):
        return False
    return was_read(present.fleet, host, symptom.device, symptom.signal)


def _is_blank(present: Present, name: str, row: int) -> bool:
    """Say whether the last reading of a row has no value of the signal *name*."""
    signal = BY_NAME[name]
    table = present.fleet.tables[signal.table]
    return signal.column in table.column and not table.known(signal.column)[row]


def waits_for_reading(fleet: Fleet, host: int, evidence: Evidence) -> bool:
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
    return kind not in PASSING


def was_read(fleet: Fleet, host: int, device: str, name: str) -> bool:
    """Say whether the table of the signal *name* had readings of *device* in the boot that its host runs in."""
    rows = fleet.tables[BY_NAME[name].table]
    row = rows.devices.find(host, device)
    return row >= 0 and int(rows.boot[row]) == fleet.boot_of(host)


#: So long hosts have to be heard again before their silence counts, and so long a host must be heard
#: before it is better than it was: most symptoms need less to show again.
SETTLED_SECONDS = 60
_SETTLED_NS = SETTLED_SECONDS * 1_000_000_000

#: So long a host is heard again before what was found of it and does not show is taken as gone: what
#: travels on change is told anew within a minute, and some needs as long again to be believed.
_LOOKED_AT_NS = 2 * _SETTLED_NS

#: What a first frame disproves, or says nothing of.
_PASSING = (State.HEALTHY, State.STALE, State.UNKNOWN)

AllHolds = Mapping[int, Holds]
NO_HOLDS: AllHolds = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Before:
    """The scores of before that still stand, by node index, and when we started again."""

    restarted_ns: int = 0
    scores: Mapping[int, HostScore] = field(default_factory=dict[int, HostScore])
    #: Judged findings of before: (host, name, subject).
    findings: frozenset[tuple[str, str, str]] = frozenset()
    #: What is on record of each host.
    faults: Faults = field(default_factory=Faults)
    #: What was remembered by time (`restart.py`), for the first judgement: later ones have it of the one before.
    holds: AllHolds = field(default_factory=dict[int, Holds])

    def by(self, now_ns: int, leapt_ns: int = 0) -> Before:
        """Return the same by a clock that says *now_ns*, and was set forward by *leapt_ns* just now: it may have been set
        back, too, since we started again."""
        restarted_ns = min(self.restarted_ns + leapt_ns, now_ns)
        return (
            self if restarted_ns == self.restarted_ns else replace(self, restarted_ns=restarted_ns)
        )

    def waiting(self, fleet: Fleet, now_ns: int) -> frozenset[int]:
        """Return the hosts not heard again yet, for as long as that is our doing."""
        if now_ns - self.restarted_ns >= _SETTLED_NS:
            return frozenset()
        return frozenset(host for host in self.scores if not fleet.first_ns[host])

    def keeps(self, key: tuple[str, str, str], fleet: Fleet, now_ns: int) -> bool:
        """Say whether a finding of before stands though nothing shows it again yet."""
        host = fleet.index.get(key[0])
        if key not in self.findings or host is None:
            return False
        first_ns = int(fleet.first_ns[host])
        old = self.scores.get(host)
        is_unread = old is not None and any(
            key[2].startswith(f"{one.device} {one.signal}") for one in _unread(old, host, fleet)
        )
        return not first_ns or now_ns - first_ns < _LOOKED_AT_NS or is_unread

    def listened_seconds(self, silent_seconds: Floats, fleet: Fleet, now_ns: int) -> Floats:
        """Return for how long each host has been silent while we listened: of those that spoke before
        our restart and not since, no longer than that."""
        lost = [
            host
            for host, score in self.scores.items()
            if not fleet.first_ns[host] and score.state is not State.STALE
        ]
        if not lost:
            return silent_seconds
        listened = silent_seconds.copy()
        since_restart = (now_ns - self.restarted_ns) / 1e9
        listened[lost] = np.minimum(listened[lost], since_restart)
        return listened

    def words(self, hosts: int, waiting: int, now_ns: int) -> str:
        """Say what is not of now; empty once nothing is, or its silence is the host's own."""
        if not self.scores or now_ns - self.restarted_ns >= _SETTLED_NS:
            return ""
        at = datetime.fromtimestamp(self.restarted_ns // 1_000_000_000, UTC)
        left = f"{waiting} of them not heard again yet" if waiting else "all of them heard again"
        return (
            f"restarted at {at:%H:%M:%S} UTC: {len(self.scores)} of {hosts} hosts are shown as they "
            f"were before, {left}"
        )


def restore(fleet: Fleet, last: Iterable[tuple[HostScore, int]], now_ns: int) -> Before:
    """Make the hosts of *last* (score, number of GPUs) known to *fleet*; return what stands of them.

    Simulated hosts that had ended do not come back.
    """
    scores: dict[int, HostScore] = {}
    holds: dict[int, Holds] = {}
    for score, gpus in last:
        silent_seconds = (now_ns - score.heard_ns) / 1e9
        if score.simulated and silent_seconds > SIMULATED_SILENT_SECONDS_MAX:
            continue
        heard_ns = min(score.heard_ns, now_ns)  # our clock may have been set back
        host = fleet.restore(score.host, simulated=score.simulated, gpus=gpus, heard_ns=heard_ns)
        scores[host] = replace(without_maintenance(score), node_index=host)
        for one in score.evidence:
            fleet.seen.restore(host, one.device, one.signal)
        if held := lasting(score, host, now_ns):
            holds[host] = held
    return Before(now_ns, scores, holds=holds)


def carried(
    before: Before, live: Hosts, fleet: Fleet, now_ns: int, holds: AllHolds = NO_HOLDS
) -> tuple[Hosts, Before]:
    """Return the hosts as they stand, those of *before* where these still do, and what is left.

    *holds*: what shows again, some of it not for long enough to count.
    """
    if not before.scores:
        return live, before
    stands: dict[int, HostScore] = {}
    left = dict(before.scores)
    waiting = before.waiting(fleet, now_ns)
    for index, old in before.scores.items():
        state = live.state(index)
        is_settled = _is_settled(old.state, state, int(fleet.first_ns[index]), now_ns)
        if is_settled and not _waits(old, index, fleet, holds.get(index, {})):
            del left[index]
        elif index in waiting or state is State.UNKNOWN or _is_worse(old.state, state):
            stands[index] = replace(old, heard_ns=int(live.subjects.heard_ns[index]))
    return live.but(stands), replace(before, scores=left, holds={})


def _is_settled(old: State, now: State, first_ns: int, now_ns: int) -> bool:
    """Say whether *now*, heard since *first_ns* (0: not heard), is all there is to say.

    A host of which nothing is known for so long is UNKNOWN: its GPUs are not read.
    """
    if not first_ns:
        return False
    is_enough = now_ns - first_ns >= _SETTLED_NS
    return is_enough or (old in _PASSING and now is not State.UNKNOWN)


def _waits(old: HostScore, host: int, fleet: Fleet, holds: Holds) -> bool:
    """Say whether something of *old* shows again and does not count yet, or is of a GPU that nothing has read again."""
    if old.state in _PASSING:
        return False
    entering = {(one.worst.device, one.worst.signal) for one in holds.values() if not one.active}
    shows = any((one.device, one.signal) in entering for one in old.evidence)
    return shows or any(True for _ in _unread(old, host, fleet))


def _unread(old: HostScore, host: int, fleet: Fleet) -> Iterator[Evidence]:
    """Yield what *old* says of GPUs that were not read since; a boot since then ends it."""
    if fleet.booted_ns(host) <= old.heard_ns:
        yield from (one for one in old.evidence if waits_for_reading(fleet, host, one))


def _is_worse(one: State, other: State) -> bool:
    return SEVERITY.index(one) < SEVERITY.index(other)
