"""From a judgement to the machine's events: only what is not as the machine remembers it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from .. import model
from ..counter_deltas import Codes
from ..declared.model import Declared
from ..model import Evidence, HostScore
from ..scoring.evaluate import Judgement
from ..scoring.outage import OUTAGE_SECONDS_MAX
from ..scoring.results import Hosts
from . import policy
from .advisory import (
    SECOND_NS,
    SILENCE,
    Action,
    Available,
    Basis,
    Case,
    CaseGone,
    CaseSeen,
    Event,
    FleetSize,
    Frozen,
    Place,
    Places,
    Scope,
    Stand,
    Unavailable,
    Well,
    lawful,
    place_of,
)
from .limits import PRICE_STEP_RATIO
from .policy import Fault, Workload, price, together
from .state import SILENT, Memory

# ----------------------------------------------------------------------
# What silence is to advice: of one host a look after a while; of a rack at once, as one cause
# (`shared_causes.py`).
#
# A silent host may work all the same: its agent is what fell silent. So nobody is asked to drain
# it, or to avoid it.

#: Silence that is older is known, or the host is out of use for good.
NEWS_SECONDS_MAX = 86_400.0


def key_of(host: str) -> str:
    """Return the key of the case that *host* is silent."""
    return f"{host}/silent/"


def is_asked(memory: Memory, host: HostScore, judged: Judgement) -> bool:
    """Say whether the silence of *host*, which is STALE, calls for a look.

    Not where somebody has it out anyway, nor before agents had time to find us again after a restart of ours.
    """
    if host.host in memory.absent or host.host in memory.holds or not host.heard_ns:
        return False
    restarted_ns, now_ns = judged.before.restarted_ns, judged.computed_ns
    unheard = key_of(host.host) not in memory.cases and host.heard_ns < restarted_ns
    if unheard and now_ns - restarted_ns < OUTAGE_SECONDS_MAX * SECOND_NS:
        return False
    return not is_gone(host, now_ns)


def is_gone(host: HostScore, now_ns: int) -> bool:
    """Say whether nothing was heard of *host* for so long that it is taken to be gone for good, as after a restart."""
    return now_ns - host.heard_ns > NEWS_SECONDS_MAX * SECOND_NS


def silence(
    memory: Memory, host: HostScore, stand: Stand, work: Workload, gpus: int, restarted_ns: int
) -> Case:
    """Return the case that *host* is silent; the same as before, while it is."""
    key = key_of(host.host)
    before = memory.cases.get(key)
    if before is not None and before.case.place == stand.place:
        return before.case
    since_ns, unseen = max(host.heard_ns, restarted_ns), host.heard_ns < restarted_ns
    if before is not None:
        since_ns, unseen = before.case.since_ns, before.case.unseen
    away = f", and it was silent when we came back at {_moment(since_ns)}" if unseen else ""
    words = (
        f"nothing was heard of it since {_moment(host.heard_ns)}{away}: look at its power, its network, its "
        "agent; it may work all the same"
    )
    case = Case(
        key=key, host=host.host, reason=SILENCE, basis=Basis.DETERMINISTIC, action=Action.INSPECT,
        scope=Scope.HOST, words=words, since_ns=since_ns, place=stand.place, job=work.job,
        gang_gpus=work.gang_gpus, hazard_per_hour=host.hazard_per_hour, gpus=gpus, among=stand.among,
        unseen=unseen,
    )  # fmt: skip
    return replace(case, price=together([case]))


def _moment(at_ns: int) -> str:
    return f"{datetime.fromtimestamp(at_ns // SECOND_NS, UTC):%Y-%m-%d %H:%M:%S} UTC"


State = model.State
MAINTENANCE = "maintenance"
#: In these a host is looked at; what was wrong with one that is not looked at stays.
UNSEEN = (State.STALE, State.UNKNOWN, State.MAINTENANCE)
#: Of these nothing is asked.
QUIET = (State.HEALTHY, *UNSEEN)
#: What runs on a host; None: that is not known now.
Working = Callable[[HostScore, Judgement], Workload | None]
CASE_WORDS_CHARACTERS_MAX = 500


def no_work(host: HostScore, judged: Judgement) -> Workload | None:
    """Return that nothing is known of what runs on *host*."""
    return None


class Observer:
    """Compares a judgement with what the machine remembers. Of its own it has only how many hosts stand where."""

    def __init__(
        self, declared: Callable[[], Declared | None] = lambda: None,
        work: Working = no_work,
    ) -> None:  # fmt: skip
        self._declared, self._work, self._places = declared, work, Places()

    def place(self, host: str) -> Place:
        """Return where *host* stands."""
        return place_of(self._declared(), host)

    def events(self, memory: Memory, judged: Judgement, gpus: Codes) -> Iterator[Event]:
        """Yield what is new. *gpus*: of each host, by node index."""
        now_ns = judged.computed_ns
        assert isinstance(
            judged.hosts, Hosts
        )  # as `judge` makes them: the well are not made one by one
        self._places.take(self._declared(), judged.hosts.subjects.names)
        hosts = [one for _, one in sorted(judged.hosts.told.items()) if judged.lists(one)]
        listed_count = judged.hosts.listed_count(now_ns)
        if memory.hosts != listed_count:
            yield FleetSize(now_ns, listed_count)
        if in_kind(memory.frozen) != in_kind(judged.degraded_reason):
            yield Frozen(now_ns, judged.degraded_reason)
        yield from self._absences(memory, hosts, judged)
        before: dict[str, list[Case]] = {}
        for one in memory.cases.values():
            before.setdefault(one.case.host, []).append(one.case)
        standing: set[str] = set()
        for host in hosts:
            known, count = before.get(host.host, []), max(int(gpus[host.node_index]), 1)
            if host.state in UNSEEN:
                standing.update(one.key for one in known if one.key != key_of(host.host))
            if host.state in QUIET and host.state is not State.STALE:
                continue
            for case in self._cases_of(memory, host, judged, known, count):
                standing.add(case.key)
                if _is_news(memory, case):
                    yield CaseSeen(now_ns, case)
        for key in [key for key in memory.cases if key not in standing]:
            yield CaseGone(now_ns, key, "judging does not find it any more")
        yield from _wellness(memory, judged.hosts, now_ns, standing)

    def _cases_of(
        self, memory: Memory, host: HostScore, judged: Judgement, known: Sequence[Case], gpus: int
    ) -> Iterator[Case]:
        """Yield what is wrong with *host*: of one that is silent, that it is. *known*: its cases so far."""
        silent = host.state is State.STALE
        if silent and not is_asked(memory, host, judged):
            return
        stand = self._places.of(host.host)
        work = self._work(host, judged) or _as_before(known)
        if silent:
            yield silence(memory, host, stand, work, gpus, judged.before.restarted_ns)
            return
        fault = Fault(host.hazard_per_hour, host.relative_speed, gpus)
        yield from _cases(memory, host, fault, stand, work, judged.computed_ns)

    def _absences(
        self, memory: Memory, hosts: Sequence[HostScore], judged: Judgement
    ) -> Iterator[Event]:
        """Yield who is out, and not by us, and who is back. One that is gone for good takes nobody's place."""
        now_ns, reasons = judged.computed_ns, {State.MAINTENANCE: MAINTENANCE, State.STALE: SILENT}
        out = {
            one.host: one
            for one in hosts
            if one.state in reasons and not (one.state is State.STALE and is_gone(one, now_ns))
        }
        for host, one in out.items():
            by, before = reasons[one.state], memory.taken.get(host)
            if before is None or before.by != by:
                work = self._work(one, judged)
                job = work.job if work else ""
                yield Unavailable(now_ns, host, by, self._places.of(host)[0], job)
        for host in [host for host in memory.taken if host not in out]:
            yield Available(now_ns, host)


def in_kind(words: str) -> str:
    """Return *words* without the numbers in them, which change each second."""
    return "".join(one for one in words if not one.isdecimal())


def _cases(
    memory: Memory, host: HostScore, fault: Fault, stand: Stand, work: Workload, now_ns: int
) -> Iterator[Case]:
    """Yield what is wrong with *host* and calls for something; of each key the first, which is the strongest."""
    seen = set[str]()
    for evidence in host.evidence:
        asked = policy.asked(host, evidence, work)
        if asked is None:
            continue
        key = f"{host.host}/{asked.rule}/{evidence.device}"
        if key in seen:
            continue
        seen.add(key)
        before = memory.cases.get(key)
        stood = (now_ns - before.seen_ns) / 1e9 if before else 0.0
        asked = policy.unwaiting(policy.patient(asked, evidence, stood), fault, work)
        new = _case(key, host, evidence, asked, work, stand, fault)
        if before is not None and _alike(before.case, new):
            yield before.case
        else:
            yield _priced(new, asked.then, fault, work, now_ns)


def _as_before(known: Sequence[Case]) -> Workload:
    """Return what ran on a host when its cases were last told: after a restart it has not spoken yet."""
    one = next(iter(known), None)
    if one is None:
        return Workload()
    dead = one.basis is Basis.DEAD_JOB
    return Workload(one.job, one.gang_gpus, 0.0, one.checkpoint_seconds, dead)


def _case(
    key: str, host: HostScore, evidence: Evidence, asked: policy.Asked, work: Workload,
    stand: Stand, fault: Fault,
) -> Case:  # fmt: skip
    certain = asked.basis in (Basis.DETERMINISTIC, Basis.DEAD_JOB)
    words = f"{evidence.words}; policy: {asked.words}"
    return lawful(
        Case(
            key=key, host=host.host, reason=evidence.reason.name, basis=asked.basis,
            action=asked.action, scope=asked.scope, words=words[:CASE_WORDS_CHARACTERS_MAX],
            since_ns=evidence.observed_ns, then=asked.then,
            devices=(evidence.device,) if evidence.device else (), place=stand.place, job=work.job,
            checkpoint_seconds=work.checkpoint_seconds, gang_gpus=work.gang_gpus,
            confidence=1.0 if certain else 1.0 - host.score_upper,
            hazard_per_hour=host.hazard_per_hour, gpus=fault.gpus,
            relative_speed=min(fault.relative_speed, 1.0) if fault.relative_speed > 0 else 1.0,
            among=stand.among,
        )
    )  # fmt: skip


def _priced(case: Case, then: Action | None, fault: Fault, work: Workload, now_ns: int) -> Case:
    """Return *case* with its price; a forecast for which acting costs more than waiting asks to AVOID only.

    *then*: what its policy would have follow: a drain to reset a GPU is no repair of twenty hours, whoever resets it.
    """
    cost = price(case.action, then, fault, work, now_ns, case.basis)
    drains = case.action is Action.DRAIN_AFTER_JOB and case.basis is Basis.STATISTICAL
    if drains and then is None and cost.waiting_gpu_hours <= cost.acting_gpu_hours:
        avoid = price(Action.AVOID, None, fault, work, now_ns, case.basis)
        words = f"{case.words}; a drain costs more than waiting, so AVOID"
        return replace(case, action=Action.AVOID, price=avoid, words=words)
    return replace(case, price=cost)


def _alike(before: Case, now: Case) -> bool:
    """Say whether *now* is what *before* was, but for later readings: then it is not priced anew."""
    same = (
        "then",
        "scope",
        "basis",
        "reason",
        "devices",
        "job",
        "checkpoint_seconds",
        "place",
        "gpus",
    )
    if any(getattr(before, name) != getattr(now, name) for name in same):
        return False
    lowered = before.action is Action.AVOID and now.action is Action.DRAIN_AFTER_JOB
    return (
        (before.action is now.action or lowered)
        and _near(before.gang_gpus, now.gang_gpus)
        and _near(before.hazard_per_hour, now.hazard_per_hour)
        and _near(before.relative_speed, now.relative_speed)
    )


def _near(one: float, other: float) -> bool:
    low, high = sorted((one, other))
    return high <= PRICE_STEP_RATIO * low


def _is_news(memory: Memory, case: Case) -> bool:
    before = memory.cases.get(case.key)
    return before is None or before.case is not case


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
