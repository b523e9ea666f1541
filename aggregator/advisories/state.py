"""State of the advisory state machine. Every transition of an advisory is checked here."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from .advisory import (
    NOWHERE,
    TRANSITIONS,
    Action,
    Advisory,
    AdvisoryLimits,
    AdvisoryState,
    Breaker,
    Case,
    Clear,
    FailureDomains,
    HeldBack,
    Instruction,
    Probation,
    Publish,
    gravity,
    removes_host,
    seconds_ns,
)

#: A host that is heard of no more counts as out, but it may still be advised about.
SILENT = "silent"
#: Of these something is set on a host, or may be.
APPLIED_STATES = (AdvisoryState.ACCEPTED, AdvisoryState.DONE, AdvisoryState.FAILED)


@dataclass(slots=True)
class OpenCase:
    """An open case, since when we know, and the advisory that it went into ("": none yet).

    `changed`: it is not any more what its advisory says.
    """

    case: Case
    seen_ns: int
    advisory: str = ""
    changed: bool = False


@dataclass(slots=True)
class Hold:
    """What we set on a host: granted (it may be set), confirmed (it is), to end at `until_ns`."""

    name: str
    host: str
    action: Action
    owner: str
    until_ns: int
    place: FailureDomains = NOWHERE
    job: str = ""
    confirmed: bool = False
    unsure: bool = False  # its owner failed or fell silent: it is not renewed
    missed_ns: int = 0  # since when its host has no case and is not well either; 0: it is not so
    #: What a milder advisory did before; it stays if this one comes to nothing.
    earlier: str = ""
    earlier_action: Action | None = None


@dataclass(slots=True)
class UnavailableHost:
    """A host that somebody else took out."""

    by: str
    place: FailureDomains = NOWHERE
    job: str = ""


@dataclass(slots=True)
class DeclaredOut:
    """A host that somebody says he took out himself."""

    words: str
    since_ns: int
    until_ns: int
    place: FailureDomains = NOWHERE
    job: str = ""
    new_work_only: bool = False  # jobs there continue, and may have to leave


@dataclass(slots=True)
class Mute:
    """Nothing as grave or milder is proposed of a subject until then. `graver`: what is muted for a shorter time."""

    until_ns: int
    gravity: int
    graver: tuple[Mute, ...] = ()


@dataclass(slots=True)
class HoldBackNotice:
    """Why a case is held back; another reason is not reported before then."""

    words: str
    until_ns: int


@dataclass(slots=True)
class HostProbation:
    """A host that came back."""

    until_ns: int
    relapses: int = 0
    since_ns: int = 0


@dataclass(slots=True)
class CircuitBreaker:
    """The breaker: `position` closed, open or half-open. `trial`: the advisory that is tried; `until_ns`: the end of both."""

    position: str = "closed"
    until_ns: int = 0
    seconds: float = 0.0
    trial: str = ""
    failures: int = 0


@dataclass(slots=True)
class MachineState:
    """All that the machine knows. Made of plain values, so that it can be stored whole."""

    #: Identity of the rows: names and tokens begin again in others.
    store: str = ""
    now_ns: int = 0
    number: int = 0
    token: int = 0
    hosts: int = 0
    frozen: str = ""
    cases: dict[str, OpenCase] = field(default_factory=dict[str, OpenCase])
    advisories: dict[str, Advisory] = field(default_factory=dict[str, Advisory])  # open
    ended: dict[str, Advisory] = field(default_factory=dict[str, Advisory])
    holds: dict[str, Hold] = field(default_factory=dict[str, Hold])
    taken: dict[str, UnavailableHost] = field(default_factory=dict[str, UnavailableHost])
    #: Host -> who took it out -> why, and until when.
    absent: dict[str, dict[str, DeclaredOut]] = field(
        default_factory=dict[str, dict[str, DeclaredOut]]
    )
    absent_due_ns: int = 0  # when the first of these ends
    muted: dict[str, Mute] = field(default_factory=dict[str, Mute])
    probation: dict[str, HostProbation] = field(default_factory=dict[str, HostProbation])
    well: dict[str, int] = field(default_factory=dict[str, int])
    held_back: dict[str, HoldBackNotice] = field(default_factory=dict[str, HoldBackNotice])
    granted_ns: list[int] = field(default_factory=list[int])
    fuse: CircuitBreaker = field(default_factory=CircuitBreaker)

    def expires_ns(self, advisory: Advisory) -> int:
        """Return when *advisory* ends unless it is answered; once it was accepted, when what it set does unless that is renewed,
        or when that ended."""
        hold, probation = self.holds.get(advisory.host), self.probation.get(advisory.host)
        waits = advisory.state in (AdvisoryState.PROPOSED, AdvisoryState.DEFERRED)
        if hold is not None and advisory.name in (hold.name, hold.earlier) and not waits:
            return hold.until_ns  # also of what its owner left half done, and nobody took over
        if advisory.state not in APPLIED_STATES or not removes_host(advisory.action):
            return advisory.expires_ns
        if probation is not None and probation.since_ns >= advisory.changed_ns:
            return probation.since_ns
        return advisory.expires_ns


class StateEditor:
    """The memory with what may be done to it. `instructions` collects the instructions of one step."""

    def __init__(self, limits: AdvisoryLimits, state: MachineState | None = None) -> None:
        self.limits = limits
        self.state = state or MachineState()
        self.instructions: list[Instruction] = []
        #: Whether this step changed what is remembered.
        self.is_changed = False

    @property
    def now_ns(self) -> int:
        return self.state.now_ns

    def after(self, seconds: float) -> int:
        """Return the moment in *seconds*."""
        return self.now_ns + seconds_ns(seconds)

    def emit(self, instruction: Instruction) -> None:
        self.instructions.append(instruction)

    def open_advisories(self, host: str) -> list[Advisory]:
        """Return the open advisories of *host* itself, oldest first."""
        subject = f"host {host}"
        return [a for a in self.state.advisories.values() if a.subject == subject]

    def find(self, name: str) -> Advisory | None:
        """Return the advisory *name*, open or ended a while ago."""
        return self.state.advisories.get(name) or self.state.ended.get(name)

    def next_name(self) -> str:
        self.state.number += 1
        return f"a{self.state.number}"

    def put(self, advisory: Advisory, reason: str, /, **changes: Any) -> Advisory:
        """Keep *advisory*, changed so, and publish it. A transition that does not exist is a defect of ours."""
        before = self.find(advisory.name)
        after = replace(advisory, changed_ns=self.now_ns, state_words=reason, **changes)
        if before is not None:
            if after.state is not before.state and after.state not in TRANSITIONS.get(
                before.state, frozenset()
            ):
                raise AssertionError(f"{after.name}: {before.state.name} to {after.state.name}")
            after = replace(after, revision=before.revision + 1)
        self.state.advisories[after.name] = after
        self.is_changed = True
        self.emit(Publish(after, reason))
        if after.state is not AdvisoryState.ACCEPTED and self.state.fuse.trial == after.name:
            self.state.fuse.trial = ""
        if not after.is_open:
            self.state.ended[after.name] = self.state.advisories.pop(after.name)
            if after.state is not AdvisoryState.DONE:
                self._fall_back(after)
        return after

    def defer(self, advisory: Advisory, reason: str, until_ns: int) -> None:
        """Defer *advisory*."""
        self.put(advisory, reason, **self.deferral(until_ns))

    def deferral(self, until_ns: int) -> dict[str, Any]:
        """Return what a deferral changes: from *until_ns* on there is as much time to answer as there was at first."""
        expires_ns = until_ns + seconds_ns(self.limits.proposal_seconds)
        return {
            "state": AdvisoryState.DEFERRED,
            "deferred_until_ns": until_ns,
            "expires_ns": expires_ns,
        }

    def _fall_back(self, ended: Advisory) -> None:
        """Let what an earlier advisory set on the host stand by itself again."""
        hold = self.state.holds.get(ended.host)
        if hold is None or hold.name != ended.name:
            return
        if hold.earlier and hold.earlier_action is not None:
            hold.name, hold.action, hold.earlier = hold.earlier, hold.earlier_action, ""
            hold.unsure = False
        else:
            hold.unsure = True

    def mute(self, subject: str, action: Action, seconds: float) -> None:
        """Propose nothing as grave for *subject* for this long; what was muted for longer stays so."""
        new = Mute(self.after(seconds), gravity(action))
        before = self._mutes(subject)
        if any(one.until_ns >= new.until_ns and one.gravity >= new.gravity for one in before):
            return
        remaining = [
            one for one in before if one.until_ns > new.until_ns or one.gravity > new.gravity
        ]
        first, *graver = sorted([new, *remaining], key=lambda one: -one.until_ns)
        first.graver = tuple(graver)
        self.state.muted[subject] = first
        self.is_changed = True

    def is_muted(self, subject: str, action: Action) -> bool:
        return self.muted_until_ns(subject, action) > 0

    def muted_until_ns(self, subject: str, action: Action) -> int:
        """Return until when nothing as grave as *action* is proposed of *subject*; 0: it may be."""
        grave = gravity(action)
        ends = [one.until_ns for one in self._mutes(subject) if grave <= one.gravity]
        return max((end for end in ends if end > self.now_ns), default=0)

    def _mutes(self, subject: str) -> list[Mute]:
        first = self.state.muted.get(subject)
        return [] if first is None else [replace(first, graver=()), *first.graver]

    def hold_back(self, case: Case, action: Action, reason: str) -> None:
        """Say why nothing is advised for *case*: once, and again when it is another reason a while later."""
        before = self.state.held_back.get(case.key)
        if before and (before.words == reason or before.until_ns > self.now_ns):
            return
        self.state.held_back[case.key] = HoldBackNotice(
            reason, self.after(self.limits.flap_seconds)
        )
        self.is_changed = True
        self.emit(HeldBack(case.key, case.host, action, reason))

    def drop_hold_back(self, key: str) -> None:
        if self.state.held_back.pop(key, None) is not None:
            self.is_changed = True

    def assign(self, open_case: OpenCase, name: str) -> None:
        """Let the advisory *name* be about the case *open_case*, too."""
        open_case.advisory, open_case.changed, self.is_changed = name, False, True
        self.drop_hold_back(open_case.case.key)

    def clear(self, hold: Hold, reason: str) -> None:
        """Have what *hold* set taken away, and nothing else; the host is back, and watched."""
        self.emit(Clear(hold.name, hold.host, hold.owner, reason))
        self.drop(hold, reason)

    def drop(self, hold: Hold, reason: str) -> None:
        """Forget *hold*: it is gone. A host that returns is on probation."""
        del self.state.holds[hold.host]
        self.is_changed = True
        before = self.state.probation.get(hold.host)
        until = self.after(self.limits.probation_seconds)
        self.state.probation[hold.host] = HostProbation(
            until, before.relapses if before else 0, self.now_ns
        )
        self.emit(Probation(hold.host, until, f"back in service: {reason}", hold.name))

    def trip(self, seconds: float, reason: str) -> None:
        """Open the breaker: nothing that takes a host out is granted for this long."""
        breaker, longest = self.state.fuse, self.limits.breaker_seconds_max
        breaker.seconds = min(seconds, longest)
        breaker.position, breaker.until_ns, breaker.trial = "open", self.after(breaker.seconds), ""
        self.is_changed = True
        self.emit(Breaker("open", f"{reason}: no host is taken out for {breaker.seconds:.0f} s"))

    def close_breaker(self, reason: str) -> None:
        self.state.fuse = CircuitBreaker()
        self.is_changed = True
        self.emit(Breaker("closed", reason))
