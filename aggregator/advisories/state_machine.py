"""Advice as a machine: events in, instructions out. No I/O, no clock of its own, the same each time.

What it holds to, whatever comes in (`tests/aggregator/advice/invariants.py` checks each):
- it clears only what it had set, and nothing that it set outlasts its expiry unless renewed;
- nothing comes of an advisory that was withdrawn, rejected, done, failed, or has expired;
- of a rack, of a job and of the fleet no more hosts are out at once than may be, whoever took them out, and no
  more within an hour; beyond that a breaker opens, and tries one host before it closes;
- a host returns only after it was well for long enough, and is then on probation;
- one case is in one advisory, however often it is told; hosts that fall together are one cause;
- a statistical verdict asks for AVOID or DRAIN_AFTER_JOB, EVICT_NOW needs certainty, and a drain at a checkpoint
  a known cadence; every action names its scope;
- while the picture is frozen nothing is proposed and nothing granted.
"""

from __future__ import annotations

from dataclasses import replace

from .advisory import (
    Acked,
    Advisory,
    Available,
    Case,
    CaseGone,
    CaseSeen,
    Event,
    FleetSize,
    Frozen,
    Instruction,
    Limits,
    PutBack,
    Refused,
    TakenOut,
    Tick,
    Unavailable,
    Well,
    lawful,
)
from .answers import ack, put_back, taken_out, would
from .limits import material
from .proposals import propose
from .state import Desk, Memory, Standing, Taken
from .timers import leap, pass_time, resume, thaw, trim, withdraw_empty


class Machine:
    """`step` each event, and a Tick behind them: only then is anything proposed.

    Its `memory` can be stored and handed to another, which goes on from there."""

    def __init__(self, limits: Limits, memory: Memory | None = None) -> None:
        self._desk = Desk(limits, memory)
        #: Whether the last step changed what is remembered: only such events need storing.
        self.touched = False

    @property
    def memory(self) -> Memory:
        return self._desk.memory

    def stamped(self, event: Event) -> Event:
        """Return *event* as it is to be stored: a clock that was set back stands still."""
        return replace(event, now_ns=max(event.now_ns, self.memory.now_ns))

    def resume(self, now_ns: int) -> None:
        """Go on after a restart. No event tells of it: the memory is to be stored whole behind it."""
        self.memory.now_ns = max(now_ns, self.memory.now_ns)
        resume(self._desk)

    def leap(self, leapt_ns: int, now_ns: int) -> None:
        """The clock, which says *now_ns*, was set forward by *leapt_ns*: nothing ends by that. No event tells of it, either.

        Where it had been set back before, we stood still until it caught up: what we see of the leap is what is left.
        """
        leapt_ns = min(leapt_ns, now_ns - self.memory.now_ns)
        if leapt_ns > 0:
            leap(self._desk, leapt_ns)
            self.memory.now_ns += leapt_ns

    def would(self, answer: Acked) -> Advisory | Refused:
        """Return what would come of *answer*, without any effect."""
        return would(self._desk, answer)

    def step(self, event: Event) -> list[Instruction]:
        """Take *event* and return what is to be done. Raises nothing of what *event* says."""
        desk = self._desk
        desk.memory.now_ns = max(event.now_ns, desk.memory.now_ns)
        desk.out, desk.touched = [], False
        if isinstance(event, Acked | Tick):
            pass_time(desk)
        self._take(event)
        if isinstance(event, Tick) and not desk.memory.frozen:
            trim(desk)
            propose(desk)
            withdraw_empty(desk)
        self.touched = desk.touched
        return desk.out

    def _take(self, event: Event) -> None:
        desk, memory = self._desk, self.memory
        match event:
            case CaseSeen(case=case):
                _seen(desk, replace(lawful(case), since_ns=min(case.since_ns, desk.now_ns)))
            case CaseGone(key=key):
                _gone(desk, key)
            case Unavailable(host=host, by=by, place=place, job=job):
                taken = Taken(by, place, job)
                desk.touched |= memory.taken.get(host) != taken
                memory.taken[host] = taken
            case Available(host=host):
                desk.touched |= memory.taken.pop(host, None) is not None
            case TakenOut():
                taken_out(desk, event)
            case PutBack():
                put_back(desk, event)
            case Well(host=host, well=well):
                _well(desk, host, well)
            case FleetSize(hosts=hosts):
                desk.touched |= hosts != memory.hosts
                memory.hosts = hosts
            case Frozen(words=words):
                desk.touched |= words != memory.frozen
                is_over = bool(memory.frozen) and not words
                memory.frozen = words
                if is_over:
                    thaw(desk)
            case Acked():
                ack(desk, event)
            case Tick():
                pass


def _seen(desk: Desk, case: Case) -> None:
    """Keep *case*; what is news of one that went into an advisory is weighed again.

    It began when it was first told, not when its symptom was last seen; unless it is other trouble by now.
    """
    before = desk.memory.cases.get(case.key)
    if before is None:
        desk.memory.cases[case.key] = Standing(case, desk.now_ns)
        desk.touched = True
        return
    if not material(before.case, case):
        return
    if case.reason == before.case.reason:
        case = replace(case, since_ns=before.case.since_ns)
    before.case = case
    desk.touched = True
    before.changed = before.advisory in desk.memory.advisories


def _gone(desk: Desk, key: str) -> None:
    if desk.memory.cases.pop(key, None) is not None:
        desk.touched = True
    desk.no_longer_held_back(key)


def _well(desk: Desk, host: str, well: bool) -> None:
    if well == (host in desk.memory.well):
        return
    desk.touched = True
    if well:
        desk.memory.well[host] = desk.now_ns
    else:
        del desk.memory.well[host]
