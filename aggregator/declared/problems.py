"""What is wrong with what was declared: where, what, and what would be right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, time
from typing import NamedTuple

from .limits import PROBLEMS_COUNTED_MAX, PROBLEMS_MAX

#: Of a value that is quoted in words.
_SHOWN_CHARACTERS_MAX = 60


class Where(NamedTuple):
    """A place in a file; line 0: not known."""

    file: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


class DeclaredError(ValueError):
    """Nothing of it is taken. `problems`: each with file and line, the first PROBLEMS_MAX of them."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


@dataclass(slots=True)
class Problems:
    """Collects what is wrong and what is odd, so that one look at the files mends all of it."""

    found: list[str] = field(default_factory=list[str])
    #: Allowed, but hardly meant: told by `gangline declared check`.
    notes: list[str] = field(default_factory=list[str])
    left_out: int = 0
    #: A file was not read to its end.
    was_cut: bool = False

    def add(self, where: Where, words: str | Callable[[], str]) -> None:
        """Take a problem down. *words*: or what makes them, where that takes long and many may be left out."""
        if len(self.found) < PROBLEMS_MAX:
            self.found.append(f"{where}: {words if isinstance(words, str) else words()}")
        else:
            self.left_out += 1

    def cut(self) -> bool:
        """Say whether there are so many that a file is not read to its end, which is told."""
        self.was_cut = self.was_cut or self.left_out >= PROBLEMS_COUNTED_MAX
        return self.was_cut

    def note(self, where: Where, words: str) -> None:
        """Take down what is odd."""
        if len(self.notes) < PROBLEMS_MAX:
            self.notes.append(f"{where}: {words}")

    def raise_any(self) -> None:
        """Raise DeclaredError if there is a problem."""
        if self.found:
            rest = ", where reading stopped" if self.was_cut else ""
            more = [f"and {self.left_out:,} more{rest}"] if self.left_out else []
            raise DeclaredError(self.found + more)


def shown(value: object) -> str:
    """Return *value* as words bear it: quoted, printable, not too long."""
    try:
        text = value.isoformat() if isinstance(value, date | time) else ascii(value)
    except ValueError:  # a whole number of thousands of digits, as TOML takes it in hexadecimal
        text = "so many digits"
    return (
        text if len(text) <= _SHOWN_CHARACTERS_MAX else f"{text[: _SHOWN_CHARACTERS_MAX - 1]}\u2026"
    )
