"""`gangline evaluate`: how good the judgement is, on recordings."""

from __future__ import annotations

from . import subcommands

SUBCOMMANDS: subcommands.Table = {
    "hazard": (
        ".evaluate_hazard",
        "the model of hazard and its baselines on a recording of faults",
    ),
}


def main(arguments: list[str]) -> int:
    """Run one subcommand and return its exit code."""
    notes = ("Needs no aggregator. exit codes: 0 done, 1 failed, 2 wrong usage",)
    return subcommands.run("evaluate", SUBCOMMANDS, arguments, notes)
