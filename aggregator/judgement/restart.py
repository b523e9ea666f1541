"""After a restart: what was known before stands until each host was heard long enough to be judged.

Missing is neither zero nor healthy, and our restart is not the hosts' fault.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import MappingProxyType

import numpy as np

from ..fleet.arrays import Floats
from ..fleet.fleet import Fleet
from ..verdicts import SEVERITY, SIMULATED_SILENT_SECONDS_MAX, Evidence, HostScore, State
from .declared import without_maintenance
from .faults import Faults
from .hosts import Hosts
from .hysteresis import Holds
from .lasting import lasting
from .unread import waits_for_reading

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
    #: What was remembered by time (`lasting.py`), for the first judgement: later ones have it of the one before.
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
    """Say whether *now*, heard since *first_ns* (0: not heard), is all there is to say."""
    if not first_ns or now is State.UNKNOWN:
        return False
    return old in _PASSING or now_ns - first_ns >= _SETTLED_NS


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
