"""Links that go, come, vanish and appear: told the moment the kernel tells, by a thread of its own."""

from __future__ import annotations

import errno
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum

from ...contract.block import Block
from ...contract.counters import Nature, counted
from ...contract.signal import Pace
from ...contract.wire import telemetry_pb2
from ..collector import Blind, NoData
from ..events import Teller
from ..hardware.files import Roots, device_key
from ..hardware.netlink import (
    DumpEnd,
    Link,
    LinkSocket,
    Malformed,
    Overrun,
    Removed,
    Told,
    parse_told,
)
from .block_writer import put

# ----------------------------------------------------------------------
# What happened to links, from what the kernel tells: messages in, events out, no I/O.
#
# The kernel puts changes of a carrier together, so that a link which went and came back may be told
# as one message that says `up` as before. Its counts of ups and downs tell: they are compared, not
# the state alone. An interface that flaps without end makes few events with large counts.

#: More interfaces than this are not watched; sysfs still counts their changes.
INTERFACES_MAX = 1024
#: So many events of an interface are told at once, and then one in each span of this length; the others
#: are counted in it.
BURST_EVENTS_MAX = 8
EVENT_SECONDS = 10.0
#: Of an interface's states, so many of the last are kept and told with the next event.
HISTORY_MAX = 16

_SECOND_NS = 1_000_000_000
#: How the kernel counts an interface's changes of carrier (include/linux/netdevice.h, atomic_t).
COUNT = Nature(width_bits=32)


class Code(IntEnum):
    """The `code` of a `net.link` event."""

    DOWN = 0
    UP = 1
    REMOVED = 2
    APPEARED = 3


@dataclass(frozen=True, slots=True)
class LinkEvent:
    """What is to be told: `count` changes of one kind, from `first_ns` to `last_ns` of boot time."""

    interface: str
    code: Code
    count: int
    first_ns: int
    last_ns: int
    attributes: dict[str, str]


@dataclass(slots=True)
class _Interface:
    link: Link
    since_ns: int  # of its state
    history: deque[tuple[int, Code]] = field(default_factory=lambda: deque(maxlen=HISTORY_MAX))


@dataclass(slots=True)
class _Allowance:
    """A token bucket of one name: it outlives the interface, which may come and go all the time."""

    tokens: float
    renewed_ns: int
    withheld: dict[Code, LinkEvent] = field(default_factory=dict[Code, LinkEvent])


class LinkWatch:
    """The state of the watched links. All methods return the events to be told, in order."""

    def __init__(self, watches: Callable[[Link], bool]) -> None:
        """*watches* says whether an interface that is new to us is to be watched."""
        self.transitions = 0  # of all links, since the start
        self.withheld = 0  # of them, those that had no event of their own
        self._watches = watches
        self._interfaces: dict[int, _Interface] = {}
        self._allowances: dict[str, _Allowance] = {}
        self._whole = False  # whether all links were seen once: before that nothing is news

    @property
    def count(self) -> int:
        """How many interfaces are watched."""
        return len(self._interfaces)

    def observe(self, told: Link | Removed, now_ns: int) -> list[LinkEvent]:
        """Take what the kernel told of one link."""
        known = self._interfaces.get(told.index)
        if isinstance(told, Removed):
            return self._remove(told.index, now_ns) if known else []
        if known and known.link.name != told.name:
            return [*self._remove(told.index, now_ns), *self._appear(told, now_ns)]
        return self._changed(known, told, now_ns) if known else self._appear(told, now_ns)

    def resync(self, seen: Collection[int], now_ns: int) -> list[LinkEvent]:
        """All links were asked for and *seen* are the indexes that answered: others are gone."""
        gone = [index for index in self._interfaces if index not in seen]
        events = [event for index in gone for event in self._remove(index, now_ns)]
        self._whole = True
        return events

    def settle(self, now_ns: int) -> list[LinkEvent]:
        """Return what was withheld and may be told now. To be called about every second."""
        events: list[LinkEvent] = []
        for name, allowance in list(self._allowances.items()):
            self._renew(allowance, now_ns)
            for code in sorted(allowance.withheld, key=lambda c: allowance.withheld[c].last_ns):
                if allowance.tokens >= 1:
                    allowance.tokens -= 1
                    events.append(allowance.withheld.pop(code))
            if not allowance.withheld and allowance.tokens >= BURST_EVENTS_MAX:
                del self._allowances[name]
        return events

    def _appear(self, link: Link, now_ns: int) -> list[LinkEvent]:
        if len(self._interfaces) >= INTERFACES_MAX or not self._watches(link):
            return []
        self._interfaces[link.index] = _Interface(link, now_ns)
        return self._tell(link.name, Code.APPEARED, 1, now_ns, _facts(link))

    def _remove(self, index: int, now_ns: int) -> list[LinkEvent]:
        interface = self._interfaces.pop(index)
        attributes = _facts(interface.link) | _past(interface, now_ns)
        return self._tell(interface.link.name, Code.REMOVED, 1, now_ns, attributes)

    def _changed(self, known: _Interface, link: Link, now_ns: int) -> list[LinkEvent]:
        downs, ups = transitions(known.link, link)
        attributes = _facts(link) | _past(known, now_ns)
        steps = [(Code.DOWN, downs), (Code.UP, ups)]
        if link.up is False:  # the last word is the state that it is in
            steps.reverse()
        events: list[LinkEvent] = []
        for code, count in steps:
            if count:
                known.history.append((now_ns, code))
                events += self._tell(link.name, code, count, now_ns, attributes)
        if downs or ups:
            known.since_ns = now_ns
        known.link = link
        return events

    def _tell(
        self, name: str, code: Code, count: int, now_ns: int, attributes: dict[str, str]
    ) -> list[LinkEvent]:
        """Return the event if the interface may have one now; else withhold it for `settle`."""
        if not self._whole:
            return []
        self.transitions += count
        event = LinkEvent(name, code, count, now_ns, now_ns, attributes)
        allowance = self._allowances.setdefault(name, _Allowance(BURST_EVENTS_MAX, now_ns))
        self._renew(allowance, now_ns)
        if allowance.tokens >= 1 and not allowance.withheld:
            allowance.tokens -= 1
            return [event]
        self.withheld += count
        before = allowance.withheld.get(code)
        if before:
            event = replace(event, count=before.count + count, first_ns=before.first_ns)
        allowance.withheld[code] = event
        return []

    @staticmethod
    def _renew(allowance: _Allowance, now_ns: int) -> None:
        earned = max(0, now_ns - allowance.renewed_ns) / _SECOND_NS / EVENT_SECONDS
        allowance.tokens = min(BURST_EVENTS_MAX, allowance.tokens + earned)
        allowance.renewed_ns = now_ns


def transitions(before: Link, after: Link) -> tuple[int, int]:
    """Return how often the link went down and up between two messages, by the kernel's counts.

    Kernels before 4.16 count changes only: half of them were downs. Switching an interface off need
    not touch its carrier, so a state that differs is one change at least.
    """
    downs = counted(before.downs, after.downs, COUNT)
    ups = counted(before.ups, after.ups, COUNT)
    if downs is None or ups is None:
        changes = counted(before.changes, after.changes, COUNT) or 0
        downs = ups = changes // 2
    went, came = before.up and not after.up, after.up and not before.up
    return max(downs, int(went)), max(ups, int(came))


def _facts(link: Link) -> dict[str, str]:
    told = {
        "ifindex": str(link.index),
        "state": "up" if link.up else "down",
        "kind": device_key(link.kind),
        "operational": "" if link.operational is None else str(link.operational),
        "switched_on": "" if link.switched_on else "no",
    }
    return {name: value for name, value in told.items() if value}


def _past(interface: _Interface, now_ns: int) -> dict[str, str]:
    """Return what the state was and for how long, and the changes before, each with its age."""
    history = [
        f"{code.name.lower()} {(now_ns - at) / _SECOND_NS:.3f} s ago"
        for at, code in interface.history
    ]
    past = {
        "previous_state": "up" if interface.link.up else "down",
        "previous_seconds": f"{(now_ns - interface.since_ns) / _SECOND_NS:.3f}",
    }
    return past | ({"history": ", ".join(history)} if history else {})


#: How long the thread waits for a message before it looks after what it withheld.
WAIT_SECONDS = 1.0
#: So many messages are read before it does, however many there are.
MESSAGES_MAX = 1024
#: All links are asked for no more often than this, however many messages are lost.
DUMP_NS_MIN = 1_000_000_000
#: `close` does not wait longer for the thread.
END_SECONDS_MAX = 0.9

_WORDS = {
    Code.DOWN: "link down",
    Code.UP: "link up",
    Code.REMOVED: "interface removed",
    Code.APPEARED: "interface appeared",
}


class LinkListener:
    """Tells `net.link` events and asks for a new inventory; its turn reports what it heard."""

    name = "rtnetlink_10s"
    pace = Pace.TEN_SECONDS
    enters_driver = False

    def __init__(
        self,
        roots: Roots,
        *,
        open_socket: Callable[[], LinkSocket] = LinkSocket,
        watches: Callable[[Link], bool] | None = None,
    ) -> None:
        """*watches*: the interfaces with a device of their own, and bonds, unless told otherwise."""
        self._roots, self._open_socket = roots, open_socket
        self._watch = LinkWatch(watches or self._has_device)
        self._block = Block("rtnetlink_10s", ["host"])
        self._socket: LinkSocket | None = None
        self._thread: threading.Thread | None = None
        self._trouble: Exception | None = None
        self._teller: Teller | None = None
        self._sequence = 0  # of the dump under way or the last one
        self._seen: set[int] | None = None  # indexes heard of in the dump under way
        self._dump_wanted, self._dump_from_ns = True, 0
        #: Set once all links were seen: from then on what happens is news.
        self.ready = threading.Event()
        self.messages = 0
        self.overruns = 0
        self.malformed = 0

    def listen(self, teller: Teller) -> None:
        """Start the thread, if these are this machine's links. Never raises."""
        if not self._roots.is_this_machine or self._thread is not None:
            return
        self._teller = teller
        try:
            self._socket = self._open_socket()
            self._thread = threading.Thread(target=self._serve, name=self.name, daemon=True)
            self._thread.start()
        except (OSError, RuntimeError) as error:
            self._trouble = error

    def close(self) -> None:
        """End the thread, within a second. Never raises."""
        if self._socket is not None:
            self._socket.wake()
        if self._thread is not None and self._thread.ident is not None:
            self._thread.join(END_SECONDS_MAX)

    def collect(self) -> Sequence[Block]:
        """Return what was heard. Raises Blind when netlink is refused, RuntimeError when the thread
        ended, NoData when nobody listens."""
        if isinstance(self._trouble, OSError) and self._thread is None:
            raise Blind(_refused(self._trouble))
        if self._trouble is not None:
            raise RuntimeError(f"the listener for links ended: {self._trouble!r}")
        if self._thread is None:
            raise NoData("nobody listens for changes of links here")
        values = {
            "messages_count": self.messages,
            "overruns_events": self.overruns,
            "transitions_events": self._watch.transitions,
            "withheld_events": self._watch.withheld,
            "malformed_count": self.malformed,
            "interfaces_count": self._watch.count,
        }
        for column, value in values.items():
            put(self._block, f"rtnetlink.{column}", 0, value)
        return (self._block,)

    def _has_device(self, link: Link) -> bool:
        folder = self._roots.sys / "class/net" / link.name
        return link.kind == "bond" or (folder / "device").exists()

    def _serve(self) -> None:
        assert self._socket is not None
        try:
            while self._once(self._socket):
                pass
        except Exception as error:  # noqa: BLE001 - told by the next turn
            self._trouble = error
        finally:
            self._socket.close()

    def _once(self, source: LinkSocket) -> bool:
        """Read what is there and tell it; return False when it is time to end."""
        if self._dump_wanted and self._now_ns() >= self._dump_from_ns:
            self._sequence += 1
            self._seen, self._dump_wanted = set(), False
            self._dump_from_ns = self._now_ns() + DUMP_NS_MIN
            source.ask_for_all(self._sequence)
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
            for told in parse_told(data, self._sequence):
                self._take(told)
        self._tell(self._watch.settle(self._now_ns()))
        return True

    def _take(self, told: Told) -> None:
        what = told.what
        self._dump_wanted |= told.answer and told.interrupted
        if isinstance(what, Malformed):
            self.malformed += 1
        elif isinstance(what, DumpEnd):
            self._end_dump(what)
        else:
            if self._seen is not None:
                self._seen.add(what.index)  # also when it was told by itself during the dump
            self._tell(self._watch.observe(what, self._now_ns()))

    def _end_dump(self, end: DumpEnd) -> None:
        """A dump that was refused (EBUSY: the last one is not read out) or interrupted is asked again."""
        seen, self._seen = self._seen, None
        self._dump_wanted |= bool(end.failed)
        if seen is not None and not self._dump_wanted:
            self._tell(self._watch.resync(seen, self._now_ns()))
            self.ready.set()

    def _now_ns(self) -> int:
        assert self._teller is not None
        return self._teller.clock.boottime_ns()

    def _tell(self, events: Sequence[LinkEvent]) -> None:
        assert self._teller is not None
        for event in events:
            age_ns = self._now_ns() - event.first_ns
            self._teller.tell(as_health_event(event, self._teller.clock.wall_ns() - age_ns))
            if event.code in (Code.REMOVED, Code.APPEARED):
                self._teller.renew_inventory(f"{_WORDS[event.code]}: {device_key(event.interface)}")


def as_health_event(event: LinkEvent, wall_time_ns: int) -> telemetry_pb2.HealthEvent:
    """Return the event as it travels; its id is left to the teller."""
    words = f"{device_key(event.interface)}: {_WORDS[event.code]}"
    if event.count > 1:
        words += f" {event.count} times in {(event.last_ns - event.first_ns) / 1e9:.1f} s"
    return telemetry_pb2.HealthEvent(
        device_kind="net",
        device=device_key(event.interface),
        name="net.link",
        code=int(event.code),
        message=words,
        boottime_ns=event.first_ns,
        wall_time_ns=wall_time_ns,
        count=event.count,
        last_boottime_ns=event.last_ns if event.count > 1 else 0,
        attributes=event.attributes,
    )


def _refused(error: OSError) -> str:
    name = errno.errorcode.get(error.errno or 0, str(error))
    return (
        f"netlink is refused ({name}): links that go are noticed within a second and not at once; "
        "allow it: RestrictAddressFamilies=AF_NETLINK in the agent's unit"
    )
