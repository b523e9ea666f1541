"""State of the advisory state machine. Every transition of an advisory is checked here."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from .advisory import TRANSITIONS, Action, Advisory, AdvisoryState, Case, gravity, removes_host
from .advisory_limits import AdvisoryLimits, seconds_ns
from .failure_domains import NOWHERE, FailureDomains
from .messages import Breaker, Clear, HeldBack, Instruction, Probation, Publish

#: A silent host counts as out, but may still get advice.
SILENT = "silent"
#: In these states the advisory has an effect on a host, or may have.
APPLIED_STATES = (AdvisoryState.ACCEPTED, AdvisoryState.DONE, AdvisoryState.FAILED)


@dataclass(slots=True)
class OpenCase:
    """An open case, and its advisory ("": none yet). `changed`: it differs from its advisory."""

    case: Case
    seen_ns: int
    advisory: str = ""
    changed: bool = False


@dataclass(slots=True)
class Hold:
    """The effect of an advisory on a host until `until_ns`: granted (possible) or confirmed."""

    name: str
    host: str
    action: Action
    owner: str
    until_ns: int
    place: FailureDomains = NOWHERE
    job: str = ""
    confirmed: bool = False
    unsure: bool = False  # its owner failed or fell silent: it is not renewed
    missed_ns: int = 0  # start of a time without a case and without health; 0: no such time
    #: The effect of a less severe advisory before; it stays if this advisory fails.
    earlier: str = ""
    earlier_action: Action | None = None


@dataclass(slots=True)
class UnavailableHost:
    """A host that is out for another reason than advice."""

    by: str
    place: FailureDomains = NOWHERE
    job: str = ""


@dataclass(slots=True)
class DeclaredOut:
    """A host that an actor reported out."""

    message: str
    since_ns: int
    until_ns: int
    place: FailureDomains = NOWHERE
    job: str = ""
    new_work_only: bool = False  # jobs there continue, and may have to leave


@dataclass(slots=True)
class Mute:
    """No proposals of this gravity or less until `until_ns`; `graver`: mutes that end earlier."""

    until_ns: int
    gravity: int
    graver: tuple[Mute, ...] = ()


@dataclass(slots=True)
class HoldBackNotice:
    """The reported reason of a held-back case; another is not reported before `until_ns`."""

    message: str
    until_ns: int


@dataclass(slots=True)
class HostProbation:
    """The probation of a host that came back."""

    until_ns: int
    relapses: int = 0
    since_ns: int = 0


@dataclass(slots=True)
class CircuitBreaker:
    """The breaker's `position`: closed, open or half-open.

    `trial`: the advisory that is tried while it is half-open. `until_ns`: the end of the open
    position, or of the trial.
    """

    position: str = "closed"
    until_ns: int = 0
    seconds: float = 0.0
    trial: str = ""
    failures: int = 0


@dataclass(slots=True)
class MachineState:
    """The whole state of the machine, of plain values, so that it can be stored."""

    #: Identity of the store: names and tokens start again in another store.
    store: str = ""
    now_ns: int = 0
    number: int = 0
    token: int = 0
    hosts: int = 0
    frozen: str = ""
    cases: dict[str, OpenCase] = field(default_factory=dict)
    advisories: dict[str, Advisory] = field(default_factory=dict)  # open
    ended: dict[str, Advisory] = field(default_factory=dict)
    holds: dict[str, Hold] = field(default_factory=dict)
    taken: dict[str, UnavailableHost] = field(default_factory=dict)
    #: Host -> actor that reported it out -> reason and end.
    absent: dict[str, dict[str, DeclaredOut]] = field(default_factory=dict)
    absent_due_ns: int = 0  # end of the first of these
    muted: dict[str, Mute] = field(default_factory=dict)
    probation: dict[str, HostProbation] = field(default_factory=dict)
    well: dict[str, int] = field(default_factory=dict)
    held_back: dict[str, HoldBackNotice] = field(default_factory=dict)
    granted_ns: list[int] = field(default_factory=list)
    fuse: CircuitBreaker = field(default_factory=CircuitBreaker)

    def expires_ns(self, advisory: Advisory) -> int:
        """Return the expiry of *advisory*; once accepted, the end of its effect."""
        hold, probation = self.holds.get(advisory.host), self.probation.get(advisory.host)
        waits = advisory.state in (AdvisoryState.PROPOSED, AdvisoryState.DEFERRED)
        if hold is not None and advisory.name in (hold.name, hold.earlier) and not waits:
            return hold.until_ns  # also if its owner left it half done, without a successor
        if advisory.state not in APPLIED_STATES or not removes_host(advisory.action):
            return advisory.expires_ns
        if probation is not None and probation.since_ns >= advisory.changed_ns:
            return probation.since_ns
        return advisory.expires_ns


class StateEditor:
    """The state with its operations. `instructions` collects the instructions of one step."""

    def __init__(self, limits: AdvisoryLimits, state: MachineState | None = None) -> None:
        self.limits = limits
        self.state = state or MachineState()
        self.instructions: list[Instruction] = []
        #: Whether this step changed the state.
        self.is_changed = False

    @property
    def now_ns(self) -> int:
        return self.state.now_ns

    def after(self, seconds: float) -> int:
        """Return the time in *seconds* from now."""
        return self.now_ns + seconds_ns(seconds)

    def emit(self, instruction: Instruction) -> None:
        self.instructions.append(instruction)

    def open_advisories(self, host: str) -> list[Advisory]:
        """Return the open advisories of *host* itself, oldest first."""
        subject = f"host {host}"
        return [a for a in self.state.advisories.values() if a.subject == subject]

    def find(self, name: str) -> Advisory | None:
        """Return the advisory *name*, open or recently ended."""
        return self.state.advisories.get(name) or self.state.ended.get(name)

    def next_name(self) -> str:
        self.state.number += 1
        return f"a{self.state.number}"

    def put(self, advisory: Advisory, reason: str, /, **changes: Any) -> Advisory:
        """Store and publish *advisory* with *changes*. Raises AssertionError on a bug."""
        before = self.find(advisory.name)
        after = replace(advisory, changed_ns=self.now_ns, state_message=reason, **changes)
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
        self.put(advisory, reason, **self.deferral(until_ns))

    def deferral(self, until_ns: int) -> dict[str, Any]:
        """Return the fields of a deferral; after *until_ns* the full time to answer starts."""
        expires_ns = until_ns + seconds_ns(self.limits.proposal_seconds)
        return {
            "state": AdvisoryState.DEFERRED,
            "deferred_until_ns": until_ns,
            "expires_ns": expires_ns,
        }

    def _fall_back(self, ended: Advisory) -> None:
        """Restore an earlier advisory's effect on the host, if any; else stop renewing."""
        hold = self.state.holds.get(ended.host)
        if hold is None or hold.name != ended.name:
            return
        if hold.earlier and hold.earlier_action is not None:
            hold.name, hold.action, hold.earlier = hold.earlier, hold.earlier_action, ""
            hold.unsure = False
        else:
            hold.unsure = True

    def mute(self, subject: str, action: Action, seconds: float) -> None:
        """Mute the severity of *action* or less for *subject*; longer mutes stay."""
        new = Mute(self.after(seconds), gravity(action))
        before = self._mutes(subject)
        if any(mute.until_ns >= new.until_ns and mute.gravity >= new.gravity for mute in before):
            return
        remaining = [
            mute for mute in before if mute.until_ns > new.until_ns or mute.gravity > new.gravity
        ]
        first, *graver = sorted([new, *remaining], key=lambda mute: -mute.until_ns)
        first.graver = tuple(graver)
        self.state.muted[subject] = first
        self.is_changed = True

    def is_muted(self, subject: str, action: Action) -> bool:
        return self.muted_until_ns(subject, action) > 0

    def muted_until_ns(self, subject: str, action: Action) -> int:
        """Return the end of the mute for *action* on *subject*; 0: not muted."""
        grave = gravity(action)
        ends = [mute.until_ns for mute in self._mutes(subject) if grave <= mute.gravity]
        return max((end for end in ends if end > self.now_ns), default=0)

    def _mutes(self, subject: str) -> list[Mute]:
        first = self.state.muted.get(subject)
        return [] if first is None else [replace(first, graver=()), *first.graver]

    def hold_back(self, case: Case, action: Action, reason: str) -> None:
        """Emit why *case* is held back: once, and another reason after `flap_seconds`."""
        before = self.state.held_back.get(case.key)
        if before and (before.message == reason or before.until_ns > self.now_ns):
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
        """Add the case *open_case* to the advisory *name*."""
        open_case.advisory, open_case.changed, self.is_changed = name, False, True
        self.drop_hold_back(open_case.case.key)

    def clear(self, hold: Hold, reason: str) -> None:
        """Request the removal of the effect of *hold*; the host is back, and watched."""
        self.emit(Clear(hold.name, hold.host, hold.owner, reason))
        self.drop(hold, reason)

    def drop(self, hold: Hold, reason: str) -> None:
        """Remove *hold*: its effect has ended. The host is then on probation."""
        del self.state.holds[hold.host]
        self.is_changed = True
        before = self.state.probation.get(hold.host)
        until = self.after(self.limits.probation_seconds)
        self.state.probation[hold.host] = HostProbation(
            until, before.relapses if before else 0, self.now_ns
        )
        self.emit(Probation(hold.host, until, f"back in service: {reason}", hold.name))

    def trip(self, seconds: float, reason: str) -> None:
        """Open the breaker: nothing that takes a host out is granted for *seconds*."""
        breaker, longest = self.state.fuse, self.limits.breaker_seconds_max
        breaker.seconds = min(seconds, longest)
        breaker.position, breaker.until_ns, breaker.trial = "open", self.after(breaker.seconds), ""
        self.is_changed = True
        self.emit(Breaker("open", f"{reason}: no host is taken out for {breaker.seconds:.0f} s"))

    def close_breaker(self, reason: str) -> None:
        self.state.fuse = CircuitBreaker()
        self.is_changed = True
        self.emit(Breaker("closed", reason))
