"""Links that go, come, vanish and appear: told the moment the kernel tells, by a thread of its own."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Sequence

from ...fingerprints.block import Block
from ...fingerprints.catalogue import Pace
from ...fingerprints.wire import telemetry_pb2
from ..hardware.files import device_key
from ..hardware.netlink import DumpEnd, Link, Malformed, Told, parse_told
from ..hardware.roots import Roots
from ..hardware.rtnetlink import LinkSocket, Overrun
from ..listening import Teller
from ..turn import Blind, NoData
from .columns import put
from .linkwatch import Code, LinkEvent, LinkWatch

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
