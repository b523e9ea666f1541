"""Parser of a TOML declaration file: locations, hardware, windows, overrides, numbers, costs."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from functools import partial
from math import nan
from typing import Any

from ...contract.topology import RAILS_MAX
from .expectations import ITEMS, TEXTS, Expectation
from .fields import TomlEntry, bounded_number
from .host_placement import HostPlacement
from .limits import (
    CODES_MAX,
    ENTRIES_MAX,
    MAINTENANCE_DAYS_MAX,
    OVERRIDE_DAYS_MAX,
    PLACES_MAX,
    WHO_CHARACTERS_MAX,
    WHY_CHARACTERS_MAX,
)
from .maintenance_windows import MaintenanceWindow
from .model import ExchangeRates, NodeCost
from .overrides import Override, is_allowed_rule, rule_refusal
from .problems import Problems, SourceLocation, quote_value, suggest_key
from .selection import Selection
from .thresholds import THRESHOLDS, Rollout, Threshold
from .toml_lines import LineIndex

DAY_NS = 86_400 * 1_000_000_000
_NONE: list[TomlEntry] = []
KINDS = ("place", "expected", "maintenance", "override", "cost", "tenant")
#: Higher prices and exchange rates are errors, as are more preemptions per hour than one a minute.
PRICE_MAX, RATE_MAX, PREEMPTIONS_MAX = 1e6, 1e9, 60.0
_CODE_MAX = 2**32 - 1
_PLACE_TEXTS = (
    "rack", "power_domain", "cooling_domain", "leaf", "spine", "nvlink_domain", "core",
    "nvlink_subdomain",
)  # fmt: skip
RATES = tuple(rate.name for rate in fields(ExchangeRates))


@dataclass(slots=True)
class Content:
    """The content of one or more files."""

    #: (host, its location, its source)
    places: list[tuple[str, HostPlacement, SourceLocation]] = field(default_factory=list)
    expectations: list[Expectation] = field(default_factory=list)
    windows: list[MaintenanceWindow] = field(default_factory=list)
    overrides: list[Override] = field(default_factory=list)
    thresholds: dict[str, tuple[float, SourceLocation]] = field(default_factory=dict)
    rollouts: dict[str, Rollout] = field(default_factory=dict)
    node_costs: list[NodeCost] = field(default_factory=list)
    tenants: dict[str, tuple[ExchangeRates, SourceLocation]] = field(default_factory=dict)


def parse_toml(
    text: str,
    file: str,
    content: Content,
    problems: Problems,
    now_ns: int,
    rules: frozenset[str] = frozenset(),
) -> None:
    """Add the declarations of *text* to *content*, and its errors to *problems*. Never raises.

    *rules*: the names that an override may have; empty: any name.
    """
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        hint = "; a text needs quotes" if "Invalid value" in str(error) else ""
        problems.add(SourceLocation(file), f"not TOML: {str(error)[:200]}{hint}")
        return
    _TomlReader(document, LineIndex(text), file, content, problems, now_ns, rules).read()


@dataclass(slots=True)
class _TomlReader:
    document: dict[str, Any]
    lines: LineIndex
    file: str
    content: Content
    problems: Problems
    now_ns: int
    rules: frozenset[str]
    zone_name: str = ""

    def read(self) -> None:
        top = TomlEntry(
            self.document,
            SourceLocation(self.file),
            lambda key: self.lines.line("", 0, key),
            self.problems,
        )
        self.zone_name = top.zone_name("")
        for kind in KINDS:
            self._read_kind(top, kind)
        top.take("thresholds", self._thresholds, None)
        for key in self.document:
            if key not in (*KINDS, "thresholds", "time_zone"):
                line = self.lines.line(key) or self.lines.line("", 0, key)
                known = [*(f"[[{kind}]]" for kind in KINDS), "[thresholds]", "time_zone"]
                self.problems.add(
                    SourceLocation(self.file, line),
                    f"{quote_value(key)} is unknown; there are {', '.join(known)}",
                )

    def _read_kind(self, top: TomlEntry, kind: str) -> None:
        take: Callable[[TomlEntry], None] = {
            "place": self._place,
            "expected": self._expected,
            "maintenance": self._maintenance,
            "override": self._override,
            "cost": self._cost,
            "tenant": self._tenant,
        }[kind]
        for entry in top.take(kind, lambda value: list(self._entries(kind, value)), _NONE):
            take(entry)
            entry.close()

    def _entries(self, kind: str, value: Any) -> Iterator[TomlEntry]:
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise ValueError(f"expected [[{kind}]] before each, with two brackets")
        if len(value) > ENTRIES_MAX:
            raise ValueError(f"{len(value)} of them, at most {ENTRIES_MAX}")
        for ordinal, values in enumerate(value):
            where = SourceLocation(self.file, self.lines.line(kind, ordinal))
            line_of = _line_of(self.lines, kind, ordinal)
            yield TomlEntry(values, where, line_of, self.problems)

    def _place(self, entry: TomlEntry) -> None:
        patterns = entry.patterns()
        if not entry.has("hosts"):
            entry.add_problem("", 'hosts is missing: expected hosts = ["gpu-[001-016]"]')
        place = HostPlacement(
            **{name: entry.text(name) for name in _PLACE_TEXTS},
            rails=entry.texts("rails", RAILS_MAX),
        )
        open_ones = [pattern.text for pattern in patterns if pattern.has_wildcards]
        if open_ones:
            entry.add_problem(
                "hosts",
                f"{quote_value(open_ones[0])}: hosts of a place are named, or in ranges as gpu-[001-016]",
            )
        elif (
            len(self.content.places) + sum(len(pattern.names) for pattern in patterns) > PLACES_MAX
        ):
            entry.add_problem(
                "hosts", f"with these there are more than {PLACES_MAX} places of hosts"
            )
        else:
            names = (name for pattern in patterns for name in sorted(pattern.names))
            self.content.places += [(name, place, entry.where) for name in names]

    def _expected(self, entry: TomlEntry) -> None:
        model, name = entry.text("model"), entry.text("name")
        selection = entry.selection(required=False)
        if not model and selection is None:
            entry.add_problem(
                "",
                'no hosts selected: expected model = "NVIDIA H100*", or hosts = ["gpu-*"], or both',
            )
        items = {
            key: number
            for key, item in ITEMS.items()
            if (number := entry.number(key, item.low, item.high, whole=item.whole)) is not None
        }
        texts = {key: patterns for key in TEXTS if (patterns := entry.texts(key))}
        if not any(map(entry.has, (*ITEMS, *TEXTS))):
            entry.add_problem("", f"nothing is expected: there are {', '.join((*ITEMS, *TEXTS))}")
        self.content.expectations.append(
            Expectation(name or model or "expected", model, selection, items, texts, entry.where)
        )

    def _maintenance(self, entry: TomlEntry) -> None:
        selection = entry.selection()
        zone_name = entry.zone_name(self.zone_name)
        begin_ns = entry.moment(
            "begin", zone_name, is_end=False, required="expected when it begins"
        )
        end_ns = entry.moment(
            "end", zone_name, is_end=True, required="expected the end: no maintenance is permanent"
        )
        who, why = _who_and_why(entry)
        if (
            begin_ns
            and end_ns
            and not begin_ns < end_ns <= begin_ns + MAINTENANCE_DAYS_MAX * DAY_NS
        ):
            entry.add_problem("end", f"expected after begin, at most {MAINTENANCE_DAYS_MAX} days")
        if selection and begin_ns and end_ns:
            self._note_odd(entry, selection, "end", end_ns)
            self.content.windows.append(
                MaintenanceWindow(selection, begin_ns, end_ns, who, why, entry.where)
            )

    def _override(self, entry: TomlEntry) -> None:
        selection = entry.selection()
        zone_name = entry.zone_name(self.zone_name)
        since_ns = entry.moment("since", zone_name, is_end=False)
        required = "an override has an end, as until = 2026-12-24"
        until_ns = entry.moment("until", zone_name, is_end=True, required=required)
        rule, device = entry.text("rule"), entry.text("device")
        if rule and not is_allowed_rule(rule, self.rules):
            entry.add_problem("rule", partial(rule_refusal, rule, self.rules))
        event, codes = self._codes(entry)
        rollout = entry.number("rollout", 0.0, 1.0, whole=False)
        who, why = _who_and_why(entry)
        if sum(map(entry.has, ("rule", "xid", "sxid"))) != 1:
            entry.add_problem(
                "",
                'noise is not specified: expected one of rule = "host.cpu_pressure", xid = [63], sxid = [..]',
            )
        limit_ns = (since_ns or self.now_ns) + OVERRIDE_DAYS_MAX * DAY_NS
        if until_ns and not since_ns < until_ns <= limit_ns:
            entry.add_problem(
                "until",
                f"expected after since, and at most {OVERRIDE_DAYS_MAX} days from {'then' if since_ns else 'now'}",
            )
        if selection and until_ns and (rule or codes):
            self._note_odd(entry, selection, "until", until_ns)
            self.content.overrides.append(
                Override(
                    selection, rule, codes, event, device, since_ns, until_ns, who, why, entry.where,
                    1.0 if rollout is None else rollout,
                )
            )  # fmt: skip

    def _codes(self, entry: TomlEntry) -> tuple[str, frozenset[int]]:
        """Return the event whose codes are noise, and the codes."""

        def parse(value: object) -> frozenset[int]:
            codes: list[Any] = value if isinstance(value, list) else [value]
            if not 0 < len(codes) <= CODES_MAX:
                raise ValueError(f"expected 1 to {CODES_MAX} codes, as [63, 94]")
            return frozenset(int(bounded_number(code, 0, _CODE_MAX, whole=True)) for code in codes)

        none: frozenset[int] = frozenset()
        xids, sxids = entry.take("xid", parse, none), entry.take("sxid", parse, none)
        return ("gpu.xid", xids) if xids else ("nvswitch.sxid", sxids) if sxids else ("", none)

    def _cost(self, entry: TomlEntry) -> None:
        """Record the price of hosts' GPUs, and their preemptions."""
        selection = entry.selection()
        price = entry.number("price_per_gpu_hour", 0.0, PRICE_MAX, whole=False)
        is_spot = entry.take("spot", _boolean, None)
        preemptions = entry.number("preemptions_per_hour", 0.0, PREEMPTIONS_MAX, whole=False)
        if is_spot and not entry.has("preemptions_per_hour"):
            entry.add_problem(
                "spot",
                "expected preemptions_per_hour beside it, as 0.005: how often a host is preempted",
            )
        if not is_spot and entry.has("preemptions_per_hour"):
            entry.add_problem("preemptions_per_hour", "expected spot = true beside it")
        if not (entry.has("price_per_gpu_hour") or entry.has("spot")):
            entry.add_problem(
                "",
                "nothing is declared: expected price_per_gpu_hour = 2.1, or spot = true, or both",
            )
        if selection:
            rate = 0.0 if is_spot is False else preemptions
            self.content.node_costs.append(
                NodeCost(
                    selection, nan if price is None else price, nan if rate is None else rate, entry.where
                )
            )  # fmt: skip

    def _tenant(self, entry: TomlEntry) -> None:
        """Record the exchange rates of a tenant."""
        name = entry.text("name", required="expected the tenant that requests name")
        rates = {
            key: rate
            for key in RATES
            if (rate := entry.number(key, 0.0, RATE_MAX, whole=False)) is not None
        }
        if not any(map(entry.has, RATES)):
            entry.add_problem("", f"no exchange rate: there are {', '.join(RATES)}")
        if name in self.content.tenants:
            other = self.content.tenants[name][1]
            entry.add_problem("name", f"{quote_value(name)} is declared already, at {other}")
        elif name:
            self.content.tenants[name] = ExchangeRates(**rates), entry.where

    def _note_odd(self, entry: TomlEntry, selection: Selection, key: str, end_ns: int) -> None:
        if selection.is_all:
            self.problems.note(entry.at("hosts"), "this is for every host")
        if end_ns <= self.now_ns:
            self.problems.note(entry.at(key), "this has ended and no longer has an effect")

    def _thresholds(self, value: object) -> None:
        if not isinstance(value, dict):
            raise ValueError(  # noqa: TRY004 - content of a file
                'expected a table: [thresholds], and below it "host.cpu_steal_ratio" = 0.2'
            )
        for name, number in _flatten(value):
            where = SourceLocation(self.file, self.lines.line("thresholds", 0, name))
            row = THRESHOLDS.get(name)
            if row is None:
                self.problems.add(where, partial(_unknown_threshold, name))
                continue
            try:
                value_set, rollout = _parse_threshold(number, row)
            except ValueError as error:
                unit = f" ({row.unit})" if row.unit != "1" else ""
                self.problems.add(where, f"{name}: {quote_value(number)}: {error}{unit}")
                continue
            if rollout is not None:
                self.content.rollouts[name] = rollout
            if name in self.content.thresholds:
                other = self.content.thresholds[name][1]
                self.problems.add(where, f"{name} is set already, at {other}")
            self.content.thresholds[name] = value_set, where


def _boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("expected true or false, without quotes")  # noqa: TRY004 - content of a file
    return value


def _unknown_threshold(name: str) -> str:
    return f"no threshold {quote_value(name)}; {suggest_key(name, THRESHOLDS)}"


def _who_and_why(entry: TomlEntry) -> tuple[str, str]:
    who = entry.text("who", WHO_CHARACTERS_MAX, required="expected who requests it")
    required = "expected the reason, for the person who reads it at night"
    why = entry.text("why", WHY_CHARACTERS_MAX, required=required)
    return who, why


def _line_of(lines: LineIndex, kind: str, ordinal: int) -> Callable[[str], int]:
    return lambda key: lines.line(kind, ordinal, key)


def _parse_threshold(value: Any, row: Threshold) -> tuple[float, Rollout | None]:
    """Return a threshold, and its roll-out; None: on all hosts. Raises ValueError."""
    if not isinstance(value, dict):
        return bounded_number(value, row.low, row.high), None
    if not {"value", "rollout"} <= value.keys() <= {"value", "rollout", "before"}:
        raise ValueError("expected a number, or { value = 0.2, rollout = 0.01 }, with before = ..")
    number = bounded_number(value["value"], row.low, row.high)
    before = bounded_number(value.get("before", row.default), row.low, row.high)
    try:
        share = bounded_number(value["rollout"], 0.0, 1.0)
    except ValueError as error:
        raise ValueError(f"rollout: {error}, the share of the hosts") from error
    return number, Rollout(share, before) if share < 1.0 else None


def _flatten(table: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield names and values; `gpu.slow_below_ratio = 0.9` without quotes is a table in a table."""
    for key, value in table.items():
        if isinstance(value, dict) and not before and key not in THRESHOLDS:
            yield from _flatten(value, f"{key}.")
        else:
            yield before + key, value
