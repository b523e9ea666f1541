"""Shared parts of the executors' soaks: rounds until VIOLATIONS_MAX violations, and the command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

BAR_CHARACTERS = 40
#: After this number of violations the run ends.
VIOLATIONS_MAX = 3


@dataclass
class RoundsReport:
    """The result."""

    rounds: int = 0
    violations: list[str] = field(default_factory=list)

    def violate(self, message: str) -> None:
        """Count a promise that was broken in this round."""
        self.violations.append(f"round {self.rounds}: {message}")


R = TypeVar("R", bound=RoundsReport)


def play_rounds(
    rounds: int, play: Callable[[int], None], report: RoundsReport, *, show: bool
) -> None:
    """Play rounds, each with its number from 0, until there are too many violations; *show* a bar."""
    for index in range(rounds):
        play(index)
        if show:
            done = BAR_CHARACTERS * (index + 1) // rounds
            bar = "#" * done + "." * (BAR_CHARACTERS - done)
            wrong = len(report.violations)
            print(f"\r[{bar}] {index + 1} of {rounds}, {wrong} violations", end="", file=sys.stderr)
        if len(report.violations) > VIOLATIONS_MAX:
            break


def run_soak(
    description: str, missing: str, soak: Callable[[int, int], R], summary: Callable[[R], str]
) -> int:
    """Run *soak* with the command line's rounds and seed; return 1 for a violation or if *missing* is not empty."""
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if missing:
        print(missing, file=sys.stderr)
        return 1
    report = soak(options.rounds, options.seed)
    print(
        f"\nseed {options.seed}: {report.rounds} rounds, {summary(report)}: {len(report.violations)} promises broken"
    )
    for violation in report.violations:
        print(f"  {violation}")
    return int(bool(report.violations))
