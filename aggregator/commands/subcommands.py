"""Commands of commands: each imported when it is called."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence

from ...cli import OK, USAGE

#: Subcommand -> (module of this folder with `main(arguments) -> exit code`, what it does).
Table = Mapping[str, tuple[str, str]]


def run(command: str, table: Table, arguments: list[str], notes: Sequence[str]) -> int:
    """Run one subcommand of `gangline` *command* and return its exit code. *notes* end the help."""
    help_text = "\n".join(
        (
            f"usage: gangline {command} COMMAND [--help] ...",
            "",
            *(f"  {name:<9} {what}" for name, (_, what) in table.items()),
            "",
            *notes,
        )
    )
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(help_text)
        return OK if arguments else USAGE
    if arguments[0] not in table:
        print(
            f"gangline {command}: no command {arguments[0][:40]!r}\n\n{help_text}", file=sys.stderr
        )
        return USAGE
    module, _ = table[arguments[0]]
    return int(importlib.import_module(module, __package__).main(arguments[1:]))
