"""Reads the fields of a declaration's entry: read once, checked, and reported with its line."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from ...contract.topology import NAME_CHARACTERS_MAX
from .limits import NAMES_MAX
from .moments import moment_ns, time_zone
from .patterns import NAMED_HOSTS_MAX, HostPattern, parse_host_pattern
from .problems import Problems, SourceLocation, quote_value, suggest_key
from .selection import PLACE_SELECTORS, Selection

T = TypeVar("T")

_PLAIN = re.compile(r"[A-Za-z0-9_.-]{1,60}")


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
