"""The XID policy: what each code of NVIDIA's driver means to us. The table is `xid.toml`."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib import resources
from typing import Any


class Severity(StrEnum):
    """What a code means for the host."""

    FATAL = "fatal"
    HAZARD = "hazard"
    APPLICATION = "application"
    IGNORE = "ignore"
    UNKNOWN = "unknown"  # not in our table: shown, never fatal


class Clears(StrEnum):
    """What ends a code's hold on its device."""

    RESET = "reset"  # the GPU was reset, or the host booted
    REBOOT = "reboot"
    TIME = "time"  # `clear_seconds` after the last one


@dataclass(frozen=True, slots=True)
class Xid:
    """One row. `reason` is a name of ReasonCode; `hazard_factor` multiplies the hazard."""

    code: int
    name: str
    action: str
    scope: str
    severity: Severity
    clears: Clears
    catalogue: str = ""
    reason: str = "NONE"
    why: str = ""
    hazard_factor: float = 1.0
    clear_seconds: float = 0.0


#: An unknown code is shown for an hour.
UNKNOWN_SECONDS = 3600.0

_KEYS = frozenset(Xid.__dataclass_fields__)


@cache
def policy() -> dict[int, Xid]:
    """Return code -> row, read once from the package."""
    text = (resources.files(str(__package__)) / "xid.toml").read_text()
    return {row.code: row for row in parse(text)}


def lookup(code: int) -> Xid:
    """Return the row of *code*; a row that claims nothing where there is none."""
    known = policy().get(code)
    return known or Xid(
        code=code,
        name="a code that we have no policy for",
        action="read NVIDIA's XID catalogue",
        scope="unknown",
        severity=Severity.UNKNOWN,
        clears=Clears.TIME,
        clear_seconds=UNKNOWN_SECONDS,
    )


def parse(text: str) -> list[Xid]:
    """Return the rows of *text*. Raises ValueError that names the code and what is wrong."""
    rows = [_row(entry) for entry in tomllib.loads(text).get("xid", [])]
    codes = [row.code for row in rows]
    for code in codes:
        if codes.count(code) > 1:
            raise ValueError(f"xid {code}: stands in the table twice")
    return rows


def _row(entry: dict[str, Any]) -> Xid:
    code = entry.get("code")
    unknown = entry.keys() - _KEYS
    if unknown:
        raise ValueError(f"xid {code}: unknown key {min(unknown)!r}")
    try:
        severity, clears = Severity(entry["severity"]), Clears(entry["clears"])
        row = Xid(**entry | {"severity": severity, "clears": clears})
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"xid {code}: {error}") from error
    if (clears is Clears.TIME) != (row.clear_seconds > 0):
        raise ValueError(f"xid {code}: clear_seconds goes with clears = 'time', and only with it")
    if (severity is Severity.HAZARD) != (row.hazard_factor > 1):
        raise ValueError(f"xid {code}: hazard_factor above 1 goes with severity = 'hazard'")
    return row
