"""`gangline evaluate`: how good the judgement is, on recordings; a table of what can be judged."""

from __future__ import annotations

import importlib
import sys

from ...cli import OK, USAGE

#: Subcommand -> (module with `main(arguments) -> exit code`, what it does).
SUBCOMMANDS: dict[str, tuple[str, str]] = {
    "hazard": (
        ".evaluate_hazard",
        "the model of hazard and its baselines on a recording of faults",
    ),
}


def main(arguments: list[str]) -> int:
    """Run one subcommand and return its exit code."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_help())
        return OK if arguments else USAGE
    if arguments[0] not in SUBCOMMANDS:
        print(f"gangline evaluate: nothing {arguments[0][:40]!r}\n\n{_help()}", file=sys.stderr)
        return USAGE
    module, _ = SUBCOMMANDS[arguments[0]]
    return int(importlib.import_module(module, __package__).main(arguments[1:]))


def _help() -> str:
    rows = [f"  {name:<9} {what}" for name, (_, what) in SUBCOMMANDS.items()]
    return "\n".join(
        (
            "usage: gangline evaluate WHAT [--help] ...",
            "",
            *rows,
            "",
            "Needs no aggregator. exit codes: 0 done, 1 failed, 2 wrong usage",
        )
    )
