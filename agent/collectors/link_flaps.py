"""Link events from netlink messages: messages in, events out. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from enum import IntEnum

from ...contract.counters import CounterSpec, counter_delta
from ...contract.token_bucket import TokenBucket
from ..hardware.files import device_key
from ..hardware.netlink import LinkInfo, LinkRemoved

#: Further interfaces are not watched; sysfs still counts their changes.
INTERFACES_MAX = 1024
#: Rate limit per interface: a burst, then one event per EVENT_SECONDS, which counts the suppressed
#: ones.
BURST_EVENTS_MAX = 8
EVENT_SECONDS = 10.0
#: Last states of an interface that are reported with its next event.
HISTORY_MAX = 16
_SECOND_NS = 1_000_000_000
#: The kernel's counts of an interface's changes of carrier (include/linux/netdevice.h, atomic_t).
COUNT = CounterSpec(width_bits=32)


class LinkEventCode(IntEnum):
    """The `code` of a `net.link` event."""

    DOWN = 0
    UP = 1
    REMOVED = 2
    APPEARED = 3


@dataclass(frozen=True, slots=True)
class LinkEvent:
    """An event: `count` changes of one kind, from `first_ns` to `last_ns` of boot time."""

    interface: str
    code: LinkEventCode
    count: int
    first_ns: int
    last_ns: int
    attributes: dict[str, str]


@dataclass(slots=True)
class _Interface:
    link: LinkInfo
    since_ns: int  # begin of its state
    history: deque[tuple[int, LinkEventCode]] = field(
        default_factory=lambda: deque(maxlen=HISTORY_MAX)
    )


@dataclass(slots=True)
class _LinkRate:
    """Rate limit of an interface name. It outlives the interface, which may come and go."""

    bucket: TokenBucket
    suppressed: dict[LinkEventCode, LinkEvent] = field(
        default_factory=dict[LinkEventCode, LinkEvent]
    )


class LinkFlapFilter:
    """The state of the watched links. Methods return the events to report, in order. No I/O.

    The kernel merges changes of a carrier: a link that went down and up may be reported once, as
    still up. So the counts of ups and downs are compared too. A flapping interface causes few
    events with large counts.
    """

    def __init__(self, is_watched: Callable[[LinkInfo], bool]) -> None:
        """*is_watched*: whether to watch a new interface."""
        self.transitions = 0  # changes of all links since the start
        self.suppressed = 0  # changes without an event of their own
        self._is_watched = is_watched
        self._interfaces: dict[int, _Interface] = {}
        self._rates: dict[str, _LinkRate] = {}
        self._is_synced = False  # all links were listed once: before that nothing is an event

    @property
    def count(self) -> int:
        """Number of watched interfaces."""
        return len(self._interfaces)

    def observe(self, message: LinkInfo | LinkRemoved, now_ns: int) -> list[LinkEvent]:
        """Handle a kernel message about one link."""
        known = self._interfaces.get(message.index)
        if isinstance(message, LinkRemoved):
            return self._remove(message.index, now_ns) if known else []
        if known and known.link.name != message.name:
            return [*self._remove(message.index, now_ns), *self._appear(message, now_ns)]
        return self._update(known, message, now_ns) if known else self._appear(message, now_ns)

    def resync(self, present: Collection[int], now_ns: int) -> list[LinkEvent]:
        """End a complete listing: links without an index in *present* have disappeared."""
        gone = [index for index in self._interfaces if index not in present]
        events = [event for index in gone for event in self._remove(index, now_ns)]
        self._is_synced = True
        return events

    def release_due(self, now_ns: int) -> list[LinkEvent]:
        """Return suppressed events that may be reported now. Call this about every second."""
        events: list[LinkEvent] = []
        now = now_ns / _SECOND_NS
        for name, rate in list(self._rates.items()):
            for code in sorted(rate.suppressed, key=lambda c: rate.suppressed[c].last_ns):
                if not rate.bucket.try_take(now):
                    events.append(rate.suppressed.pop(code))
            if not rate.suppressed and rate.bucket.level(now) >= BURST_EVENTS_MAX:
                del self._rates[name]
        return events

    def _appear(self, link: LinkInfo, now_ns: int) -> list[LinkEvent]:
        if len(self._interfaces) >= INTERFACES_MAX or not self._is_watched(link):
            return []
        self._interfaces[link.index] = _Interface(link, now_ns)
        return self._emit(link.name, LinkEventCode.APPEARED, 1, now_ns, _link_attributes(link))

    def _remove(self, index: int, now_ns: int) -> list[LinkEvent]:
        interface = self._interfaces.pop(index)
        attributes = _link_attributes(interface.link) | _history_attributes(interface, now_ns)
        return self._emit(interface.link.name, LinkEventCode.REMOVED, 1, now_ns, attributes)

    def _update(self, known: _Interface, link: LinkInfo, now_ns: int) -> list[LinkEvent]:
        downs, ups = transitions(known.link, link)
        attributes = _link_attributes(link) | _history_attributes(known, now_ns)
        steps = [(LinkEventCode.DOWN, downs), (LinkEventCode.UP, ups)]
        if link.up is False:  # the last event must match the current state
            steps.reverse()
        events: list[LinkEvent] = []
        for code, count in steps:
            if count:
                known.history.append((now_ns, code))
                events += self._emit(link.name, code, count, now_ns, attributes)
        if downs or ups:
            known.since_ns = now_ns
        known.link = link
        return events

    def _emit(
        self, name: str, code: LinkEventCode, count: int, now_ns: int, attributes: dict[str, str]
    ) -> list[LinkEvent]:
        """Return the event if the rate limit permits; else suppress it until `release_due`."""
        if not self._is_synced:
            return []
        self.transitions += count
        event = LinkEvent(name, code, count, now_ns, now_ns, attributes)
        now = now_ns / _SECOND_NS
        new = _LinkRate(TokenBucket(1 / EVENT_SECONDS, BURST_EVENTS_MAX, now))
        rate = self._rates.setdefault(name, new)
        if not rate.suppressed and not rate.bucket.try_take(now):
            return [event]
        self.suppressed += count
        before = rate.suppressed.get(code)
        if before:
            event = replace(event, count=before.count + count, first_ns=before.first_ns)
        rate.suppressed[code] = event
        return []


def transitions(before: LinkInfo, after: LinkInfo) -> tuple[int, int]:
    """Return how often the link went down and up between two messages, by the kernel's counts.

    Kernels before 4.16 count only changes, half of which were downs. An interface that is switched
    off may keep its count, so a changed state is at least one change.
    """
    downs = counter_delta(before.downs, after.downs, COUNT)
    ups = counter_delta(before.ups, after.ups, COUNT)
    if downs is None or ups is None:
        changes = counter_delta(before.changes, after.changes, COUNT) or 0
        downs = ups = changes // 2
    went_down, came_up = before.up and not after.up, after.up and not before.up
    return max(downs, int(went_down)), max(ups, int(came_up))


def _link_attributes(link: LinkInfo) -> dict[str, str]:
    attributes = {
        "ifindex": str(link.index),
        "state": "up" if link.up else "down",
        "kind": device_key(link.kind),
        "operational": "" if link.operational is None else str(link.operational),
        "switched_on": "" if link.switched_on else "no",
    }
    return {name: value for name, value in attributes.items() if value}


def _history_attributes(interface: _Interface, now_ns: int) -> dict[str, str]:
    """Return the previous state with its duration, and earlier changes with their ages."""
    history = [
        f"{code.name.lower()} {(now_ns - changed_ns) / _SECOND_NS:.3f} s ago"
        for changed_ns, code in interface.history
    ]
    past = {
        "previous_state": "up" if interface.link.up else "down",
        "previous_seconds": f"{(now_ns - interface.since_ns) / _SECOND_NS:.3f}",
    }
    return past | ({"history": ", ".join(history)} if history else {})
