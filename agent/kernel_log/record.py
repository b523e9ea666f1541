"""A parsed kernel log line, the rule that parses it, and the templates of an incident's lines."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import Any, NamedTuple

#: Characters of a line that are parsed and reported, the aggregator's maximum of a message.
LINE_CHARACTERS_MAX = 2048
VALUE_CHARACTERS_MAX = 128
NAME_CHARACTERS_MAX = 64
#: Limit of HealthEvent.attributes.
ATTRIBUTES_MAX = 32
_NUMBER_MAX = (1 << 32) - 1

#: A PCI address in a line; the function, and from old drivers the domain, may be missing.
PCI = r"(?:[0-9A-Fa-f]{4,8}:)?[0-9A-Fa-f]{2,4}:[0-9A-Fa-f]{2}(?:\.[0-7])?"
PCI_WITH_DOMAIN = r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}(?:\.[0-7])?"
#: A complete address, as in the kernel's own lines.
BDF = r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"

#: Groups of a pattern with a meaning; all others become attributes.
_SPECIAL_GROUPS = frozenset(("pci", "device", "code", "count", "pid", "comm"))
#: Templates kept as text, the limit of HealthEvent.forms.
TEMPLATES_MAX = 32
#: Distinct templates are counted up to this; this count means "or more".
TEMPLATES_COUNTED_MAX = 256
TEMPLATE_CHARACTERS_MAX = 120
#: Numbers, hexadecimal or not, alone or at the end of a word (`GPC2`).
_NUMBERS = re.compile(
    r"0x[0-9a-fA-F]+|(?<![0-9A-Za-z])[0-9a-fA-F]*[0-9][0-9a-fA-F]*(?![0-9A-Za-z])|[0-9]+"
)


class LinePart(Enum):
    """The role of a line among the lines about one occurrence."""

    WHOLE = "whole"  # an occurrence of its own
    HEAD = "head"  # an occurrence; its body follows in other lines, which do not count again
    BODY = "body"  # an occurrence, unless its head has just been seen
    DETAIL = "detail"  # adds to the last occurrence of its group
    # Like DETAIL; an occurrence if the group has none (its head was not printed)
    OUTCOME = "outcome"


class ParsedLine(NamedTuple):
    """The content of a line. All texts are printable and within their limits."""

    name: str  # event name in the catalog
    code: int = 0
    device: str = "host"
    scope: str = ""  # further part of the incident's key: a cgroup, for example
    part: LinePart = LinePart.WHOLE
    group: str = ""  # lines with the same group belong together
    occurrences: int = 1  # reported by this line
    process_id: int = 0
    process_name: str = ""
    attributes: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class LineRule:
    """A kind of line: it contains `substring`, and `pattern` matches from its beginning.

    Groups of the pattern: `pci` (the device, if `device` is not matched), `device`, `code`,
    `count`, `pid` and `comm` (the process); others become attributes.
    """

    name: str
    substring: str
    pattern: re.Pattern[str]
    code: int = 0
    #: Group -> its text in lower case -> code.
    codes: tuple[str, Mapping[str, int]] | None = None
    part: LinePart = LinePart.WHOLE
    group: str = ""
    #: The attribute that is part of the incident's key.
    scope: str = ""
    #: Constant attributes of this kind of line.
    attributes: Mapping[str, str] = field(default_factory=dict)
    #: Changes the parsed line, or rejects it (None), if a table cannot express that.
    finish: Callable[[ParsedLine], ParsedLine | None] | None = None

    def read(self, text: str) -> ParsedLine | None:
        """Return the parsed line; None for another kind of line. Never raises."""
        match = self.pattern.match(text)
        if match is None:
            return None
        groups = {name: value for name, value in match.groupdict().items() if value}
        attributes = {
            name: printable(value, VALUE_CHARACTERS_MAX)
            for name, value in groups.items()
            if name not in _SPECIAL_GROUPS
        }
        device = self._device(groups, attributes)
        parsed = ParsedLine(
            name=self.name,
            code=self._code(groups),
            device=device,
            scope=attributes.get(self.scope, "") if self.scope else "",
            part=self.part,
            group=f"{self.group} {device}" if self.group else "",
            occurrences=number(groups.get("count"), 1),
            process_id=number(groups.get("pid"), 0),
            process_name=printable(groups.get("comm", ""), NAME_CHARACTERS_MAX),
            attributes={**attributes, **self.attributes},
        )
        return self.finish(parsed) if self.finish else parsed

    def _device(self, groups: Mapping[str, str], attributes: dict[str, str]) -> str:
        address = pci_address(groups["pci"]) if "pci" in groups else ""
        if "device" not in groups:
            return address or "host"
        if address:
            attributes["pci_address"] = address
        return printable(groups["device"], NAME_CHARACTERS_MAX) or "host"

    def _code(self, groups: Mapping[str, str]) -> int:
        if self.codes is not None:
            group, codes = self.codes
            return codes.get(groups.get(group, "").lower(), self.code)
        return number(groups.get("code"), self.code)


def rule(name: str, substring: str, **more: Any) -> Callable[[str], LineRule]:
    """Return a function from a pattern to its rule; `.` also matches a newline."""
    return lambda pattern: LineRule(name, substring, re.compile(pattern, re.DOTALL), **more)


def number(text: str | None, default: int) -> int:
    """Return the decimal *text* as 32 unsigned bits; *default* for any other text."""
    if not text or not text.isascii() or not text.isdigit() or len(text) > 10:
        return default
    return value if (value := int(text)) <= _NUMBER_MAX else default


@lru_cache(maxsize=256)
def pci_address(text: str) -> str:
    """Return the address in sysfs form, `0000:9b:00.0`; *text* matches PCI."""
    address, _, function = text.lower().partition(".")
    *domain, bus, device = (int(part, 16) for part in address.split(":"))
    return f"{domain[0] if domain else 0:04x}:{bus & 0xFF:02x}:{device:02x}.{function or 0}"


def printable(text: str, characters_max: int) -> str:
    """Return *text* as a single printable line of at most *characters_max*."""
    text = text[:characters_max]
    if text.isprintable():
        return text.strip()
    return "".join(letter if letter.isprintable() else " " for letter in text).strip()


def template_of(text: str) -> str:
    """Return the line with `#` for each number, cut to TEMPLATE_CHARACTERS_MAX."""
    return _NUMBERS.sub("#", text[: 4 * TEMPLATE_CHARACTERS_MAX])[:TEMPLATE_CHARACTERS_MAX]


class MessageTemplates:
    """The distinct templates (lines without their numbers) seen so far, a bounded number."""

    __slots__ = ("_hashes", "count", "texts")

    def __init__(self, texts: Iterable[str] = (), count: int = 0) -> None:
        """Restore the state; *count* may exceed the number of *texts*."""
        self.texts: list[str] = list(texts)[:TEMPLATES_MAX]
        self._hashes = {hash(template) for template in self.texts}
        self.count = max(count, len(self.texts))

    def add(self, text: str) -> None:
        template = template_of(text)
        key = hash(template)
        if key in self._hashes or self.count >= TEMPLATES_COUNTED_MAX:
            return
        self._hashes.add(key)
        self.count += 1
        if len(self.texts) < TEMPLATES_MAX:
            self.texts.append(template)
