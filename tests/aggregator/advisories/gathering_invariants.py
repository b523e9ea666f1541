"""The promises of gathering: an own fault never waits alone, and a cause is a single advisory.

Written apart from `proposals.py` and `shared_causes.py`, so that a bug there is not repeated here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gangline.aggregator.advisories.advisory import (
    SILENCE_REASON,
    TERMINAL_STATES,
    Action,
    Advisory,
    AdvisoryState,
    Basis,
    Case,
    Scope,
    restrict_to_basis,
)
from gangline.aggregator.advisories.advisory_limits import AdvisoryLimits, seconds_ns
from gangline.aggregator.advisories.common_cause import UNPLACED
from gangline.aggregator.advisories.messages import (
    CaseGone,
    CaseSeen,
    Event,
    HeldBack,
    Instruction,
    Publish,
)

#: An own fault has one of these reasons and scopes, and is certain.
OWN_REASONS = ("XID_FATAL", "ECC_TREND", "HBM_REMAP", "DRIVER_HUNG")
OWN_SCOPES = (Scope.GPU, Scope.BASEBOARD, Scope.HOST)


def is_own(case: Case) -> bool:
    certain = case.basis in (Basis.DETERMINISTIC, Basis.DEAD_JOB)
    switch = case.scope is Scope.BASEBOARD and case.reason in ("FABRIC", "NVLINK_ERRORS")
    return certain and (switch or (case.reason in OWN_REASONS and case.scope in OWN_SCOPES))


def domains(case: Case) -> set[tuple[str, str, str]]:
    """Return the domains that a host with an own fault may share, for the same reason."""
    place, reason = case.place, case.reason
    named = {"rack": place.rack, "power": place.power_domain, "leaf": place.leaf}
    shared = {(kind, name, reason) for kind, name in named.items() if name}
    return shared or {("fleet", UNPLACED, reason)}


@dataclass
class SeenCase:
    """A case with its begin and the time when it was first seen."""

    case: Case
    since_ns: int
    seen_ns: int


@dataclass
class GatheringWatcher:
    """Checks every step passed to `saw` against the open advisories and the hosts out of service.

    Raises AssertionError.
    """

    limits: AdvisoryLimits
    cases: dict[str, SeenCase] = field(default_factory=dict)
    held: set[str] = field(default_factory=set)
    known: set[str] = field(default_factory=set)
    #: Host or shared domain -> until when it is not checked, because a cause of it has ended.
    ended: dict[object, int] = field(default_factory=dict)

    def saw(
        self,
        event: Event,
        told: list[Instruction],
        now_ns: int,
        open_now: Mapping[str, Advisory],
        ours: Mapping[str, object],
        *,
        proposes: bool,
    ) -> None:
        """Check a step. *proposes*: the machine proposes due advice in this step."""
        self._take(event, now_ns)
        for instruction in told:
            if isinstance(instruction, HeldBack):
                self.held.add(instruction.key)
            elif isinstance(instruction, Publish):
                self._published(instruction.advisory, now_ns)
        if proposes:
            self._none_waits_alone(open_now, ours, now_ns)
            self._a_cause_is_one(open_now, now_ns)

    def leap(self, leapt_ns: int) -> None:
        """Move all times forward with the clock, so that ages stay."""
        for case in self.cases.values():
            case.since_ns += leapt_ns
            case.seen_ns += leapt_ns
        self.ended = {key: until_ns + leapt_ns for key, until_ns in self.ended.items()}

    def _take(self, event: Event, now_ns: int) -> None:
        if isinstance(event, CaseGone):
            self.cases.pop(event.key, None)
            self.held.discard(event.key)
        elif isinstance(event, CaseSeen):
            case, since_ns = restrict_to_basis(event.case), min(event.case.since_ns, now_ns)
            before = self.cases.get(case.key)
            if before is not None and before.case.reason == case.reason:
                since_ns = before.since_ns
            seen_ns = before.seen_ns if before is not None else now_ns
            self.cases[case.key] = SeenCase(case, since_ns, seen_ns)

    def _published(self, now: Advisory, now_ns: int) -> None:
        self.held -= set(now.cases)
        if now.state in TERMINAL_STATES and not now.host:
            limits = self.limits
            seconds = max(limits.rejected_seconds, limits.again_seconds, limits.flap_seconds)
            affected = {*now.hosts, *(domain for key in now.cases for domain in self._domains(key))}
            self.ended |= dict.fromkeys(affected, now_ns + seconds_ns(seconds))
        is_new = now.name not in self.known
        self.known.add(now.name)
        if is_new and now.host and now.action is not Action.RETURN_TO_SERVICE:
            waited_ns = now_ns - seconds_ns(self.limits.gather_seconds)
            seen = [self.cases[key] for key in now.cases if key in self.cases]
            due = any(case.seen_ns <= waited_ns or self._goes_alone(case) for case in seen)
            silent = any(case.case.reason == SILENCE_REASON for case in seen)
            assert due or silent, f"proposed before others of its cause could show: {now}"

    def _domains(self, key: str) -> set[tuple[str, str, str]]:
        return domains(self.cases[key].case) if key in self.cases else set()

    def _goes_alone(self, one: SeenCase) -> bool:
        """Return whether the fault is the host's own, without company in its domains."""
        return is_own(one.case) and not any(self._company(one))

    def _company(self, one: SeenCase) -> Iterator[bool]:
        span_ns, mine = seconds_ns(self.limits.shared_seconds), domains(one.case)
        for other in self.cases.values():
            near = abs(other.since_ns - one.since_ns) <= span_ns
            if near and other.case.host != one.case.host and domains(other.case) & mine:
                yield True

    def _none_waits_alone(
        self, open_now: Mapping[str, Advisory], ours: Mapping[str, object], now_ns: int
    ) -> None:
        """Check that each own fault seen while gathering is advised, held back, or not alone."""
        covered_keys = {
            key for seen_case in open_now.values() for key in seen_case.cases
        } | self.held
        busy = {a.host for a in open_now.values() if a.state is AdvisoryState.ACCEPTED}
        gathering_ns = now_ns - seconds_ns(self.limits.gather_seconds)
        for key, seen_case in self.cases.items():
            covered = (
                key in covered_keys or seen_case.case.host in ours or seen_case.case.host in busy
            )
            if seen_case.seen_ns > gathering_ns and not covered:
                assert not self._goes_alone(seen_case), f"held back by gathering alone: {seen_case}"

    def _a_cause_is_one(self, open_now: Mapping[str, Advisory], now_ns: int) -> None:
        """Check that no host of a common fall has its own advisory, except an accepted one."""
        in_cause = {key for a in open_now.values() for key in a.cases if not a.host}
        requested = {
            key
            for a in open_now.values()
            for key in a.cases
            if a.host and a.state is not AdvisoryState.ACCEPTED
        }
        groups: dict[object, list[tuple[int, str, bool]]] = defaultdict(list)
        for key, seen_case in self.cases.items():
            if (
                key in in_cause
                or not is_own(seen_case.case)
                or self._is_over(seen_case.case.host, now_ns)
            ):
                continue
            for shared in domains(seen_case.case):
                groups[shared].append((seen_case.since_ns, seen_case.case.host, key in requested))
        span_ns = seconds_ns(self.limits.shared_seconds)
        for domain, members in groups.items():
            unplaced = UNPLACED in str(domain)
            hosts_min = (
                self.limits.shared_unplaced_hosts_min if unplaced else self.limits.shared_hosts_min
            )
            for first_ns, _, _ in members:
                near = [m for m in members if 0 <= m[0] - first_ns <= span_ns]
                many = len({host for _, host, _ in near}) >= hosts_min
                one_by_one = many and any(is_asked for _, _, is_asked in near)
                assert not one_by_one or self._is_over(domain, now_ns), (
                    f"one cause, and asked host by host: {domain}: {near}"
                )

    def _is_over(self, what: object, now_ns: int) -> bool:
        return self.ended.get(what, 0) > now_ns
