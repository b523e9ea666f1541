"""The policy of XIDs and SXIDs: severity and action for each code of NVIDIA's drivers.

The tables are `xid.toml` (GPUs) and `sxid.toml` (NVSwitches); each is loaded on first use. `decode.py` parses details
of a log line, and `refine` applies them to the row.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

#: Extent of an action, from small to large.
SCOPES = ("process", "gpu", "baseboard", "nvlink-domain", "host", "driver", "unknown")
#: An unknown code is shown for an hour.
UNKNOWN_SECONDS = 3600.0
#: SXIDs begin here; XIDs are far below.
SXID_CODE_MIN = 10000
#: Hazard factor of a line that is graver than its row, if the row has none.
REFINED_HAZARD_FACTOR = 50.0


class XidSeverity(StrEnum):
    """Meaning of a code for the host, gravest first."""

    FATAL = "fatal"
    HAZARD = "hazard"
    APPLICATION = "application"
    IGNORE = "ignore"
    UNKNOWN = "unknown"  # not in our table, or no longer in use: shown, never fatal


class Clears(StrEnum):
    """Event that clears a code from its device."""

    RESET = "reset"  # the GPU was reset, or the host booted
    REBOOT = "reboot"
    TIME = "time"  # `clear_seconds` after the last occurrence


@dataclass(frozen=True, slots=True)
class Companion:
    """A code of the same device that explains a code that waits for it.

    `severity` replaces the severity of the waiting row; None only adds `message`.
    """

    code: int
    message: str
    severity: XidSeverity | None = None


@dataclass(frozen=True, slots=True)
class Xid:
    """One row. `reason` is a name of ReasonCode; `hazard_factor` multiplies the hazard."""

    code: int
    name: str
    action: str
    scope: str
    severity: XidSeverity
    clears: Clears
    catalogue: str = ""
    reason: str = "NONE"
    why: str = ""
    hazard_factor: float = 1.0
    clear_seconds: float = 0.0
    mnemonic: str = ""
    investigate: str = ""
    used: bool = True
    wait_seconds: float = 0.0
    companions: tuple[Companion, ...] = ()
    cancels: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class XidAssessment:
    """Meaning of a row together with the codes that came with it.

    `waiting`: no companion has come yet and a companion may still come; until then the row has no effect.
    """

    severity: XidSeverity
    waiting: bool = False
    details: tuple[str, ...] = ()


_KEYS = frozenset(Xid.__dataclass_fields__)
#: Defaults of a row with `used = false`: its code has no known meaning.
_UNUSED: dict[str, Any] = {
    "action": "none; show it to NVIDIA if it comes again",
    "scope": "unknown",
    "severity": XidSeverity.UNKNOWN,
    "clears": Clears.TIME,
    "clear_seconds": UNKNOWN_SECONDS,
    "why": "no current driver is known to write this code",
}
_GRAVEST_FIRST = tuple(XidSeverity)


@cache
def policy() -> dict[int, Xid]:
    """Return XID -> row, read once from the package."""
    return {row.code: row for row in parse(_text("xid.toml"))}


@cache
def sxid_policy() -> dict[int, Xid]:
    """Return SXID (NVSwitch) -> row, read once from the package."""
    return {row.code: row for row in parse(_text("sxid.toml"), "sxid")}


def _text(name: str) -> str:
    # importlib.resources would cost the daemon 2 MB for reading a file beside this one.
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def lookup(code: int) -> Xid:
    """Return the row of XID *code*; a row of severity UNKNOWN if the table has none."""
    return policy().get(code) or _unknown_row(code, "read NVIDIA's XID catalogue")


def lookup_sxid(code: int) -> Xid:
    """Return the row of SXID *code*; a row of severity UNKNOWN if the table has none."""
    return sxid_policy().get(code) or _unknown_row(
        code, "read NVIDIA's Fabric Manager user guide, appendix of SXIDs"
    )


def _unknown_row(code: int, action: str) -> Xid:
    return Xid(
        code=code,
        name="a code that we have no policy for",
        action=action,
        scope="unknown",
        severity=XidSeverity.UNKNOWN,
        clears=Clears.TIME,
        clear_seconds=UNKNOWN_SECONDS,
    )


def companions(code: int) -> tuple[Companion, ...]:
    """Return the companions of XID *code*, for which it waits `lookup(code).wait_seconds`."""
    return lookup(code).companions


def assess(row: Xid, seconds_apart: Mapping[int, float], age_seconds: float) -> XidAssessment:
    """Return the present meaning of *row*.

    `seconds_apart`: other codes of the same device -> seconds between each and this code, either way. `age_seconds`:
    since this code first came. A row without companions has its own severity at once; of several companions the
    gravest decides.
    """
    matching = [
        c for c in row.companions if abs(seconds_apart.get(c.code, 1e9)) <= row.wait_seconds
    ]
    details = tuple(companion.message for companion in matching)
    decided = [c.severity for c in matching if c.severity is not None]
    if decided:
        return XidAssessment(min(decided, key=_GRAVEST_FIRST.index), details=details)
    if age_seconds < row.wait_seconds:
        return XidAssessment(XidSeverity.IGNORE, waiting=True, details=details)
    return XidAssessment(row.severity, details=details)


def refine(row: Xid, attributes: Mapping[str, str]) -> Xid:
    """Return *row* with the decoded facts of its line (`DecodedLine.attributes`) applied.

    Attributes that are missing, or that this version does not understand, change nothing.
    """
    try:
        severity = XidSeverity(attributes.get("severity", row.severity))
    except ValueError:
        severity = row.severity
    refined_row = replace(row, severity=severity, action=attributes.get("action") or row.action)
    if severity not in (XidSeverity.FATAL, XidSeverity.HAZARD):
        return replace(refined_row, hazard_factor=1.0, reason="NONE")
    factor = row.hazard_factor if row.hazard_factor > 1 else REFINED_HAZARD_FACTOR
    refined_row = replace(
        refined_row, hazard_factor=factor if severity is XidSeverity.HAZARD else 1.0
    )
    if row.reason == "NONE":
        reason = "FABRIC" if row.code >= SXID_CODE_MIN else "XID_FATAL"
        refined_row = replace(refined_row, reason=reason)
    if row.clears is Clears.TIME:
        reboot = attributes.get("recovery") == "reboot"
        clears = Clears.REBOOT if reboot else Clears.RESET
        refined_row = replace(refined_row, clears=clears, clear_seconds=0.0)
    return refined_row


def parse(text: str, table: str = "xid") -> list[Xid]:
    """Return the rows of *text*. Raises ValueError that names the code and its fault."""
    rows = [_row(entry, table) for entry in tomllib.loads(text).get(table, [])]
    codes: set[int] = set()
    for row in rows:
        if row.code in codes:
            raise ValueError(f"{table} {row.code}: is in the table twice")
        codes.add(row.code)
    return rows


def _row(entry: dict[str, Any], table: str) -> Xid:
    name = f"{table} {entry.get('code')}"
    unknown = entry.keys() - _KEYS
    if unknown:
        raise ValueError(f"{name}: unknown key {min(unknown)!r}")
    if not entry.get("used", True):
        entry = _UNUSED | entry
    try:
        row = Xid(**entry | _converted(entry))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{name}: {error}") from error
    if fault := _contradiction(row):
        raise ValueError(f"{name}: {fault}")
    return row


def _converted(entry: dict[str, Any]) -> dict[str, Any]:
    return {
        "severity": XidSeverity(entry["severity"]),
        "clears": Clears(entry["clears"]),
        "companions": tuple(_companion(one) for one in entry.get("companions", ())),
        "cancels": tuple(entry.get("cancels", ())),
    }


def _companion(entry: dict[str, Any]) -> Companion:
    severity = XidSeverity(entry["severity"]) if "severity" in entry else None
    fields: dict[str, Any] = {**entry, "severity": severity}
    return Companion(**fields)


def _contradiction(row: Xid) -> str:
    if (row.clears is Clears.TIME) != (row.clear_seconds > 0):
        return "clear_seconds goes with clears = 'time', and only with it"
    if (row.severity is XidSeverity.HAZARD) != (row.hazard_factor > 1):
        return "hazard_factor above 1 goes with severity = 'hazard'"
    if bool(row.companions) != (row.wait_seconds > 0):
        return "wait_seconds goes with companions, and only with them"
    if row.scope not in SCOPES:
        return f"scope {row.scope!r}: expected one of {', '.join(SCOPES)}"
    return ""
