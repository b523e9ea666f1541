"""What `gangline executor SCHEDULER doctor` prints: one line for each finding."""

from __future__ import annotations

from dataclasses import dataclass

OK, NOTE, SLOW, MISSING = "ok", "note", "slow", "missing"


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """One line: how grave, what is so, and what to do."""

    level: str
    text: str
