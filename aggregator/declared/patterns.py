"""Patterns with wildcards for host names, rules, devices, models and versions.

Hosts are a set of names (`gpu-[001-016,020],head`) or a pattern with `*` and `?`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import translate
from functools import lru_cache

from ...contract.host_sets import expand_hosts
from ...contract.topology import NAME_CHARACTERS_MAX
from .limits import MATCH_COST_MAX

#: Maximum of `*` and brackets in a pattern: more make it slow to match and hard to read.
PARTS_MAX = 4
#: Maximum hosts in a set, and in all sets of all files; maximum numbers in the brackets of a
#: pattern with wildcards.
SET_HOSTS_MAX, NAMED_HOSTS_MAX, PATTERN_NUMBERS_MAX = 50_000, 1_000_000, 10_000
_WILD = re.compile(r"[*?]")
_PATTERN_TEXT = re.compile(r"[A-Za-z0-9._*?-]*")
_PATTERN_PARTS = re.compile(r"\[[^\]]*\]|[*?]|[^\[*?]+|\[")
_EXPECTED = (
    "expected host names, as gpu-[001-016,020],head, or one name with * and ? "
    "(letters, digits, '.', '_', '-')"
)

_WILDCARD = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class HostPattern:
    """A set of host names, or a pattern with `*` or `?`. `parse_host_pattern` makes it."""

    text: str
    names: frozenset[str] = frozenset()
    #: number of its wildcards and brackets; 0: a set of names, which is looked up
    match_cost: int = 0
    _regex: re.Pattern[str] = re.compile("(?!)")

    def matches(self, host: str) -> bool:
        """Return whether *host* is selected."""
        return host in self.names or self._regex.fullmatch(host) is not None

    @property
    def is_name(self) -> bool:
        """Whether it is a single host's name."""
        return self.names == {self.text}

    @property
    def has_wildcards(self) -> bool:
        """Whether it has `*` or `?`, so that its hosts cannot be listed."""
        return not self.names


def parse_host_pattern(text: object) -> HostPattern:
    """Return the pattern in *text*. Raises ValueError with the error and the expected form."""
    if not isinstance(text, str) or not text:
        raise ValueError(_EXPECTED)
    if len(text) > NAME_CHARACTERS_MAX:
        raise ValueError(f"{len(text)} characters, at most {NAME_CHARACTERS_MAX}")
    if _WILD.search(text):
        return _wildcard_pattern(text)
    names = frozenset(expand_hosts(text, SET_HOSTS_MAX))
    if not names:
        raise ValueError("names no host: what it takes away is all there is")
    return HostPattern(text, names)


def _wildcard_pattern(text: str) -> HostPattern:
    """Return *text* as a regular expression: a bracket matches one of its numbers, as written."""
    parts: list[str] = _PATTERN_PARTS.findall(text)
    brackets = [part for part in parts if part.startswith("[")]
    if not all(part in brackets or _PATTERN_TEXT.fullmatch(part) for part in parts):
        raise ValueError(_EXPECTED)
    if parts.count("*") + len(brackets) > PARTS_MAX:
        raise ValueError(f"more than {PARTS_MAX} of * and [..] in one pattern: write several")
    numbers = {bracket: expand_hosts(bracket, PATTERN_NUMBERS_MAX) for bracket in brackets}
    regex = "".join(
        f"(?:{'|'.join(numbers[part])})" if part in numbers
        else {"*": ".*", "?": "."}.get(part) or re.escape(part)
        for part in parts
    )  # fmt: skip
    return HostPattern(
        text, match_cost=len(_WILD.findall(text)) + sum(bracket.count(",") + 1 for bracket in brackets),
        _regex=re.compile(regex, re.DOTALL),
    )  # fmt: skip


def matches_pattern(text: str, pattern: str) -> bool:
    """Return whether *text* matches *pattern* with `*`, `?` and `[..]`, like `fnmatchcase`.

    `fnmatchcase` itself compiles patterns again when there are more than 256.
    """
    return _compiled(pattern)(text) is not None if wildcard_count(pattern) else text == pattern


@lru_cache(maxsize=4 * MATCH_COST_MAX)
def wildcard_count(pattern: str) -> int:
    """Return the number of wildcards in *pattern*; 0: it is a name."""
    return len(_WILDCARD.findall(pattern))


@lru_cache(maxsize=2 * MATCH_COST_MAX)
def _compiled(pattern: str) -> Callable[[str], re.Match[str] | None]:
    return re.compile(translate(pattern)).match
