"""Overrides: symptoms of a rule or of codes that are noise on some hosts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from ..rule_catalogue import FAMILIES, NEVER_NOISE
from .patterns import matches_pattern, wildcard_count
from .problems import SourceLocation, quote_value, suggest_key
from .selection import CACHED_MAX, Selection

_EVER_NS = 2**63
#: Signals whose codes an override may name.
CODED_SIGNALS = ("gpu.xid", "nvswitch.sxid")
#: A rule's name, the signal, and the code if the signal has one.
SymptomKey = tuple[str, str, float]


@dataclass(slots=True)
class ActiveOverrides:
    """The active overrides, by symptom. Replaced when an override begins or ends."""

    _begin_ns: int = 0
    _end_ns: int = 0
    _active: tuple[Override, ...] = ()
    _by_symptom: dict[SymptomKey, frozenset[int]] = field(default_factory=dict)
    _known: dict[tuple[int, SymptomKey, str], tuple[Override, ...]] = field(default_factory=dict)

    def at(self, overrides: Sequence[Override], now_ns: int) -> ActiveOverrides:
        """Return the object for *now_ns*. *overrides*: all declared."""
        if self._begin_ns <= now_ns < self._end_ns:
            return self
        moments = {m for o in overrides for m in (o.since_ns, o.until_ns)}
        begin_ns = max((moment for moment in moments if moment <= now_ns), default=-_EVER_NS)
        end_ns = min((moment for moment in moments if moment > now_ns), default=_EVER_NS)
        active = tuple(o for o in overrides if o.since_ns <= now_ns < o.until_ns)
        return ActiveOverrides(begin_ns, end_ns, active)

    def matching(
        self, matching: tuple[Override, ...], rule: str, signal: str, code: float, device: str
    ) -> tuple[Override, ...]:
        """Return the active *matching* overrides about this symptom, in their order."""
        symptom = (
            rule,
            signal,
            code if signal in CODED_SIGNALS else 0.0,
        )  # the value of a reading changes each second
        key = id(matching), symptom, device
        result = self._known.get(key)
        if result is None:
            if len(self._known) >= CACHED_MAX:
                self._known.clear()
            of_rule = self._overrides_of(symptom)
            result = tuple(o for o in matching if id(o) in of_rule and o.covers_device(device))
            self._known[key] = result
        return result

    def _overrides_of(self, symptom: SymptomKey) -> frozenset[int]:
        """Return the ids of active overrides about *symptom* on any device."""
        ids = self._by_symptom.get(symptom)
        if ids is None:
            if len(self._by_symptom) >= CACHED_MAX:
                self._by_symptom.clear()
            ids = frozenset(id(o) for o in self._active if o.covers_symptom(*symptom))
            self._by_symptom[symptom] = ids
        return ids


def rule_matches(rule: str, name: str) -> bool:
    """Return whether *name* selects *rule*: its name, a pattern, or its family."""
    return matches_pattern(rule, name) or (name in FAMILIES and rule.startswith(f"{name}."))


def is_allowed_rule(name: str, rules: Collection[str]) -> bool:
    """Return whether *rules* allow an override to name *name*.

    Empty *rules* allow any name: a version that was valid before is loaded without this check.
    """
    return not rules or (
        name not in NEVER_NOISE and any(matches_pattern(rule, name) for rule in rules)
    )


def rule_refusal(name: str, rules: Collection[str]) -> str:
    """Return why an override may not name *name*."""
    return (
        NEVER_NOISE.get(name)
        or f"{quote_value(name)}: no rule has this name; {suggest_key(name, sorted(rules))}"
    )


@dataclass(frozen=True, slots=True)
class Override:
    """Symptoms of a rule are noise on these hosts until *until_ns*."""

    selection: Selection
    rule: str  # a rule's name or pattern; "" with codes
    codes: frozenset[int]
    event: str  # the event of the codes: gpu.xid or nvswitch.sxid
    device: str  # a pattern of devices; "" for any
    since_ns: int
    until_ns: int
    who: str
    why: str
    where: SourceLocation
    rollout: float = 1.0  # the share of hosts on which it applies so far

    def covers_symptom(self, rule: str, signal: str, code: float) -> bool:
        """Return whether the override is about this symptom, by rule, or by signal and code."""
        if self.codes:
            return signal == self.event and code in self.codes
        return rule_matches(rule, self.rule)

    def covers_device(self, device: str) -> bool:
        """Return whether the override is about *device*."""
        return not self.device or matches_pattern(device, self.device)

    @property
    def wildcard_count(self) -> int:
        """Number of wildcards besides those of its hosts."""
        return wildcard_count(self.rule) + wildcard_count(self.device)

    @property
    def what(self) -> str:
        """The noise as text."""
        label = {"gpu.xid": "XID", "nvswitch.sxid": "SXID"}.get(self.event, "")
        what = f"{label} {', '.join(map(str, sorted(self.codes)))}" if self.codes else self.rule
        return f"{what} of {self.device}" if self.device else what
