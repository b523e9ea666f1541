"""`gangline admin`: the table of subcommands, each imported only when it runs."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping

from ...cli import OK, USAGE

#: Subcommand -> (module with `main(arguments) -> exit code`, or module:function; summary).
SUBCOMMANDS: Mapping[str, tuple[str, str]] = {
    "backup": (
        ".admin_store:backup_main",
        "a whole copy of the store, made while the aggregator runs",
    ),
    "restore": (".admin_store:restore_main", "a backup put in a data folder"),
    "verify": (
        ".admin_store:verify_main",
        "everything of a store or a backup read back, and what is wrong",
    ),
    "compact": (".admin_store:compact_main", "free space of the store given back to the disk"),
    "health": (".admin_health", "whether the aggregator answers, for probes; needs no login"),
    "train": (".admin_train", "a model of hazard from the faults on record"),
    "cert": (
        ".admin_access:cert_main",
        "certificates for a small cluster: a CA, the aggregator, agents, operators",
    ),
    "token": (".admin_access:token_main", "tokens: new, list, revoke"),
    "declared": (".declared", "check: declared places, hardware, maintenance, noise"),
    "evaluate": (".evaluate", "hazard: the quality of models on a recording of faults"),
}


NOTES = (
    "On the aggregator's own machine, as the user that it runs as (or root); health, declared and",
    "evaluate on any machine.",
    "exit codes: 0 done, 1 failed, 2 wrong usage, 3 no aggregator answers",
)


def main(arguments: list[str]) -> int:
    """Run a subcommand and return its exit code."""
    help_text = "\n".join(
        (
            "usage: gangline admin COMMAND [--help] ...",
            "",
            *(f"  {name:<9} {what}" for name, (_, what) in SUBCOMMANDS.items()),
            "",
            *NOTES,
        )
    )
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(help_text)
        return OK if arguments else USAGE
    if arguments[0] not in SUBCOMMANDS:
        print(f"gangline admin: no command {arguments[0][:40]!r}\n\n{help_text}", file=sys.stderr)
        return USAGE
    module, _ = SUBCOMMANDS[arguments[0]]
    module, _, function = module.partition(":")
    handler = getattr(importlib.import_module(module, __package__), function or "main")
    return int(handler(arguments[1:]))
