"""Which hosts an entry is for: names, Slurm's ranges (`gpu-[001-016,020]`), `*` and `?`, or where they stand."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from ...fingerprints.place import NAME_CHARACTERS_MAX

#: `*` and brackets of one pattern: more make it slow to match, and nobody reads them.
PARTS_MAX = 4
_DIGITS_MAX = 9
_PARTS = re.compile(r"[*?]|[^*?]+")
_WILD = re.compile(r"[*?]")
_DIGITS = re.compile(r"[0-9]+")
_TEXT = re.compile(r"[A-Za-z0-9._*?-]*")
_RANGE = re.compile(rf"([0-9]{{1,{_DIGITS_MAX}}})(?:-([0-9]{{1,{_DIGITS_MAX}}}))?")
_EXPECTED = (
    "expected a host name, with ranges as gpu-[001-016,020], or with * and ? "
    "(letters, digits, '.', '_', '-')"
)


#: How far a name may have been read.
Ends = set[int] | range


class Range(NamedTuple):
    """Numbers from *first* to *last*, written with *digits* digits at least."""

    first: int
    last: int
    digits: int

    def has(self, number: int, text: str) -> bool:
        """Say whether *number*, written as *text*, is one of these as they are written."""
        if not self.first <= number <= self.last:
            return False
        return len(text) == self.digits if text[0] == "0" else len(text) >= self.digits

    def names(self) -> Iterator[str]:
        """Yield the numbers as written."""
        return (f"{number:0{self.digits}d}" for number in range(self.first, self.last + 1))


@dataclass(frozen=True, slots=True)
class Pattern:
    """One name or pattern: texts with brackets between them. `parse_pattern` makes it."""

    text: str
    texts: tuple[str, ...]
    brackets: tuple[tuple[Range, ...], ...]
    head: str  # all that it means begin so

    def matches(self, host: str) -> bool:
        """Say whether *host* is meant."""
        if not host.startswith(self.head):
            return False
        ends: Ends = {0}  # how far what was looked at of the pattern may reach
        for number, text in enumerate(self.texts):
            for part in _parts(text):
                ends = _after(part, host, ends) if ends else ends
            if number < len(self.brackets):
                ends = _after_number(self.brackets[number], host, ends)
        return len(host) in ends

    @property
    def pieces(self) -> int:
        """What makes it long to match: its `*` and `?`, and its ranges."""
        return len(_WILD.findall(self.text)) + sum(map(len, self.brackets))

    @property
    def is_name(self) -> bool:
        """Say whether it is one host's name."""
        return not self.brackets and not self.is_open

    @property
    def is_open(self) -> bool:
        """Say whether it has `*` or `?`: which hosts it means cannot be listed."""
        return any("*" in text or "?" in text for text in self.texts)

    @property
    def count(self) -> int:
        """How many names it stands for, if it is not open."""
        total = 1
        for ranges in self.brackets:
            total *= sum(one.last - one.first + 1 for one in ranges)
        return total

    def names(self) -> Iterator[str]:
        """Yield the names that it stands for, if it is not open."""
        numbers = [[name for one in ranges for name in one.names()] for ranges in self.brackets]
        for chosen in itertools.product(*numbers):
            pairs = itertools.zip_longest(self.texts, chosen, fillvalue="")
            yield "".join(itertools.chain.from_iterable(pairs))


def parse_pattern(text: object) -> Pattern:
    """Return the pattern that *text* is. Raises ValueError with what is wrong and what would be right."""
    if not isinstance(text, str) or not text:
        raise ValueError(_EXPECTED)
    if len(text) > NAME_CHARACTERS_MAX:
        raise ValueError(f"{len(text)} characters, at most {NAME_CHARACTERS_MAX}")
    texts, brackets = _split(text)
    if sum(part.count("*") for part in texts) + len(brackets) > PARTS_MAX:
        raise ValueError(f"more than {PARTS_MAX} of * and [..] in one pattern: write several")
    return Pattern(text, texts, brackets, _WILD.split(texts[0], 1)[0])


@lru_cache(maxsize=4_096)
def _parts(text: str) -> tuple[str, ...]:
    return tuple(_PARTS.findall(text))


def _after(part: str, host: str, ends: Ends) -> Ends:
    """Return how far *host* may be read after *part*: a `*`, a `?`, or a text as it stands. *ends*: not empty."""
    if part == "*":
        return range(_first(ends), len(host) + 1)
    if part == "?":
        return {at + 1 for at in ends if at < len(host)}
    found = set[int]()
    at = host.find(part, _first(ends))
    while at >= 0:
        if at in ends:
            found.add(at + len(part))
        at = host.find(part, at + 1)
    return found


def _first(ends: Ends) -> int:
    return ends.start if isinstance(ends, range) else min(ends)


class _Number(NamedTuple):
    """Digits of a name, from *at* to before *end*."""

    at: int
    end: int
    number: int
    text: str


@lru_cache(maxsize=16)  # hosts are asked for one after another, each with all patterns
def _numbers(host: str) -> tuple[_Number, ...]:
    """Return all that a range may be about in *host*."""
    return tuple(
        _Number(at, end, int(host[at:end]), host[at:end])
        for run in _DIGITS.finditer(host)
        for at in range(run.start(), run.end())
        for end in range(at + 1, min(at + _DIGITS_MAX, run.end()) + 1)
    )


def _after_number(ranges: Sequence[Range], host: str, ends: Ends) -> Ends:
    """Return how far *host* may be read after a number of *ranges*."""
    return {
        one.end
        for one in _numbers(host)
        if one.at in ends and any(each.has(one.number, one.text) for each in ranges)
    }


def _split(text: str) -> tuple[tuple[str, ...], tuple[tuple[Range, ...], ...]]:
    texts: list[str] = []
    brackets: list[tuple[Range, ...]] = []
    rest = text
    while True:
        before, opened, after = rest.partition("[")
        if not _TEXT.fullmatch(before):
            raise ValueError(_EXPECTED)
        texts.append(before)
        if not opened:
            return tuple(texts), tuple(brackets)
        inner, closed, rest = after.partition("]")
        if not closed:
            raise ValueError("a [ without its ]: expected a range as gpu-[001-016]")
        brackets.append(tuple(map(_range, inner.split(","))))


def _range(text: str) -> Range:
    found = _RANGE.fullmatch(text.strip())
    if not found:
        raise ValueError(f"[{text[:20]}] is no range: expected numbers as [001-016,020]")
    first, last = found[1], found[2] or found[1]
    padded = any(len(one) > 1 and one.startswith("0") for one in (first, last))
    if int(last) < int(first) or (padded and len(first) != len(last)):
        raise ValueError(
            f"[{text}]: expected the lower number first, both with as many digits where there are "
            "leading zeros, as [001-016]"
        )
    return Range(int(first), int(last), len(first) if padded else 1)


#: Where hosts stand -> the key that selects by it.
BY_PLACE = {
    "rack": "racks",
    "power_domain": "power_domains",
    "cooling_domain": "cooling_domains",
    "leaf": "leaves",
    "spine": "spines",
    "nvlink_domain": "nvlink_domains",
}


@dataclass(frozen=True, slots=True)
class Selection:
    """Hosts by name or by place: who matches any of it is meant."""

    patterns: tuple[Pattern, ...] = ()
    places: Mapping[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])

    def matches(self, host: str, place: object) -> bool:
        """Say whether *host*, which stands at *place* (a `Place`), is meant."""
        if any(pattern.matches(host) for pattern in self.patterns):
            return True
        return any(getattr(place, name) in chosen for name, chosen in self.places.items())

    @property
    def words(self) -> str:
        """Who is meant, as somebody would say it."""
        names = [pattern.text for pattern in self.patterns]
        names += [
            f"{name.replace('_', ' ')} {one}"
            for name, chosen in self.places.items()
            for one in sorted(chosen)
        ]
        return ", ".join(names)

    @property
    def names_hosts(self) -> bool:
        """Say whether it is of hosts by their names alone: not of all that stand somewhere, or whatever they are called."""
        return bool(self.patterns) and not self.places and not any(p.is_open for p in self.patterns)

    @property
    def is_all(self) -> bool:
        """Say whether every host is meant."""
        return any(set(pattern.text) == {"*"} for pattern in self.patterns)
