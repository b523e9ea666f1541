"""`make evaluate`: how good judging is, on real data, injected faults and a simulated fleet, apart; into docs/quality.md."""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from pathlib import Path

from gangline.agent.simulated.world.settings import SettingsError

from .simulated import Plan

#: Each is a module of this package with `section(seed, progress) -> str`, in the page's order.
SECTIONS = ("hazard", "captures", "injected", "simulated")
#: Causes of each class, or hours of the fleet: more would take days.
COUNT_MAX = 10_000
PAGE = Path(__file__).resolve().parents[2] / "docs" / "quality.md"
HEAD = """# How good it is

Made by `make evaluate` (seed {seed}); change nothing here by hand. Real data, injected faults and simulation stand apart, as they show different things.
What a score means is in [health](health.md), the model of hazard in [hazard](hazard.md), the simulated fleet in [simulation](simulation.md).
"""


class Bar:
    """A line of progress on a terminal; elsewhere a line each tenth."""

    def __init__(self) -> None:
        self._begin, self._tenth = time.monotonic(), -1

    def __call__(self, what: str, share: float) -> None:
        """Show that of *what* a *share* is done."""
        seconds = time.monotonic() - self._begin
        if sys.stderr.isatty():
            full = round(30 * share)
            bar = "#" * full + "-" * (30 - full)
            print(
                f"\r[{bar}] {100 * share:3.0f} %  {what}, {seconds:.0f} s\033[K",
                end="",
                file=sys.stderr,
                flush=True,
            )
        elif int(10 * share) != self._tenth:
            self._tenth = int(10 * share)
            print(f"{100 * share:3.0f} %  {what}, {seconds:.0f} s", file=sys.stderr, flush=True)


def _section(name: str, seed: int, plan: Plan) -> str:
    module = importlib.import_module(f".{name}", __package__)
    more = {"plan": plan} if name == "simulated" else {}
    text = str(module.section(seed, Bar(), **more))
    print(file=sys.stderr)
    return text


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= COUNT_MAX:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number from 1 to {COUNT_MAX:,}")
    return int(text)


def main() -> int:
    """Print one section, or write the page of all."""
    parser = argparse.ArgumentParser(prog="python -m bench.quality", description=__doc__)
    parser.add_argument("--seed", type=int, default=21)
    parser.add_argument("--only", choices=SECTIONS, help="print this section; write nothing")
    plan = Plan()
    parser.add_argument("--scenario", default=plan.scenario, help="of the simulated fleet")
    parser.add_argument(
        "--per-class", type=_count, default=plan.per_class, help="causes of each class"
    )
    parser.add_argument(
        "--hours",
        type=_count,
        default=plan.hours,
        help="hours of the whole fleet, for false drains",
    )
    options = parser.parse_args()
    plan = Plan(options.scenario, options.per_class, options.hours)
    try:
        names = [options.only] if options.only else SECTIONS
        sections = [_section(name, options.seed, plan) for name in names]
    except SettingsError as error:
        parser.error(str(error))
    if options.only:
        print(sections[0])
    else:
        PAGE.write_text(
            "\n".join([HEAD.format(seed=options.seed), *(f"{one.strip()}\n" for one in sections)])
        )
        print(f"wrote {PAGE}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
