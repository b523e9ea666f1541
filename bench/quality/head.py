"""Head of the page: how it was made, from which data, the sections left out, and their replacement
text.
"""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

#: Packages that figures may depend on.
PACKAGES = ("numpy", "duckdb", "protobuf", "grpcio", "pyarrow")
#: Folder of recordings, beside the checkout.
DATA_TEXT = "../shared/data"


@dataclass(frozen=True, slots=True)
class ReportHead:
    """Date, source and command of a page."""

    date: str
    commit: str
    seed: int
    command: str
    versions: str

    @classmethod
    def now(cls, seed: int, command: str, root: Path) -> ReportHead:
        """Return the head of this run. Never raises: a missing fact is reported as unknown."""
        date = datetime.now(UTC).date().isoformat()
        return cls(date, commit_of(root), seed, command, versions())

    @property
    def is_committed(self) -> bool:
        """Whether the commit describes all of the source."""
        return " " not in self.commit


class Tree:
    """The checkout of a run. Agents and aggregators start from its files hours later."""

    def __init__(self, root: Path, commit: str) -> None:
        self._root, self._commit = root, commit
        #: A later commit or change found during the run; "": unchanged.
        self.later = ""

    def is_same(self) -> bool:
        """Check the tree; return whether it was unchanged at each check so far. Never raises."""
        if not self.later and (now := commit_of(self._root)) != self._commit:
            self.later = now
        return not self.later


@dataclass(frozen=True, slots=True)
class Section:
    """One part of the page, and its required files."""

    name: str
    title: str
    needed: tuple[tuple[Path, str], ...] = ()  # (file, content and source)

    @property
    def missing(self) -> tuple[tuple[Path, str], ...]:
        """Return the required files that do not exist."""
        return tuple(needed for needed in self.needed if not needed[0].exists())

    @property
    def is_left_out(self) -> bool:
        """Whether no required file exists."""
        return bool(self.needed) and len(self.missing) == len(self.needed)


def head(made: ReportHead, sections: Sequence[Section], later: str = "") -> str:
    """Return the start of the page.

    *later*: another commit of its tree, found before the page was complete.
    """
    left_out = [f"**{section.title}**" for section in sections if section.is_left_out]
    partly = [
        f"**{section.title}**"
        for section in sections
        if section.missing and not section.is_left_out
    ]
    facts = [
        changed(later),
        f"Left out here, because their recordings are not there: {', '.join(left_out)}." if left_out else "",
        f"Made from a part of their recordings: {', '.join(partly)}." if partly else "",
    ]  # fmt: skip
    lines = [
        "# How good it is",
        "",
        f"Made on {made.date} from commit {made.commit} by `{made.command}` (seed {made.seed}), with {made.versions}. Do not edit this page by hand.",
        "Real data, injected faults and simulation have separate sections, because they show different things. Each section says what was tuned on which data.",
        "What a score means is in [health](health.md), the model of hazard in [hazard](hazard.md), the simulated fleet in [simulation](simulation.md).",
        f"The real recordings belong to others and are not part of the project. `make evaluate` reads them from `{DATA_TEXT}`. Without them it names the section",
        "that it leaves out, and makes the others. The injected and simulated parts need only what `make` installs.",
        *(fact for fact in facts if fact),
    ]
    return "\n".join(lines) + "\n"


def changed(later: str) -> str:
    """Return the notice that the tree changed to *later* during the run; "" without a change."""
    if not later:
        return ""
    return f"**The tree changed while this was made**, to {later}. Later parts may be from either commit, and are not kept. Make the page again."


def left_out(one: Section) -> str:
    """Return the text in place of a section without recordings: the reason, and how to get them."""
    files = [f"- `{_path_text(path)}`: {what}" for path, what in one.missing]
    return "\n".join(
        [
            f"## {one.title}",
            "",
            "**Left out**: the machine that made this page has none of the recordings of this section. Put them beside the checkout, where they are searched for,",
            f"and run `python -m bench.quality --only {one.name}` for this section, or `make evaluate` for the page:",
            "",
            *files,
            "",
        ]
    )  # fmt: skip


def not_here(one: Section) -> str:
    """Return the notice for a section with some missing recordings; "" for none."""
    if not one.missing or one.is_left_out:
        return ""
    files = [f"- `{_path_text(path)}`: {what}" for path, what in one.missing]
    return "\n".join(["Not here when this was made, and so not included:", *files, ""])


def _path_text(path: Path) -> str:
    parts = path.parts
    return "/".join(parts[parts.index("..") :]) if ".." in parts else path.name


def versions() -> str:
    """Return the versions of PACKAGES and the number of cores."""
    result = [f"Python {platform.python_version()}"]
    for name in PACKAGES:
        try:
            result.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            result.append(f"no {name}")
    return f"{', '.join(result)}, on {os.cpu_count()} cores"


def commit_of(root: Path) -> str:
    """Return the commit of the checkout at *root*, and whether files differ from it."""
    commit = _git(root, "rev-parse", "--short=12", "HEAD")
    if not commit:
        return "unknown (no git checkout)"
    changed = _git(root, "status", "--porcelain", "--untracked-files=no", "--", ":!docs/quality.md")
    return f"{commit} with changes that are not committed" if changed else commit


def _git(root: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()
