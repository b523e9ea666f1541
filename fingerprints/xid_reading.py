"""What a decoder has read out of a line of the driver so far, and the pieces that decoders share."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from .xid import Severity

#: Of a longer line the rest is not looked at. The kernel's own limit is about 1,000 (LOG_LINE_MAX).
MESSAGE_CHARACTERS_MAX = 2048

_HEX = re.compile(r"0x([0-9a-f]{1,16})", re.ASCII | re.IGNORECASE)
_MAJOR = re.compile(r"\s*([0-9]{3,4})(?:\.|\s*$)", re.ASCII)


@dataclass(slots=True)
class Reading:
    """Filled by one decoder. `severity` and `action` stay None where the line adds nothing to them."""

    attributes: dict[str, str] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)
    severity: Severity | None = None
    action: str | None = None
    cancels: tuple[int, ...] = ()
    verified: bool = True


def registers(text: str) -> list[int]:
    """Return the hexadecimal numbers of *text* in their order."""
    return [int(match, 16) for match in _HEX.findall(text)]


def driver_major(version: str) -> int | None:
    """Return 575 of "575.57.08"; None where *version* is no driver's."""
    match = _MAJOR.match(version)
    return int(match[1]) if match else None


def printable(text: str) -> str:
    """Return *text* with everything a terminal or a protobuf string would choke on as "?"."""
    return "".join(c if c.isprintable() else "?" for c in text)
