"""Facts that a decoder has read from a driver's line, and helpers that the decoders share."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from .policy import XidSeverity

#: The rest of a longer line is ignored. The kernel's own limit is about 1,000 (LOG_LINE_MAX).
MESSAGE_CHARACTERS_MAX = 2048
_HEX = re.compile(r"0x([0-9a-f]{1,16})", re.ASCII | re.IGNORECASE)
_MAJOR = re.compile(r"\s*([0-9]{3,4})(?:\.|\s*$)", re.ASCII)


@dataclass(slots=True)
class LineReading:
    """Result of one decoder. `severity` and `action` stay None if the line does not change them."""

    attributes: dict[str, str] = field(default_factory=dict)
    details: list[str] = field(default_factory=list)
    severity: XidSeverity | None = None
    action: str | None = None
    cancels: tuple[int, ...] = ()
    verified: bool = True


def registers(text: str) -> list[int]:
    """Return the hexadecimal numbers of *text* in order."""
    return [int(match, 16) for match in _HEX.findall(text)]


def driver_major(version: str) -> int | None:
    """Return 575 of "575.57.08"; None if *version* is not a driver version."""
    match = _MAJOR.match(version)
    return int(match[1]) if match else None


def printable(text: str) -> str:
    """Return *text* with "?" in place of characters that a terminal or a protobuf string cannot show."""
    return "".join(c if c.isprintable() else "?" for c in text)
