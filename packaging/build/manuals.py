"""Generates man pages and completion for bash, zsh and fish from the commands' parsers.

    python3.13 packaging/build/manuals.py FOLDER      # with gangline, argparse-manpage and shtab importable

Writes to FOLDER/PACKAGE/usr/share/...: the page of a command belongs to the command's package; `gangline(1)` and completion
belong to the runtime package.
"""

from __future__ import annotations

import argparse
import gzip
import importlib
import re
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

#: Shell -> file in which the shell looks for completion.
COMPLETION = {
    "bash": "usr/share/bash-completion/completions/gangline",
    "zsh": "usr/share/zsh/vendor-completions/_gangline",
    "fish": "usr/share/fish/vendor_completions.d/gangline.fish",
}
#: File for the zsh of RHEL.
ZSH_OF_RHEL = "usr/share/zsh/site-functions/_gangline"


def parsers() -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    """Yield (words, one-line description, parser) for each command and subcommand."""
    from gangline import cli
    from gangline.aggregator.commands import admin

    rows = [(name, where, line) for name, (where, _, line) in cli.COMMANDS.items()]
    rows += [
        (f"admin {name}", f".aggregator.commands{where}", line)
        for name, (where, line) in admin.SUBCOMMANDS.items()
    ]
    rows.append(("agent status", ".agent.commands.agent_status", "the state of this host's agent"))
    for name, where, line in rows:
        if name == "admin":
            continue  # each of its subcommands has a parser
        module_name, _, function = where.partition(":")
        module = importlib.import_module(f"gangline{module_name}")
        maker = f"_{function.removesuffix('_main')}_parser" if function else "_parser"
        yield name, line, check_parser(module) if name == "check" else getattr(module, maker)()


def check_parser(module: Any) -> argparse.ArgumentParser:
    """Return a parser for `gangline check`, made from its usage text.

    The command itself does without argparse, whose import would take longer in each prolog than the check.
    """
    head, _, rest = module.USAGE.partition("\n\n")
    description, _, rest = rest.partition("\n\n")
    options, _, epilog = rest.partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="gangline check",
        usage=head.removeprefix("usage: "),
        description=description,
        epilog=epilog,
    )
    for match in re.finditer(
        r"^  (--[\w-]+)(?: ([A-Z]+))?\s+(.+(?:\n {6,}.+)*)", options, re.MULTILINE
    ):
        name, metavar, text = match[1], match[2], " ".join(match[3].split())
        if metavar is None:
            parser.add_argument(name, action="store_true", help=text)
        else:
            choices = module.PURPOSES if metavar == "PURPOSE" else None
            parser.add_argument(name, metavar=metavar, choices=choices, help=text)
    return parser


def page_name(words: str) -> str:
    """Return the name of a command's page, such as gangline-admin-backup."""
    return f"gangline-{words.replace(' ', '-')}"


def _roff(text: str) -> str:
    """Return *text* for a page: roff's special characters are escaped, and each sentence begins a new line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    lines = [part for line in lines for part in re.split(r"(?<=[a-z)`][.;:?!]) +", line)]
    lines = [part for line in lines for part in textwrap.wrap(line, 72, break_on_hyphens=False)]
    lines = [line.replace("\\", r"\e").replace("-", r"\-") for line in lines]
    return "\n".join(f"\\&{line}" if line[0] in ".'" else line for line in lines)


def page(words: str, line: str, parser: argparse.ArgumentParser, epoch: int) -> str:
    """Return the man page of a command, in man(7) format."""
    parts = [_head(page_name(words), line, epoch), ".SH SYNOPSIS", ".nf"]
    formatter = argparse.HelpFormatter(parser.prog, width=78)
    formatter.add_usage(parser.usage, parser._actions, parser._mutually_exclusive_groups, "")
    parts += [_roff_lines(formatter.format_help()), ".fi"]
    if parser.description:
        parts += [".SH DESCRIPTION", _roff(parser.description % {"prog": parser.prog})]
    options = [
        row for group in parser._action_groups for row in _options(parser, group._group_actions)
    ]
    if options:
        parts += [".SH OPTIONS", *options]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, sub in action.choices.items():
                parts += [f".SS {_roff(f'{parser.prog} {name}')}"]
                parts += [
                    row
                    for group in sub._action_groups
                    for row in _options(sub, group._group_actions)
                ]
    if parser.epilog:
        parts += [".SH NOTES", _roff(parser.epilog % {"prog": parser.prog})]
    parts += [".SH SEE ALSO", ".BR gangline (1)"]
    return "\n".join(parts) + "\n"


def _roff_lines(text: str) -> str:
    """Return *text* escaped for roff, with its lines unchanged."""
    return "\n".join(
        line.replace("\\", r"\e").replace("-", r"\-") for line in text.rstrip().splitlines()
    )


def _head(name: str, line: str, epoch: int) -> str:
    date = time.strftime("%Y-%m-%d", time.gmtime(epoch))
    return f'.TH {name.upper()} 1 "{date}" Gangline "Gangline"\n.SH NAME\n{_roff(name)} \\-\n{_roff(line)}'


def _options(parser: argparse.ArgumentParser, actions: list[argparse.Action]) -> Iterator[str]:
    """Yield a paragraph for each argument that is not suppressed."""
    formatter = parser._get_formatter()
    for action in actions:
        if action.help == argparse.SUPPRESS or isinstance(action, argparse._SubParsersAction):
            continue
        shown = formatter._format_action_invocation(action)
        text = formatter._expand_help(action) if action.help else ""
        yield f".TP\n.B {_roff(shown)}\n{_roff(text)}".rstrip()


def overview(rows: list[tuple[str, str]], epoch: int) -> str:
    """Return the page gangline(1), with a line for each command."""
    from gangline import cli

    codes = {cli.OK: "success", cli.FAILED: "it failed, with a message", cli.USAGE: "wrong usage"}
    codes |= {cli.NO_ANSWER: "nobody answers", cli.NOT_FOUND: "there is no such thing"}
    parts = [_head("gangline", "health of a GPU fleet", epoch), ".SH SYNOPSIS", ".B gangline"]
    parts += [".I COMMAND", "[ARGUMENT ...]", ".SH COMMANDS"]
    for words, line in sorted(rows):
        parts += [".TP", f".BR {_roff(page_name(words))} (1)", _roff(line)]
    parts.append(".SH EXIT STATUS")
    parts += [part for code, text in codes.items() for part in (".TP", f".B {code}", _roff(text))]
    return "\n".join(parts) + "\n"


def whole_parser(found: list[tuple[str, str, argparse.ArgumentParser]]) -> argparse.ArgumentParser:
    """Return a parser that has all commands as subcommands, for completion."""
    root = argparse.ArgumentParser(prog="gangline", description="health of a GPU fleet")
    commands = root.add_subparsers()
    nested: dict[str, Any] = {}
    for words, line, parser in found:
        first, _, second = words.partition(" ")
        if second and first not in nested:
            group = commands.choices.get(first) or commands.add_parser(first, help=first)
            nested[first] = group.add_subparsers()
        target = nested[first] if second else commands
        target.add_parser(second or first, help=line.replace("%", "%%"))
        target.choices[second or first] = parser
    return root


def package_of(parser_module: str) -> str:
    return "gangline-agent" if parser_module.startswith("gangline.agent") else "gangline-aggregator"


def write_all(to: Path, epoch: int) -> list[Path]:
    """Write pages and completion below *to*; return the paths of the pages."""
    import shtab

    from gangline import cli

    found = list(parsers())
    pages = []
    for words, line, parser in found:
        where = cli.COMMANDS[words.partition(" ")[0]][0]
        pages.append(
            _write(
                to / package_of(f"gangline{where}"),
                page_name(words),
                page(words, line, parser, epoch),
            )
        )
    rows = [(words, line) for words, line, _ in found]
    pages.append(_write(to / "gangline-runtime", "gangline", overview(rows, epoch)))
    root = whole_parser(found)
    for shell, name in COMPLETION.items():
        text = shtab.complete(root, shell)
        for each in (name, *([ZSH_OF_RHEL] if shell == "zsh" else ())):
            file = to / "gangline-runtime" / each
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
    return pages


def _write(root: Path, name: str, text: str) -> Path:
    file = root / "usr" / "share" / "man" / "man1" / f"{name}.1.gz"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    return file


if __name__ == "__main__":
    write_all(Path(sys.argv[1]), int(sys.argv[2]))
