"""All declarations of one version of the files as one immutable value, with lookups per host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isnan, nan
from types import MappingProxyType
from typing import Protocol, TypeVar

from .expectations import Expectation, ExpectationIndex
from .host_placement import NOWHERE, HostPlacement, PlaceSource, merge_places
from .maintenance_windows import ActiveWindows, MaintenanceWindow, last_ending
from .overrides import ActiveOverrides, Override
from .problems import SourceLocation
from .selection import EntryMatcher, Selection, SelectionIndex
from .thresholds import THRESHOLDS, Rollout, is_rolled_out


@dataclass(frozen=True, slots=True)
class NodeCost:
    """Price of a GPU of these hosts, and their preemptions; NaN: not in this entry."""

    selection: Selection
    price_per_gpu_hour: float
    preemptions_per_hour: float  # per host of spot capacity; 0 for `spot = false`
    where: SourceLocation


@dataclass(frozen=True, slots=True)
class ExchangeRates:
    """Rates from a tenant's delay, money and stranded GPUs to GPU-hours; NaN: not declared."""

    gpu_hours_per_delay_hour: float = nan
    gpu_hours_per_currency_unit: float = nan
    gpu_hours_per_stranded_gpu_hour: float = nan


class HasSelection(Protocol):
    """An entry with selected hosts; None: any host."""

    @property
    def selection(self) -> Selection | None: ...


E = TypeVar("E", bound=HasSelection)


@dataclass(frozen=True)
class Declared:
    """All declarations of one version of the files.

    `number` grows with each accepted version; `hash` is of the files' content. `places_version`
    grows when locations change for any reason.
    """

    number: int = 0
    hash: str = ""
    files: tuple[str, ...] = ()
    windows: tuple[MaintenanceWindow, ...] = ()
    overrides: tuple[Override, ...] = ()
    expectations: tuple[Expectation, ...] = ()
    thresholds: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    #: Thresholds that do not apply to all hosts yet.
    rollouts: Mapping[str, Rollout] = field(default_factory=lambda: MappingProxyType({}))
    node_costs: tuple[NodeCost, ...] = ()
    #: A plain dictionary, because snapshots are sent to another process.
    tenants: Mapping[str, ExchangeRates] = field(default_factory=dict)
    #: Host -> its locations by files, the highest priority first.
    file_places: Mapping[str, tuple[PlaceSource, ...]] = field(
        default_factory=lambda: MappingProxyType({})
    )
    #: Host -> its locations by its own reports.
    reported_places: Mapping[str, tuple[PlaceSource, ...]] = field(
        default_factory=lambda: MappingProxyType({})
    )
    places: Mapping[str, HostPlacement] = field(default_factory=lambda: MappingProxyType({}))
    places_version: int = 0
    notes: tuple[str, ...] = ()
    #: Index of each tuple of entries, by its id.
    _indexes: dict[int, tuple[object, SelectionIndex]] = field(
        default_factory=dict, repr=False, compare=False
    )
    _matcher: EntryMatcher = field(
        default_factory=EntryMatcher, init=False, repr=False, compare=False
    )
    _expectation_index: ExpectationIndex = field(
        default_factory=ExpectationIndex, init=False, repr=False, compare=False
    )
    #: The last result of `override`: the active overrides.
    _active_overrides: list[ActiveOverrides] = field(
        default_factory=lambda: [ActiveOverrides()], init=False, repr=False, compare=False
    )
    #: The last argument and result of `maintenance_windows`.
    _maintenance_cache: list[tuple[object, Mapping[int, MaintenanceWindow]]] = field(
        default_factory=list, init=False, repr=False, compare=False
    )

    def _matching(self, host: str, entries: tuple[E, ...]) -> tuple[E, ...]:
        """Return the *entries* that select *host*."""
        return self._matcher.match(host, self.place(host), entries, self._index(entries))

    def _index(self, entries: tuple[HasSelection, ...]) -> SelectionIndex:
        known = self._indexes.get(id(entries))
        if known is None or known[0] is not entries:
            index = SelectionIndex(entry.selection for entry in entries)
            known = self._indexes[id(entries)] = entries, index
        return known[1]

    def prepare(self, hosts: Sequence[str] = ()) -> None:
        """Build the indexes and match *hosts*, so that the first query does not wait."""
        for entries in (self.windows, self.overrides, self.expectations, self.node_costs):
            index = self._index(entries)
            for host in hosts:
                index.by_name(host)

    @property
    def match_cost(self) -> int:
        """Wildcards and ranges to match a name with (at most `MATCH_COST_MAX`)."""
        kinds = (self.windows, self.overrides, self.expectations, self.node_costs)
        other_cost = sum(entry.wildcard_count for entry in self.overrides)
        other_cost += sum(entry.wildcard_count for entry in self.expectations)
        return other_cost + sum(self._index(entries).match_cost for entries in kinds)

    def active_windows(self, now_ns: int) -> list[MaintenanceWindow]:
        """Return the windows that contain *now_ns*."""
        return [window for window in self.windows if window.begin_ns <= now_ns < window.end_ns]

    def active_overrides(self, now_ns: int) -> list[Override]:
        """Return the overrides that are active at *now_ns*."""
        return [o for o in self.overrides if o.since_ns <= now_ns < o.until_ns]

    def place(self, host: str) -> HostPlacement:
        """Return the location of *host*, as far as it is known."""
        return self.places.get(host, NOWHERE)

    def place_sources(self, host: str) -> tuple[PlaceSource, ...]:
        """Return the location of *host* by each source, the highest priority first."""
        return (*self.file_places.get(host, ()), *self.reported_places.get(host, ()))

    def window(self, host: str, now_ns: int) -> MaintenanceWindow | None:
        """Return the window of *host* at *now_ns* that ends last; None: none."""
        return last_ending(self._matching(host, self.windows), now_ns)

    def maintenance_windows(
        self, hosts: Sequence[str], now_ns: int
    ) -> Mapping[int, MaintenanceWindow]:
        """Return the window of each of *hosts* that is in one, by its index in *hosts*.

        Cached until a window begins or ends; between two calls *hosts* may only grow.
        """
        active = self.active_windows(now_ns)
        if not active:
            return {}
        key = len(hosts), *map(id, active)
        if not self._maintenance_cache or self._maintenance_cache[0][0] != key:
            active_windows = ActiveWindows(now_ns)
            windows = (
                active_windows.active_window(self._matching(host, self.windows)) for host in hosts
            )
            windows_by_host = {i: w for i, w in enumerate(windows) if w is not None}
            self._maintenance_cache[:] = [(key, windows_by_host)]
        return self._maintenance_cache[0][1]

    def override(
        self,
        host: str,
        rule: str,
        now_ns: int,
        *,
        signal: str = "",
        code: float = 0,
        device: str = "",
        upcoming: bool = False,
    ) -> Override | None:
        """Return the override that makes symptoms of *rule* on *host* noise; None: they count.

        *upcoming*: return the override that will apply once its roll-out reaches the host.
        """
        active = self._active_overrides[0] = self._active_overrides[0].at(self.overrides, now_ns)
        matching = active.matching(self._matching(host, self.overrides), rule, signal, code, device)
        return next((o for o in matching if is_rolled_out(o.rollout, host) is not upcoming), None)

    def threshold(self, name: str, *, before: bool = False) -> float:
        """Return a number of `THRESHOLDS`: as declared, else its default. Raises KeyError.

        *before*: as it is on hosts that its roll-out has not reached.
        """
        if before and name in self.rollouts:
            return self.rollouts[name].before
        return self.thresholds.get(name, THRESHOLDS[name].default)

    def expected(self, model: str, host: str = "") -> Expectation | None:
        """Return the first expectation that selects *host*, else the first for *model* alone."""
        named = self._matching(host, self.expectations) if host else ()
        return self._expectation_index.find(named, model, self.expectations)

    def cost(self, host: str) -> tuple[float, float]:
        """Return *host*'s price of a GPU-hour and preemptions per hour by first entries, or NaN."""
        matching = self._matching(host, self.node_costs)
        prices = (node_cost.price_per_gpu_hour for node_cost in matching)
        preemptions = (node_cost.preemptions_per_hour for node_cost in matching)
        return (
            next((price for price in prices if not isnan(price)), nan),
            next((rate for rate in preemptions if not isnan(rate)), nan),
        )

    def with_reported(self, reported: Mapping[str, tuple[PlaceSource, ...]]) -> Declared:
        """Return the declarations with the current reports of hosts."""
        if reported is self.reported_places:
            return self
        changed = [
            host
            for host in reported.keys() | self.reported_places.keys()
            if reported.get(host) != self.reported_places.get(host)
        ]
        if not changed:
            return replace(self, reported_places=reported)
        after = replace(self, reported_places=reported, places_version=self.places_version + 1)
        places = dict(self.places)
        for host in changed:
            places[host] = merge_places(after.place_sources(host))
        return replace(after, places=places)


#: Nothing was declared.
NOTHING = Declared()
