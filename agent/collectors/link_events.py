"""The netlink thread that reports network links as they go up, go down, appear or disappear."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Sequence

from ...contract.block import Block
from ...contract.signal import Pace
from ...contract.wire import telemetry_pb2
from ..collector import AccessDenied, Collector, NoData
from ..events import EventPublisher
from ..hardware import netlink
from ..hardware.files import Roots, device_key
from .block_writer import put
from .link_flaps import LinkEvent, LinkEventCode, LinkFlapFilter

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
        open_socket: Callable[[], netlink.LinkSocket] = netlink.LinkSocket,
        is_watched: Callable[[netlink.LinkInfo], bool] | None = None,
    ) -> None:
        """*is_watched*: by default interfaces with a device of their own, and bonds."""
        self._roots, self._open_socket = roots, open_socket
        self._filter = LinkFlapFilter(is_watched or self._has_device)
        self._block = Block("rtnetlink_10s", ["host"])
        self._socket: netlink.LinkSocket | None = None
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

    def _has_device(self, link: netlink.LinkInfo) -> bool:
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

    def _read_once(self, source: netlink.LinkSocket) -> bool:
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
            except netlink.Overrun:
                self.overruns += 1
                self._dump_wanted = True
                break
            if data is None:
                break
            self.messages += 1
            for message in netlink.parse_link_messages(data, self._sequence):
                self._handle(message)
        self._publish(self._filter.release_due(self._now_ns()))
        return True

    def _handle(self, message: netlink.LinkMessage) -> None:
        content = message.content
        self._dump_wanted |= message.answer and message.interrupted
        if isinstance(content, netlink.MalformedMessage):
            self.malformed += 1
        elif isinstance(content, netlink.DumpEnd):
            self._end_dump(content)
        else:
            if self._dump_indexes is not None:
                # Also if its own message came during the listing
                self._dump_indexes.add(content.index)
            self._publish(self._filter.observe(content, self._now_ns()))

    def _end_dump(self, end: netlink.DumpEnd) -> None:
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
