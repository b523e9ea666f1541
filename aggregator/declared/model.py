"""What was declared, as one immutable value. Everybody asks this; nobody changes it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from hashlib import blake2b
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeVar

from .fields import BY_PLACE, Pattern, Selection, Where, fits, near, pieces, shown

# ----------------------------------------------------------------------
# What a `Declared` is asked each second of each host, worked out once: who is meant, which window,
# which override.
#
# Thousands of entries that each mean thousands of hosts are legal. Hosts that the same entries mean
# share one answer.

EntryT = TypeVar("EntryT")
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

    def of(
        self, host: str, place: Place, entries: tuple[EntryT, ...], index: Index
    ) -> tuple[EntryT, ...]:
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


# ----------------------------------------------------------------------
# Which of many entries mean a host, by its name and its place: thousands of them, asked of ten
# thousand hosts at once.

#: Names that all ranges together are written out to; what is beyond is matched, one after another (`limits.PIECES_MAX`).
NAMES_MAX = 200_000


class Index:
    """Looks up what `Selection.matches` would say of each. Never changed once it is made."""

    def __init__(self, selections: Iterable[Selection | None]) -> None:
        """Entries are known by their place in *selections*; None means nobody here."""
        self._names: defaultdict[str, list[int]] = defaultdict(list)
        self._places: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
        self._others: list[tuple[int, Pattern]] = []
        #: Host -> who means it by its name: matched once for as long as we are.
        self._by_name: dict[str, tuple[int, ...]] = {}
        self._shared: dict[tuple[int, ...], tuple[int, ...]] = {}
        closed: list[tuple[int, int, Pattern]] = []
        for number, selection in enumerate(selections):
            for pattern in selection.patterns if selection is not None else ():
                if pattern.is_open:
                    self._others.append((number, pattern))
                else:
                    closed.append((pattern.count, number, pattern))
            if selection is not None:
                self._place(number, selection)
        self._write_out(closed)
        #: Of all that are matched.
        self.pieces = sum(pattern.pieces for _, pattern in self._others)

    def _place(self, number: int, selection: Selection) -> None:
        for column, chosen in selection.places.items():
            for value in chosen:
                self._places[column, value].append(number)

    def _write_out(self, closed: list[tuple[int, int, Pattern]]) -> None:
        """Write out the names of patterns, those of the fewest first, as far as there is room."""
        left = NAMES_MAX
        for count, number, pattern in sorted(closed, key=lambda one: one[0]):
            if count > left:
                self._others.append((number, pattern))
                continue
            left -= count
            for name in pattern.names():
                self._names[name].append(number)

    def by_name(self, host: str) -> tuple[int, ...]:
        """Return which entries mean *host* by its name."""
        found = self._by_name.get(host)
        if found is None:
            matched = (number for number, pattern in self._others if pattern.matches(host))
            numbers = tuple(sorted({*self._names.get(host, ()), *matched}))
            found = self._by_name[host] = self._shared.setdefault(numbers, numbers)
        return found

    def of(self, host: str, place: object) -> tuple[int, ...]:
        """Return which entries mean *host*, which stands at *place* (a `Place`), in their order."""
        named = self.by_name(host)
        placed = [
            found
            for field in BY_PLACE
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
def place_in_line(host: str) -> float:
    """Return where *host* comes in every roll-out: 0 is first, and 1 is never reached before the end."""
    return int.from_bytes(blake2b(host.encode(), digest_size=6).digest()) / 2**48


def reaches(share: float, host: str) -> bool:
    """Say whether what is rolled out to *share* of the hosts counts on *host*."""
    return place_in_line(host) < share


def coming(share: float) -> str:
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
    tells: str


THRESHOLDS: dict[str, Threshold] = {
    row[0]: Threshold(*row)
    for row in (
        (
            "gpu.slow_below_ratio", 0.90, 0.5, 0.99, "1",
            "a GPU is slow below this share of its peers' SM clock, where its readings say why, and no driver that it is held down",
        ),
        (
            "gpu.held_watch_ratio", 0.95, 0.5, 0.99, "1",
            "a GPU that heat, a brake or a cap holds down by its driver's word is WATCH from this share of its peers' SM clock on",
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
            "a host is compared in a job that worked in so many of the last twelve windows of ten seconds; in all, if it has three hosts",
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
            "so many times as much as before do the ports of a job's hosts wait for the network",
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


class Item(NamedTuple):
    """One number that a host must have."""

    low: float
    high: float
    tells: str
    whole: bool = True


#: Exactly so many, or where the name ends in `_min` so many at least.
ITEMS: dict[str, Item] = {
    "gpus": Item(0, 256, "GPUs"),
    "gpu_memory_gigabytes_min": Item(1, 10_000, "memory of each GPU, 10^9 bytes", whole=False),
    "gpu_pcie_width_lanes": Item(1, 32, "PCIe lanes of each GPU, as it and its slot can have them"),
    "gpu_pcie_generation": Item(
        1, 9, "PCIe generation of each GPU, as it and its slot can have it"
    ),
    "nvlinks_per_gpu": Item(0, 64, "NVLinks of each GPU, all of them up"),
    "rdma_ports": Item(0, 256, "RDMA ports that are up"),
    "rdma_port_gigabits_per_second": Item(
        1, 10_000, "speed of each RDMA port that is up", whole=False
    ),
    "numa_nodes": Item(1, 1024, "NUMA nodes"),
    "cpu_cores": Item(1, 100_000, "processors, as /proc/stat lists them (threads)"),
    "memory_gigabytes_min": Item(1, 1_000_000, "memory of the host, 10^9 bytes", whole=False),
    "nvme_drives": Item(0, 1024, "NVMe controllers"),
}
#: Patterns of which one must fit.
TEXTS: dict[str, str] = {
    "nvidia_drivers": "versions of the driver that are allowed, as 580.*",
    "kernels": "kernels that are allowed",
    "vbioses": "VBIOS versions of GPUs that are allowed",
}


# ----------------------------------------------------------------------
# Which rules an override may name, and which never: one place says it, and a file that names
# another is refused.

#: Rules that are made one by one, for each code, counter or event: this is the name of all of them.
FAMILIES = ("gpu.xid", "nvswitch.sxid", "counter.saturated", "folded")
#: What is never noise -> what to declare instead.
NEVER = {
    "host.silent": "that a host is silent is never noise: missing is not healthy; where it is meant to be off, declare [[maintenance]]",
    "host.returned": "that a host is on probation is never noise: it ends by itself, and says when",
}


def is_of(rule: str, name: str) -> bool:
    """Say whether the rule *rule* is meant by *name*: its own name, a pattern, or that of its family."""
    return fits(rule, name) or (name in FAMILIES and rule.startswith(f"{name}."))


def may_name(name: str, rules: Collection[str]) -> bool:
    """Say whether an override may name *name*. *rules*: those that it may; none: any, of what was good before."""
    return not rules or (name not in NEVER and any(fits(rule, name) for rule in rules))


def refusal(name: str, rules: Collection[str]) -> str:
    """Return why an override may not name *name*."""
    return NEVER.get(name) or f"{shown(name)}: no rule has this name; {near(name, sorted(rules))}"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a host stands; "" or () where nobody has said."""

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


NOWHERE = Place()
PLACE_FIELDS: tuple[str, ...] = tuple(one.name for one in fields(Place))


class Said(NamedTuple):
    """What one source says of a host's place."""

    #: Whose word counts most first: file (people's own), topograph (its graph), label (its agent registered with them),
    #: hardware (what its GPUs say of the NVLink fabric that they are in).
    source: str
    where: str  # the file with its line; "" for what the host itself says
    place: Place


@dataclass(frozen=True, slots=True)
class Window:
    """Maintenance: from *begin_ns* to before *end_ns* its hosts are MAINTENANCE."""

    selection: Selection
    begin_ns: int
    end_ns: int
    who: str
    why: str
    where: Where


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
    where: Where
    rollout: float = 1.0  # the share of the hosts on which it counts so far

    def is_of(self, rule: str, signal: str, code: float) -> bool:
        """Say whether such a symptom is meant: by its rule's name, or its signal and code."""
        if self.codes:
            return signal == self.event and code in self.codes
        return is_of(rule, self.rule)

    def is_at(self, device: str) -> bool:
        """Say whether one of *device* is."""
        return not self.device or fits(device, self.device)

    @property
    def pieces(self) -> int:
        """How many wildcards it has beside those of its hosts."""
        return pieces(self.rule) + pieces(self.device)

    @property
    def what(self) -> str:
        """What is noise, as somebody would say it."""
        label = {"gpu.xid": "XID", "nvswitch.sxid": "SXID"}.get(self.event, "")
        what = f"{label} {', '.join(map(str, sorted(self.codes)))}" if self.codes else self.rule
        return f"{what} of {self.device}" if self.device else what


@dataclass(frozen=True, slots=True)
class Expected:
    """What a host must have; `items` by the names of `expected.ITEMS`."""

    name: str
    model: str  # a pattern of its GPUs' model; "" for any
    selection: Selection | None  # None: any host
    items: Mapping[str, float]
    texts: Mapping[str, tuple[str, ...]]
    where: Where

    def fits(self, model: str) -> bool:
        """Say whether it is for a host whose most GPUs are of *model*; "": none is seen, and a host that is named lacks them."""
        if not self.model:
            return True
        if model:
            return fits(model, self.model)
        return self.selection is not None and self.selection.names_hosts

    @property
    def pieces(self) -> int:
        """How many wildcards it has beside those of its hosts."""
        return pieces(self.model) + sum(pieces(one) for each in self.texts.values() for one in each)


class Selecting(Protocol):
    """An entry that is for some hosts; None: for any."""

    @property
    def selection(self) -> Selection | None: ...


E = TypeVar("E", bound=Selecting)


@dataclass(frozen=True)
class Declared:
    """All that was declared, as of one reading of the files.

    `number` rises with each version that was taken, and `hash` is of what the files held. `places_version` rises
    when places changed for any reason.
    """

    number: int = 0
    hash: str = ""
    files: tuple[str, ...] = ()
    windows: tuple[Window, ...] = ()
    overrides: tuple[Override, ...] = ()
    expectations: tuple[Expected, ...] = ()
    thresholds: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    #: Those of them that do not count on all hosts yet.
    rollouts: Mapping[str, Rollout] = field(default_factory=lambda: MappingProxyType({}))
    #: Host -> what files say of its place, who counts most first.
    given: Mapping[str, tuple[Said, ...]] = field(default_factory=lambda: MappingProxyType({}))
    #: Host -> what it says itself.
    told: Mapping[str, tuple[Said, ...]] = field(default_factory=lambda: MappingProxyType({}))
    places: Mapping[str, Place] = field(default_factory=lambda: MappingProxyType({}))
    places_version: int = 0
    notes: tuple[str, ...] = ()
    #: Entries (by what they are) -> where they are looked up; the same for all that has the same entries.
    _indexes: dict[int, tuple[object, Index]] = field(
        default_factory=dict[int, tuple[object, Index]], repr=False, compare=False
    )
    _meant: Meant = field(default_factory=Meant, init=False, repr=False, compare=False)
    _expecting: Expecting = field(default_factory=Expecting, init=False, repr=False, compare=False)
    #: What holds now: the one that `override` asked last.
    _quieting: list[Quieting] = field(
        default_factory=lambda: [Quieting()], init=False, repr=False, compare=False
    )
    #: The hosts in maintenance, as `maintained` last had them: (what it was asked for, its answer).
    _maintained: list[tuple[object, Mapping[int, Window]]] = field(
        default_factory=list[tuple[object, Mapping[int, Window]]],
        init=False,
        repr=False,
        compare=False,
    )

    def _meaning(self, host: str, entries: tuple[E, ...]) -> tuple[E, ...]:
        """Return those of *entries* that mean *host*."""
        return self._meant.of(host, self.place(host), entries, self._index(entries))

    def _index(self, entries: tuple[Selecting, ...]) -> Index:
        known = self._indexes.get(id(entries))
        if known is None or known[0] is not entries:
            index = Index(one.selection for one in entries)
            known = self._indexes[id(entries)] = entries, index
        return known[1]

    def prepare(self, hosts: Sequence[str] = ()) -> None:
        """Make what hosts are looked up in, and match the names of *hosts*, so that who asks first does not wait for it."""
        for entries in (self.windows, self.overrides, self.expectations):
            index = self._index(entries)
            for host in hosts:
                index.by_name(host)

    @property
    def pieces(self) -> int:
        """How many wildcards and ranges names are matched by, one after another (`limits.PIECES_MAX`)."""
        kinds = (self.windows, self.overrides, self.expectations)
        beside = sum(one.pieces for one in self.overrides)
        beside += sum(one.pieces for one in self.expectations)
        return beside + sum(self._index(entries).pieces for entries in kinds)

    def live_windows(self, now_ns: int) -> list[Window]:
        """Return the windows that *now_ns* is in."""
        return [one for one in self.windows if one.begin_ns <= now_ns < one.end_ns]

    def live_overrides(self, now_ns: int) -> list[Override]:
        """Return the overrides that hold at *now_ns*."""
        return [one for one in self.overrides if one.since_ns <= now_ns < one.until_ns]

    def place(self, host: str) -> Place:
        """Return where *host* stands, as far as anybody has said."""
        return self.places.get(host, NOWHERE)

    def said_of(self, host: str) -> tuple[Said, ...]:
        """Return what each source says of the place of *host*, who counts most first."""
        return (*self.given.get(host, ()), *self.told.get(host, ()))

    def window(self, host: str, now_ns: int) -> Window | None:
        """Return the window that *host* is in at *now_ns*, the one that ends last; None: in none."""
        return longest(self._meaning(host, self.windows), now_ns)

    def maintained(self, hosts: Sequence[str], now_ns: int) -> Mapping[int, Window]:
        """Return the window of each of *hosts* that is in one, by its place among them; between two calls *hosts*
        may only have become longer. Worked out anew when a window begins or ends."""
        live = self.live_windows(now_ns)
        if not live:
            return {}
        asked = len(hosts), *map(id, live)
        if not self._maintained or self._maintained[0][0] != asked:
            each = Windows(now_ns)
            windows = (each.of(self._meaning(host, self.windows)) for host in hosts)
            found = {at: window for at, window in enumerate(windows) if window is not None}
            self._maintained[:] = [(asked, found)]
        return self._maintained[0][1]

    def override(
        self,
        host: str,
        rule: str,
        now_ns: int,
        *,
        signal: str = "",
        code: float = 0,
        device: str = "",
        coming: bool = False,
    ) -> Override | None:
        """Return the override by which what *rule* sees on *host* is noise at *now_ns*; None: it counts.

        *coming*: the one by which it will be, once it is rolled out that far.
        """
        quieting = self._quieting[0] = self._quieting[0].at(self.overrides, now_ns)
        about = quieting.about(self._meaning(host, self.overrides), rule, signal, code, device)
        return next((one for one in about if reaches(one.rollout, host) is not coming), None)

    def threshold(self, name: str, *, before: bool = False) -> float:
        """Return a number of `THRESHOLDS`: as declared, else its default. Raises KeyError for another name.

        *before*: as it is on hosts that its roll-out has not reached.
        """
        if before and name in self.rollouts:
            return self.rollouts[name].before
        return self.thresholds.get(name, THRESHOLDS[name].default)

    def expected(self, model: str, host: str = "") -> Expected | None:
        """Return what a host with GPUs of *model* must have: the first entry that names the host, else the first
        for its model alone."""
        named = self._meaning(host, self.expectations) if host else ()
        return self._expecting.of(named, model, self.expectations)

    def with_told(self, told: Mapping[str, tuple[Said, ...]]) -> Declared:
        """Return the same with what hosts say of themselves now."""
        if told is self.told:
            return self
        changed = [
            host for host in told.keys() | self.told.keys() if told.get(host) != self.told.get(host)
        ]
        if not changed:
            return replace(self, told=told)
        after = replace(self, told=told, places_version=self.places_version + 1)
        places = dict(self.places)
        for host in changed:
            places[host] = merged(after.said_of(host))
        return replace(after, places=places)


def merged(said: tuple[Said, ...]) -> Place:
    """Return each field as the first says it who says anything of it."""
    values = {
        name: next(
            (value for one in said if (value := getattr(one.place, name))), getattr(NOWHERE, name)
        )
        for name in PLACE_FIELDS
    }
    return Place(**values)


#: Nothing was declared.
NOTHING = Declared()
