"""The promises of the advice machine, checked by its inputs and outputs only.

Each rule names the operator's loss when it breaks.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from gangline.aggregator.advisories.advisory import (
    STATISTICAL_ACTIONS,
    TERMINAL_STATES,
    TRANSITIONS,
    Action,
    Advisory,
    AdvisoryState,
    Basis,
    Scope,
    gravity,
    removes_host,
    restrict_to_basis,
)
from gangline.aggregator.advisories.advisory_limits import HOUR_NS, AdvisoryLimits, seconds_ns
from gangline.aggregator.advisories.messages import (
    Acked,
    Act,
    Available,
    Back,
    Breaker,
    CaseGone,
    CaseSeen,
    Clear,
    Event,
    FleetSize,
    Frozen,
    Instruction,
    Probation,
    Publish,
    PutBack,
    Refused,
    Renew,
    TakenOut,
    Tick,
    Unavailable,
    Well,
)
from tests.aggregator.advisories.gathering_invariants import GatheringWatcher


@dataclass
class Out:
    """A host out of service, as seen from outside."""

    rack: str
    job: str
    names: tuple[str, ...] = ()
    until_ns: int = 0


@dataclass
class Watcher:
    """Checks every step passed to `saw`; raises AssertionError with the broken promise."""

    limits: AdvisoryLimits
    now_ns: int = 0
    hosts: int = 0
    frozen: str = ""
    known: dict[str, Advisory] = field(default_factory=dict)
    open: dict[str, Advisory] = field(default_factory=dict)
    ours: dict[str, Out] = field(default_factory=dict)
    theirs: dict[str, Out] = field(default_factory=dict)
    #: (host, reporter) of hosts that others reported as out.
    told_out: dict[tuple[str, str], Out] = field(default_factory=dict)
    cases: dict[str, CaseSeen] = field(default_factory=dict)
    well: dict[str, int] = field(default_factory=dict)
    probation: set[str] = field(default_factory=set)
    acts_ns: list[int] = field(default_factory=list)
    fuse: str = "closed"
    #: Subject, or case of a shared cause -> (end, gravity) of its rejections.
    rejected: dict[str, list[tuple[int, int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.gathering = GatheringWatcher(self.limits)

    def saw(self, event: Event, told: list[Instruction]) -> None:
        """Check a step of the machine."""
        self.now_ns = max(self.now_ns, event.now_ns)
        self._before(event)
        self._told_out(event, told)
        for instruction in told:
            assert isinstance(instruction, Refused) or instruction.message.strip(), (
                f"no reason given: {instruction}"
            )
            match instruction:
                case Publish():
                    self._publish(event, instruction.advisory)
                case Act():
                    self._act(event, instruction)
                case Renew():
                    self._renew(instruction)
                case Clear():
                    self._clear(event, instruction)
                case Probation():
                    self._probation(instruction)
                case Breaker():
                    self.fuse = instruction.position
                case Refused():
                    self._refused(event, instruction, told)
                case _:
                    pass
        self._no_host_is_left_behind(told)
        proposes = isinstance(event, Tick) and not self.frozen
        self.gathering.saw(event, told, self.now_ns, self.open, self.ours, proposes=proposes)

    def resume(self) -> None:
        """Extend holds that are carried out, or whose fault is active, as after a restart."""
        minimum_ns = self.now_ns + seconds_ns(self.limits.lease_seconds)
        for host in {seen.case.host for seen in self.cases.values()} & self.ours.keys():
            self.ours[host].until_ns = max(self.ours[host].until_ns, minimum_ns)
        for open_advisory in self.open.values():
            out = self.ours.get(open_advisory.host)
            if (
                open_advisory.state is AdvisoryState.ACCEPTED
                and out is not None
                and out.names[-1] == open_advisory.name
            ):
                out.until_ns = max(out.until_ns, minimum_ns)

    def leap(self, leapt_ns: int) -> None:
        """Move all times forward with the clock: nothing ends sooner, and ages stay."""
        self.now_ns += leapt_ns
        self.gathering.leap(leapt_ns)
        for out in (*self.ours.values(), *self.told_out.values()):
            out.until_ns += leapt_ns
        for name, open_advisory in self.open.items():
            ends = open_advisory.expires_ns + leapt_ns, open_advisory.lease_until_ns + leapt_ns
            later = replace(open_advisory, expires_ns=ends[0], lease_until_ns=ends[1])
            self.known[name] = self.open[name] = later
        self.well = {host: at_ns + leapt_ns for host, at_ns in self.well.items()}
        self.acts_ns = [at_ns + leapt_ns for at_ns in self.acts_ns]
        self.rejected = {
            subject: [
                (until_ns + leapt_ns, rejected_gravity) for until_ns, rejected_gravity in rejected
            ]
            for subject, rejected in self.rejected.items()
        }

    def _before(self, event: Event) -> None:
        match event:
            case CaseSeen(case=case):
                self.cases[case.key] = event
            case CaseGone(key=key):
                self.cases.pop(key, None)
            case Unavailable(host=host, place=place, job=job):
                self.theirs[host] = Out(place.rack, job)
            case Available(host=host):
                self.theirs.pop(host, None)
            case Well(host=host, well=well):
                if well:
                    self.well.setdefault(host, self.now_ns)
                else:
                    self.well.pop(host, None)
            case TakenOut(by=by, until_ns=until_ns, members=members) if until_ns > self.now_ns:
                for member in members:
                    self.told_out[member.host, by] = Out(
                        member.place.rack, member.job, (), until_ns
                    )
            case FleetSize(hosts=hosts):
                self.hosts = hosts
            case Frozen(message=message):
                self.frozen = message
            case _:
                pass

    def _told_out(self, event: Event, told: list[Instruction]) -> None:
        """Check that a reported host counts until its end, or until its reporter puts it back."""
        for instruction in told:
            if isinstance(instruction, Back):
                out = self.told_out.pop((instruction.host, instruction.by))
                if (
                    isinstance(event, PutBack)
                    and event.by == instruction.by
                    and instruction.host in event.hosts
                ):
                    continue
                assert out.until_ns <= self.now_ns, f"back, and nobody said so: {instruction}"
        if isinstance(event, PutBack):
            left = [host for host in event.hosts if (host, event.by) in self.told_out]
            assert not left, f"still out after {event.by} put them back: {left}"
        if isinstance(event, Tick):
            late = [key for key, out in self.told_out.items() if out.until_ns <= self.now_ns]
            assert not late, f"out for longer than anybody said: {late}"

    def _publish(self, event: Event, now: Advisory) -> None:
        before = self.known.get(now.name)
        if before is None:
            assert now.state is AdvisoryState.PROPOSED, f"begins as {now.state.name}"
            assert not self.frozen, f"proposed while frozen: {now}"
            self._lawful(now)
        elif now.state is not before.state:
            assert now.state in TRANSITIONS.get(before.state, ()), f"{before.state} to {now.state}"
        else:
            assert before.state not in TERMINAL_STATES, f"changed after its end: {now}"
            self._lawful(now)
        assert before is None or now.revision == before.revision + 1, "an etag that stood still"
        if now.state is AdvisoryState.ACCEPTED and (
            before is None or before.state is not now.state
        ):
            assert isinstance(event, Acked) and event.actor == now.owner, "accepted by nobody"
        if now.state in (AdvisoryState.DONE, AdvisoryState.FAILED):
            assert before is not None and isinstance(event, Acked) and event.actor == before.owner
            self._left_its_job(now)
        self._in_time(before, now)
        self._asked_once(before, now)
        self.known[now.name] = self.open[now.name] = now
        if now.state in TERMINAL_STATES:
            del self.open[now.name]
        self._alone(now)

    def _in_time(self, before: Advisory | None, now: Advisory) -> None:
        """Check that no proposal or lease ends before its time."""
        if before is not None and now.state is AdvisoryState.EXPIRED:
            assert before.expires_ns <= self.now_ns, f"expires early: {now}"
            assert not self.frozen, f"expires though nobody may accept it: {now}"
        elif (
            before is not None
            and before.state is AdvisoryState.ACCEPTED
            and now.state is AdvisoryState.PROPOSED
        ):
            assert before.lease_until_ns <= self.now_ns, f"taken from its owner early: {now}"

    def _left_its_job(self, now: Advisory) -> None:
        """Remove the job of a drained host, which still counts for its rack and the fleet."""
        out = self.ours.get(now.host)
        drained = (
            now.state is AdvisoryState.DONE
            and removes_host(now.action)
            and now.action is not Action.AVOID
        )
        if drained and out is not None and out.names[-1] == now.name:
            out.job = ""

    def _asked_once(self, before: Advisory | None, now: Advisory) -> None:
        """Check that rejected advice is not repeated too soon, under any name, domain or host."""
        if now.action is Action.RETURN_TO_SERVICE:
            return
        if now.state is AdvisoryState.REJECTED:
            until_ns = self.now_ns + seconds_ns(self.limits.rejected_seconds)
            self.rejected.setdefault(now.subject, []).append((until_ns, gravity(now.action)))
            for key in [key for key in now.cases if not now.host and key in self.cases]:
                case_gravity = gravity(restrict_to_basis(self.cases[key].case).action)
                self.rejected.setdefault(key, []).append((until_ns, case_gravity))
        elif now.state is AdvisoryState.PROPOSED and (
            before is None or before.action is not now.action
        ):
            rejected = [
                rejection
                for key in (now.subject, *now.cases)
                for rejection in self.rejected.get(key, [])
            ]
            again = [
                rejection
                for rejection in rejected
                if rejection[0] > self.now_ns and rejection[1] >= gravity(now.action)
            ]
            assert not again, f"rejected, and asked for again: {now}"

    def _lawful(self, one: Advisory) -> None:
        assert one.scope is not Scope.NONE, f"acts on nobody knows what: {one}"
        if one.basis is Basis.STATISTICAL:
            assert one.action in STATISTICAL_ACTIONS, f"a statistic asks for {one.action.name}"
            assert one.then is None, f"a statistic asks for {one.then.name} behind its drain"
        if one.action is Action.EVICT_NOW:
            assert one.basis in (Basis.DETERMINISTIC, Basis.DEAD_JOB), "evicts on a suspicion"
        if one.action is Action.DRAIN_AT_CHECKPOINT:
            assert one.checkpoint_seconds > 0, "waits for a checkpoint that may never come"
        if one.action is Action.RETURN_TO_SERVICE and one.revision == 1:
            self._verified(one.host)
        if not one.host:
            assert not removes_host(one.action), "takes a rack out"
            assert len(one.hosts) >= min(
                self.limits.shared_hosts_min, self.limits.shared_unplaced_hosts_min
            )

    def _alone(self, now: Advisory) -> None:
        if now.state in TERMINAL_STATES or not now.cases:
            return
        for other in self.open.values():
            if other.name != now.name:
                both = set(other.cases) & set(now.cases)
                both = {key for key in both if key in self.cases}
                # Accepted advice continues, with renewals, while more severe advice is proposed.
                pairs = ((now, other), (other, now))
                graver = any(a.host and b.state is AdvisoryState.ACCEPTED for a, b in pairs)
                withdrawn_next = other.host and not now.host
                assert not both or graver or withdrawn_next, (
                    f"one case, two advisories: {both}: {now}, {other}"
                )

    def _verified(self, host: str) -> None:
        assert host in self.ours, f"return of {host}, which we did not take out"
        since = self.well.get(host)
        assert since is not None, f"return of {host}, which is not well"
        assert self.now_ns - since >= seconds_ns(self.limits.verify_seconds), "not verified"
        assert not any(seen.case.host == host for seen in self.cases.values()), "still ill"

    def _act(self, event: Event, act: Act) -> None:
        advisory = self.known[act.name]
        assert isinstance(event, Acked) and advisory.state is AdvisoryState.ACCEPTED, (
            f"acts in {advisory.state.name}"
        )
        assert not self.frozen, "acts while frozen"
        assert act.scope is not Scope.NONE and act.token == advisory.token
        if not removes_host(act.action):
            return
        elsewhere = {*self.theirs, *(host for host, _ in self.told_out)}
        new = act.host not in self.ours and act.host not in elsewhere
        before = self.ours.get(act.host)
        names = (*before.names, advisory.name) if before else (advisory.name,)
        self.ours[act.host] = Out(advisory.place.rack, advisory.job, names, act.until_ns)
        if new:
            self._within_limits(advisory)

    def _within_limits(self, one: Advisory) -> None:
        assert self.fuse != "open", "takes a host out while the breaker is open"
        out = [(host, o) for group in (self.ours, self.theirs) for host, o in group.items()]
        out += [(host, o) for (host, _), o in self.told_out.items()]
        hosts = {host for host, _ in out}
        assert len(hosts) <= self.limits.cluster_hosts_max(self.hosts), "more of the fleet"
        if one.place.rack:
            rack = {host for host, o in out if o.rack == one.place.rack}
            assert len(rack) <= self.limits.rack_hosts_max, f"more of a rack: {rack}"
        if one.job:
            job = {host for host, o in out if o.job == one.job}
            assert len(job) <= self.limits.job_hosts_max, f"more of a job: {job}"
        self.acts_ns = [time_ns for time_ns in self.acts_ns if time_ns > self.now_ns - HOUR_NS] + [
            self.now_ns
        ]
        assert len(self.acts_ns) <= self.limits.hosts_per_hour_max, "more in an hour"

    def _renew(self, renew: Renew) -> None:
        out = self.ours.get(renew.host)
        assert out is not None and renew.name in out.names, "renews what is not set"
        assert self.known[renew.name].state not in (
            AdvisoryState.WITHDRAWN,
            AdvisoryState.REJECTED,
            AdvisoryState.EXPIRED,
        )
        assert out.until_ns > self.now_ns, "renews what has run out"
        out.until_ns = renew.until_ns

    def _clear(self, event: Event, clear: Clear) -> None:
        out = self.ours.get(clear.host)
        assert out is not None, f"clears {clear.host}, where we had set nothing"
        assert clear.name in out.names, f"clears another's: {clear}"
        if isinstance(event, Acked) and event.to is AdvisoryState.ACCEPTED:
            self._verified(clear.host)
        elif isinstance(event, Acked) and event.to is AdvisoryState.REJECTED:
            self.ours.pop(clear.host)
        elif isinstance(event, PutBack):
            assert clear.host in event.hosts, "given up, and nobody asked"
            assert clear.name not in self.open, "given up while it is being carried out"
            self.ours.pop(clear.host)
        else:
            assert out.until_ns <= self.now_ns, "cleared early, and nobody asked"
            self.ours.pop(clear.host)

    def _probation(self, one: Probation) -> None:
        self.ours.pop(one.host, None)
        assert one.until_ns == self.now_ns + seconds_ns(self.limits.probation_seconds)

    def _refused(self, event: Event, one: Refused, told: list[Instruction]) -> None:
        assert isinstance(event, Acked) and one.message
        assert not any(isinstance(o, Act | Clear) for o in told), "refused, and acted"

    def _no_host_is_left_behind(self, told: list[Instruction]) -> None:
        """Check that each cleared host gets a Probation in the same step."""
        cleared = {o.host for o in told if isinstance(o, Clear)}
        on_probation = {o.host for o in told if isinstance(o, Probation)}
        gone = {host for host in cleared if host not in self.ours}
        assert gone <= on_probation, f"back without probation: {gone - on_probation}"
        for host, out in self.ours.items():
            assert out.until_ns > 0 and host
