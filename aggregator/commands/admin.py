"""`gangline admin`: what keeps an aggregator over the years."""

from __future__ import annotations

from . import subcommands

SUBCOMMANDS: subcommands.Table = {
    "backup": (".admin_backup", "a whole copy of the store, made while the aggregator runs"),
    "restore": (".admin_restore", "a backup put in a data folder"),
    "verify": (".admin_verify", "everything of a store or a backup read back, and what is wrong"),
    "compact": (".admin_compact", "free space of the store given back to the disk"),
    "train": (".admin_train", "a model of hazard from the faults on record"),
    "cert": (
        ".admin_cert",
        "certificates for a small cluster: a CA, the aggregator, agents, operators",
    ),
    "token": (".admin_token", "tokens: new, list, revoke"),
}


def main(arguments: list[str]) -> int:
    """Run one subcommand and return its exit code."""
    return subcommands.run(
        "admin",
        SUBCOMMANDS,
        arguments,
        (
            "On the aggregator's own machine, as the user that it runs as (or root).",
            "exit codes: 0 done, 1 failed, 2 wrong usage, 3 no aggregator answers",
        ),
    )
