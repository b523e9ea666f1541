"""`gangline doctor`: what the agent can read on this host, what it cannot, and how to enable it."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ...cli import FAILED, OK, json_object
from ...contract.settings import SettingsError, load
from ...contract.text import counted
from ...ext import adjtimex
from ..collector import CollectOutcome
from ..config import AgentConfig
from ..hardware.files import read_bytes
from ..local import diagnosis
from ..local.diagnosis import DiagnosedHost, DiagnosisResult
from ..local.self_status import UnreadSources, group_unread
from ..local.source_reading import read_sources
from .check import FOLDERS, read_status

#: The service's settings file.
CONFIG_FILE = Path("/etc/gangline/agent.toml")
#: Level -> terminal color.
COLOURS = {diagnosis.PROBLEM: "31", diagnosis.BLIND: "33", diagnosis.NOTE: "36", diagnosis.OK: "32"}
WIDTH_MAX, WIDTH_MIN = 120, 60
CHECK_WIDTH = 14


def main(arguments: list[str]) -> int:
    """Print the diagnosis. Returns 1 for a problem, else 0, also with blind spots and notes."""
    options = _parser().parse_args(arguments)
    results = diagnosis.diagnose(host_of(options.config, options.run_folder))
    counts = {
        level: sum(result.level == level for result in results)
        for level in (diagnosis.PROBLEM, diagnosis.BLIND, diagnosis.NOTE, diagnosis.OK)
    }
    if options.json:
        rows = [result._asdict() for result in results]
        print(json_object({"counts": counts, "results": rows}))
    else:
        columns = shutil.get_terminal_size((WIDTH_MAX, 24)).columns
        width = max(WIDTH_MIN, min(columns, WIDTH_MAX))
        colours = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        print("\n".join(lines(results, counts, width, colours=colours)))
    return FAILED if counts[diagnosis.PROBLEM] else OK


def lines(
    results: Sequence[DiagnosisResult], counts: dict[str, int], width: int, *, colours: bool = False
) -> Iterator[str]:
    """Yield the lines for a person: each result with its remedy, and the counts."""
    indent = " " * (10 + CHECK_WIDTH)
    for result in results:
        level = result.level.upper() if result.level == diagnosis.PROBLEM else result.level
        shown = f"\x1b[{COLOURS[result.level]}m{level:<8}\x1b[0m" if colours else f"{level:<8}"
        head = f"{result.check:<{CHECK_WIDTH}}"
        text = result.text if len(result.check) <= CHECK_WIDTH else f"{result.check}: {result.text}"
        text = text if len(result.check) > CHECK_WIDTH else f"{head}  {text}"
        body = textwrap.wrap(text, width - 8, subsequent_indent=indent[8:], break_on_hyphens=False)
        yield f"{shown}{body[0]}"
        yield from (f"        {line}" for line in body[1:])
        if result.remedy:
            yield f"{indent}-> {result.remedy}"  # not wrapped, so that it can be pasted
    nouns = {diagnosis.PROBLEM: "problem", diagnosis.BLIND: "blind spot", diagnosis.NOTE: "note"}
    named = (counted(counts[level], noun) for level, noun in nouns.items())
    yield f"{', '.join(named)}, {counts[diagnosis.OK]} ok"


def host_of(config_file: Path | None, run_folder: str | None) -> DiagnosedHost:
    """Return this host from the agent's status file, else by reading each source once."""
    config, error, file = AgentConfig(), "", config_file
    guess = file or CONFIG_FILE
    try:
        if file or guess.exists():
            config, file = load(AgentConfig, guess), guess
    except SettingsError as wrong:
        error = str(wrong)
    except OSError as denied:
        error = f"{denied.filename}: {denied.strerror}; run this as root, or as the agent's user"
    folders = (run_folder,) if run_folder else (config.run_folder, *FOLDERS)
    status, reason = read_status(tuple(filter(None, folders)))
    if file is None and status is not None and status["agent"]:
        file = settings_of(config.proc_root, status["agent"]["pid"])
        try:
            config = load(AgentConfig, file) if file else config
        except SettingsError as wrong:
            error = str(wrong)
    unread, read_count = _sources(config, status)
    timex = adjtimex.read if config.roots.is_this_machine else None
    return DiagnosedHost(
        config=config,
        config_file=file,
        config_error=error,
        status=status,
        no_agent_reason=reason,
        unread=unread,
        read_count=read_count,
        timex=timex,
    )


def settings_of(proc: Path, pid: int) -> Path | None:
    """Return the settings file in a running agent's command line, or None."""
    parts = (read_bytes(proc / str(pid) / "cmdline") or b"").decode(errors="replace").split("\0")
    for index, part in enumerate(parts):
        name, _, value = part.partition("=")
        if name == "--config" and (value or index + 1 < len(parts)):
            file = Path(value or parts[index + 1])
            return file if file.is_absolute() else None
    return None


def _sources(
    config: AgentConfig, status: dict[str, Any] | None
) -> tuple[Sequence[UnreadSources], int]:
    """Return the unread sources and the number of read ones, from the agent if it runs."""
    if status is None:
        results = read_sources(config.roots, config.collectors_off)
        return group_unread(results), sum(result.outcome is CollectOutcome.OK for result in results)
    agent = status["agent"]
    if not agent:
        return [], 0
    rows = [
        UnreadSources(source["outcome"], source["message"], source["names"])
        for source in agent["sources_unread"]
    ]
    return rows, agent["sources_well"]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gangline doctor",
        description="Shows what the agent of this host can and cannot read, how to give it access, and what is wrong: settings, "
        "connection, certificate, disk, clock, GPUs and their driver, capabilities, SELinux. If an agent runs, reads its "
        "status file; otherwise reads each source once, which takes a second.",
        epilog="levels: ok; note; blind: a source exists and the agent may not read it; problem. "
        "exit codes: 0 no problem, 1 a problem, 2 wrong usage",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        help=f"the agent's settings (default: {CONFIG_FILE}, else those of the running agent)",
    )
    parser.add_argument(
        "--run-folder",
        metavar="FOLDER",
        help=f"the agent's folder (default: as set, {' or '.join(FOLDERS)})",
    )
    return parser
