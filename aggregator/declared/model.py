"""What was declared, as one immutable value. Everybody asks this; nobody changes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import NamedTuple, Protocol, TypeVar

from .asked import Expecting, Meant, Quieting, Windows, longest
from .hostset import Selection
from .index import Index
from .noise import is_of
from .problems import Where
from .rollout import Rollout, reaches
from .thresholds import THRESHOLDS
from .wildcards import fits, pieces


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
