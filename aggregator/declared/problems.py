"""Problems in declaration files: each with its line, up to a maximum number."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import date, time
from typing import NamedTuple

from ...contract.topology import NAME_CHARACTERS_MAX
from .limits import PROBLEMS_COUNTED_MAX, PROBLEMS_MAX

#: Maximum length of a quoted value.
_SHOWN_CHARACTERS_MAX = 60


class SourceLocation(NamedTuple):
    """A location in a file; line 0: unknown."""

    file: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


class DeclaredError(ValueError):
    """The declaration is rejected. `problems`: the first PROBLEMS_MAX, with file and line."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


@dataclass(slots=True)
class Problems:
    """Collects errors and oddities, so that an operator can fix all at once."""

    found: list[str] = field(default_factory=list)
    #: Allowed, but hardly intended: `gangline admin declared check` reports it.
    notes: list[str] = field(default_factory=list)
    omitted: int = 0
    is_truncated: bool = False
    #: Number of hosts in the sets of all entries so far.
    named_hosts: int = 0

    def add(self, where: SourceLocation, message: str | Callable[[], str]) -> None:
        """Record a problem. *message*: text, or a function for costly texts."""
        if len(self.found) < PROBLEMS_MAX:
            self.found.append(f"{where}: {message if isinstance(message, str) else message()}")
        else:
            self.omitted += 1

    def should_stop(self) -> bool:
        """Return whether PROBLEMS_COUNTED_MAX is reached; parsing then stops."""
        self.is_truncated = self.is_truncated or self.omitted >= PROBLEMS_COUNTED_MAX
        return self.is_truncated

    def note(self, where: SourceLocation, message: str) -> None:
        """Record an oddity."""
        if len(self.notes) < PROBLEMS_MAX:
            self.notes.append(f"{where}: {message}")

    def raise_any(self) -> None:
        """Raise DeclaredError if there is a problem."""
        if self.found:
            rest = ", where reading stopped" if self.is_truncated else ""
            more = [f"and {self.omitted:,} more{rest}"] if self.omitted else []
            raise DeclaredError(self.found + more)


def quote_value(value: object) -> str:
    """Return *value* for a message: quoted, printable, and shortened."""
    try:
        text = value.isoformat() if isinstance(value, date | time) else ascii(value)
    except ValueError:  # an integer of thousands of digits, which TOML accepts in hexadecimal
        text = "a number of thousands of digits"
    return (
        text if len(text) <= _SHOWN_CHARACTERS_MAX else f"{text[: _SHOWN_CHARACTERS_MAX - 1]}\u2026"
    )


def suggest_key(key: str, known: Iterable[str]) -> str:
    """Return a suggestion for *key*, or the known keys."""
    names = list(known)
    matches = difflib.get_close_matches(key[:NAME_CHARACTERS_MAX], names, 1)
    return f"did you mean {matches[0]}?" if matches else f"there are {', '.join(names)}"
