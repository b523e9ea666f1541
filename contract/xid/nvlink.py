"""Decodes XID 74 and XIDs 144 to 150: link, unit and severity, from the registers of the line (xid_nvlink.toml).

The severity word of a line has priority: Nonfatal never takes a host away.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from .line_reading import LineReading, driver_major, registers
from .policy import XidSeverity

#: The first driver whose IntrInfo names the unit in bits 6 to 0.
NEWER_MAJOR = 575
#: Width of the unit in IntrInfo; the bit above promotes an error that is not fatal by itself.
OLDER_BITS, NEWER_BITS = 10, 7
#: Registers of XID 74 (Hopper).
REGISTERS_74 = 7
_MASK_32 = 0xFFFFFFFF
_LINK5 = re.compile(
    r"(?:^|[,:])\s*([A-Za-z0-9_]{2,40}(?: Degraded)?)\s+(Fatal|Non-?fatal)\s+XC\s*([0-9]{1,3})\s+"
    r"i\s*([0-9]{1,3})\s+Link\s+(-?[0-9]{1,3})\b(?:\s*[(\[]([0-9a-fx\s,]{1,200})[)\]])?",
    re.ASCII | re.IGNORECASE,
)
_LINK74 = re.compile(
    r"\blink\s+([0-9]{1,3})\s*(?:[(\[]([0-9a-fx\s,]{1,200})[)\]])?", re.ASCII | re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class NvLinkUnit:
    """A unit of NVLink 5 and the consequences of its error values; `older`, `newer`: its bits in IntrInfo."""

    xid: int
    name: str
    older_name: str
    older: int
    newer: int
    costs: dict[int, str]  # error status -> ignore, restart, reset, promoted
    any: str = ""


@dataclass(frozen=True, slots=True)
class _NvLinkFacts:
    units: tuple[NvLinkUnit, ...]
    link_down: dict[int, tuple[str, bool]]  # reason -> words, needs a reset
    bits: dict[tuple[int, int], tuple[str, str]]  # register from 0, bit -> weight, words


@cache
def nvlink_facts() -> _NvLinkFacts:
    """Return the tables of `xid_nvlink.toml`, read once."""
    text = Path(__file__).with_name("xid_nvlink.toml").read_text(encoding="utf-8")
    tables = tomllib.loads(text)
    return _NvLinkFacts(
        units=tuple(_unit(entry) for entry in tables["unit"]),
        link_down={
            reason: (entry["message"], entry.get("reset", True))
            for entry in tables["link_down"]
            for reason in entry["reason"]
        },
        bits={
            (entry["register"] - 1, bit): (entry["weight"], entry["message"])
            for entry in tables["bit"]
            for bit in entry["bits"]
        },
    )


def _unit(entry: dict[str, Any]) -> NvLinkUnit:
    costs = {
        int(status, 16): cost
        for cost in ("ignore", "restart", "reset", "promoted")
        for status in entry.get(cost, ())
    }
    return NvLinkUnit(
        xid=entry["xid"],
        name=entry["name"],
        older_name=entry.get("older_name", entry["name"]),
        older=int(entry["older"], 2),
        newer=int(entry["newer"], 2),
        costs=costs,
        any=entry.get("any", ""),
    )


def decode_nvlink5(code: int, text: str, driver_version: str, reading: LineReading) -> None:
    """Read a line of XID 144 to 150 into *reading*. Never raises."""
    match = _LINK5.search(text)
    if match is None:
        return
    fatal = match[2].lower() == "fatal"
    reading.attributes |= {
        "unit": match[1],
        "line_severity": "fatal" if fatal else "nonfatal",
        "cross_contained": "yes" if int(match[3]) else "no",
        "injected": "yes" if int(match[4]) else "no",
        "link": str(int(match[5])),
    }
    numbers = registers(match[6] or "")
    if numbers:
        reading.attributes["intrinfo"] = f"0x{numbers[0] & _MASK_32:08x}"
    if len(numbers) > 1:
        reading.attributes["error_status"] = f"0x{numbers[1] & _MASK_32:08x}"
    link = "" if int(match[5]) < 0 else f" of link {int(match[5])}"
    reading.details.append(
        f"{match[1]}{link}, which the line calls {reading.attributes['line_severity']}"
    )
    cost = _cost(code, match[1], numbers, driver_version, reading) if numbers else ""
    _set_severity(cost, reading, fatal=fatal)


def _cost(
    code: int, name: str, numbers: list[int], driver_version: str, reading: LineReading
) -> str:
    """Return the cost that the registers show: ignore, restart, reset, down, or "" if unknown."""
    intrinfo, status = numbers[0] & _MASK_32, (numbers[1] if len(numbers) > 1 else 0) & _MASK_32
    units = {
        newer: unit
        for newer in (False, True)
        for unit in nvlink_facts().units
        if unit.xid == code and _matches_unit(unit, name, intrinfo, newer=newer)
    }
    if not units:
        reading.verified = False
        reading.details.append("the catalogue does not list its bits")
        return ""
    major = driver_major(driver_version)
    stated = None if major is None else major >= NEWER_MAJOR
    reading.verified = stated is not None and stated in units
    costs = {newer: _cost_of(unit, intrinfo, status, newer=newer) for newer, unit in units.items()}
    if reading.verified and stated is not None:
        costs = {stated: costs[stated]}
    else:
        written = " or ".join("since" if newer else "before" for newer in costs)
        reading.details.append(f"read as drivers {written} R{NEWER_MAJOR} write it, unverified")
    if units[next(iter(costs))].any == "link_down":
        reading.attributes["reason"] = str(_reason_bits(intrinfo))
        reading.details.append(_link_down_reason(intrinfo)[0])
    return costs.popitem()[1] if len(set(costs.values())) == 1 else ""


def _matches_unit(unit: NvLinkUnit, name: str, intrinfo: int, *, newer: bool) -> bool:
    """Return whether *intrinfo* belongs to *unit*, in one of the two layouts, and the line's name agrees."""
    width = NEWER_BITS if newer else OLDER_BITS
    if intrinfo & ((1 << width) - 1) != (unit.newer if newer else unit.older):
        return False
    known = {
        each for u in nvlink_facts().units if u.xid == unit.xid for each in (u.name, u.older_name)
    }
    return name in (unit.name, unit.older_name) or name not in known


def _reason_bits(intrinfo: int) -> int:
    return intrinfo >> 20 & 0x3F


def _link_down_reason(intrinfo: int) -> tuple[str, bool]:
    """Return the reason for which a link went down, as text, and whether it needs a reset."""
    return nvlink_facts().link_down.get(
        _reason_bits(intrinfo), ("for a reason that the catalogue lacks", True)
    )


def _cost_of(unit: NvLinkUnit, intrinfo: int, status: int, *, newer: bool) -> str:
    if unit.any == "link_down":
        return "reset" if _link_down_reason(intrinfo)[1] else "down"
    if _reason_bits(intrinfo):
        return ""  # the catalogue lists every other unit with 0 only
    cost = unit.any or unit.costs.get(status, "")
    if cost == "promoted":
        return "reset" if intrinfo >> (NEWER_BITS if newer else OLDER_BITS) & 1 else "ignore"
    return cost


def _set_severity(cost: str, reading: LineReading, *, fatal: bool) -> None:
    """Set severity and action from the catalogue's cost and from the line's own severity."""
    if cost:
        reading.attributes["catalogue"] = cost
    if cost == "reset" and fatal:
        reading.severity = XidSeverity.FATAL
        reading.action = "drain and reset the GPU"
    elif cost in ("", "down"):
        reading.severity = XidSeverity.HAZARD
    elif fatal or cost == "reset":
        reading.severity = XidSeverity.HAZARD
        reading.details.append("the line and the catalogue disagree on how bad it is")
    elif cost == "restart":
        reading.severity = XidSeverity.APPLICATION
        reading.action = "restart the application, unless XID 154 beside it asks for more"
    else:
        reading.severity = XidSeverity.IGNORE
        reading.action = "none; the link's counters show whether it continues"


def decode_xid74(text: str, reading: LineReading) -> None:
    """Read a line of XID 74 into *reading*: link and registers. Never raises."""
    match = _LINK74.search(text)
    if match is None:
        return
    reading.attributes["link"] = str(int(match[1]))
    reading.details.append(f"link {int(match[1])}")
    numbers = registers(match[2] or "")
    if len(numbers) != REGISTERS_74:
        return
    weights = set()
    for register, value in enumerate(numbers):
        for bit in (b for b in range(32) if value >> b & 1):
            weight, meaning = nvlink_facts().bits.get(
                (register, bit), ("unknown", "not in the catalogue")
            )
            weights.add(weight)
            reading.details.append(f"register {register + 1} bit {bit}: {meaning}")
    reading.attributes["registers"] = " ".join(f"0x{n & _MASK_32:x}" for n in numbers)
    reading.attributes["weight"] = " ".join(sorted(weights)) or "none"
    if weights == {"ignore"}:
        reading.severity = XidSeverity.IGNORE
        reading.action = "none; the link's counters show whether it continues"
