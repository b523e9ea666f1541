"""Reads the fields of a declaration's entry: read once, checked, and reported with its line.

An entry selects its hosts by sets of names (`gpu-[001-016,020],head`), patterns with `*` and `?`,
or their location.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from fnmatch import translate
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from ...contract.topology import NAME_CHARACTERS_MAX
from ..host_sets import expand_hosts

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


#: Field of a location -> the key that selects by it.
PLACE_SELECTORS = {
    "rack": "racks",
    "power_domain": "power_domains",
    "cooling_domain": "cooling_domains",
    "leaf": "leaves",
    "spine": "spines",
    "nvlink_domain": "nvlink_domains",
}


@dataclass(frozen=True, slots=True)
class Selection:
    """Hosts by name or by place: a host that matches any of them is selected."""

    patterns: tuple[HostPattern, ...] = ()
    places: Mapping[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])

    def matches(self, host: str, place: object) -> bool:
        """Return whether *host*, located at *place* (a `HostPlacement`), is selected."""
        if any(pattern.matches(host) for pattern in self.patterns):
            return True
        return any(getattr(place, name) in chosen for name, chosen in self.places.items())

    @property
    def description(self) -> str:
        """The selected hosts as text."""
        names = [pattern.text for pattern in self.patterns]
        names += [
            f"{name.replace('_', ' ')} {place_name}"
            for name, chosen in self.places.items()
            for place_name in sorted(chosen)
        ]
        return ", ".join(names)

    @property
    def names_hosts(self) -> bool:
        """Whether it selects hosts by their names only, not by location or wildcards."""
        return (
            bool(self.patterns)
            and not self.places
            and not any(pattern.has_wildcards for pattern in self.patterns)
        )

    @property
    def is_all(self) -> bool:
        """Whether every host is selected."""
        return any(set(pattern.text) == {"*"} for pattern in self.patterns)


#: Limits of declarations: files of a folder, and bytes of each; all files together may have four
#: times as many bytes.
FILES_MAX = 64
TOML_BYTES_MAX = 2 << 20  # read in pure Python: about a second
FILE_BYTES_MAX = 16 << 20
TOTAL_BYTES_MAX = 4 * FILE_BYTES_MAX
#: Hosts with a declared location.
HOSTS_MAX = 50_000
#: Entries with a location, in all files: a host may be in several.
PLACES_MAX = 4 * HOSTS_MAX
#: Columns of a CSV file, known and unknown.
COLUMNS_MAX = 256
#: Entries of a host.
SOURCES_PER_HOST_MAX = 16
#: Entries of each kind in all files: windows, overrides, expected hosts.
ENTRIES_MAX = 2_000
#: Patterns or names of an entry.
NAMES_MAX = 512
#: `*`, `?` and ranges in all files that are matched one by one: in patterns of hosts that cannot be
#: expanded, of rules, devices, models and versions. Each is matched with each host, once for each
#: version of the files.
MATCH_COST_MAX = 256
#: Characters of `who` and `why`; those of a name or pattern: `contract/topology.py`.
WHO_CHARACTERS_MAX = 128
WHY_CHARACTERS_MAX = 512
#: Maximum length of a window and an override: a longer one is declared again, by a person who
#: checked it.
MAINTENANCE_DAYS_MAX = 366
OVERRIDE_DAYS_MAX = 366
#: Codes of an override.
CODES_MAX = 64
#: Problems reported at once.
PROBLEMS_MAX = 20
#: Parsing a file stops after this many problems.
PROBLEMS_COUNTED_MAX = 10_000


_WILDCARD = re.compile(r"[*?\[]")


def matches_pattern(text: str, pattern: str) -> bool:
    """Return whether *text* matches *pattern* with `*`, `?` and `[..]`, like `fnmatchcase`.

    That function recompiles when there are more than 256 patterns.
    """
    return _compiled(pattern)(text) is not None if wildcard_count(pattern) else text == pattern


@lru_cache(maxsize=4 * MATCH_COST_MAX)
def wildcard_count(pattern: str) -> int:
    """Return the number of wildcards in *pattern*; 0: it is a name."""
    return len(_WILDCARD.findall(pattern))


@lru_cache(maxsize=2 * MATCH_COST_MAX)
def _compiled(pattern: str) -> Callable[[str], re.Match[str] | None]:
    return re.compile(translate(pattern)).match


#: Maximum length of a quoted value.
_SHOWN_CHARACTERS_MAX = 60


class SourceLocation(NamedTuple):
    """A location in a file; line 0: unknown."""

    file: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


class DeclaredError(ValueError):
    """The declaration is rejected. `problems`: the first PROBLEMS_MAX, with file and line."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


@dataclass(slots=True)
class Problems:
    """Collects errors and oddities, so that an operator can fix all at once."""

    found: list[str] = field(default_factory=list[str])
    #: Allowed, but hardly intended: `gangline declared check` reports it.
    notes: list[str] = field(default_factory=list[str])
    omitted: int = 0
    is_truncated: bool = False
    #: Number of hosts in the sets of all entries so far.
    named_hosts: int = 0

    def add(self, where: SourceLocation, message: str | Callable[[], str]) -> None:
        """Record a problem. *message*: text, or a function for costly texts."""
        if len(self.found) < PROBLEMS_MAX:
            self.found.append(f"{where}: {message if isinstance(message, str) else message()}")
        else:
            self.omitted += 1

    def should_stop(self) -> bool:
        """Return whether PROBLEMS_COUNTED_MAX is reached; parsing then stops."""
        self.is_truncated = self.is_truncated or self.omitted >= PROBLEMS_COUNTED_MAX
        return self.is_truncated

    def note(self, where: SourceLocation, message: str) -> None:
        """Record an oddity."""
        if len(self.notes) < PROBLEMS_MAX:
            self.notes.append(f"{where}: {message}")

    def raise_any(self) -> None:
        """Raise DeclaredError if there is a problem."""
        if self.found:
            rest = ", where reading stopped" if self.is_truncated else ""
            more = [f"and {self.omitted:,} more{rest}"] if self.omitted else []
            raise DeclaredError(self.found + more)


def quote_value(value: object) -> str:
    """Return *value* for a message: quoted, printable, and shortened."""
    try:
        text = value.isoformat() if isinstance(value, date | time) else ascii(value)
    except ValueError:  # an integer of thousands of digits, which TOML accepts in hexadecimal
        text = "a number of thousands of digits"
    return (
        text if len(text) <= _SHOWN_CHARACTERS_MAX else f"{text[: _SHOWN_CHARACTERS_MAX - 1]}\u2026"
    )


_WHEN = "expected a time with its offset, as 2026-11-23T22:00:00+01:00, or a time_zone beside it"
_QUOTED = "expected a time without quotes, as 2026-11-23T22:00:00+01:00, or a day as 2026-11-23"
#: Range of accepted years.
YEARS = (2000, 2200)


@lru_cache(maxsize=64)
def time_zone(name: str) -> tzinfo:
    """Return a time zone by its name. Raises ValueError with the expected form."""
    try:
        return UTC if name == "UTC" else ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError(
            f"unknown time zone {ascii(name)[:60]}: expected a name as Europe/Berlin or UTC "
            "(`timedatectl list-timezones`)"
        ) from error


def moment_ns(value: object, zone_name: str, *, is_end: bool) -> int:
    """Return nanoseconds since 1970 of a TOML date or time. Raises ValueError with a message.

    A date alone is its whole day: as an end, until midnight after it. Without an offset it is in
    *zone_name*; a time that does not exist in this zone, or exists twice, is refused.
    """
    if isinstance(value, str):
        raise ValueError(_QUOTED)  # noqa: TRY004 - content of a file
    if not isinstance(value, date):  # a datetime is a date, too
        raise ValueError(_WHEN)  # noqa: TRY004
    if not YEARS[0] <= value.year < YEARS[1]:
        raise ValueError(f"the year {value.year}: expected {YEARS[0]} to {YEARS[1] - 1}")
    if isinstance(value, datetime):
        moment = value
    else:
        moment = datetime.combine(value + timedelta(days=1) if is_end else value, time())
    if moment.tzinfo is None:
        moment = _local(moment, zone_name)
    since = moment.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000_000 + since.microseconds * 1_000


def _local(at: datetime, zone_name: str) -> datetime:
    if not zone_name:
        raise ValueError(_WHEN)
    first, second = (at.replace(tzinfo=time_zone(zone_name), fold=fold) for fold in (0, 1))
    if first.utcoffset() != second.utcoffset():
        # In a gap fold=0 has the earlier offset, so the way to UTC and back gives another time.
        back = first.astimezone(UTC).astimezone(first.tzinfo).replace(tzinfo=None)
        problem = "is there twice" if back == at else "does not exist"
        raise ValueError(
            f"{at:%Y-%m-%d %H:%M} {problem} in {zone_name}, where clocks are changed: give its offset, "
            f"as {first.isoformat()} or {second.isoformat()}"
        )
    return first


@lru_cache(maxsize=1024)
def format_time(at_ns: int) -> str:
    """Return a time for a message."""
    return f"{datetime.fromtimestamp(at_ns // 1_000_000_000, UTC):%Y-%m-%d %H:%M} UTC"


T = TypeVar("T")

_PLAIN = re.compile(r"[A-Za-z0-9_.-]{1,60}")


def suggest_key(key: str, known: Iterable[str]) -> str:
    """Return a suggestion for *key*, or the known keys."""
    names = list(known)
    matches = difflib.get_close_matches(key[:NAME_CHARACTERS_MAX], names, 1)
    return f"did you mean {matches[0]}?" if matches else f"there are {', '.join(names)}"


class TomlEntry:
    """A table of a file. Keys that were not taken before `close` are unknown."""

    def __init__(
        self,
        values: Mapping[str, Any],
        where: SourceLocation,
        line_of: Callable[[str], int],
        problems: Problems,
    ) -> None:
        self.where = where
        self._values, self._line_of, self._problems = values, line_of, problems
        self._known_keys: list[str] = []

    def at(self, key: str) -> SourceLocation:
        """Return the location of *key* in the file."""
        return SourceLocation(self.where.file, self._line_of(key) or self.where.line)

    def add_problem(self, key: str, message: str | Callable[[], str]) -> None:
        """Record a problem with *key*. *message*: text, or a function that makes it."""
        before = f"{key}: " if key else ""
        self._problems.add(
            self.at(key), lambda: before + (message if isinstance(message, str) else message())
        )

    def has(self, key: str) -> bool:
        """Return whether *key* is present."""
        return key in self._values

    def take(self, key: str, parse: Callable[[Any], T], default: T, *, required: str = "") -> T:
        """Return *key* by *parse* (may raise ValueError), else *default*. *required*: a reason."""
        self._known_keys.append(key)
        if key not in self._values:
            if required:
                self.add_problem("", f"{key} is missing: {required}")
            return default
        try:
            return parse(self._values[key])
        except ValueError as error:
            self.add_problem(key, f"{quote_value(self._values[key])}: {error}")
            return default

    def text(
        self, key: str, characters_max: int = NAME_CHARACTERS_MAX, *, required: str = ""
    ) -> str:
        """Return a text of a single printable line."""
        return self.take(key, lambda value: one_line(value, characters_max), "", required=required)

    def texts(self, key: str, count_max: int = NAMES_MAX) -> tuple[str, ...]:
        """Return a list of such texts."""
        return self.take(
            key, lambda value: tuple(map(one_line, non_empty_list(value, count_max))), ()
        )

    def number(self, key: str, low: float, high: float, *, whole: bool) -> float | None:
        """Return a number between *low* and *high*; None if missing or wrong."""
        return self.take(key, lambda value: bounded_number(value, low, high, whole=whole), None)

    def moment(self, key: str, zone_name: str, *, is_end: bool, required: str = "") -> int:
        """Return a time in nanoseconds since 1970; 0 if missing or wrong."""
        return self.take(
            key, lambda value: moment_ns(value, zone_name, is_end=is_end), 0, required=required
        )

    def zone_name(self, default: str) -> str:
        """Return the name of the entry's time zone, or *default*."""

        def parse_zone(value: object) -> str:
            name = one_line(value)
            time_zone(name)
            return name

        return self.take("time_zone", parse_zone, default)

    def patterns(self, key: str = "hosts") -> tuple[HostPattern, ...]:
        """Return the patterns of hosts."""
        return self.take(
            key, lambda value: tuple(map(self._pattern, non_empty_list(value, NAMES_MAX))), ()
        )

    def _pattern(self, text: object) -> HostPattern:
        pattern = parse_host_pattern(text)
        self._problems.named_hosts += len(pattern.names)
        if self._problems.named_hosts > NAMED_HOSTS_MAX:
            raise ValueError(
                f"with these the files name more than {NAMED_HOSTS_MAX:,} hosts one by one: select them by place, or with *"
            )
        return pattern

    def selection(self, *, required: bool = True) -> Selection | None:
        """Return the selected hosts; None if none are named."""
        keys = ("hosts", *PLACE_SELECTORS.values())
        is_named = any(self.has(key) for key in keys)
        patterns = self.patterns()
        places = {name: frozenset(self.texts(key)) for name, key in PLACE_SELECTORS.items()}
        if required and not is_named:
            self.add_problem(
                "",
                f'no hosts: name them, as hosts = ["gpu-[001-016]"], or by {", ".join(keys[1:])}',
            )
        if not is_named:
            return None
        return Selection(patterns, {name: chosen for name, chosen in places.items() if chosen})

    def close(self) -> None:
        """Report each key that was not taken."""
        for key in self._values:
            if key not in self._known_keys:
                self._problems.add(self.at(key), partial(self._unknown, key))

    def _unknown(self, key: str) -> str:
        return f"{key_text(key)}: unknown here; {suggest_key(key, self._known_keys)}"


def key_text(key: str) -> str:
    """Return a key for a message: unquoted if it is plain."""
    return key if _PLAIN.fullmatch(key) else quote_value(key)


def one_line(value: object, characters_max: int = NAME_CHARACTERS_MAX) -> str:
    """Return a text. Raises ValueError with the expected form."""
    if not isinstance(value, str):
        raise ValueError("expected a text in quotes")  # noqa: TRY004 - content of a file
    text = value.strip()
    if not text or len(text) > characters_max or not text.isprintable():
        raise ValueError(f"expected one line of 1 to {characters_max} characters")
    return text


def non_empty_list(value: object, count_max: int) -> list[Any]:
    """Return a list that is not empty. Raises ValueError with the expected form."""
    if not isinstance(value, list) or not value:
        raise ValueError('expected a list, as ["a", "b"]')
    if len(value) > count_max:
        raise ValueError(f"{len(value)} of them, at most {count_max}")
    return value


def bounded_number(value: object, low: float, high: float, *, whole: bool = False) -> float:
    """Return a number. Raises ValueError with the expected form."""
    is_number = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
    if not is_number or not math.isfinite(_float(value)) or not low <= _float(value) <= high:
        kind = f"{'whole ' if whole else ''}number"
        quoted = " without quotes," if isinstance(value, str) else ""
        raise ValueError(f"expected a {kind}{quoted} from {low:,.10g} to {high:,.10g}")
    return _float(value)


def _float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf
