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
from ...ext import adjtimex
from ..collector import CollectOutcome
from ..config import AgentConfig
from ..hardware.files import read_bytes
from ..local import diagnosis
from ..local.diagnosis import DiagnosedHost, DiagnosisResult
from ..local.host_status import UnreadSources, group_unread
from ..local.source_reading import read_sources
from .check import FOLDERS, read_status

#: The settings of the service.
CONFIG_FILE = Path("/etc/gangline/agent.toml")
#: Colours of a terminal, by level.
COLOURS = {diagnosis.PROBLEM: "31", diagnosis.BLIND: "33", diagnosis.NOTE: "36", diagnosis.OK: "32"}
WIDTH_MAX, WIDTH_MIN = 120, 60
CHECK_WIDTH = 14


def main(arguments: list[str]) -> int:
    """Print it. 0: no problem (blind spots and notes are none); 1: a problem; 2: wrong usage."""
    options = _parser().parse_args(arguments)
    results = diagnosis.diagnose(host_of(options.config, options.run_folder))
    counts = {
        level: sum(one.level == level for one in results)
        for level in (diagnosis.PROBLEM, diagnosis.BLIND, diagnosis.NOTE, diagnosis.OK)
    }
    if options.json:
        rows = [one._asdict() for one in results]
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
    """Yield what a person reads: a line for each result, below it what to do, and the sum."""
    indent = " " * (10 + CHECK_WIDTH)
    for one in results:
        level = one.level.upper() if one.level == diagnosis.PROBLEM else one.level
        shown = f"\x1b[{COLOURS[one.level]}m{level:<8}\x1b[0m" if colours else f"{level:<8}"
        head = f"{one.check:<{CHECK_WIDTH}}"
        text = one.text if len(one.check) <= CHECK_WIDTH else f"{one.check}: {one.text}"
        text = text if len(one.check) > CHECK_WIDTH else f"{head}  {text}"
        body = textwrap.wrap(text, width - 8, subsequent_indent=indent[8:], break_on_hyphens=False)
        yield f"{shown}{body[0]}"
        yield from (f"        {line}" for line in body[1:])
        if one.remedy:
            yield f"{indent}-> {one.remedy}"  # one line, so that it can be pasted
    yield (
        f"{counts[diagnosis.PROBLEM]} problems, {counts[diagnosis.BLIND]} blind spots, "
        f"{counts[diagnosis.NOTE]} notes, {counts[diagnosis.OK]} ok"
    )


def host_of(config_file: Path | None, run_folder: str | None) -> DiagnosedHost:
    """Return this host as the checks see it: by its agent's status file, else by reading each source once."""
    config, error, file = AgentConfig(), "", config_file
    guess = file or CONFIG_FILE
    try:
        if file or guess.exists():
            config, file = load(AgentConfig, guess), guess
    except SettingsError as wrong:
        error = str(wrong)
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
    return DiagnosedHost(config, file, error, status, reason, unread, read_count, timex)


def settings_of(proc: Path, pid: int) -> Path | None:
    """Return the settings' file in the command line of a running agent; None where it has none."""
    words = (read_bytes(proc / str(pid) / "cmdline") or b"").decode(errors="replace").split("\0")
    for at, word in enumerate(words):
        name, _, value = word.partition("=")
        if name == "--config" and (value or at + 1 < len(words)):
            file = Path(value or words[at + 1])
            return file if file.is_absolute() else None
    return None


def _sources(
    config: AgentConfig, status: dict[str, Any] | None
) -> tuple[Sequence[UnreadSources], int]:
    """Return the sources that are not read, and how many are: the agent's own words where it runs."""
    if status is None:
        results = read_sources(config.roots, config.collectors_off)
        return group_unread(results), sum(one.outcome is CollectOutcome.OK for one in results)
    agent = status["agent"]
    if not agent:
        return [], 0
    rows = [
        UnreadSources(one["outcome"], one["words"], one["names"]) for one in agent["sources_unread"]
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
