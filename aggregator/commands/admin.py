"""`gangline admin`: a table of what keeps an aggregator over the years, each imported when it is called."""

from __future__ import annotations

import importlib
import sys

from ...cli import OK, USAGE

#: Subcommand -> (module with `main(arguments) -> exit code`, what it does).
SUBCOMMANDS: dict[str, tuple[str, str]] = {
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
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_help())
        return OK if arguments else USAGE
    if arguments[0] not in SUBCOMMANDS:
        print(f"gangline admin: no command {arguments[0][:40]!r}\n\n{_help()}", file=sys.stderr)
        return USAGE
    module, _ = SUBCOMMANDS[arguments[0]]
    return int(importlib.import_module(module, __package__).main(arguments[1:]))


def _help() -> str:
    rows = [f"  {name:<9} {what}" for name, (_, what) in SUBCOMMANDS.items()]
    return "\n".join(
        (
            "usage: gangline admin COMMAND [--help] ...",
            "",
            *rows,
            "",
            "On the aggregator's own machine, as the user that it runs as (or root).",
            "exit codes: 0 done, 1 failed, 2 wrong usage, 3 no aggregator answers",
        )
    )
