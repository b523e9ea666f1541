"""Cache of finished sections, so that an interrupted run of hours resumes."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from .head import ReportHead


def _always() -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Pieces:
    """Numbered pieces of one section, shared by a run and the runs that resume it."""

    folder: Path
    #: While it returns False, nothing more is stored.
    is_same: Callable[[], bool] = _always

    def read(self, number: int) -> Any:
        """Return a piece; None if it is missing or unreadable: a run may end during a write."""
        try:
            return pickle.loads(self._path(number).read_bytes())
        except (OSError, EOFError, pickle.UnpicklingError):
            return None

    def write(self, number: int, piece: object) -> None:
        """Store a piece atomically. Raises OSError."""
        if not self.is_same():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        new = self.folder / "new"
        new.write_bytes(pickle.dumps(piece))
        new.replace(self._path(number))

    def forget(self) -> None:
        """Delete all pieces."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _path(self, number: int) -> Path:
        return self.folder / f"{number}.pickle"


@dataclass(frozen=True, slots=True)
class ScoreCache:
    """Sections in *folder*, each below a line that names its source."""

    folder: Path
    made: ReportHead
    scenario: str
    #: Whether the tree is still that of `made`: other sections are not stored under its name.
    is_same: Callable[[], bool] = _always

    def write(self, name: str, text: str) -> None:
        """Store a section. Raises OSError."""
        if not self.is_same():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        self._path(name).write_text(f"{self._key}\n{text}")

    def read(self, name: str) -> str | None:
        """Return a section that was made from the same commit by the same command; None if missing."""
        if not self.made.is_committed:
            return None  # uncommitted changes cannot be distinguished
        try:
            key, _, text = self._path(name).read_text().partition("\n")
        except OSError:
            return None
        return text if key == self._key else None

    def pieces(self, name: str) -> Pieces | None:
        """Return the pieces of a section of this commit and command.

        None with uncommitted changes.
        """
        key = sha256(self._key.encode()).hexdigest()[:12]
        folder = self.folder / f"{name}-{key}"
        return Pieces(folder, self.is_same) if self.made.is_committed else None

    @property
    def _key(self) -> str:
        head = self.made
        return f"{head.commit}, {head.command}, {self.scenario}, {head.versions}"

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.md"
