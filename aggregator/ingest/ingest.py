"""Ingests messages into the fleet and the store: validated, timed, deduplicated, acknowledged.

Owned by the event loop's thread; independent of gRPC.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import lru_cache
from typing import NamedTuple, Protocol

from ...contract.frame import FrameError
from ...contract.stream import CONTEXT_BYTES_MAX
from ...contract.wire import telemetry_pb2 as wire
from ...ext.intake import Received
from ..config import AggregatorConfig
from ..errors import DISK_RETRY_SECONDS, NoSession, ResourceExhausted
from ..fleet.active_events import SXID, XID
from ..fleet.fleet import Fleet
from ..fleet.known_gpus import ExpectedGpus
from ..principal import LOCAL, Principal
from ..store.duckdb_file import THREAD_NAME_PREFIX
from ..store.journal import StoredEvent
from ..store.rows import HostRecord
from ..store.store import Store
from . import clocks
from .clocks import ClockSample, HostClock
from .findings import ActiveFindings, GpuOwners
from .frame_reader import FrameStreamReader
from .sessions import Session, Sessions, check_events, check_name, check_request

# ----------------------------------------------------------------------
# The way of events to the disk: receipted once their fsync is over, many calls by one.

#: At the end events that are being written are waited for this long: nobody has a receipt for them.
CLOSE_SECONDS = 2.0


class EventWriter:
    """Events of many calls to the journal with one fsync: what comes during one waits for the next."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=THREAD_NAME_PREFIX + "events")
        self._writing: Future[None] | None = None
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
        while self._waiting:
            group, self._waiting = self._waiting, []
            events = [event for several, _ in group for event in several]
            error: Exception | None = None
            try:
                self._writing = self._thread.submit(self._store.append_events, events)
                await asyncio.wrap_future(self._writing)
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
        """Wait for what is being written, for CLOSE_SECONDS at the most, and end the thread."""
        writing = [self._writing] if self._writing else []
        hangs = bool(wait(writing, CLOSE_SECONDS).not_done)
        self._thread.shutdown(wait=not hangs)


# ----------------------------------------------------------------------
# Which events are known, so that an agent that repeats one gets an acknowledgment, and the fleet hears of
# each revision once.

#: Events remembered, the half of them that was heard of last at the least; the store looks at all.
EVENTS_MAX = 100_000


class KnownRevisions(NamedTuple):
    """Up to which revision an event was passed to the fleet, and is on disk; -1: not at all."""

    reported: int = -1
    durable: int = -1


#: Nearly all are of revision 0 or 1: one object for all that are alike.
_known_revisions = lru_cache(maxsize=1024)(KnownRevisions)


class EventDeduplicator:
    """By host and event id; a hash stands for both (Python's own, whose secret is the process's), for ids are long."""

    def __init__(self, events_max: int = EVENTS_MAX) -> None:
        self._half = max(1, events_max // 2)
        self._newer = dict[int, KnownRevisions]()
        self._older = dict[int, KnownRevisions]()

    def __len__(self) -> int:
        return len(self._newer) + len(self._older)

    def of(self, host: str, event_id: str) -> KnownRevisions:
        """Return how far an event is known."""
        key = hash((host, event_id))
        return self._newer.get(key) or self._older.get(key) or _known_revisions()

    def mark_reported(self, host: str, event_id: str, revision: int) -> bool:
        """Note that the fleet gets *revision*. False: it already has it, or a later one."""
        known = self.of(host, event_id)
        if revision <= known.reported:
            return False
        self._put(host, event_id, _known_revisions(revision, known.durable))
        return True

    def mark_durable(self, host: str, event_id: str, revision: int) -> None:
        """Note that *revision* is on disk."""
        known = self.of(host, event_id)
        self._put(host, event_id, _known_revisions(known.reported, max(known.durable, revision)))

    def _put(self, host: str, event_id: str, known: KnownRevisions) -> None:
        key = hash((host, event_id))
        self._older.pop(key, None)
        self._newer[key] = known
        if len(self._newer) >= self._half:
            self._newer, self._older = {}, self._newer


#: What a frame may take in a commit: one whole host's takes less than a hundredth. A few cells of very many devices,
#: in which a megabyte on the wire is 400 here, are no host's.
COMMIT_BYTES_MAX = 64 << 20


class BootStamped(Protocol):
    """What says when in which boot it was made."""

    @property
    def boot_id(self) -> bytes: ...
    @property
    def boottime_ns(self) -> int: ...


class AcceptedFrame(NamedTuple):
    """A frame that is good: what the store needs of it."""

    frame: Received
    time_offset_ns: int

    @property
    def rows(self) -> int:
        """How many rows it has, of all tables."""
        return self.frame.rows

    @property
    def cost_rows(self) -> int:
        """What it costs, in rows."""
        return self.frame.rows + self.frame.looked_up


class Ingest:
    """All of the aggregator that agents speak to."""

    def __init__(
        self,
        fleet: Fleet,
        store: Store,
        config: AggregatorConfig,
        wall_ns: Callable[[], int],
    ) -> None:
        self.findings = ActiveFindings(fleet)
        self.sessions = Sessions(self.findings, config.hosts_max)
        #: Called when an event reports a fatal fault, before it is on disk.
        self.on_fatal_event: Callable[[], None] = lambda: None
        self._fleet = fleet
        self._store = store
        self.credit_frames_max = config.credit_frames
        self._wall_ns = wall_ns
        #: Since the start: frames taken, those of them from a spool, their rows, frames refused,
        #: receipts sent (one a frame), events reported again.
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
        for host, run_id, boot_id, address in store.known_hosts:
            self.sessions.restore(host, run_id, boot_id, address, now_ns)
            self._previous_boots[host] = boot_id
        for event in store.recent_events:
            event_id, revision = event.event.event_id, event.event.revision
            if self._deduplicator.mark_reported(
                event.host, event_id, revision
            ):  # the journal may hold a later one
                self._deduplicator.mark_durable(event.host, event_id, revision)
                self._restored_events.setdefault(event.host, {})[event_id] = event

    @property
    def credit_frames(self) -> int:
        """Frames a host may have on their way: fewer as the queue fills, one at the least."""
        return max(1, int(self.credit_frames_max * min(1.0, 2 * self._store.room)))

    @property
    def storing(self) -> bool:
        """False while commits fail for lack of disk or memory."""
        return not self._store.failing

    def register(
        self, request: wire.RegisterNodeRequest, address: str, principal: Principal = LOCAL
    ) -> wire.RegisterNodeResponse:
        """Answer RegisterNode. Raises InvalidArgument, PermissionDenied, AlreadyExists, ResourceExhausted."""
        check_name(principal, request.node)  # first: who lies about its name is not worth the rest
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
        if self._gpu_owners.register(host, gpus, now_ns):  # on record not later than the host
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
        """End what no longer is so; called every second or so."""
        self._gpu_owners.step(now_ns)
        self.findings.sweep(now_ns)

    def _replay_events(self, host: str, boot_id: bytes) -> None:
        """After our restart: what happened to the host since it booted still holds, but for what was
        cleared while we ran.
        """
        cleared = self._cleared.pop(host, [])
        if self._previous_boots.pop(host, boot_id) != boot_id:
            self._restored_events.pop(host, None)  # it booted, or another machine has its name
        for event in self._restored_events.pop(host, {}).values():
            if not self._was_cleared(event, cleared):
                self._fleet.observe_event(host, event.event, event.received_ns, event.time_ns)

    def _was_cleared(self, event: StoredEvent, cleared: list[tuple[str, int]]) -> bool:
        """Return whether what *event* reported was cleared later: a GPU that was reset since is not faulty again."""
        one = event.event
        last_ns = event.time_ns + max(0, one.last_boottime_ns - one.boottime_ns)
        device = self._fleet.device_of(self._fleet.index[event.host], one)
        subject = f"{device} {one.name}" + (f" {one.code}" if one.name in (XID, SXID) else "")
        return any(
            cleared_ns >= last_ns
            and (about == subject or about.startswith((f"{subject}.", f"{subject} ")))
            for about, cleared_ns in cleared
        )

    def accept(
        self, session: Session, message: wire.TelemetryBatch, incoming: FrameStreamReader
    ) -> AcceptedFrame:
        """Read, check and observe a frame. *incoming* is what its stream remembers.

        Raises FrameError with words; StreamDesync; NoSession when replaced.
        """
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
        """Yield every host that spoke since our start, with its clocks."""
        for host, clock in self._clocks.items():
            yield ClockSample(host, clock, self.sessions.last_received_ns(host))

    def report_held_back(self, session: Session) -> None:
        """Tell of a host that sends so much, and not only at once, that it is read more slowly."""
        message = (
            "its agent sends more frames, bytes or rows a second than allowed "
            "(agent_frames_per_second_max and its neighbours): it is read more slowly, and its "
            "readings "
            "come late"
        )
        self.findings.find(session.host, "ingest.held_back", message, self._wall_ns(), expires=True)

    def submit(
        self, session: Session, good: AcceptedFrame, on_durable: Callable[[int], None]
    ) -> bool:
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
        """Answer ReportEvents once the events are on disk. Raises InvalidArgument, ResourceExhausted, ServiceUnavailable.

        They are judged at once: a host whose GPU fell off the bus is not well because our disk is
        full. After ResourceExhausted and ServiceUnavailable the agent keeps them and sends them again.
        """
        check_events(request)
        now_ns, host = self._wall_ns(), session.host
        session.last_received_ns = now_ns
        new: dict[str, StoredEvent] = {}
        duplicates = []
        for event in request.events:
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
        for event_id, one in new.items():
            self._deduplicator.mark_durable(host, event_id, one.event.revision)
        return wire.ReportEventsResponse(accepted=len(new), duplicate_event_ids=duplicates)

    def _is_known(self, host: str, event: wire.HealthEvent, in_request: StoredEvent | None) -> bool:
        """Return whether this revision of *event*, or a later one, is on disk or in the same request."""
        if in_request is not None and in_request.event.revision >= event.revision:
            return True
        return self._deduplicator.of(host, event.event_id).durable >= event.revision

    def _report_to_fleet(self, events: list[StoredEvent]) -> None:
        """Tell the fleet of events, of each revision once."""
        fatal = False
        for one in events:
            if self._deduplicator.mark_reported(one.host, one.event.event_id, one.event.revision):
                fatal |= self._fleet.observe_event(
                    one.host, one.event, one.received_ns, one.time_ns
                )
        if fatal:
            self.on_fatal_event()

    def close(self) -> None:
        """End the event lane's thread, or leave it to a disk that hangs."""
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
