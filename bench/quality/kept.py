"""Sections that were made before: the page of an hour need not begin anew when its run was cut off."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .head import Made


@dataclass(frozen=True, slots=True)
class Kept:
    """Sections in *folder*, each under a line that says from what it was made."""

    folder: Path
    made: Made
    scenario: str

    def write(self, name: str, text: str) -> None:
        """Keep a section. Raises OSError."""
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

    @property
    def _key(self) -> str:
        made = self.made
        return f"{made.commit}, {made.command}, {self.scenario}, {made.versions}"

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.md"
