"""What the machine remembers, and how an advisory changes: one place that checks each transition."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from .advisory import (
    NOWHERE,
    TRANSITIONS,
    Action,
    Advisory,
    Breaker,
    Case,
    Clear,
    HeldBack,
    Instruction,
    Limits,
    Place,
    Probation,
    Publish,
    State,
    gravity,
    seconds_ns,
    takes_out,
)

#: A host that is heard of no more counts as out, but it may still be advised about.
SILENT = "silent"
#: Of these something is set on a host, or may be.
CARRIED_OUT = (State.ACCEPTED, State.DONE, State.FAILED)


@dataclass(slots=True)
class Standing:
    """A case that stands, since when we know, and the advisory that it went into ("": none yet).

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
    place: Place = NOWHERE
    job: str = ""
    confirmed: bool = False
    unsure: bool = False  # its owner failed or fell silent: it is not renewed
    missed_ns: int = 0  # since when its host has no case and is not well either; 0: it is not so
    #: What was done before by a milder advisory, and stands if this one comes to nothing.
    earlier: str = ""
    earlier_action: Action | None = None


@dataclass(slots=True)
class Taken:
    """A host that somebody else took out."""

    by: str
    place: Place = NOWHERE
    job: str = ""


@dataclass(slots=True)
class Absent:
    """A host that somebody says he took out himself."""

    words: str
    since_ns: int
    until_ns: int
    place: Place = NOWHERE
    job: str = ""


@dataclass(slots=True)
class Mute:
    """Nothing as grave or milder is proposed of a subject until then. `graver`: what is muted for a shorter time."""

    until_ns: int
    gravity: int
    graver: tuple[Mute, ...] = ()


@dataclass(slots=True)
class Told:
    """Why a case is held back; another reason is not told before then."""

    words: str
    until_ns: int


@dataclass(slots=True)
class Watched:
    """A host that came back."""

    until_ns: int
    relapses: int = 0
    since_ns: int = 0


@dataclass(slots=True)
class Fuse:
    """The breaker: `position` closed, open or half-open. `trial`: the advisory that is tried."""

    position: str = "closed"
    until_ns: int = 0
    seconds: float = 0.0
    trial: str = ""
    failures: int = 0


@dataclass(slots=True)
class Memory:
    """All that the machine knows. Made of plain values, so that it can be stored whole."""

    now_ns: int = 0
    number: int = 0
    token: int = 0
    hosts: int = 0
    frozen: str = ""
    cases: dict[str, Standing] = field(default_factory=dict[str, Standing])
    advisories: dict[str, Advisory] = field(default_factory=dict[str, Advisory])  # open
    ended: dict[str, Advisory] = field(default_factory=dict[str, Advisory])
    holds: dict[str, Hold] = field(default_factory=dict[str, Hold])
    taken: dict[str, Taken] = field(default_factory=dict[str, Taken])
    #: Host -> who took it out -> why, and until when.
    absent: dict[str, dict[str, Absent]] = field(default_factory=dict[str, dict[str, Absent]])
    absent_due_ns: int = 0  # when the first of these ends
    muted: dict[str, Mute] = field(default_factory=dict[str, Mute])
    probation: dict[str, Watched] = field(default_factory=dict[str, Watched])
    well: dict[str, int] = field(default_factory=dict[str, int])
    held_back: dict[str, Told] = field(default_factory=dict[str, Told])
    granted_ns: list[int] = field(default_factory=list[int])
    fuse: Fuse = field(default_factory=Fuse)

    def expires_ns(self, one: Advisory) -> int:
        """Return when *one* ends unless it is answered; once it was accepted, when what it set does unless that is renewed,
        or when that ended."""
        hold, back = self.holds.get(one.host), self.probation.get(one.host)
        waits = one.state in (State.PROPOSED, State.DEFERRED)
        if hold is not None and one.name in (hold.name, hold.earlier) and not waits:
            return hold.until_ns  # also of what its owner left half done, and nobody took over
        if one.state not in CARRIED_OUT or not takes_out(one.action):
            return one.expires_ns
        if back is not None and back.since_ns >= one.changed_ns:
            return back.since_ns
        return one.expires_ns


class Desk:
    """The memory with what may be done to it. `out` collects the instructions of one step."""

    def __init__(self, limits: Limits, memory: Memory | None = None) -> None:
        self.limits = limits
        self.memory = memory or Memory()
        self.out: list[Instruction] = []
        #: Whether this step changed what is remembered.
        self.touched = False

    @property
    def now_ns(self) -> int:
        return self.memory.now_ns

    def after(self, seconds: float) -> int:
        """Return the moment in *seconds*."""
        return self.now_ns + seconds_ns(seconds)

    def say(self, instruction: Instruction) -> None:
        self.out.append(instruction)

    def open_of(self, host: str) -> list[Advisory]:
        """Return the open advisories of *host* itself, oldest first."""
        subject = f"host {host}"
        return [a for a in self.memory.advisories.values() if a.subject == subject]

    def known(self, name: str) -> Advisory | None:
        """Return the advisory *name*, open or ended a while ago."""
        return self.memory.advisories.get(name) or self.memory.ended.get(name)

    def next_name(self) -> str:
        self.memory.number += 1
        return f"a{self.memory.number}"

    def put(self, advisory: Advisory, why: str, /, **changes: Any) -> Advisory:
        """Keep *advisory*, changed so, and publish it. A transition that does not exist is a defect of ours."""
        before = self.known(advisory.name)
        after = replace(advisory, changed_ns=self.now_ns, state_words=why, **changes)
        if before is not None:
            if after.state is not before.state and after.state not in TRANSITIONS.get(
                before.state, frozenset()
            ):
                raise AssertionError(f"{after.name}: {before.state.name} to {after.state.name}")
            after = replace(after, revision=before.revision + 1)
        self.memory.advisories[after.name] = after
        self.touched = True
        self.say(Publish(after, why))
        if after.state is not State.ACCEPTED and self.memory.fuse.trial == after.name:
            self.memory.fuse.trial = ""
        if not after.is_open:
            self.memory.ended[after.name] = self.memory.advisories.pop(after.name)
            if after.state is not State.DONE:
                self._fall_back(after)
        return after

    def put_off(self, advisory: Advisory, why: str, until_ns: int) -> None:
        """Defer *advisory*."""
        self.put(advisory, why, **self.deferral(until_ns))

    def deferral(self, until_ns: int) -> dict[str, Any]:
        """Return what a deferral changes: from *until_ns* on there is as much time to answer as there was at first."""
        expires_ns = until_ns + seconds_ns(self.limits.proposal_seconds)
        return {"state": State.DEFERRED, "deferred_until_ns": until_ns, "expires_ns": expires_ns}

    def _fall_back(self, ended: Advisory) -> None:
        """Let what an earlier advisory set on the host stand by itself again."""
        hold = self.memory.holds.get(ended.host)
        if hold is None or hold.name != ended.name:
            return
        if hold.earlier and hold.earlier_action is not None:
            hold.name, hold.action, hold.earlier = hold.earlier, hold.earlier_action, ""
            hold.unsure = False
        else:
            hold.unsure = True

    def mute(self, subject: str, action: Action, seconds: float) -> None:
        """Propose nothing as grave for *subject* for so long; what was muted for longer stays so."""
        new = Mute(self.after(seconds), gravity(action))
        before = self._mutes(subject)
        if any(one.until_ns >= new.until_ns and one.gravity >= new.gravity for one in before):
            return
        left = [one for one in before if one.until_ns > new.until_ns or one.gravity > new.gravity]
        first, *graver = sorted([new, *left], key=lambda one: -one.until_ns)
        first.graver = tuple(graver)
        self.memory.muted[subject] = first
        self.touched = True

    def is_muted(self, subject: str, action: Action) -> bool:
        return self.muted_until_ns(subject, action) > 0

    def muted_until_ns(self, subject: str, action: Action) -> int:
        """Return until when nothing as grave as *action* is proposed of *subject*; 0: it may be."""
        grave = gravity(action)
        ends = [one.until_ns for one in self._mutes(subject) if grave <= one.gravity]
        return max((end for end in ends if end > self.now_ns), default=0)

    def _mutes(self, subject: str) -> list[Mute]:
        first = self.memory.muted.get(subject)
        return [] if first is None else [replace(first, graver=()), *first.graver]

    def hold_back(self, case: Case, action: Action, words: str) -> None:
        """Say why nothing is advised for *case*: once, and again when it is another reason a while later."""
        before = self.memory.held_back.get(case.key)
        if before and (before.words == words or before.until_ns > self.now_ns):
            return
        self.memory.held_back[case.key] = Told(words, self.after(self.limits.flap_seconds))
        self.touched = True
        self.say(HeldBack(case.key, case.host, action, words))

    def no_longer_held_back(self, key: str) -> None:
        if self.memory.held_back.pop(key, None) is not None:
            self.touched = True

    def into(self, one: Standing, name: str) -> None:
        """Let the advisory *name* be about the case *one*, too."""
        one.advisory, one.changed, self.touched = name, False, True
        self.no_longer_held_back(one.case.key)

    def clear(self, hold: Hold, words: str) -> None:
        """Have what *hold* set taken away, and nothing else; the host is back, and watched."""
        self.say(Clear(hold.name, hold.host, hold.owner, words))
        self.drop(hold, words)

    def drop(self, hold: Hold, words: str) -> None:
        """Forget *hold*: it is gone. A host that returns is on probation."""
        del self.memory.holds[hold.host]
        self.touched = True
        before = self.memory.probation.get(hold.host)
        until = self.after(self.limits.probation_seconds)
        self.memory.probation[hold.host] = Watched(
            until, before.relapses if before else 0, self.now_ns
        )
        self.say(Probation(hold.host, until, f"back in service: {words}", hold.name))

    def trip(self, seconds: float, words: str) -> None:
        """Open the breaker: nothing that takes a host out is granted for so long."""
        fuse, longest = self.memory.fuse, self.limits.breaker_seconds_max
        fuse.seconds = min(seconds, longest)
        fuse.position, fuse.until_ns, fuse.trial = "open", self.after(fuse.seconds), ""
        self.touched = True
        self.say(Breaker("open", f"{words}: no host is taken out for {fuse.seconds:.0f} s"))

    def close_fuse(self, words: str) -> None:
        self.memory.fuse = Fuse()
        self.touched = True
        self.say(Breaker("closed", words))
