"""From a message to the fleet and the store: checked, timed, deduplicated, receipted.

Owned by the loop's thread; knows nothing of gRPC.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ...fingerprints.frames import Frame, FrameError, Stamp, decode
from ...fingerprints.wire import telemetry_pb2 as wire
from ..config import AggregatorConfig
from ..fleet.fleet import Fleet
from ..refusals import NoSession, TooMuch
from ..store.journal import StoredEvent
from ..store.records import HostRecord
from ..store.store import Store
from . import clocks
from .clocks import HostClock
from .findings import Findings
from .registration import check_events, check_request
from .sessions import Session, Sessions

#: Event ids remembered to tell an agent that it sent one twice; the store looks at all.
EVENT_IDS_MAX = 100_000
#: An event is of an earlier boot when it is older than this boot by more.
_BOOT_SLACK_NS = 10_000_000_000


@dataclass(frozen=True, slots=True)
class Accepted:
    """A frame that is good: what the store needs of it."""

    frame: Frame
    time_offset_ns: int


class Ingest:
    """All of the aggregator that agents speak to."""

    def __init__(
        self,
        fleet: Fleet,
        store: Store,
        config: AggregatorConfig,
        wall_ns: Callable[[], int],
    ) -> None:
        self.findings = Findings(fleet)
        self.sessions = Sessions(self.findings, config.hosts_max)
        self._fleet = fleet
        self._store = store
        self.credit_frames_max = config.credit_frames
        self._wall_ns = wall_ns
        self._clocks: dict[str, HostClock] = {}
        self._lane = EventLane(store)
        #: (host, event id) the fleet was told of -> whether the event is on disk as well.
        self._event_ids: OrderedDict[tuple[str, str], bool] = OrderedDict()
        self._events_again: dict[str, list[StoredEvent]] = {}
        self._boots_before: dict[str, bytes] = {}
        self._remember(store)

    def _remember(self, store: Store) -> None:
        now_ns = self._wall_ns()
        for host, run_id, boot_id, address in store.known_hosts:
            self.sessions.remember(host, run_id, boot_id, address, now_ns)
            self._boots_before[host] = boot_id
        for event in store.recent_events:
            self._event_ids[event.host, event.event.event_id] = True
            self._events_again.setdefault(event.host, []).append(event)

    @property
    def credit_frames(self) -> int:
        """Frames a host may have on their way: fewer as the queue fills, one at the least."""
        return max(1, int(self.credit_frames_max * min(1.0, 2 * self._store.room)))

    @property
    def storing(self) -> bool:
        """False while commits fail for want of disk or memory."""
        return not self._store.failing

    def register(
        self, request: wire.RegisterNodeRequest, address: str
    ) -> wire.RegisterNodeResponse:
        """Answer RegisterNode. Raises Invalid, NameTaken, TooMuch."""
        foreign = check_request(request)
        now_ns, host = self._wall_ns(), request.node
        session = self.sessions.register(host, request.run_id, request.boot_id, address, now_ns)
        session.foreign = foreign
        index = self._fleet.register(
            host,
            simulated=request.simulated,
            boot_id=request.boot_id,
            devices=request.devices,
        )
        self._store.submit_host(_record(request, index, address, now_ns), foreign)
        boot = Stamp(b"", request.boot_id, 0, request.boottime_ns, request.wall_time_ns)
        self._observe_clock(host, boot, now_ns)
        self._tell_events_again(host, request.boot_id, now_ns - request.boottime_ns)
        return wire.RegisterNodeResponse(
            node=f"nodes/{host}",
            node_index=index,
            session=session.token,
            credit_frames=self.credit_frames,
        )

    def _tell_events_again(self, host: str, boot_id: bytes, booted_ns: int) -> None:
        """After our restart: what happened to the host since it booted still holds."""
        if self._boots_before.pop(host, boot_id) != boot_id:
            self._events_again.pop(host, None)  # it booted, or another machine has its name
        for event in self._events_again.pop(host, ()):
            if event.time_ns > booted_ns - _BOOT_SLACK_NS:
                self._fleet.event(host, event.event, event.received_ns)

    def accept(self, session: Session, message: wire.TelemetryBatch) -> Accepted:
        """Decode, check and observe a frame. Raises FrameError with words; NoSession when replaced."""
        if session.ended:
            raise NoSession(f"{session.host} has registered again since: this session has ended")
        now_ns = self._wall_ns()
        frame = decode(message.frame)
        stamp = frame.stamp
        if stamp.run_id != session.run_id:
            raise FrameError(
                f"the frame is of run {stamp.run_id.hex()}, this session is of run "
                f"{session.run_id.hex()}: register with the spool's own run id"
            )
        if stamp.sequence != message.sequence:
            raise FrameError(
                f"the frame says sequence {stamp.sequence}, the message {message.sequence}"
            )
        session.heard_ns = now_ns
        if message.backlog:
            self._fleet.note_backlog(session.host, now_ns)
        else:
            self._fleet.observe(session.host, frame, now_ns)
            self._observe_clock(session.host, stamp, now_ns)
        clock = self._clocks[session.host]
        offset_ns = clock.time_offset_ns(stamp.boot_id, stamp.boottime_ns, stamp.wall_ns)
        return Accepted(frame, offset_ns)

    def _observe_clock(self, host: str, stamp: Stamp, now_ns: int) -> None:
        clock = self._clocks.setdefault(host, HostClock())
        clock.observe(stamp.boot_id, stamp.boottime_ns, stamp.wall_ns, now_ns)
        error = clock.error_seconds
        if abs(error) > clocks.OFFSET_SECONDS_MAX:
            self.findings.find(host, "clock.offset", clocks.words(error), now_ns, expires=False)
        elif abs(error) < clocks.CLEAR_SECONDS_MAX:
            self.findings.clear(host, "clock.offset", now_ns)

    def submit(self, session: Session, good: Accepted, on_durable: Callable[[int], None]) -> bool:
        """Queue an accepted frame for the store. False: no room now."""
        return self._store.submit_frame(
            session.host,
            good.frame,
            good.time_offset_ns,
            on_durable,
            session.foreign,
        )

    async def events(
        self, session: Session, request: wire.ReportEventsRequest
    ) -> wire.ReportEventsResponse:
        """Answer ReportEvents once the events are on disk. Raises Invalid, TooMuch, NotReady.

        They are judged at once: a host whose GPU fell off the bus is not well because our disk is
        full. After TooMuch and NotReady the agent keeps them and sends them again.
        """
        check_events(request)
        now_ns, host = self._wall_ns(), session.host
        session.heard_ns = now_ns
        new: dict[str, StoredEvent] = {}
        duplicates = []
        for event in request.events:
            if event.event_id in new or self._event_ids.get((host, event.event_id)):
                duplicates.append(event.event_id)
            else:
                time_ns = self._time_of(host, session.boot_id, event)
                new[event.event_id] = StoredEvent(host, now_ns, time_ns, event)
        self._tell(list(new.values()))
        if self._store.events_full:
            raise TooMuch("too many events wait for the store; send them again later")
        if new:
            await self._lane.append(list(new.values()))
        for event_id in new:
            self._event_ids[host, event_id] = True
        return wire.ReportEventsResponse(accepted=len(new), duplicate_event_ids=duplicates)

    def _tell(self, events: list[StoredEvent]) -> None:
        """Tell the fleet of events, of each once."""
        for one in events:
            key = one.host, one.event.event_id
            if key not in self._event_ids:
                self._event_ids[key] = False
                self._fleet.event(one.host, one.event, one.received_ns)
        while len(self._event_ids) > EVENT_IDS_MAX:
            self._event_ids.popitem(last=False)

    def _time_of(self, host: str, boot_id: bytes, event: wire.HealthEvent) -> int:
        clock = self._clocks[host]
        offset_ns = clock.time_offset_ns(boot_id, event.boottime_ns, event.wall_time_ns)
        return max(0, event.boottime_ns + offset_ns)

    def close(self) -> None:
        """End the event lane's thread."""
        self._lane.close()


class EventLane:
    """Events of many calls to the journal with one fsync: what comes during one waits for the next."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="event-journal")
        self._waiting: list[tuple[list[StoredEvent], asyncio.Future[None]]] = []
        self._running: asyncio.Task[None] | None = None

    async def append(self, events: list[StoredEvent]) -> None:
        """Return once *events* are on disk. Raises what `Store.append_events` raises."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((events, done))
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run())
        await done

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            group, self._waiting = self._waiting, []
            events = [event for several, _ in group for event in several]
            error: Exception | None = None
            try:
                await loop.run_in_executor(self._thread, self._store.append_events, events)
            except Exception as reason:  # noqa: BLE001 - told to those who wait
                error = reason
            for _, done in group:
                if done.done():
                    continue  # its caller has gone
                if error is None:
                    done.set_result(None)
                else:
                    done.set_exception(error)

    def close(self) -> None:
        """Wait for what is being written, and end the thread."""
        self._thread.shutdown()


def _record(request: wire.RegisterNodeRequest, index: int, address: str, now_ns: int) -> HostRecord:
    return HostRecord(
        request.node,
        index,
        request.simulated,
        request.run_id,
        request.boot_id,
        request.agent_version,
        address,
        dict(request.labels),
        now_ns,
        tuple((d.kind, d.key, dict(d.attributes)) for d in request.devices),
    )
