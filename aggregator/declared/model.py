"""All declarations as one immutable value, with indexes for its lookups per host.

Thousands of entries that each select thousands of hosts are allowed. Hosts selected by the same
entries share one result.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from hashlib import blake2b
from math import isnan, nan
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeVar

from ..rule_catalogue import FAMILIES, NEVER_NOISE
from .fields import (
    PLACE_SELECTORS,
    HostPattern,
    Selection,
    SourceLocation,
    matches_pattern,
    quote_value,
    suggest_key,
    wildcard_count,
)

EntryT = TypeVar("EntryT")
#: Maximum cached results of a kind; then the cache is cleared.
CACHED_MAX = 200_000
_EVER_NS = 2**63
#: Signals whose codes an override may name.
CODED_SIGNALS = ("gpu.xid", "nvswitch.sxid")
#: A rule's name, the signal, and the code if the signal has one.
SymptomKey = tuple[str, str, float]


@dataclass(slots=True)
class EntryMatcher:
    """The entries that select each host. Equal sets of entries are the same tuple object."""

    _hosts: dict[int, dict[str, tuple[Any, ...]]] = field(
        default_factory=dict[int, dict[str, tuple[Any, ...]]]
    )
    _shared: dict[tuple[int, tuple[int, ...]], tuple[Any, ...]] = field(
        default_factory=dict[tuple[int, tuple[int, ...]], tuple[Any, ...]]
    )

    def match(
        self, host: str, place: HostPlacement, entries: tuple[EntryT, ...], index: SelectionIndex
    ) -> tuple[EntryT, ...]:
        """Return the *entries* that select *host*, located at *place*."""
        known = self._hosts.setdefault(id(entries), {})
        matching = known.get(host)
        if matching is None:
            numbers = index.entries_for(host, place)
            shared_key = id(entries), numbers
            matching = self._shared.get(shared_key)
            if matching is None:
                matching = self._shared[shared_key] = tuple(entries[number] for number in numbers)
            known[host] = matching
        return matching


@dataclass(slots=True)
class ActiveWindows:
    """The active window of each set of entries, at one moment."""

    _now_ns: int
    _known: dict[int, MaintenanceWindow | None] = field(
        default_factory=dict[int, "MaintenanceWindow | None"]
    )

    def active_window(self, matching: tuple[MaintenanceWindow, ...]) -> MaintenanceWindow | None:
        """Return the *matching* window that is active and ends last."""
        key = id(matching)
        if key not in self._known:
            self._known[key] = last_ending(matching, self._now_ns)
        return self._known[key]


def last_ending(matching: Sequence[MaintenanceWindow], now_ns: int) -> MaintenanceWindow | None:
    """Return the window that contains *now_ns* and ends last; None: none."""
    active = [window for window in matching if window.begin_ns <= now_ns < window.end_ns]
    return max(active, key=lambda window: window.end_ns, default=None)


@dataclass(slots=True)
class ActiveOverrides:
    """The active overrides, by symptom. Replaced when an override begins or ends."""

    _begin_ns: int = 0
    _end_ns: int = 0
    _active: tuple[Override, ...] = ()
    _by_symptom: dict[SymptomKey, frozenset[int]] = field(
        default_factory=dict[SymptomKey, frozenset[int]]
    )
    _known: dict[tuple[int, SymptomKey, str], tuple[Override, ...]] = field(
        default_factory=dict[tuple[int, SymptomKey, str], "tuple[Override, ...]"]
    )

    def at(self, overrides: Sequence[Override], now_ns: int) -> ActiveOverrides:
        """Return the object for *now_ns*. *overrides*: all declared."""
        if self._begin_ns <= now_ns < self._end_ns:
            return self
        moments = {
            moment for override in overrides for moment in (override.since_ns, override.until_ns)
        }
        begin_ns = max((moment for moment in moments if moment <= now_ns), default=-_EVER_NS)
        end_ns = min((moment for moment in moments if moment > now_ns), default=_EVER_NS)
        active = tuple(
            override for override in overrides if override.since_ns <= now_ns < override.until_ns
        )
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
            result = tuple(
                override
                for override in matching
                if id(override) in of_rule and override.covers_device(device)
            )
            self._known[key] = result
        return result

    def _overrides_of(self, symptom: SymptomKey) -> frozenset[int]:
        """Return the ids of active overrides about *symptom* on any device."""
        ids = self._by_symptom.get(symptom)
        if ids is None:
            if len(self._by_symptom) >= CACHED_MAX:
                self._by_symptom.clear()
            ids = frozenset(
                id(override) for override in self._active if override.covers_symptom(*symptom)
            )
            self._by_symptom[symptom] = ids
        return ids


@dataclass(slots=True)
class ExpectationIndex:
    """The expectation for hosts of a model, per set of entries that name hosts."""

    _known: dict[tuple[int, str], Expectation | None] = field(
        default_factory=dict[tuple[int, str], "Expectation | None"]
    )

    def find(
        self, named: tuple[Expectation, ...], model: str, expectations: Sequence[Expectation]
    ) -> Expectation | None:
        """Return the first of *named* for *model*, else the first for the model alone."""
        key = id(named), model
        if key not in self._known:
            if len(self._known) >= CACHED_MAX:
                self._known.clear()
            by_model = (
                expectation for expectation in expectations if expectation.selection is None
            )
            self._known[key] = next(
                (expectation for expectation in (*named, *by_model) if expectation.fits(model)),
                None,
            )
        return self._known[key]


class SelectionIndex:
    """Looks up `Selection.matches` for thousands of entries and hosts. Immutable."""

    def __init__(self, selections: Iterable[Selection | None]) -> None:
        """*selections*: entries are identified by their index; None selects no host."""
        self._names: defaultdict[str, list[int]] = defaultdict(list)
        self._places: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
        self._matched_patterns: list[tuple[int, HostPattern]] = []
        #: Host -> entries that select it by name, computed once.
        self._by_name: dict[str, tuple[int, ...]] = {}
        self._shared: dict[tuple[int, ...], tuple[int, ...]] = {}
        for number, selection in enumerate(selections):
            for pattern in selection.patterns if selection is not None else ():
                if pattern.has_wildcards:
                    self._matched_patterns.append((number, pattern))
                for name in pattern.names:
                    self._names[name].append(number)
            if selection is not None:
                self._place(number, selection)
        #: Total cost of all matched patterns.
        self.match_cost = sum(pattern.match_cost for _, pattern in self._matched_patterns)

    def _place(self, number: int, selection: Selection) -> None:
        for column, chosen in selection.places.items():
            for value in chosen:
                self._places[column, value].append(number)

    def by_name(self, host: str) -> tuple[int, ...]:
        """Return the entries that select *host* by its name."""
        entries = self._by_name.get(host)
        if entries is None:
            matched = (
                number for number, pattern in self._matched_patterns if pattern.matches(host)
            )
            numbers = tuple(sorted({*self._names.get(host, ()), *matched}))
            entries = self._by_name[host] = self._shared.setdefault(numbers, numbers)
        return entries

    def entries_for(self, host: str, place: object) -> tuple[int, ...]:
        """Return the entries that select *host* at *place* (a `HostPlacement`), in order."""
        named = self.by_name(host)
        placed = [
            at_place
            for field in PLACE_SELECTORS
            if (at_place := self._places.get((field, getattr(place, field))))
        ]
        return tuple(sorted({*named}.union(*placed))) if placed else named


class Rollout(NamedTuple):
    """A threshold that applies to a share of the hosts only; on the others it is `before`."""

    share: float
    before: float


@lru_cache(maxsize=65_536)
def rollout_rank(host: str) -> float:
    """Return the position of *host* in every roll-out, from 0 (first) to 1 (last).

    A host reached at 1 % is also reached at 10 %.
    """
    return int.from_bytes(blake2b(host.encode(), digest_size=6).digest()) / 2**48


def is_rolled_out(share: float, host: str) -> bool:
    """Return whether *host* belongs to the first *share* of hosts."""
    return rollout_rank(host) < share


def rollout_message(share: float) -> str:
    """Return the message about a roll-out that has not reached a host."""
    return f"not rolled out to this host yet ({100 * share:g} % of hosts)"


class Threshold(NamedTuple):
    """A number that rules use and an operator may set: its default and range.

    To add one, add a row here, and use it in a rule.
    """

    name: str
    default: float
    low: float
    high: float
    unit: str
    description: str


THRESHOLDS: dict[str, Threshold] = {
    row[0]: Threshold(*row)
    for row in (
        (
            "gpu.slow_below_ratio", 0.90, 0.5, 0.99, "1",
            ("a GPU is slow below this share of its peers' SM clock, where its readings show the "
            "reason and its driver reports no limit"),
        ),
        (
            "gpu.held_watch_ratio", 0.95, 0.5, 0.99, "1",
            ("a GPU that its driver reports as limited by heat, power brake or power cap is WATCH "
            "from this share of its peers' SM clock on"),
        ),
        (
            "gpu.held_below_ratio", 0.92, 0.5, 0.99, "1",
            "the same: DEGRADED from this share on",
        ),
        (
            "gpu.unexplained_below_ratio", 0.85, 0.5, 0.99, "1",
            "the same where they do not",
        ),
        (
            "host.cpu_pressure_ratio", 0.60, 0.05, 1.0, "1",
            "tasks wait for a core this share of the time: WATCH",
        ),
        (
            "host.memory_pressure_ratio", 0.20, 0.01, 1.0, "1",
            "all tasks wait for memory this share of the time: WATCH",
        ),
        (
            "host.cpu_steal_ratio", 0.10, 0.005, 1.0, "1",
            "the hypervisor takes this share of the cores: WATCH",
        ),
        (
            "pcie.corrected_per_second", 1.0, 0.05, 1e4, "1/s",
            "a PCIe link that repairs more errors is WATCH",
        ),
        (
            "nic.pauses_per_second", 1000.0, 1.0, 1e6, "1/s",
            "a port that holds its switch back more often is WATCH, if it is ten times what its peers do",
        ),
        (
            "gang.windows_count", 9.0, 6.0, 12.0, "1",
            "a host is compared only if its job worked in this many of the last twelve windows of ten seconds; in all twelve, if it has three hosts",
        ),
        (
            "gang.slow_ratio", 0.04, 0.01, 0.5, "1",
            "a host that computes longer than the others of its job by this share, at the same clock and work, is slow",
        ),
        (
            "gang.gap_ratio", 0.03, 0.005, 0.5, "1",
            "nothing runs on a host's GPUs for this share of the time more than on those of its job: it has gaps",
        ),
        (
            "gang.pressure_ratio", 0.10, 0.01, 1.0, "1",
            "a host waits for cores or for I/O for this share of the time more than others of its job: that is why",
        ),
        (
            "gang.identity_ratio", 0.70, 0.5, 1.0, "1",
            "it is the same host of its job in this share of two minutes' windows of ten seconds; in a small job it must be so in more",
        ),
        (
            "network.slowed_ratio", 0.03, 0.005, 0.5, "1",
            "the hosts of a job move less than before in it by this share, while their ports wait: its network is short",
        ),
        (
            "network.waits_ratio", 1.5, 1.05, 1000.0, "1",
            "how many times longer than before the ports of a job's hosts wait for the network",
        ),
        (
            "filesystem.available_ratio", 0.02, 0.0, 0.5, "1",
            "a file system with less room is full, if that is less than filesystem.available_bytes too",
        ),
        (
            "filesystem.available_bytes", 2e9, 0.0, 1e15, "bytes",
            "a file system with less room is full, if that is less than filesystem.available_ratio too",
        ),
        (
            "rdma.retransmissions_per_second", 10.0, 0.1, 1e6, "1/s",
            "a port that sends more again is SUSPECT, if it is ten times what its peers do",
        ),
    )
}  # fmt: skip


class ExpectedItem(NamedTuple):
    """A number that a host must have."""

    low: float
    high: float
    description: str
    whole: bool = True


#: Exactly this number, or at least this number if the name ends in `_min`.
ITEMS: dict[str, ExpectedItem] = {
    "gpus": ExpectedItem(0, 256, "GPUs"),
    "gpu_memory_gigabytes_min": ExpectedItem(
        1, 10_000, "memory of each GPU, 10^9 bytes", whole=False
    ),
    "gpu_pcie_width_lanes": ExpectedItem(
        1, 32, "PCIe lanes of each GPU, as it and its slot can have them"
    ),
    "gpu_pcie_generation": ExpectedItem(
        1, 9, "PCIe generation of each GPU, as it and its slot can have it"
    ),
    "nvlinks_per_gpu": ExpectedItem(0, 64, "NVLinks of each GPU, all of them up"),
    "rdma_ports": ExpectedItem(0, 256, "RDMA ports that are up"),
    "rdma_port_gigabits_per_second": ExpectedItem(
        1, 10_000, "speed of each RDMA port that is up", whole=False
    ),
    "numa_nodes": ExpectedItem(1, 1024, "NUMA nodes"),
    "cpu_cores": ExpectedItem(1, 100_000, "processors, as /proc/stat lists them (threads)"),
    "memory_gigabytes_min": ExpectedItem(
        1, 1_000_000, "memory of the host, 10^9 bytes", whole=False
    ),
    "nvme_drives": ExpectedItem(0, 1024, "NVMe controllers"),
}
#: Patterns; one must match.
TEXTS: dict[str, str] = {
    "nvidia_drivers": "versions of the driver that are allowed, as 580.*",
    "kernels": "kernels that are allowed",
    "vbioses": "VBIOS versions of GPUs that are allowed",
}


def rule_matches(rule: str, name: str) -> bool:
    """Return whether *name* selects *rule*: its name, a pattern, or its family."""
    return matches_pattern(rule, name) or (name in FAMILIES and rule.startswith(f"{name}."))


def is_allowed_rule(name: str, rules: Collection[str]) -> bool:
    """Return whether an override may name *name*.

    *rules*: allowed rules; empty: any, for a version that was valid before.
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
class HostPlacement:
    """The location of a host; "" or () if unknown."""

    rack: str = ""
    power_domain: str = ""
    cooling_domain: str = ""
    leaf: str = ""
    spine: str = ""
    nvlink_domain: str = ""
    #: The leaf switch of each rail, if rails have switches of their own.
    rails: tuple[str, ...] = ()
    core: str = ""
    nvlink_subdomain: str = ""


NOWHERE = HostPlacement()
PLACE_FIELDS: tuple[str, ...] = tuple(place_field.name for place_field in fields(HostPlacement))


class PlaceSource(NamedTuple):
    """A host's location by one source."""

    #: By priority: file (people's own), topograph (its graph), label (registered by the host's
    #: agent), hardware (the NVLink fabric reported by its GPUs).
    source: str
    where: str  # the file with its line; "" if the host reported it
    place: HostPlacement


@dataclass(frozen=True, slots=True)
class MaintenanceWindow:
    """Maintenance: from *begin_ns* to before *end_ns* its hosts are MAINTENANCE."""

    selection: Selection
    begin_ns: int
    end_ns: int
    who: str
    why: str
    where: SourceLocation


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


@dataclass(frozen=True, slots=True)
class Expectation:
    """Hardware that a host must have; `items` by the names of `ITEMS`."""

    name: str
    model: str  # a pattern of its GPUs' model; "" for any
    selection: Selection | None  # None: any host
    items: Mapping[str, float]
    texts: Mapping[str, tuple[str, ...]]
    where: SourceLocation

    def fits(self, model: str) -> bool:
        """Return whether the entry applies to a host with mostly GPUs of *model*.

        *model* "": no GPU is seen. A host selected by name then lacks its GPUs.
        """
        if not self.model:
            return True
        if model:
            return matches_pattern(model, self.model)
        return self.selection is not None and self.selection.names_hosts

    @property
    def wildcard_count(self) -> int:
        """Number of wildcards besides those of its hosts."""
        return wildcard_count(self.model) + sum(
            wildcard_count(pattern) for patterns in self.texts.values() for pattern in patterns
        )


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
    tenants: Mapping[str, ExchangeRates] = field(default_factory=dict[str, ExchangeRates])
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
        default_factory=dict[int, tuple[object, SelectionIndex]], repr=False, compare=False
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
        default_factory=list[tuple[object, Mapping[int, MaintenanceWindow]]],
        init=False,
        repr=False,
        compare=False,
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
        return [
            override
            for override in self.overrides
            if override.since_ns <= now_ns < override.until_ns
        ]

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
            windows_by_host = {
                index: window for index, window in enumerate(windows) if window is not None
            }
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
        return next(
            (
                override
                for override in matching
                if is_rolled_out(override.rollout, host) is not upcoming
            ),
            None,
        )

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


def merge_places(sources: tuple[PlaceSource, ...]) -> HostPlacement:
    """Return each field from the first source that has it."""
    values = {
        name: next(
            (value for source in sources if (value := getattr(source.place, name))),
            getattr(NOWHERE, name),
        )
        for name in PLACE_FIELDS
    }
    return HostPlacement(**values)


#: Nothing was declared.
NOTHING = Declared()
