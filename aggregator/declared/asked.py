"""What a `Declared` is asked each second of each host, worked out once: who is meant, which window, which override.

Thousands of entries that each mean thousands of hosts are legal. Hosts that the same entries mean share one answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from .index import Index
    from .model import Expected, Override, Place, Window

E = TypeVar("E")
#: Answers of a kind that are kept; past it they begin anew.
ANSWERS_MAX = 200_000
_EVER_NS = 2**63
#: Signals of which an override may name codes.
CODED = ("gpu.xid", "nvswitch.sxid")
#: A rule's name, the signal that it saw, and the code where that has one.
Rule = tuple[str, str, float]


@dataclass(slots=True)
class Meant:
    """Which entries mean each host. The same entries are the same tuple, whosever they are."""

    _hosts: dict[int, dict[str, tuple[Any, ...]]] = field(
        default_factory=dict[int, dict[str, tuple[Any, ...]]]
    )
    _shared: dict[tuple[int, tuple[int, ...]], tuple[Any, ...]] = field(
        default_factory=dict[tuple[int, tuple[int, ...]], tuple[Any, ...]]
    )

    def of(self, host: str, place: Place, entries: tuple[E, ...], index: Index) -> tuple[E, ...]:
        """Return those of *entries* that mean *host*, which stands at *place*."""
        known = self._hosts.setdefault(id(entries), {})
        found = known.get(host)
        if found is None:
            numbers = index.of(host, place)
            which = id(entries), numbers
            found = self._shared.get(which)
            if found is None:
                found = self._shared[which] = tuple(entries[number] for number in numbers)
            known[host] = found
        return found


@dataclass(slots=True)
class Windows:
    """The window of each set of entries, at one moment."""

    _now_ns: int
    _known: dict[int, Window | None] = field(default_factory=dict[int, "Window | None"])

    def of(self, meaning: tuple[Window, ...]) -> Window | None:
        """Return the one of *meaning* that lasts longest of those that hold."""
        key = id(meaning)
        if key not in self._known:
            self._known[key] = longest(meaning, self._now_ns)
        return self._known[key]


def longest(meaning: Sequence[Window], now_ns: int) -> Window | None:
    """Return the window that *now_ns* is in, the one that ends last; None: in none."""
    found = [one for one in meaning if one.begin_ns <= now_ns < one.end_ns]
    return max(found, key=lambda one: one.end_ns, default=None)


@dataclass(slots=True)
class Quieting:
    """Which overrides hold, and which of them are about something. Another one when an override begins or ends."""

    _begin_ns: int = 0
    _end_ns: int = 0
    _live: tuple[Override, ...] = ()
    _of_rule: dict[Rule, frozenset[int]] = field(default_factory=dict[Rule, frozenset[int]])
    _known: dict[tuple[int, Rule, str], tuple[Override, ...]] = field(
        default_factory=dict[tuple[int, Rule, str], "tuple[Override, ...]"]
    )

    def at(self, overrides: Sequence[Override], now_ns: int) -> Quieting:
        """Return this for *now_ns*. *overrides*: all there are."""
        if self._begin_ns <= now_ns < self._end_ns:
            return self
        moments = {each for one in overrides for each in (one.since_ns, one.until_ns)}
        begin_ns = max((one for one in moments if one <= now_ns), default=-_EVER_NS)
        end_ns = min((one for one in moments if one > now_ns), default=_EVER_NS)
        live = tuple(one for one in overrides if one.since_ns <= now_ns < one.until_ns)
        return Quieting(begin_ns, end_ns, live)

    def about(
        self, meaning: tuple[Override, ...], rule: str, signal: str, code: float, device: str
    ) -> tuple[Override, ...]:
        """Return those of *meaning* that hold and are about a symptom, in their order."""
        seen = rule, signal, code if signal in CODED else 0.0  # a reading is another each second
        key = id(meaning), seen, device
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= ANSWERS_MAX:
                self._known.clear()
            of_rule = self._are_of(seen)
            found = tuple(one for one in meaning if id(one) in of_rule and one.is_at(device))
            self._known[key] = found
        return found

    def _are_of(self, seen: Rule) -> frozenset[int]:
        """Return which overrides are about *seen*, wherever it is."""
        found = self._of_rule.get(seen)
        if found is None:
            if len(self._of_rule) >= ANSWERS_MAX:
                self._of_rule.clear()
            found = frozenset(id(one) for one in self._live if one.is_of(*seen))
            self._of_rule[seen] = found
        return found


@dataclass(slots=True)
class Expecting:
    """What is expected of hosts of a model, of each set of entries that name hosts."""

    _known: dict[tuple[int, str], Expected | None] = field(
        default_factory=dict[tuple[int, str], "Expected | None"]
    )

    def of(
        self, named: tuple[Expected, ...], model: str, every: Sequence[Expected]
    ) -> Expected | None:
        """Return the first of *named* that is for *model*, else the first of *every* that is for it alone."""
        key = id(named), model
        if key not in self._known:
            if len(self._known) >= ANSWERS_MAX:
                self._known.clear()
            by_model = (one for one in every if one.selection is None)
            self._known[key] = next((one for one in (*named, *by_model) if one.fits(model)), None)
        return self._known[key]
