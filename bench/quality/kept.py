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
    """Pieces of one section by number, in a folder of their own; of one run and those that continue with it."""

    folder: Path
    #: Where it says no, nothing more is kept.
    is_same: Callable[[], bool] = _always

    def read(self, number: int) -> Any:
        """Return a piece; None where there is none, or none that can be read: a run may end while it writes."""
        try:
            return pickle.loads(self._path(number).read_bytes())
        except (OSError, EOFError, pickle.UnpicklingError):
            return None

    def write(self, number: int, piece: object) -> None:
        """Keep a piece, whole or not at all. Raises OSError."""
        if not self.is_same():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        new = self.folder / "new"
        new.write_bytes(pickle.dumps(piece))
        new.replace(self._path(number))

    def forget(self) -> None:
        """Begin again."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _path(self, number: int) -> Path:
        return self.folder / f"{number}.pickle"


@dataclass(frozen=True, slots=True)
class ScoreCache:
    """Sections in *folder*, each under a line that says from what it was made."""

    folder: Path
    made: ReportHead
    scenario: str
    #: Whether the tree is still that of `made`: what another one may have made is not kept under its name.
    is_same: Callable[[], bool] = _always

    def write(self, name: str, text: str) -> None:
        """Keep a section. Raises OSError."""
        if not self.is_same():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        self._path(name).write_text(f"{self._key}\n{text}")

    def read(self, name: str) -> str | None:
        """Return a section that was made from the same commit by the same command; None where there is none."""
        if not self.made.is_committed:
            return None  # changes that are not committed are not told apart
        try:
            key, _, text = self._path(name).read_text().partition("\n")
        except OSError:
            return None
        return text if key == self._key else None

    def pieces(self, name: str) -> Pieces | None:
        """Return the pieces of a section of the same commit and command; None where its changes are not committed."""
        key = sha256(self._key.encode()).hexdigest()[:12]
        folder = self.folder / f"{name}-{key}"
        return Pieces(folder, self.is_same) if self.made.is_committed else None

    @property
    def _key(self) -> str:
        made = self.made
        return f"{made.commit}, {made.command}, {self.scenario}, {made.versions}"

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.md"
