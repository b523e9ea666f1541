"""Network links that go up, go down, appear or disappear, reported at once by a netlink thread."""

from __future__ import annotations

import errno
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum

from ...contract.block import Block
from ...contract.counters import CounterSpec, counter_delta
from ...contract.signal import Pace
from ...contract.token_bucket import TokenBucket
from ...contract.wire import telemetry_pb2
from ..collector import AccessDenied, Collector, NoData
from ..events import EventPublisher
from ..hardware.files import Roots, device_key
from ..hardware.netlink import (
    DumpEnd,
    LinkInfo,
    LinkMessage,
    LinkRemoved,
    LinkSocket,
    MalformedMessage,
    Overrun,
    parse_link_messages,
)
from .block_writer import put

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
    """Rate limit of one interface name.

    It outlives the interface, which may come and go.
    """

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
        """End a complete listing: links with indexes that are not *present* are gone."""
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


#: The thread waits this long for a message before it releases suppressed events.
WAIT_SECONDS = 1.0
#: Messages read before suppressed events are released.
MESSAGES_MAX = 1024
#: Minimum time between listings of all links, even if messages are lost.
DUMP_NS_MIN = 1_000_000_000
#: `close` waits at most this long for the thread.
END_SECONDS_MAX = 0.9

_CODE_TEXT = {
    LinkEventCode.DOWN: "link down",
    LinkEventCode.UP: "link up",
    LinkEventCode.REMOVED: "interface removed",
    LinkEventCode.APPEARED: "interface appeared",
}


class LinkListener(Collector):
    """Reports `net.link` events, and requests a new inventory; a turn reports counts."""

    name = "rtnetlink_10s"
    pace = Pace.TEN_SECONDS
    enters_driver = False

    def __init__(
        self,
        roots: Roots,
        *,
        open_socket: Callable[[], LinkSocket] = LinkSocket,
        is_watched: Callable[[LinkInfo], bool] | None = None,
    ) -> None:
        """*is_watched*: by default interfaces with a device of their own, and bonds."""
        self._roots, self._open_socket = roots, open_socket
        self._filter = LinkFlapFilter(is_watched or self._has_device)
        self._block = Block("rtnetlink_10s", ["host"])
        self._socket: LinkSocket | None = None
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._publisher: EventPublisher | None = None
        self._sequence = 0  # number of the current or last listing
        self._dump_indexes: set[int] | None = None  # indexes listed so far; None: no listing runs
        self._dump_wanted, self._dump_from_ns = True, 0
        #: Set once all links were listed: later changes are events.
        self.ready = threading.Event()
        self.messages = 0
        self.overruns = 0
        self.malformed = 0

    def start(self, publisher: EventPublisher) -> None:
        """Start the thread if the links are this machine's. Never raises."""
        if not self._roots.is_this_machine or self._thread is not None:
            return
        self._publisher = publisher
        try:
            self._socket = self._open_socket()
            self._thread = threading.Thread(target=self._serve, name=self.name, daemon=True)
            self._thread.start()
        except (OSError, RuntimeError) as error:
            self._error = error

    def close(self) -> None:
        """End the thread within a second. Never raises."""
        if self._socket is not None:
            self._socket.wake()
        if self._thread is not None and self._thread.ident is not None:
            self._thread.join(END_SECONDS_MAX)

    def collect(self) -> Sequence[Block]:
        """Return the counts.

        Raises AccessDenied when netlink is refused, RuntimeError when the thread ended, NoData
        when none was started.
        """
        if isinstance(self._error, OSError) and self._thread is None:
            raise AccessDenied(_refusal_message(self._error))
        if self._error is not None:
            raise RuntimeError(f"the listener for link changes ended: {self._error!r}")
        if self._thread is None:
            raise NoData("no listener for link changes runs")
        values = {
            "messages_count": self.messages,
            "overruns_events": self.overruns,
            "transitions_events": self._filter.transitions,
            "withheld_events": self._filter.suppressed,
            "malformed_count": self.malformed,
            "interfaces_count": self._filter.count,
        }
        for column, value in values.items():
            put(self._block, f"rtnetlink.{column}", 0, value)
        return (self._block,)

    def _has_device(self, link: LinkInfo) -> bool:
        folder = self._roots.sys / "class/net" / link.name
        return link.kind == "bond" or (folder / "device").exists()

    def _serve(self) -> None:
        assert self._socket is not None
        try:
            while self._read_once(self._socket):
                pass
        except Exception as error:  # noqa: BLE001 - reported by the next turn
            self._error = error
        finally:
            self._socket.close()

    def _read_once(self, source: LinkSocket) -> bool:
        """Read available messages and publish events; return False when it is time to end."""
        if self._dump_wanted and self._now_ns() >= self._dump_from_ns:
            self._sequence += 1
            self._dump_indexes, self._dump_wanted = set(), False
            self._dump_from_ns = self._now_ns() + DUMP_NS_MIN
            source.request_all(self._sequence)
        if not source.wait(WAIT_SECONDS):
            return False
        for _ in range(MESSAGES_MAX):
            try:
                data = source.receive()
            except Overrun:
                self.overruns += 1
                self._dump_wanted = True
                break
            if data is None:
                break
            self.messages += 1
            for message in parse_link_messages(data, self._sequence):
                self._handle(message)
        self._publish(self._filter.release_due(self._now_ns()))
        return True

    def _handle(self, message: LinkMessage) -> None:
        content = message.content
        self._dump_wanted |= message.answer and message.interrupted
        if isinstance(content, MalformedMessage):
            self.malformed += 1
        elif isinstance(content, DumpEnd):
            self._end_dump(content)
        else:
            if self._dump_indexes is not None:
                # Also if its own message came during the listing
                self._dump_indexes.add(content.index)
            self._publish(self._filter.observe(content, self._now_ns()))

    def _end_dump(self, end: DumpEnd) -> None:
        """End a listing.

        Repeat it if it was refused (EBUSY: the last one was not read to its end) or interrupted.
        """
        indexes, self._dump_indexes = self._dump_indexes, None
        self._dump_wanted |= bool(end.failed)
        if indexes is not None and not self._dump_wanted:
            self._publish(self._filter.resync(indexes, self._now_ns()))
            self.ready.set()

    def _now_ns(self) -> int:
        assert self._publisher is not None
        return self._publisher.clock.boottime_ns()

    def _publish(self, events: Sequence[LinkEvent]) -> None:
        assert self._publisher is not None
        for event in events:
            age_ns = self._now_ns() - event.first_ns
            self._publisher.publish(
                as_health_event(event, self._publisher.clock.wall_ns() - age_ns)
            )
            if event.code in (LinkEventCode.REMOVED, LinkEventCode.APPEARED):
                self._publisher.request_inventory(
                    f"{_CODE_TEXT[event.code]}: {device_key(event.interface)}"
                )


def as_health_event(event: LinkEvent, wall_time_ns: int) -> telemetry_pb2.HealthEvent:
    """Return the event as a message; the publisher sets its id."""
    message = f"{device_key(event.interface)}: {_CODE_TEXT[event.code]}"
    if event.count > 1:
        message += f" {event.count} times in {(event.last_ns - event.first_ns) / 1e9:.1f} s"
    return telemetry_pb2.HealthEvent(
        device_kind="net",
        device=device_key(event.interface),
        name="net.link",
        code=int(event.code),
        message=message,
        boottime_ns=event.first_ns,
        wall_time_ns=wall_time_ns,
        count=event.count,
        last_boottime_ns=event.last_ns if event.count > 1 else 0,
        attributes=event.attributes,
    )


def _refusal_message(error: OSError) -> str:
    name = errno.errorcode.get(error.errno or 0, str(error))
    return f"netlink is blocked ({name}): link changes are noticed within a second, not at once; allow it: RestrictAddressFamilies=AF_NETLINK in the agent's unit"
