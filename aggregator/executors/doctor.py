"""Output of `gangline executor SCHEDULER doctor`: one line per check."""

from __future__ import annotations

from dataclasses import dataclass

OK, NOTE, SLOW, MISSING = "ok", "note", "slow", "missing"


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """One line: how grave, what is so, and what to do."""

    level: str
    text: str
