"""From a judgement to the machine's events: only what is not as the machine remembers it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from .. import verdicts
from ..declared.model import Declared
from ..fleet.arrays import Codes
from ..judgement.hosts import Hosts
from ..judgement.judge import Judgement
from ..verdicts import Evidence, HostScore
from . import policy
from .advisory import NOWHERE, Action, Basis, Case, Place, lawful
from .costs import Fault, Workload, price
from .desk import SILENT, Memory
from .events import Available, CaseGone, CaseSeen, Event, FleetSize, Frozen, Unavailable, Well
from .proposing import PRICE_STEP_RATIO

State = verdicts.State
MAINTENANCE = "maintenance"
#: In these a host is looked at; what was wrong with one that is not looked at stays.
UNSEEN = (State.STALE, State.UNKNOWN, State.MAINTENANCE)
#: Of these nothing is asked.
QUIET = (State.HEALTHY, *UNSEEN)
UNKNOWN_WORK = Workload()
CASE_WORDS_CHARACTERS_MAX = 500


def no_work(host: str) -> Workload:
    """Return that nothing is known of what runs on *host*."""
    return UNKNOWN_WORK


def place_of(declared: Declared | None, host: str) -> Place:
    """Return where *host* stands; "" where nobody has said."""
    if declared is None:
        return NOWHERE
    told = declared.place(host)
    return Place(*(getattr(told, name) for name in Place.__dataclass_fields__))


class Observer:
    """Compares a judgement with what the machine remembers. It remembers nothing itself."""

    def __init__(
        self, declared: Callable[[], Declared | None] = lambda: None,
        work: Callable[[str], Workload] = no_work,
    ) -> None:  # fmt: skip
        self._declared, self._work = declared, work
        #: By how much outcomes have shown hazards to be too small.
        self.hazard_factor = 1.0

    def events(self, memory: Memory, judged: Judgement, gpus: Codes) -> Iterator[Event]:
        """Yield what is new. *gpus*: of each host, by node index."""
        now_ns, declared = judged.computed_ns, self._declared()
        assert isinstance(
            judged.hosts, Hosts
        )  # as `judge` makes them: the well are not made one by one
        hosts = [one for _, one in sorted(judged.hosts.told.items()) if judged.lists(one)]
        listed_count = judged.hosts.listed_count(now_ns)
        if memory.hosts != listed_count:
            yield FleetSize(now_ns, listed_count)
        if bool(memory.frozen) != bool(judged.degraded_reason):
            yield Frozen(now_ns, judged.degraded_reason)
        yield from _absences(memory, hosts, declared, now_ns)
        standing: set[str] = set()
        for host in hosts:
            if host.state in UNSEEN:
                standing.update(
                    key for key, one in memory.cases.items() if one.case.host == host.host
                )
            elif host.state not in QUIET:
                for case in self._cases(memory, host, int(gpus[host.node_index]), declared, now_ns):
                    standing.add(case.key)
                    if _is_news(memory, case):
                        yield CaseSeen(now_ns, case)
        for key in [key for key in memory.cases if key not in standing]:
            yield CaseGone(now_ns, key, "judging does not find it any more")
        yield from _wellness(memory, judged.hosts, now_ns, standing)

    def _cases(
        self, memory: Memory, host: HostScore, gpus: int, declared: Declared | None, now_ns: int
    ) -> Iterator[Case]:
        """Yield what is wrong with *host* and calls for something; of each key the first, which is the strongest."""
        work, seen = self._work(host.host), set[str]()
        for evidence in host.evidence:
            asked = policy.asked(host, evidence, work)
            if asked is None:
                continue
            key = f"{host.host}/{asked.rule}/{evidence.device}"
            if key in seen:
                continue
            seen.add(key)
            before = memory.cases.get(key)
            place = place_of(declared, host.host)
            new = _case(key, host, evidence, asked, work, place)
            if before is not None and _alike(before.case, new):
                yield before.case
            else:
                hazard = host.hazard_per_hour * self.hazard_factor
                fault = Fault(hazard, host.relative_speed, max(gpus, 1))
                yield _priced(new, fault, work, now_ns)


def _case(
    key: str, host: HostScore, evidence: Evidence, asked: policy.Asked, work: Workload, place: Place
) -> Case:
    certain = asked.basis in (Basis.DETERMINISTIC, Basis.DEAD_JOB)
    words = f"{evidence.words}; policy: {asked.words}"
    return lawful(
        Case(
            key=key, host=host.host, reason=evidence.reason.name, basis=asked.basis,
            action=asked.action, scope=asked.scope, words=words[:CASE_WORDS_CHARACTERS_MAX],
            since_ns=evidence.observed_ns, then=asked.then,
            devices=(evidence.device,) if evidence.device else (), place=place, job=work.job,
            checkpoint_seconds=work.checkpoint_seconds,
            confidence=1.0 if certain else 1.0 - host.score_upper,
            hazard_per_hour=host.hazard_per_hour,
        )
    )  # fmt: skip


def _priced(case: Case, fault: Fault, work: Workload, now_ns: int) -> Case:
    """Return *case* with its price; a forecast for which acting costs more than waiting asks to AVOID only."""
    cost = price(case.action, case.then, fault, work, now_ns, case.basis)
    drains = case.action is Action.DRAIN_AFTER_JOB and case.basis is Basis.STATISTICAL
    if drains and case.then is None and cost.waiting_gpu_hours <= cost.acting_gpu_hours:
        avoid = price(Action.AVOID, None, fault, work, now_ns, case.basis)
        words = f"{case.words}; a drain costs more than waiting, so AVOID"
        return replace(case, action=Action.AVOID, price=avoid, words=words)
    return replace(case, price=cost)


def _alike(before: Case, now: Case) -> bool:
    """Say whether *now* is what *before* was, but for later readings: then it is not priced anew."""
    same = ("then", "scope", "basis", "reason", "devices", "job", "place")
    if any(getattr(before, name) != getattr(now, name) for name in same):
        return False
    lowered = before.action is Action.AVOID and now.action is Action.DRAIN_AFTER_JOB
    low, high = sorted((before.hazard_per_hour, now.hazard_per_hour))
    return (before.action is now.action or lowered) and high <= PRICE_STEP_RATIO * low


def _is_news(memory: Memory, case: Case) -> bool:
    before = memory.cases.get(case.key)
    return before is None or before.case is not case


def _absences(
    memory: Memory, hosts: Sequence[HostScore], declared: Declared | None, now_ns: int
) -> Iterator[Event]:
    """Yield who is out, and not by us, and who is back."""
    out: dict[str, str] = {}
    for one in hosts:
        if one.state is State.MAINTENANCE:
            out[one.host] = MAINTENANCE
        elif one.state is State.STALE:
            out[one.host] = SILENT
    for host, by in out.items():
        before = memory.taken.get(host)
        if before is None or before.by != by:
            yield Unavailable(now_ns, host, by, place_of(declared, host))
    for host in [host for host in memory.taken if host not in out]:
        yield Available(now_ns, host)


def _wellness(memory: Memory, hosts: Hosts, now_ns: int, standing: set[str]) -> Iterator[Event]:
    """Yield, of hosts that we took out, which became well, and which are no longer."""
    if not (memory.holds or memory.well):
        return
    names = set(hosts.subjects.names)
    ill = {memory.cases[key].case.host for key in standing if key in memory.cases}
    states = {one.host: one.state for one in hosts.told.values()}
    for host in memory.holds.keys() | memory.well.keys():
        state = states.get(host, State.HEALTHY if host in names else State.UNKNOWN)
        well = host in memory.holds and host not in ill and state not in UNSEEN
        well = well and state not in (State.UNHEALTHY, State.SUSPECT, State.DEGRADED)
        if well != (host in memory.well):
            yield Well(now_ns, host, well)
