"""What one kernel log line reports, and the rule that parses it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

#: Characters of a line that are parsed and reported. The aggregator takes no more of a message.
LINE_CHARACTERS_MAX = 2048
VALUE_CHARACTERS_MAX = 128
NAME_CHARACTERS_MAX = 64
#: As of HealthEvent.attributes.
ATTRIBUTES_MAX = 32
_NUMBER_MAX = (1 << 32) - 1

#: A PCI address as lines name it: the function, and in old drivers the domain, may be missing.
PCI = r"(?:[0-9A-Fa-f]{4,8}:)?[0-9A-Fa-f]{2,4}:[0-9A-Fa-f]{2}(?:\.[0-7])?"
PCI_WITH_DOMAIN = r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}(?:\.[0-7])?"
#: A whole one, as the kernel's own lines have it.
BDF = r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"


class LinePart(Enum):
    """Which line of those that tell one occurrence together this is."""

    WHOLE = "whole"  # an occurrence of its own
    HEAD = "head"  # an occurrence; its body follows in other lines, and does not count again
    BODY = "body"  # an occurrence, unless the head of its own has just been seen
    DETAIL = "detail"  # only adds to the last occurrence of its group
    OUTCOME = "outcome"  # the same; an occurrence of its own if the group has none (its head was not printed)


class ParsedLine(NamedTuple):
    """What a line tells. All texts are printable, none is longer than its limit."""

    name: str  # of the event in the catalogue
    code: int = 0
    device: str = "host"
    scope: str = ""  # what else tells one incident from another: a cgroup, say
    part: LinePart = LinePart.WHOLE
    group: str = ""  # which lines belong together
    occurrences: int = 1  # that this one line tells
    process_id: int = 0
    process_name: str = ""
    attributes: Mapping[str, str] = {}


#: Groups of a pattern that have a meaning of their own; all others become attributes.
_SPECIAL_GROUPS = frozenset(("pci", "device", "code", "count", "pid", "comm"))


@dataclass(frozen=True, slots=True)
class LineRule:
    """How one kind of line is read: `substring` must be in it, `pattern` must match from its beginning.

    Groups of the pattern: `pci` (the device, if `device` is not matched), `device`, `code`, `count`,
    `pid` and `comm` (the process that the line names); whatever else becomes an attribute.
    """

    name: str
    substring: str
    pattern: re.Pattern[str]
    code: int = 0
    #: Group -> its text in lower case -> code.
    codes: tuple[str, Mapping[str, int]] | None = None
    part: LinePart = LinePart.WHOLE
    group: str = ""
    #: The attribute that is part of what makes an incident.
    scope: str = ""
    #: Attributes that are always the same for this kind of line.
    attributes: Mapping[str, str] = field(default_factory=dict)
    #: Last word on what was read, where a table cannot say it.
    finish: Callable[[ParsedLine], ParsedLine | None] | None = None

    def read(self, text: str) -> ParsedLine | None:
        """Return what *text* tells, None if it is of another kind. Never raises."""
        match = self.pattern.match(text)
        if match is None:
            return None
        found = {name: value for name, value in match.groupdict().items() if value}
        attributes = {
            name: printable(value, VALUE_CHARACTERS_MAX)
            for name, value in found.items()
            if name not in _SPECIAL_GROUPS
        }
        device = self._device(found, attributes)
        parsed = ParsedLine(
            self.name,
            self._code(found),
            device,
            attributes.get(self.scope, "") if self.scope else "",
            self.part,
            f"{self.group} {device}" if self.group else "",
            number(found.get("count"), 1),
            number(found.get("pid"), 0),
            printable(found.get("comm", ""), NAME_CHARACTERS_MAX),
            {**attributes, **self.attributes},
        )
        return self.finish(parsed) if self.finish else parsed

    def _device(self, found: Mapping[str, str], attributes: dict[str, str]) -> str:
        address = pci_address(found["pci"]) if "pci" in found else ""
        if "device" not in found:
            return address or "host"
        if address:
            attributes["pci_address"] = address
        return printable(found["device"], NAME_CHARACTERS_MAX) or "host"

    def _code(self, found: Mapping[str, str]) -> int:
        if self.codes is not None:
            group, codes = self.codes
            return codes.get(found.get(group, "").lower(), self.code)
        return number(found.get("code"), self.code)


def rule(name: str, substring: str, pattern: str, **more: object) -> LineRule:
    """Return a rule; the pattern is compiled, `.` in it is any character, also the end of a line."""
    return LineRule(name, substring, re.compile(pattern, re.DOTALL), **more)  # type: ignore[arg-type]


def number(text: str | None, default: int) -> int:
    """Return the decimal *text* as 32 unsigned bits; *default* for anything that is none."""
    if not text or not text.isascii() or not text.isdigit() or len(text) > 10:
        return default
    return value if (value := int(text)) <= _NUMBER_MAX else default


@lru_cache(maxsize=256)
def pci_address(text: str) -> str:
    """Return the address as sysfs writes it, `0000:9b:00.0`; *text* matches PCI."""
    address, _, function = text.lower().partition(".")
    *domain, bus, device = (int(part, 16) for part in address.split(":"))
    return f"{domain[0] if domain else 0:04x}:{bus & 0xFF:02x}:{device:02x}.{function or 0}"


def printable(text: str, characters_max: int) -> str:
    """Return *text* as one line that any terminal and store survives, cut to *characters_max*."""
    text = text[:characters_max]
    if text.isprintable():
        return text.strip()
    return "".join(letter if letter.isprintable() else " " for letter in text).strip()


# ----------------------------------------------------------------------
# The distinct forms of a storm's lines: the lines without their numbers, few kept, more counted.

#: Forms kept as text, as of HealthEvent.forms.
TEMPLATES_MAX = 32
#: Distinct forms are told apart up to here; a count of this size means "or more".
TEMPLATES_COUNTED_MAX = 256
TEMPLATE_CHARACTERS_MAX = 120

#: Numbers, hexadecimal or not, alone or at the end of a word (`GPC2`).
_NUMBERS = re.compile(
    r"0x[0-9a-fA-F]+|(?<![0-9A-Za-z])[0-9a-fA-F]*[0-9][0-9a-fA-F]*(?![0-9A-Za-z])|[0-9]+"
)


def template_of(text: str) -> str:
    """Return the line with `#` for each number, cut to FORM_CHARACTERS_MAX."""
    return _NUMBERS.sub("#", text[: 4 * TEMPLATE_CHARACTERS_MAX])[:TEMPLATE_CHARACTERS_MAX]


class MessageTemplates:
    """The forms seen so far. Bounded, however many lines and forms there are."""

    __slots__ = ("_hashes", "count", "texts")

    def __init__(self, texts: Iterable[str] = (), count: int = 0) -> None:
        """Take up what was kept: *count* may be more than there are words."""
        self.texts: list[str] = list(texts)[:TEMPLATES_MAX]
        self._hashes = {hash(template) for template in self.texts}
        self.count = max(count, len(self.texts))

    def add(self, text: str) -> None:
        """Note the form of a line."""
        template = template_of(text)
        key = hash(template)
        if key in self._hashes or self.count >= TEMPLATES_COUNTED_MAX:
            return
        self._hashes.add(key)
        self.count += 1
        if len(self.texts) < TEMPLATES_MAX:
            self.texts.append(template)
