"""All declarations as one immutable value."""

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

# ----------------------------------------------------------------------
# What a `Declared` is asked each second of each host, worked out once: who is meant, which window,
# which override.
#
# Thousands of entries that each mean thousands of hosts are legal. Hosts that the same entries mean
# share one answer.

EntryT = TypeVar("EntryT")
#: Answers of a kind that are kept; past it they start over.
CACHED_MAX = 200_000
_EVER_NS = 2**63
#: Signals whose codes an override may name.
CODED_SIGNALS = ("gpu.xid", "nvswitch.sxid")
#: A rule's name, the signal that it saw, and the code where that has one.
SymptomKey = tuple[str, str, float]


@dataclass(slots=True)
class EntryMatcher:
    """Which entries mean each host. The same entries are the same tuple, whosever they are."""

    _hosts: dict[int, dict[str, tuple[Any, ...]]] = field(
        default_factory=dict[int, dict[str, tuple[Any, ...]]]
    )
    _shared: dict[tuple[int, tuple[int, ...]], tuple[Any, ...]] = field(
        default_factory=dict[tuple[int, tuple[int, ...]], tuple[Any, ...]]
    )

    def match(
        self, host: str, place: HostPlacement, entries: tuple[EntryT, ...], index: SelectionIndex
    ) -> tuple[EntryT, ...]:
        """Return those of *entries* that mean *host*, located at *place*."""
        known = self._hosts.setdefault(id(entries), {})
        found = known.get(host)
        if found is None:
            numbers = index.entries_for(host, place)
            which = id(entries), numbers
            found = self._shared.get(which)
            if found is None:
                found = self._shared[which] = tuple(entries[number] for number in numbers)
            known[host] = found
        return found


@dataclass(slots=True)
class ActiveWindows:
    """The window of each set of entries, at one moment."""

    _now_ns: int
    _known: dict[int, MaintenanceWindow | None] = field(
        default_factory=dict[int, "MaintenanceWindow | None"]
    )

    def active_window(self, matching: tuple[MaintenanceWindow, ...]) -> MaintenanceWindow | None:
        """Return the one of *matching* that lasts longest of those that hold."""
        key = id(matching)
        if key not in self._known:
            self._known[key] = last_ending(matching, self._now_ns)
        return self._known[key]


def last_ending(matching: Sequence[MaintenanceWindow], now_ns: int) -> MaintenanceWindow | None:
    """Return the window that *now_ns* is in, the one that ends last; None: in none."""
    found = [one for one in matching if one.begin_ns <= now_ns < one.end_ns]
    return max(found, key=lambda one: one.end_ns, default=None)


@dataclass(slots=True)
class ActiveOverrides:
    """Which overrides hold, and which of them are about something. Another one when an override begins or ends."""

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
        """Return this for *now_ns*. *overrides*: all there are."""
        if self._begin_ns <= now_ns < self._end_ns:
            return self
        moments = {each for one in overrides for each in (one.since_ns, one.until_ns)}
        begin_ns = max((one for one in moments if one <= now_ns), default=-_EVER_NS)
        end_ns = min((one for one in moments if one > now_ns), default=_EVER_NS)
        active = tuple(one for one in overrides if one.since_ns <= now_ns < one.until_ns)
        return ActiveOverrides(begin_ns, end_ns, active)

    def matching(
        self, matching: tuple[Override, ...], rule: str, signal: str, code: float, device: str
    ) -> tuple[Override, ...]:
        """Return those of *matching* that hold and are about a symptom, in their order."""
        symptom = (
            rule,
            signal,
            code if signal in CODED_SIGNALS else 0.0,
        )  # a reading is another each second
        key = id(matching), symptom, device
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= CACHED_MAX:
                self._known.clear()
            of_rule = self._overrides_of(symptom)
            found = tuple(
                one for one in matching if id(one) in of_rule and one.covers_device(device)
            )
            self._known[key] = found
        return found

    def _overrides_of(self, symptom: SymptomKey) -> frozenset[int]:
        """Return which overrides are about *symptom*, wherever it is."""
        found = self._by_symptom.get(symptom)
        if found is None:
            if len(self._by_symptom) >= CACHED_MAX:
                self._by_symptom.clear()
            found = frozenset(id(one) for one in self._active if one.covers_symptom(*symptom))
            self._by_symptom[symptom] = found
        return found


@dataclass(slots=True)
class ExpectationIndex:
    """What is expected of hosts of a model, of each set of entries that name hosts."""

    _known: dict[tuple[int, str], Expectation | None] = field(
        default_factory=dict[tuple[int, str], "Expectation | None"]
    )

    def find(
        self, named: tuple[Expectation, ...], model: str, expectations: Sequence[Expectation]
    ) -> Expectation | None:
        """Return the first of *named* that is for *model*, else the first of *expectations* that is for it alone."""
        key = id(named), model
        if key not in self._known:
            if len(self._known) >= CACHED_MAX:
                self._known.clear()
            by_model = (one for one in expectations if one.selection is None)
            self._known[key] = next((one for one in (*named, *by_model) if one.fits(model)), None)
        return self._known[key]


# ----------------------------------------------------------------------
# Which of many entries mean a host, by its name and its place: thousands of them, asked of ten
# thousand hosts at once.


class SelectionIndex:
    """Looks up what `Selection.matches` would say of each. Never changed once it is made."""

    def __init__(self, selections: Iterable[Selection | None]) -> None:
        """Entries are known by their place in *selections*; None means nobody here."""
        self._names: defaultdict[str, list[int]] = defaultdict(list)
        self._places: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
        self._matched_patterns: list[tuple[int, HostPattern]] = []
        #: Host -> who means it by its name: matched once for as long as we are.
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
        #: Of all that are matched.
        self.match_cost = sum(pattern.match_cost for _, pattern in self._matched_patterns)

    def _place(self, number: int, selection: Selection) -> None:
        for column, chosen in selection.places.items():
            for value in chosen:
                self._places[column, value].append(number)

    def by_name(self, host: str) -> tuple[int, ...]:
        """Return which entries mean *host* by its name."""
        found = self._by_name.get(host)
        if found is None:
            matched = (
                number for number, pattern in self._matched_patterns if pattern.matches(host)
            )
            numbers = tuple(sorted({*self._names.get(host, ()), *matched}))
            found = self._by_name[host] = self._shared.setdefault(numbers, numbers)
        return found

    def entries_for(self, host: str, place: object) -> tuple[int, ...]:
        """Return which entries mean *host*, located at *place* (a `HostPlacement`), in their order."""
        named = self.by_name(host)
        placed = [
            found
            for field in PLACE_SELECTORS
            if (found := self._places.get((field, getattr(place, field))))
        ]
        return tuple(sorted({*named}.union(*placed))) if placed else named


# ----------------------------------------------------------------------
# Which hosts a declaration reaches while it is rolled out: the same ones each time, and those of 1
# % are among those of 10 %.


class Rollout(NamedTuple):
    """A threshold that counts on a share of the hosts only; on the others it is as `before`."""

    share: float
    before: float


@lru_cache(maxsize=65_536)
def rollout_rank(host: str) -> float:
    """Return where *host* comes in every roll-out: 0 is first, and 1 is never reached before the end."""
    return int.from_bytes(blake2b(host.encode(), digest_size=6).digest()) / 2**48


def is_rolled_out(share: float, host: str) -> bool:
    """Return whether what is rolled out to *share* of the hosts counts on *host*."""
    return rollout_rank(host) < share


def rollout_message(share: float) -> str:
    """Return how far a roll-out is that has not reached a host, as its evidence says it."""
    return f"not rolled out to this host yet ({100 * share:g} % of hosts)"


# ----------------------------------------------------------------------
# Numbers that rules of judgement decide by and that an operator may set. To add one: a row, and the
# rule that asks for it.


class Threshold(NamedTuple):
    """One number: what it is unless somebody says otherwise, and between what it may be."""

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


# ----------------------------------------------------------------------
# What can be asked of a host's hardware, by the name it has in the file.


class ExpectedItem(NamedTuple):
    """One number that a host must have."""

    low: float
    high: float
    description: str
    whole: bool = True


#: Exactly this many, or where the name ends in `_min` this many at least.
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


# ----------------------------------------------------------------------
# Which rules an override may name, and which never: a file that names another is refused.


def rule_matches(rule: str, name: str) -> bool:
    """Return whether the rule *rule* is meant by *name*: its own name, a pattern, or that of its family."""
    return matches_pattern(rule, name) or (name in FAMILIES and rule.startswith(f"{name}."))


def is_allowed_rule(name: str, rules: Collection[str]) -> bool:
    """Return whether an override may name *name*. *rules*: those that it may; none: any, of what was good before."""
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
    #: The leaf switch of each rail, where rails have switches of their own.
    rails: tuple[str, ...] = ()
    core: str = ""
    nvlink_subdomain: str = ""


NOWHERE = HostPlacement()
PLACE_FIELDS: tuple[str, ...] = tuple(one.name for one in fields(HostPlacement))


class PlaceSource(NamedTuple):
    """What one source says of a host's place."""

    #: Whose word counts most first: file (people's own), topograph (its graph), label (its agent registered with them),
    #: hardware (what its GPUs say of the NVLink fabric that they are in).
    source: str
    where: str  # the file with its line; "" for what the host itself says
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
    """What a rule sees is noise on these hosts until *until_ns*."""

    selection: Selection
    rule: str  # a rule's name or a pattern of them; "" where codes are given
    codes: frozenset[int]
    event: str  # whose codes: gpu.xid or nvswitch.sxid
    device: str  # a pattern of devices; "" for any
    since_ns: int
    until_ns: int
    who: str
    why: str
    where: SourceLocation
    rollout: float = 1.0  # the share of the hosts on which it counts so far

    def covers_symptom(self, rule: str, signal: str, code: float) -> bool:
        """Return whether such a symptom is meant: by its rule's name, or its signal and code."""
        if self.codes:
            return signal == self.event and code in self.codes
        return rule_matches(rule, self.rule)

    def covers_device(self, device: str) -> bool:
        """Return whether one of *device* is."""
        return not self.device or matches_pattern(device, self.device)

    @property
    def wildcard_count(self) -> int:
        """How many wildcards it has beside those of its hosts."""
        return wildcard_count(self.rule) + wildcard_count(self.device)

    @property
    def what(self) -> str:
        """What is noise, as somebody would say it."""
        label = {"gpu.xid": "XID", "nvswitch.sxid": "SXID"}.get(self.event, "")
        what = f"{label} {', '.join(map(str, sorted(self.codes)))}" if self.codes else self.rule
        return f"{what} of {self.device}" if self.device else what


@dataclass(frozen=True, slots=True)
class Expectation:
    """What a host must have; `items` by the names of `expected.ITEMS`."""

    name: str
    model: str  # a pattern of its GPUs' model; "" for any
    selection: Selection | None  # None: any host
    items: Mapping[str, float]
    texts: Mapping[str, tuple[str, ...]]
    where: SourceLocation

    def fits(self, model: str) -> bool:
        """Return whether it is for a host whose most GPUs are of *model*; "": none is seen, and a host that is named lacks them."""
        if not self.model:
            return True
        if model:
            return matches_pattern(model, self.model)
        return self.selection is not None and self.selection.names_hosts

    @property
    def wildcard_count(self) -> int:
        """How many wildcards it has beside those of its hosts."""
        return wildcard_count(self.model) + sum(
            wildcard_count(one) for each in self.texts.values() for one in each
        )


@dataclass(frozen=True, slots=True)
class NodeCost:
    """What a GPU of these hosts costs, and how often they are taken away; NaN: this entry says nothing of it."""

    selection: Selection
    price_per_gpu_hour: float  # in the operators' currency
    preemptions_per_hour: float  # of spot capacity, each host; 0 where `spot = false` is written
    where: SourceLocation


@dataclass(frozen=True, slots=True)
class ExchangeRates:
    """By what a tenant's delay, money and stranded GPUs become GPU-hours; NaN: not declared."""

    gpu_hours_per_delay_hour: float = nan
    gpu_hours_per_currency_unit: float = nan
    gpu_hours_per_stranded_gpu_hour: float = nan


class HasSelection(Protocol):
    """An entry that is for some hosts; None: for any."""

    @property
    def selection(self) -> Selection | None: ...


E = TypeVar("E", bound=HasSelection)


@dataclass(frozen=True)
class Declared:
    """All that was declared, as of one reading of the files.

    `number` rises with each version that was taken, and `hash` is of what the files held. `places_version` rises
    when places changed for any reason.
    """

    number: int = 0
    hash: str = ""
    files: tuple[str, ...] = ()
    windows: tuple[MaintenanceWindow, ...] = ()
    overrides: tuple[Override, ...] = ()
    expectations: tuple[Expectation, ...] = ()
    thresholds: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    #: Those of them that do not count on all hosts yet.
    rollouts: Mapping[str, Rollout] = field(default_factory=lambda: MappingProxyType({}))
    node_costs: tuple[NodeCost, ...] = ()
    #: A plain dictionary: snapshots hand it on to another process.
    tenants: Mapping[str, ExchangeRates] = field(default_factory=dict[str, ExchangeRates])
    #: Host -> what files say of its place, who counts most first.
    file_places: Mapping[str, tuple[PlaceSource, ...]] = field(
        default_factory=lambda: MappingProxyType({})
    )
    #: Host -> what it says itself.
    reported_places: Mapping[str, tuple[PlaceSource, ...]] = field(
        default_factory=lambda: MappingProxyType({})
    )
    places: Mapping[str, HostPlacement] = field(default_factory=lambda: MappingProxyType({}))
    places_version: int = 0
    notes: tuple[str, ...] = ()
    #: Entries (by what they are) -> where they are looked up; the same for all that has the same entries.
    _indexes: dict[int, tuple[object, SelectionIndex]] = field(
        default_factory=dict[int, tuple[object, SelectionIndex]], repr=False, compare=False
    )
    _matcher: EntryMatcher = field(
        default_factory=EntryMatcher, init=False, repr=False, compare=False
    )
    _expectation_index: ExpectationIndex = field(
        default_factory=ExpectationIndex, init=False, repr=False, compare=False
    )
    #: What holds now: the one that `override` asked last.
    _active_overrides: list[ActiveOverrides] = field(
        default_factory=lambda: [ActiveOverrides()], init=False, repr=False, compare=False
    )
    #: The hosts in maintenance, as `maintenance_windows` last had them: (what it was asked for, its answer).
    _maintenance_cache: list[tuple[object, Mapping[int, MaintenanceWindow]]] = field(
        default_factory=list[tuple[object, Mapping[int, MaintenanceWindow]]],
        init=False,
        repr=False,
        compare=False,
    )

    def _matching(self, host: str, entries: tuple[E, ...]) -> tuple[E, ...]:
        """Return those of *entries* that mean *host*."""
        return self._matcher.match(host, self.place(host), entries, self._index(entries))

    def _index(self, entries: tuple[HasSelection, ...]) -> SelectionIndex:
        known = self._indexes.get(id(entries))
        if known is None or known[0] is not entries:
            index = SelectionIndex(one.selection for one in entries)
            known = self._indexes[id(entries)] = entries, index
        return known[1]

    def prepare(self, hosts: Sequence[str] = ()) -> None:
        """Make what hosts are looked up in, and match the names of *hosts*, so that who asks first does not wait for it."""
        for entries in (self.windows, self.overrides, self.expectations, self.node_costs):
            index = self._index(entries)
            for host in hosts:
                index.by_name(host)

    @property
    def match_cost(self) -> int:
        """The wildcards and ranges that a name is matched against, one after another (at most `MATCH_COST_MAX`)."""
        kinds = (self.windows, self.overrides, self.expectations, self.node_costs)
        beside = sum(one.wildcard_count for one in self.overrides)
        beside += sum(one.wildcard_count for one in self.expectations)
        return beside + sum(self._index(entries).match_cost for entries in kinds)

    def active_windows(self, now_ns: int) -> list[MaintenanceWindow]:
        """Return the windows that *now_ns* is in."""
        return [one for one in self.windows if one.begin_ns <= now_ns < one.end_ns]

    def active_overrides(self, now_ns: int) -> list[Override]:
        """Return the overrides that hold at *now_ns*."""
        return [one for one in self.overrides if one.since_ns <= now_ns < one.until_ns]

    def place(self, host: str) -> HostPlacement:
        """Return the location of *host*, as far as it is known."""
        return self.places.get(host, NOWHERE)

    def place_sources(self, host: str) -> tuple[PlaceSource, ...]:
        """Return what each source says of the place of *host*, who counts most first."""
        return (*self.file_places.get(host, ()), *self.reported_places.get(host, ()))

    def window(self, host: str, now_ns: int) -> MaintenanceWindow | None:
        """Return the window that *host* is in at *now_ns*, the one that ends last; None: in none."""
        return last_ending(self._matching(host, self.windows), now_ns)

    def maintenance_windows(
        self, hosts: Sequence[str], now_ns: int
    ) -> Mapping[int, MaintenanceWindow]:
        """Return the window of each of *hosts* that is in one, by its place among them; between two calls *hosts*
        may only have become longer. Worked out again when a window begins or ends."""
        active = self.active_windows(now_ns)
        if not active:
            return {}
        key = len(hosts), *map(id, active)
        if not self._maintenance_cache or self._maintenance_cache[0][0] != key:
            each = ActiveWindows(now_ns)
            windows = (each.active_window(self._matching(host, self.windows)) for host in hosts)
            found = {at: window for at, window in enumerate(windows) if window is not None}
            self._maintenance_cache[:] = [(key, found)]
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
        """Return the override by which what *rule* sees on *host* is noise at *now_ns*; None: it counts.

        *upcoming*: the one by which it will be, once it is rolled out that far.
        """
        active = self._active_overrides[0] = self._active_overrides[0].at(self.overrides, now_ns)
        matching = active.matching(self._matching(host, self.overrides), rule, signal, code, device)
        return next(
            (one for one in matching if is_rolled_out(one.rollout, host) is not upcoming), None
        )

    def threshold(self, name: str, *, before: bool = False) -> float:
        """Return a number of `THRESHOLDS`: as declared, else its default. Raises KeyError for another name.

        *before*: as it is on hosts that its roll-out has not reached.
        """
        if before and name in self.rollouts:
            return self.rollouts[name].before
        return self.thresholds.get(name, THRESHOLDS[name].default)

    def expected(self, model: str, host: str = "") -> Expectation | None:
        """Return what a host with GPUs of *model* must have: the first entry that names the host, else the first
        for its model alone."""
        named = self._matching(host, self.expectations) if host else ()
        return self._expectation_index.find(named, model, self.expectations)

    def cost(self, host: str) -> tuple[float, float]:
        """Return the price of a GPU-hour of *host* and its preemptions per hour: of each the first entry that says it, else NaN."""
        matching = self._matching(host, self.node_costs)
        prices = (one.price_per_gpu_hour for one in matching)
        preemptions = (one.preemptions_per_hour for one in matching)
        return (
            next((one for one in prices if not isnan(one)), nan),
            next((one for one in preemptions if not isnan(one)), nan),
        )

    def with_reported(self, reported: Mapping[str, tuple[PlaceSource, ...]]) -> Declared:
        """Return the same with what hosts say of themselves now."""
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
    """Return each field as the first says it who says anything of it."""
    values = {
        name: next(
            (value for one in sources if (value := getattr(one.place, name))),
            getattr(NOWHERE, name),
        )
        for name in PLACE_FIELDS
    }
    return HostPlacement(**values)


#: Nothing was declared.
NOTHING = Declared()
