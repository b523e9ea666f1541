"""Ingests messages into the fleet and the store: validated, timed, deduplicated, acknowledged.

Owned by the event loop's thread; independent of gRPC.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import lru_cache
from typing import NamedTuple, Protocol

from ...contract.frame import FrameError
from ...contract.signals import FORMER_EVENTS
from ...contract.stream import CONTEXT_BYTES_MAX
from ...contract.wire import telemetry_pb2 as wire
from ...ext.intake import Received
from ..config import AggregatorConfig
from ..errors import DISK_RETRY_SECONDS, NoSession, ResourceExhausted
from ..fleet.event_interpretation import SXID, XID
from ..fleet.fleet import Fleet
from ..fleet.known_gpus import ExpectedGpus
from ..principal import LOCAL, Principal
from ..store.duckdb_file import THREAD_NAME_PREFIX
from ..store.journal import StoredEvent
from ..store.rows import HostRecord
from ..store.store import Store
from . import clocks
from .agent_refusals import AgentRefusals
from .clocks import ClockSample, HostClock
from .findings import ActiveFindings, GpuOwners
from .frame_reader import FrameStreamReader
from .sessions import Session, Sessions, check_events, check_name, check_request

#: Limit of the wait for pending events at shutdown; they have no receipt yet.
CLOSE_SECONDS = 2.0

#: Limit of remembered events, of which at least the most recent half stays; the store checks all.
EVENTS_MAX = 100_000
#: Limit of a frame's size in a commit: a frame of a whole host has less than a hundredth. A
#: megabyte on the wire can expand to 400 MB here if it has few cells of very many devices; no real
#: host sends that.
COMMIT_BYTES_MAX = 64 << 20


class EventWriter:
    """Writes the events of many calls with one fsync; later events wait for the next."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=THREAD_NAME_PREFIX + "events")
        self._writing: Future[None] | None = None
        self._waiting: list[tuple[list[StoredEvent], asyncio.Future[None]]] = []
        self._running: asyncio.Task[None] | None = None

    async def append(self, events: list[StoredEvent]) -> None:
        """Return once *events* are on disk. Raises the errors of `Store.append_events`."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((events, done))
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run())
        await done

    async def _run(self) -> None:
        while self._waiting:
            group, self._waiting = self._waiting, []
            events = [event for call_events, _ in group for event in call_events]
            error: Exception | None = None
            try:
                self._writing = self._thread.submit(self._store.append_events, events)
                await asyncio.wrap_future(self._writing)
            except Exception as reason:  # noqa: BLE001 - raised in all waiting calls
                error = reason
            for _, done in group:
                if done.done():
                    continue  # its caller disconnected
                if error is None:
                    done.set_result(None)
                else:
                    done.set_exception(error)

    def close(self) -> None:
        """Wait for the pending write, at most CLOSE_SECONDS, and end the thread."""
        writing = [self._writing] if self._writing else []
        hangs = bool(wait(writing, CLOSE_SECONDS).not_done)
        self._thread.shutdown(wait=not hangs)


class KnownRevisions(NamedTuple):
    """Highest revision of an event that the fleet got, and that is on disk; -1: none."""

    reported: int = -1
    durable: int = -1


#: Nearly all revisions are 0 or 1, so equal values share an object.
_known_revisions = lru_cache(maxsize=1024)(KnownRevisions)


class EventDeduplicator:
    """Known revisions of events, so that repetitions are acknowledged and the fleet gets each
    revision once.

    Keys are hashes of host and event id, which are long; Python's hash has a secret per process.
    """

    def __init__(self, events_max: int = EVENTS_MAX) -> None:
        self._half = max(1, events_max // 2)
        self._newer = dict[int, KnownRevisions]()
        self._older = dict[int, KnownRevisions]()

    def __len__(self) -> int:
        return len(self._newer) + len(self._older)

    def of(self, host: str, event_id: str) -> KnownRevisions:
        """Return the known revisions of an event."""
        key = hash((host, event_id))
        return self._newer.get(key) or self._older.get(key) or _known_revisions()

    def mark_reported(self, host: str, event_id: str, revision: int) -> bool:
        """Mark *revision* as passed to the fleet. False: it already got this or a later one."""
        known = self.of(host, event_id)
        if revision <= known.reported:
            return False
        self._put(host, event_id, _known_revisions(revision, known.durable))
        return True

    def mark_durable(self, host: str, event_id: str, revision: int) -> None:
        """Mark *revision* as on disk."""
        known = self.of(host, event_id)
        self._put(host, event_id, _known_revisions(known.reported, max(known.durable, revision)))

    def _put(self, host: str, event_id: str, known: KnownRevisions) -> None:
        key = hash((host, event_id))
        self._older.pop(key, None)
        self._newer[key] = known
        if len(self._newer) >= self._half:
            self._newer, self._older = {}, self._newer


class BootStamped(Protocol):
    """A message with its boot and boot time."""

    @property
    def boot_id(self) -> bytes: ...
    @property
    def boottime_ns(self) -> int: ...


class AcceptedFrame(NamedTuple):
    """A valid frame, as the store needs it."""

    frame: Received
    time_offset_ns: int

    @property
    def rows(self) -> int:
        """Return the number of rows in all tables."""
        return self.frame.rows

    @property
    def cost_rows(self) -> int:
        """Return the cost of the frame in rows."""
        return self.frame.rows + self.frame.looked_up


class Ingest:
    """Handles everything that agents send."""

    def __init__(
        self, fleet: Fleet, store: Store, config: AggregatorConfig, wall_ns: Callable[[], int]
    ) -> None:
        self.findings = ActiveFindings(fleet)
        self.sessions = Sessions(self.findings, config.hosts_max)
        self.refusals = AgentRefusals(self.findings, wall_ns)
        #: Called when an event reports a fatal fault, before the event is on disk.
        self.on_fatal_event: Callable[[], None] = lambda: None
        self._fleet = fleet
        self._store = store
        self.credit_frames_max = config.credit_frames
        self._wall_ns = wall_ns
        #: Counts since the start: accepted frames, those from a spool, their rows, refused frames,
        #: receipts sent (one per frame), and new events.
        self.frames = self.backlog_frames = self.rows = 0
        self.refused_frames = self.receipts = self.new_events = 0
        self._clocks: dict[str, HostClock] = {}
        self._event_writer = EventWriter(store)
        self._deduplicator = EventDeduplicator()
        self._restored_events: dict[str, dict[str, StoredEvent]] = {}
        self._previous_boots: dict[str, bytes] = {}
        self._cleared = store.cleared_findings
        self._restore(store)
        self._gpu_owners = GpuOwners(self.findings, self.sessions.is_silent, store.known_gpus)

    def _restore(self, store: Store) -> None:
        now_ns = self._wall_ns()
        for host, run_id, boot_id, address, *_ in store.known_hosts:
            self.sessions.restore(host, run_id, boot_id, address, now_ns)
            self._previous_boots[host] = boot_id
        for event in store.recent_events:
            event_id, revision = event.event.event_id, event.event.revision
            # False: the journal has a later revision.
            if self._deduplicator.mark_reported(event.host, event_id, revision):
                self._deduplicator.mark_durable(event.host, event_id, revision)
                self._restored_events.setdefault(event.host, {})[event_id] = event

    @property
    def credit_frames(self) -> int:
        """Return the frames that a host may have in transit: fewer as the queue fills."""
        return max(1, int(self.credit_frames_max * min(1.0, 2 * self._store.room)))

    @property
    def storing(self) -> bool:
        """Return False while commits fail."""
        return not self._store.failing

    def register(
        self, request: wire.RegisterNodeRequest, address: str, principal: Principal = LOCAL
    ) -> wire.RegisterNodeResponse:
        """Answer RegisterNode. Raises InvalidArgument, PermissionDenied, AlreadyExists, ResourceExhausted."""
        # First: a caller with a false name needs no further checks.
        check_name(principal, request.node)
        foreign = check_request(request)
        now_ns, host = self._wall_ns(), request.node
        session = self.sessions.register(
            host, request.run_id, request.boot_id, address, now_ns, principal,
            boottime_ns=request.boottime_ns,
        )  # fmt: skip
        session.foreign = foreign
        session.recording_seconds_max = request.recording_seconds_max
        session.agent_version = request.agent_version[:64]
        index = self._fleet.register(
            host,
            simulated=request.simulated,
            boot_id=request.boot_id,
            devices=request.devices,
            booted_ns=now_ns - request.boottime_ns,
            labels=request.labels,
        )
        gpus = (key for kind, key in self._fleet.attributes[index] if kind == "gpu")
        if self._gpu_owners.register(host, gpus, now_ns):  # stored no later than the host
            self._store.submit_findings(self.findings.changes(now_ns))
        known = self._fleet.known_gpus.of(host)
        self._store.submit_host(_record(request, index, address, now_ns, known), foreign)
        self._observe_clock(host, request, request.wall_time_ns, now_ns)
        self._replay_events(host, request.boot_id)
        return wire.RegisterNodeResponse(
            node=f"nodes/{host}",
            node_index=index,
            session=session.token,
            credit_frames=self.credit_frames,
            stream_context_bytes=CONTEXT_BYTES_MAX,
        )

    def step(self, now_ns: int) -> None:
        """Clear expired findings; called about every second."""
        self._gpu_owners.step(now_ns)
        self.findings.sweep(now_ns)

    def replay_events(self, host: str) -> None:
        """Pass the stored events of a restored host without a score to the fleet.

        They hold until the host registers, which replays them for its boot.
        """
        self._observe_events(host, self._restored_events.get(host, {}), self._cleared.get(host, []))

    def _replay_events(self, host: str, boot_id: bytes) -> None:
        # After a restart: events since the host's boot hold, unless cleared before it.
        cleared = self._cleared.pop(host, [])
        if self._previous_boots.pop(host, boot_id) != boot_id:
            # The host rebooted, or another machine has its name.
            self._restored_events.pop(host, None)
        self._observe_events(host, self._restored_events.pop(host, {}), cleared)

    def _observe_events(
        self, host: str, events: Mapping[str, StoredEvent], cleared: list[tuple[str, int]]
    ) -> None:
        for event in events.values():
            if not self._was_cleared(event, cleared):
                self._fleet.observe_event(host, event.event, event.received_ns, event.time_ns)

    def _was_cleared(self, event: StoredEvent, cleared: list[tuple[str, int]]) -> bool:
        """Return whether the finding of *event* was cleared later, as by a reset of the GPU."""
        health_event = event.event
        last_ns = event.time_ns + max(0, health_event.last_boottime_ns - health_event.boottime_ns)
        device = self._fleet.device_of(self._fleet.index[event.host], health_event)
        subject = f"{device} {health_event.name}" + (
            f" {health_event.code}" if health_event.name in (XID, SXID) else ""
        )
        later = (s for s, cleared_ns in cleared if cleared_ns >= last_ns)
        parts = f"{subject}.", f"{subject} "
        return any(s == subject or s.startswith(parts) for s in later)

    def accept(
        self, session: Session, message: wire.TelemetryBatch, incoming: FrameStreamReader
    ) -> AcceptedFrame:
        """Read, check and observe a frame. Raises FrameError, StreamDesync, NoSession."""
        if session.ended:
            raise NoSession(f"{session.host} has registered again; this session has ended")
        now_ns = self._wall_ns()
        frame = incoming.frame(message)
        if frame.run_id != session.run_id:
            raise FrameError(
                f"the frame is of run {frame.run_id.hex()}, this session is of run "
                f"{session.run_id.hex()}: register with the spool's own run id"
            )
        if frame.sequence != incoming.sequence:
            raise FrameError(
                f"the frame says sequence {frame.sequence}, the message {message.sequence}"
            )
        if frame.size_bytes > COMMIT_BYTES_MAX:
            raise FrameError(
                f"its {frame.rows} rows take {frame.size_bytes >> 20} MiB in a commit, at most "
                f"{COMMIT_BYTES_MAX >> 20}: fewer devices a frame"
            )
        session.last_received_ns = now_ns
        self.frames += 1
        self.rows += frame.rows
        if message.backlog:
            self.backlog_frames += 1
            self._fleet.note_backlog(session.host, now_ns)
        else:
            self._fleet.observe(session.host, frame, now_ns)
            self._observe_clock(session.host, frame, frame.wall_ns, now_ns)
        clock = self._clocks[session.host]
        offset_ns = clock.time_offset_ns(frame.boot_id, frame.boottime_ns, frame.wall_ns)
        return AcceptedFrame(frame, offset_ns)

    def _observe_clock(self, host: str, boot: BootStamped, wall_ns: int, now_ns: int) -> None:
        clock = self._clocks.get(host)
        if clock is None:
            clock = self._clocks[host] = HostClock()
        clock.observe(boot.boot_id, boot.boottime_ns, wall_ns, now_ns)
        error = clock.error_seconds
        if abs(error) > clocks.OFFSET_SECONDS_MAX:
            self.findings.find(
                host, "clock.offset", clocks.offset_message(error), now_ns, expires=False
            )
        elif abs(error) < clocks.CLEAR_SECONDS_MAX and (host, "clock.offset", "") in self.findings:
            self.findings.clear(host, "clock.offset", now_ns)

    def clock_samples(self) -> Iterator[ClockSample]:
        """Yield every host with a message since the start, with its clocks."""
        for host, clock in self._clocks.items():
            yield ClockSample(host, clock, self.sessions.last_received_ns(host))

    def report_held_back(self, session: Session) -> None:
        """Report a host that persistently exceeds its rate and is therefore read more slowly."""
        message = (
            "its agent sends more frames, bytes or rows a second than allowed "
            "(agent_rows_per_second_max): it is read more slowly, and its readings come late"
        )
        self.findings.find(session.host, "ingest.held_back", message, self._wall_ns(), expires=True)

    def submit(
        self, session: Session, good: AcceptedFrame, on_durable: Callable[[int], None]
    ) -> bool:
        """Queue a frame for the store. False: the queue is full."""
        return self._store.submit_frame(
            session.host, good.frame, good.time_offset_ns, on_durable, session.foreign
        )

    async def events(
        self, session: Session, request: wire.ReportEventsRequest
    ) -> wire.ReportEventsResponse:
        """Answer ReportEvents once the events are on disk.

        The fleet gets them at once: a GPU that fell off the bus must count even if the disk is
        full. Raises InvalidArgument, ResourceExhausted or ServiceUnavailable; after the latter two
        the agent sends the events again.
        """
        check_events(request)
        now_ns, host = self._wall_ns(), session.host
        session.last_received_ns = now_ns
        new: dict[str, StoredEvent] = {}
        duplicates = []
        for event in request.events:
            if event.name in FORMER_EVENTS:
                event.name = FORMER_EVENTS[event.name]
            if self._is_known(host, event, new.get(event.event_id)):
                duplicates.append(event.event_id)
            else:
                time_ns = self._clocks[host].event_time_ns(
                    event.boot_id, event.boottime_ns, event.wall_time_ns, now_ns
                )
                new[event.event_id] = StoredEvent(host, now_ns, time_ns, event)
        self.new_events += len(new)
        self._report_to_fleet(list(new.values()))
        if self._store.events_full:
            message = "too many events wait for the store; send them again later"
            raise ResourceExhausted(message, DISK_RETRY_SECONDS)
        if new:
            await self._event_writer.append(list(new.values()))
        for event_id, stored_event in new.items():
            self._deduplicator.mark_durable(host, event_id, stored_event.event.revision)
        return wire.ReportEventsResponse(accepted=len(new), duplicate_event_ids=duplicates)

    def _is_known(self, host: str, event: wire.HealthEvent, in_request: StoredEvent | None) -> bool:
        """Return whether this or a later revision is on disk or in the same request."""
        if in_request is not None and in_request.event.revision >= event.revision:
            return True
        return self._deduplicator.of(host, event.event_id).durable >= event.revision

    def _report_to_fleet(self, events: list[StoredEvent]) -> None:
        """Pass events to the fleet, each revision once."""
        fatal = False
        for stored in events:
            host, event = stored.host, stored.event
            if self._deduplicator.mark_reported(host, event.event_id, event.revision):
                received_ns, time_ns = stored.received_ns, stored.time_ns
                fatal |= self._fleet.observe_event(host, event, received_ns, time_ns)
        if fatal:
            self.on_fatal_event()

    def close(self) -> None:
        """End the events' thread, or abandon it if the disk hangs."""
        self._event_writer.close()


def _record(
    request: wire.RegisterNodeRequest, index: int, address: str, now_ns: int, known: ExpectedGpus
) -> HostRecord:
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
        (
            *((d.kind, d.key, dict(d.attributes)) for d in request.devices),
            *known.stored(listed=bool(request.devices)),
        ),
    )
