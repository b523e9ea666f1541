"""Head of the page: how it was made, from which data, what is left out, and what replaces that."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

#: What figures may depend on.
PACKAGES = ("numpy", "duckdb", "protobuf", "grpcio", "pyarrow")
#: Where recordings are looked for, beside the checkout.
DATA_TEXT = "../shared/data"


@dataclass(frozen=True, slots=True)
class ReportHead:
    """When, from what, and with what a page was made."""

    date: str
    commit: str
    seed: int
    command: str
    versions: str

    @classmethod
    def now(cls, seed: int, command: str, root: Path) -> ReportHead:
        """Return this run's. Never raises: what cannot be known is said to be unknown."""
        date = datetime.now(UTC).date().isoformat()
        return cls(date, commit_of(root), seed, command, versions())

    @property
    def is_committed(self) -> bool:
        """Whether its commit says all of what it was made from."""
        return " " not in self.commit


class Tree:
    """The checkout that a run is made from. Agents and aggregators start from it as it is at their time, hours later."""

    def __init__(self, root: Path, commit: str) -> None:
        self._root, self._commit = root, commit
        #: What it was found to be later; "": still what it was.
        self.later = ""

    def is_same(self) -> bool:
        """Look, and say whether it is what it was at each check so far. Never raises."""
        if not self.later and (now := commit_of(self._root)) != self._commit:
            self.later = now
        return not self.later


@dataclass(frozen=True, slots=True)
class Section:
    """One part of the page, and the files that it cannot do without."""

    name: str
    title: str
    needed: tuple[tuple[Path, str], ...] = ()  # (file, what it is and whose)

    @property
    def missing(self) -> tuple[tuple[Path, str], ...]:
        """Those that are not here."""
        return tuple(one for one in self.needed if not one[0].exists())

    @property
    def is_left_out(self) -> bool:
        """Whether none of them is here."""
        return bool(self.needed) and len(self.missing) == len(self.needed)


def head(made: ReportHead, sections: Sequence[Section], later: str = "") -> str:
    """Return what the page begins with. *later*: the commit that its tree was found to be at before it was done, if another."""
    left_out = [f"**{one.title}**" for one in sections if one.is_left_out]
    partly = [f"**{one.title}**" for one in sections if one.missing and not one.is_left_out]
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
        *(one for one in facts if one),
    ]
    return "\n".join(lines) + "\n"


def changed(later: str) -> str:
    """Return what to say where the tree became *later* during the run; "" for where it did not."""
    if not later:
        return ""
    return f"**The tree changed while this was made**, to {later}. Later parts may be from either commit, and are not kept. Make the page again."


def left_out(one: Section) -> str:
    """Return what stands in place of a section whose recordings are not here: why, and what to do."""
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
    """Return what to add to a section that some recordings are missing of; "" for none."""
    if not one.missing or one.is_left_out:
        return ""
    files = [f"- `{_path_text(path)}`: {what}" for path, what in one.missing]
    return "\n".join(["Not here when this was made, and so not included:", *files, ""])


def _path_text(path: Path) -> str:
    """Return how a recording's path is shown: from the checkout, not from this machine's root."""
    parts = path.parts
    return "/".join(parts[parts.index("..") :]) if ".." in parts else path.name


def versions() -> str:
    """Return the versions of what figures may depend on, and the cores."""
    found = [f"Python {platform.python_version()}"]
    for name in PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"no {name}")
    return f"{', '.join(found)}, on {os.cpu_count()} cores"


def commit_of(root: Path) -> str:
    """Return the commit that is checked out at *root*, and whether files are not as in it."""
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
