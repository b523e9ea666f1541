"""The advice machine on a test clock, and helpers to read its instructions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gangline.aggregator.advisories.advisory import Action, AdvisoryState, Basis, Case, Price, Scope
from gangline.aggregator.advisories.advisory_limits import SECOND_NS, AdvisoryLimits
from gangline.aggregator.advisories.failure_domains import FailureDomains
from gangline.aggregator.advisories.messages import (
    Acked,
    CaseGone,
    CaseSeen,
    FleetSize,
    Instruction,
    Publish,
    Tick,
    Well,
)
from gangline.aggregator.advisories.state_machine import AdvisoryStateMachine

START = 1_760_000_000 * SECOND_NS


class AdviceMachine:
    """A machine with a clock that tests advance."""

    def __init__(self, hosts: int = 1000, **limits: Any) -> None:
        self.machine = AdvisoryStateMachine(AdvisoryLimits(**limits))
        self.now_ns = START
        self.give(FleetSize(START, hosts))

    def give(self, event: Any) -> list[Instruction]:
        return list(self.machine.step(event))

    def see(self, host: str, reason: str = "XID_FATAL", **changes: Any) -> list[Instruction]:
        number = int(host[1:])
        case = Case(
            f"{host}/{reason}", host, reason, Basis.DETERMINISTIC, Action.EVICT_NOW, Scope.GPU,
            f"{host} has it", self.now_ns, place=FailureDomains(rack=f"r{number // 8}"),
            price=Price(100.0, 5.0),
        )  # fmt: skip
        return self.give(CaseSeen(self.now_ns, replace(case, **changes)))

    def later(self, seconds: float) -> list[Instruction]:
        self.now_ns += int(seconds * SECOND_NS)
        return self.give(Tick(self.now_ns))

    def answer(
        self, name: str, to: AdvisoryState, actor: str = "x", **more: Any
    ) -> list[Instruction]:
        return self.give(Acked(self.now_ns, name, to, actor, **more))

    def carry_out(self, name: str) -> list[Instruction]:
        return [*self.answer(name, AdvisoryState.ACCEPTED), *self.answer(name, AdvisoryState.DONE)]

    def gone(self, host: str, reason: str = "XID_FATAL") -> None:
        self.give(CaseGone(self.now_ns, f"{host}/{reason}", "it is over"))

    def recover(self, host: str) -> None:
        """End the case of *host* and report it healthy."""
        self.gone(host)
        self.give(Well(self.now_ns, host, True))


def proposing(host: str, reason: str = "XID_FATAL", **changes: Any) -> AdviceMachine:
    """Return a machine that has proposed advice for *host*."""
    world = AdviceMachine()
    world.see(host, reason, **changes)
    world.later(3)
    return world


def told(instructions: list[Instruction], kind: type) -> list[Any]:
    return [instruction for instruction in instructions if isinstance(instruction, kind)]


def published(instructions: list[Instruction]) -> list[tuple[str, str, str]]:
    advisories = [published_advisory.advisory for published_advisory in told(instructions, Publish)]
    return [
        (published_advisory.subject, published_advisory.action.name, published_advisory.state.name)
        for published_advisory in advisories
    ]
