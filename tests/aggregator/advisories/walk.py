"""A random walk over a small fleet: `python -m tests.aggregator.advisories.walk --steps 1000000 --seed 1`.

Nothing is believed: answers come from the wrong owner, with old etags, too late and twice; clocks go back, and leap; storms
tell one incident thousands of times; racks fall at once; the machine is stored, killed and goes on.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from dataclasses import replace

from gangline.aggregator.advisories.advisory import (
    SILENCE_REASON,
    Action,
    AdvisoryState,
    Basis,
    Case,
    Price,
    Scope,
)
from gangline.aggregator.advisories.advisory_limits import SECOND_NS, AdvisoryLimits, seconds_ns
from gangline.aggregator.advisories.failure_domains import FailureDomains
from gangline.aggregator.advisories.messages import (
    Acked,
    Available,
    CaseGone,
    CaseSeen,
    Event,
    FleetSize,
    Frozen,
    Member,
    PutBack,
    TakenOut,
    Tick,
    Unavailable,
    Well,
)
from gangline.aggregator.advisories.rows import parse_event, to_json
from gangline.aggregator.advisories.state import MachineState
from gangline.aggregator.advisories.state_machine import AdvisoryStateMachine
from gangline.aggregator.dataclass_json import from_plain, to_plain
from tests.aggregator.advisories.invariants import Watcher

#: Minutes instead of hours, so that things end within a walk.
LIMITS = AdvisoryLimits(
    rack_hosts_max=2, job_hosts_max=2, cluster_share_max=0.2, hosts_per_hour_max=5,
    breaker_seconds=60.0, breaker_seconds_max=600.0, failures_max=2, proposal_seconds=300.0,
    lease_seconds=60.0, hold_seconds=600.0, verify_seconds=10.0, probation_seconds=900.0,
    again_seconds=120.0, rejected_seconds=400.0, flap_seconds=20.0, defer_seconds=40.0,
    ended_seconds=900.0, ended_max=50, open_max=12, silent_seconds=30.0,
)  # fmt: skip
HOSTS, RACK_HOSTS = 40, 8
REASONS = (
    "XID_FATAL",
    "POWER_CAP",
    "THERMAL_THROTTLE",
    "ECC_TREND",
    "RAIL_DOWN",
    "STORAGE",
    SILENCE_REASON,
)
START_NS = 1_700_000_000 * SECOND_NS
#: Average number of steps between restarts from the stored state.
RESTART_STEPS = 500
#: Average number of steps between clock jumps.
LEAP_STEPS = 300


class Walk:
    """A machine in a hostile world. `step` may raise AssertionError."""

    def __init__(self, seed: int, limits: AdvisoryLimits = LIMITS) -> None:
        self._random = random.Random(seed)
        self._limits = limits
        self.machine = AdvisoryStateMachine(limits)
        self.watcher = Watcher(limits)
        self.now_ns = START_NS
        self.steps = 0
        self._stored: list[tuple[str, str]] = []
        self._begun = json.dumps(to_plain(self.machine.state))
        self.seen: dict[str, int] = {}
        self.give(FleetSize(self.now_ns, HOSTS))

    def give(self, event: Event) -> None:
        """Give the machine *event*, and check its instructions."""
        event = self.machine.stamped(event)
        instructions = list(self.machine.step(event))
        if self.machine.is_changed:
            self._stored.append((type(event).__name__, to_json(event)))
        self.watcher.saw(event, instructions)
        for instruction in instructions:
            kind = type(instruction).__name__
            self.seen[kind] = self.seen.get(kind, 0) + 1
        self.steps += 1

    def step(self) -> None:
        """Do one random thing."""
        roll = self._random.random()
        if roll < 0.35:
            self._pass_time()
        elif roll < 0.50:
            self.give(CaseSeen(self.now_ns, self._case()))
        elif roll < 0.66:
            self._heal()
        elif roll < 0.90:
            self.give(self._answer())
        elif roll < 0.935:
            self.give(self._somebody_else())
        elif roll < 0.95:
            self.give(self._by_their_word())
        elif roll < 0.96:
            self._rack_falls()
        elif roll < 0.965:
            self._storm()
        elif roll < 0.975:
            self._own_faults_in_turn()
        elif roll < 0.985:
            self.give(Frozen(self.now_ns, self._random.choice(["", "", "", "half is silent"])))
        else:
            self.give(Well(self.now_ns, self._host(), True))
        if self._random.random() < 1 / RESTART_STEPS:
            self.restart()
        if self._random.random() < 1 / LEAP_STEPS:
            self._leap()

    def restart(self) -> None:
        """Kill the machine, check that its stored events replay exactly, and restart it."""
        replayed = AdvisoryStateMachine(
            self._limits, from_plain(MachineState, json.loads(self._begun))
        )
        for kind, body in self._stored:
            replayed.step(parse_event(kind, body))
        before, after = to_plain(self.machine.state), to_plain(replayed.state)
        before["now_ns"] = after["now_ns"] = 0  # ticks that did nothing are not stored
        assert before == after, "what was stored does not give what was"
        state_text = json.dumps(to_plain(self.machine.state))
        self.machine = AdvisoryStateMachine(
            self._limits, from_plain(MachineState, json.loads(state_text))
        )
        self.machine.resume(self.now_ns)
        self.watcher.resume()
        self._begun = json.dumps(to_plain(self.machine.state))
        self._stored.clear()

    def _leap(self) -> None:
        """Set the clock forward, by which no deadline comes nearer, and store the state."""
        before_ns, leapt_ns = self.machine.state.now_ns, seconds_ns(self._random.choice([6, 3600]))
        self.now_ns += leapt_ns
        self.machine.apply_clock_jump(leapt_ns, self.now_ns)
        self.watcher.leap(self.machine.state.now_ns - before_ns)
        self._begun = json.dumps(to_plain(self.machine.state))
        self._stored.clear()

    def _pass_time(self) -> None:
        pick = self._random.random()
        seconds = self._random.choice([0.5, 1, 3, 10, 30]) if pick < 0.98 else 1200.0
        if self._random.random() < 0.01:
            seconds = -30.0  # the clock was set back
        self.now_ns += seconds_ns(seconds)
        self.give(Tick(self.now_ns))

    def _host(self) -> str:
        return f"h{self._random.randrange(HOSTS):02d}"

    def place(self, host: str) -> FailureDomains:
        number = int(host[1:])
        if number >= 32:
            return FailureDomains()  # hosts without a declared place
        rack = f"r{number // RACK_HOSTS}"
        return FailureDomains(rack, f"p{number // 16}", f"c{number // 16}", rack, "s0", "")

    def _case(self, host: str = "", reason: str = "") -> Case:
        rng = self._random
        host, reason = host or self._host(), reason or rng.choice(REASONS)
        gpu = f"GPU-{rng.randrange(2)}"
        return Case(
            key=f"{host}/{reason}/{gpu}", host=host, reason=reason, basis=rng.choice(list(Basis)[:3]),
            action=rng.choice([action for action in Action if action is not Action.RETURN_TO_SERVICE]),
            scope=rng.choice(list(Scope)), message="it is hot", since_ns=self.now_ns,
            then=rng.choice([None, Action.RESET_GPU]), devices=(gpu,), place=self.place(host),
            job=rng.choice(["", "job1", "job2"]), checkpoint_seconds=rng.choice([0.0, 600.0]),
            count=rng.choice([1, 1, 3, 800_000]), price=Price(rng.random() * 100, 1.0),
            among=rng.choice([(), (8, 16, 16, 8, 32, 0)]), unseen=reason == SILENCE_REASON and rng.random() < 0.3,
        )  # fmt: skip

    def _heal(self) -> None:
        cases = list(self.watcher.cases.values())
        if self.watcher.ours and self._random.random() < 0.4:
            host = self._random.choice(list(self.watcher.ours))
            for seen in [case for case in cases if case.case.host == host]:
                self.give(CaseGone(self.now_ns, seen.case.key, "it is over"))
            self.give(Well(self.now_ns, host, True))
        elif cases and self._random.random() < 0.6:
            for _ in range(min(len(cases), self._random.choice([1, 1, 6]))):
                self.give(CaseGone(self.now_ns, self._random.choice(cases).case.key, "it is over"))
        else:
            hosts = [*self.watcher.ours, self._host()]
            self.give(Well(self.now_ns, self._random.choice(hosts), False))

    def _answer(self) -> Acked:
        rng, known = self._random, self.watcher.known
        recent = list(self.watcher.open) if rng.random() < 0.8 else list(known)[-20:]
        name = rng.choice(recent) if recent and rng.random() < 0.97 else f"a{rng.randrange(9999)}"
        known_advisory = known.get(name)
        actor = (
            known_advisory.owner
            if known_advisory and known_advisory.owner and rng.random() < 0.7
            else rng.choice("xyz")
        )
        to = AdvisoryState.ACCEPTED if rng.random() < 0.5 else rng.choice(list(AdvisoryState))
        if known_advisory and known_advisory.state is AdvisoryState.ACCEPTED and rng.random() < 0.6:
            to = AdvisoryState.DONE
        etag = (
            known_advisory.etag
            if known_advisory and rng.random() < 0.7
            else rng.choice(["", "a1-1"])
        )
        until = self.now_ns + seconds_ns(rng.choice([0, -5, 50, 1e9]))
        lease = (
            rng.choice([0.0, 0.0, 0.0, 20.0, 600.0, 1e9]) if to is AdvisoryState.ACCEPTED else 0.0
        )
        reason = rng.choice(["", "no", "no"])
        return Acked(self.now_ns, name, to, actor, reason, etag, until, lease)

    def _somebody_else(self) -> Event:
        host, pick = self._host(), self._random.randrange(3)
        if pick == 0:
            by = self._random.choice(["drained by an operator", "silent"])
            return Unavailable(self.now_ns, host, by, self.place(host), "job1")
        taken = list(self.watcher.theirs)
        return Available(self.now_ns, self._random.choice(taken) if taken else host)

    def _by_their_word(self) -> Event:
        """Report hosts out or back as a scheduler: late, repeatedly, by racks, or never again."""
        by, rng = self._random.choice("xy"), self._random
        out = [host for host, _ in self.watcher.told_out]
        random_hosts = [self._host() for _ in range(rng.choice([1, 1, 2, 8]))]
        hosts = tuple(dict.fromkeys([*random_hosts, *out[: rng.choice([0, 2, 40])]]))
        if rng.random() < 0.4:
            return PutBack(self.now_ns, by, hosts)
        job = rng.choice(["", "job1"])
        members = tuple(Member(host, self.place(host), job) for host in hosts)
        until = self.now_ns + seconds_ns(rng.choice([-5, 60, 300, 900]))
        return TakenOut(
            self.now_ns, by, "moved" if rng.random() < 0.1 else "burn-in", until, members
        )

    def _rack_falls(self) -> None:
        rack, reason = self._random.randrange(5), self._random.choice(REASONS)
        for number in range(rack * RACK_HOSTS, (rack + 1) * RACK_HOSTS):
            self.give(CaseSeen(self.now_ns, self._case(f"h{number:02d}", reason)))

    def _own_faults_in_turn(self) -> None:
        """Let hosts of a rack lose a GPU each in turn; an executor may take the first at once."""
        rng, rack = self._random, self._random.randrange(4)
        numbers = rng.sample(range(RACK_HOSTS), rng.choice([1, 2, 4]))
        if quick := rng.random() < 0.3:
            self._quiet_hour()
        for host in [f"h{rack * RACK_HOSTS + number:02d}" for number in numbers]:
            own = replace(
                self._case(host, "XID_FATAL"), basis=Basis.DETERMINISTIC, action=Action.EVICT_NOW, scope=Scope.GPU
            )  # fmt: skip
            self.give(CaseSeen(self.now_ns, own))
            self.give(Tick(self.now_ns))
            proposals = [a for a in self.watcher.open.values() if a.host == host]
            if quick and proposals:
                for to in (AdvisoryState.ACCEPTED, AdvisoryState.DONE)[: rng.choice([1, 2])]:
                    self.give(Acked(self.now_ns, proposals[-1].name, to, "x"))
            quick = False
            self.now_ns += seconds_ns(rng.choice([0.0, 0.1, 0.4, 0.4, 3.0]))
            self.give(Tick(self.now_ns))
        self.now_ns += seconds_ns(4.0)
        self.give(Tick(self.now_ns))

    def _quiet_hour(self) -> None:
        """Clear all faults and reports until no host is out and every limit has room."""
        self.give(Frozen(self.now_ns, ""))
        for key in list(self.watcher.cases):
            self.give(CaseGone(self.now_ns, key, "it is over"))
        for host in list(self.watcher.theirs):
            self.give(Available(self.now_ns, host))
        for by in "xy":
            out = tuple(host for host, who in self.watcher.told_out if who == by)
            self.give(PutBack(self.now_ns, by, out))
        for _ in range(3):
            self.now_ns += seconds_ns(1300.0)
            self.give(Tick(self.now_ns))

    def _storm(self) -> None:
        case = self._case()
        for count in range(1, 60):
            self.give(CaseSeen(self.now_ns, replace(case, count=count * 13_000)))


def walk(steps: int, seed: int, *, progress: bool = False) -> Walk:
    """Return a walk of at least *steps*. Raises AssertionError with the seed and the step."""
    result, begin = Walk(seed), time.monotonic()
    while result.steps < steps:
        try:
            result.step()
        except Exception as error:
            raise AssertionError(f"seed {seed}, step {result.steps}: {error!r:.3000}") from error
        if progress and result.steps % 1000 < 3:
            _show(result.steps, steps, time.monotonic() - begin)
    return result


def _show(done: int, steps: int, seconds: float) -> None:
    filled = 30 * min(done, steps) // steps
    bar = "#" * filled + "." * (30 - filled)
    print(
        f"\r  advice  [{bar}] {done:>9,} of {steps:,} steps, {seconds:.0f} s",
        end="",
        file=sys.stderr,
    )


def main() -> int:
    """Walk, and print the counts of instructions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    result = walk(options.steps, options.seed, progress=sys.stderr.isatty())
    met = ", ".join(f"{count:,} {kind}" for kind, count in sorted(result.seen.items()))
    print(f"advice: {result.steps:,} steps, seed {options.seed}: every promise held ({met})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
