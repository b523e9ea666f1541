"""One entry of a file, asked for its fields: each taken once, checked, and told of with its line when it is wrong."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

from ...fingerprints.place import NAME_CHARACTERS_MAX
from .hostset import BY_PLACE, Pattern, Selection, parse_pattern
from .limits import NAMES_MAX
from .moments import moment_ns, zone
from .problems import Problems, Where, shown

T = TypeVar("T")

_PLAIN = re.compile(r"[A-Za-z0-9_.-]{1,60}")


def near(key: str, known: Iterable[str]) -> str:
    """Return what was likely meant, or what there is."""
    names = list(known)
    close = difflib.get_close_matches(key[:NAME_CHARACTERS_MAX], names, 1)
    return f"did you mean {close[0]}?" if close else f"there are {', '.join(names)}"


class Entry:
    """A table of a file. What was not asked for by the time of `close` is unknown."""

    def __init__(
        self,
        values: Mapping[str, Any],
        where: Where,
        line_of: Callable[[str], int],
        problems: Problems,
    ) -> None:
        self.where = where
        self._values, self._line_of, self._problems = values, line_of, problems
        self._asked: list[str] = []

    def at(self, key: str) -> Where:
        """Return where *key* stands."""
        return Where(self.where.file, self._line_of(key) or self.where.line)

    def wrong(self, key: str, words: str | Callable[[], str]) -> None:
        """Say what is wrong with *key*. *words*: or what makes them."""
        before = f"{key}: " if key else ""
        self._problems.add(
            self.at(key), lambda: before + (words if isinstance(words, str) else words())
        )

    def has(self, key: str) -> bool:
        """Say whether there is a *key*."""
        return key in self._values

    def take(self, key: str, parse: Callable[[Any], T], default: T, *, required: str = "") -> T:
        """Return *key* as *parse* has it, which raises ValueError; else *default*. *required*: why it has to be there."""
        self._asked.append(key)
        if key not in self._values:
            if required:
                self.wrong("", f"{key} is missing: {required}")
            return default
        try:
            return parse(self._values[key])
        except ValueError as error:
            self.wrong(key, f"{shown(self._values[key])}: {error}")
            return default

    def text(
        self, key: str, characters_max: int = NAME_CHARACTERS_MAX, *, required: str = ""
    ) -> str:
        """Return a text that is one printable line."""
        return self.take(key, lambda value: one_line(value, characters_max), "", required=required)

    def texts(self, key: str, count_max: int = NAMES_MAX) -> tuple[str, ...]:
        """Return a list of such texts."""
        return self.take(key, lambda value: tuple(map(one_line, listed(value, count_max))), ())

    def number(self, key: str, low: float, high: float, *, whole: bool) -> float | None:
        """Return a number between *low* and *high*; None where there is none, or a wrong one."""
        return self.take(key, lambda value: bounded(value, low, high, whole=whole), None)

    def moment(self, key: str, zone_name: str, *, is_end: bool, required: str = "") -> int:
        """Return a time in nanoseconds since 1970; 0 where there is none, or a wrong one."""
        return self.take(
            key, lambda value: moment_ns(value, zone_name, is_end=is_end), 0, required=required
        )

    def zone_name(self, default: str) -> str:
        """Return the name of the time zone, its own or *default*."""

        def parse(value: object) -> str:
            name = one_line(value)
            zone(name)
            return name

        return self.take("time_zone", parse, default)

    def patterns(self, key: str = "hosts") -> tuple[Pattern, ...]:
        """Return the patterns of hosts."""
        return self.take(key, lambda value: tuple(map(parse_pattern, listed(value, NAMES_MAX))), ())

    def selection(self, *, required: bool = True) -> Selection | None:
        """Return who is meant; None where nobody is named."""
        keys = ("hosts", *BY_PLACE.values())
        named = any(self.has(key) for key in keys)
        patterns = self.patterns()
        places = {name: frozenset(self.texts(key)) for name, key in BY_PLACE.items()}
        if required and not named:
            self.wrong(
                "",
                f'no hosts: name them, as hosts = ["gpu-[001-016]"], or by {", ".join(keys[1:])}',
            )
        if not named:
            return None
        return Selection(patterns, {name: chosen for name, chosen in places.items() if chosen})

    def close(self) -> None:
        """Tell of each key that nobody asked for."""
        for key in self._values:
            if key not in self._asked:
                self._problems.add(self.at(key), partial(self._unknown, key))

    def _unknown(self, key: str) -> str:
        return f"{as_key(key)}: unknown here; {near(key, self._asked)}"


def as_key(key: str) -> str:
    """Return a key as words bear it: as it stands where that is plain."""
    return key if _PLAIN.fullmatch(key) else shown(key)


def one_line(value: object, characters_max: int = NAME_CHARACTERS_MAX) -> str:
    """Return a text. Raises ValueError with what would be right."""
    if not isinstance(value, str):
        raise ValueError("expected a text in quotes")  # noqa: TRY004 - what a file holds is a value
    text = value.strip()
    if not text or len(text) > characters_max or not text.isprintable():
        raise ValueError(f"expected one line of 1 to {characters_max} characters")
    return text


def listed(value: object, count_max: int) -> list[Any]:
    """Return a list that is not empty. Raises ValueError with what would be right."""
    if not isinstance(value, list) or not value:
        raise ValueError('expected a list, as ["a", "b"]')
    if len(value) > count_max:
        raise ValueError(f"{len(value)} of them, at most {count_max}")
    return value


def bounded(value: object, low: float, high: float, *, whole: bool = False) -> float:
    """Return a number. Raises ValueError with what would be right."""
    good = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
    if not good or not math.isfinite(_float(value)) or not low <= _float(value) <= high:
        kind = f"{'whole ' if whole else ''}number"
        quoted = " without quotes," if isinstance(value, str) else ""
        raise ValueError(f"expected a {kind}{quoted} from {low:,.10g} to {high:,.10g}")
    return _float(value)


def _float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf
