"""Rate limits on late data: late frames of one host, those of all hosts, and reconnecting agents.

Decisions only: the caller passes times, in seconds of any monotonic clock.
"""

from __future__ import annotations

import random
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from typing import Protocol

from ...contract.stream import LATE_FRAMES_MAX
from ...contract.token_bucket import TokenBucket
from ...contract.wire.telemetry_pb2 import TelemetryBatch

#: Limit of a host's late frames, as a multiple of its live rate.
BACKLOG_RATE_RATIO = 2
#: Late frames accepted at once after a pause: agents pace by their own clocks and send this many
#: per message, so that decoder state is short-lived.
BURST_FRAMES = LATE_FRAMES_MAX
#: Limit of queued late frames per stream; beyond this the agent must send them again.
WAITING_FRAMES_MAX = 64
#: Share of the memory of the commit queue (`queue_bytes_max`) for queued late frames: 1 / this.
WAITING_BYTES_SHARE = 4
#: Number of streams that can queue, and bytes that each may have, however large their frames.
STREAMS_MIN, STREAM_BYTES_MIN = 16, 1 << 20
#: Late frames that a host may have in transit; and while many hosts send late frames.
BACKLOG_FRAMES, BACKLOG_FRAMES_PRESSED = 16, 1
#: Total credit of an agent that does not know `backlog_frames`, while many hosts send late frames.
CREDIT_FRAMES_PRESSED = 8

#: Late frames per second from all hosts: initial rate, minimum, maximum.
FLEET_HERTZ, FLEET_HERTZ_MIN, FLEET_HERTZ_MAX = 500.0, 20.0, 50_000.0
#: The rate rises by this per second. It is halved when live frames suffer: when the service's lag
#: is larger, or the free share of the queue is smaller, than the following limits.
FLEET_HERTZ_STEP = 500.0
LAG_SECONDS_MAX, ROOM_MIN = 0.1, 0.5

#: All agents reconnect within this time, however large the fleet.
RECONNECT_SECONDS_MAX = 60
#: A host's registration slot expires this long after it was due.
SLOT_SECONDS = 60.0


class HostQuota:
    """A host's late frames, earned by time or by live frames, whichever is more."""

    __slots__ = ("_hertz", "_since", "_used", "live_frames")

    def __init__(self, hertz: float, now: float) -> None:
        """*hertz*: late frames per second of a host with few live ones (sampling may hang)."""
        self._hertz = hertz
        self._begin(now)

    def _begin(self, now: float) -> None:
        self._since, self._used = now, -BURST_FRAMES
        #: The caller increments this.
        self.live_frames = 0

    def allowed(self, now: float) -> int:
        """Return the number of late frames allowed now."""
        by_time = max(0.0, now - self._since) * self._hertz
        earned = max(BACKLOG_RATE_RATIO * self.live_frames, by_time)
        if earned - self._used >= BURST_FRAMES:  # unused frames do not accumulate
            self._begin(now)
            return BURST_FRAMES
        return int(earned - self._used)

    def consume(self, frames: int = 1) -> None:
        """Count accepted late frames."""
        self._used += frames


class FleetQuota:
    """Late frames of all hosts: the rate rises, and is halved while live frames suffer."""

    def __init__(self, now: float) -> None:
        #: Late frames per second.
        self.hertz = FLEET_HERTZ
        self._at, self._frames = now, 0.0

    def step(self, now: float, lag_seconds: float, room: float) -> int:
        """Return the number of late frames allowed now. *room*: free share of the store's queue."""
        seconds = min(max(0.0, now - self._at), 1.0)
        self._at = now
        if lag_seconds > LAG_SECONDS_MAX or room < ROOM_MIN:
            self.hertz, self._frames = max(self.hertz / 2, FLEET_HERTZ_MIN), 0.0
        else:
            self.hertz = min(self.hertz + FLEET_HERTZ_STEP * seconds, FLEET_HERTZ_MAX)
        self._frames = min(self._frames + self.hertz * seconds, self.hertz)
        return int(self._frames)

    def consume(self, frames: int) -> None:
        """Count accepted late frames."""
        self._frames -= frames


class BacklogStream(Protocol):
    """A stream as seen by the queue of late frames."""

    @property
    def quota(self) -> HostQuota: ...

    def take_backlog(self, message: TelemetryBatch, frames_max: int) -> int:
        """Take late frames of *message*; return their number, fewer if the store is full."""
        ...

    def request_resend(self, frames: int) -> None:
        """End the stream, so that *frames* skipped late frames are sent again."""
        ...


class QueuedBatch:
    """A message with queued frames."""

    __slots__ = ("frames", "is_started", "message", "size_bytes")

    def __init__(self, message: TelemetryBatch) -> None:
        self.message = message
        #: Some frames were taken, and the decoder state is kept for the next ones.
        self.is_started = False
        #: Number of remaining frames.
        self.frames = len(message.late) or 1
        self.size_bytes = _size_bytes(message)


class BacklogQueue:
    """Queues of late frames per stream, served round-robin."""

    def __init__(self, bytes_max: int, now: float) -> None:
        """*bytes_max*: memory limit."""
        self._bytes_max = bytes_max
        self._waiting: OrderedDict[BacklogStream, deque[QueuedBatch]] = OrderedDict()
        self._passed_over: dict[BacklogStream, int] = {}
        self.fleet_quota = FleetQuota(now)
        #: Total of the queues.
        self.waiting_frames = self.waiting_bytes = 0
        #: Frames rejected because the queue was full; their agents send them again.
        self.passed_over_frames = 0

    @property
    def is_pressed(self) -> bool:
        """Return whether agents should send less because more than half of the memory is used."""
        return 2 * self.waiting_bytes > self._bytes_max

    def enqueue(self, stream: BacklogStream, message: TelemetryBatch) -> bool:
        """Queue a message's late frames. False: rejected, there is no space."""
        queue = self._waiting.get(stream)
        batch = QueuedBatch(message)
        if self._full(queue, batch) or self.waiting_bytes + batch.size_bytes > self._bytes_max:
            self.passed_over_frames += batch.frames
            self._passed_over[stream] = self._passed_over.get(stream, 0) + batch.frames
            return False
        if queue is None:
            queue = self._waiting[stream] = deque()
        queue.append(batch)
        self._count(batch.frames, batch.size_bytes)
        return True

    def _full(self, queue: deque[QueuedBatch] | None, one: QueuedBatch) -> bool:
        """Return whether the stream's own share is used up."""
        if not queue:
            return False
        share = max(self._bytes_max // STREAMS_MIN, STREAM_BYTES_MIN)
        return (
            _frames_of(queue) + one.frames > WAITING_FRAMES_MAX
            or sum(queued.size_bytes for queued in queue) + one.size_bytes > share
        )

    def is_waiting(self, stream: BacklogStream) -> bool:
        return stream in self._waiting

    def frames_of(self, stream: BacklogStream) -> int:
        """Return the number of a stream's late frames that were queued or rejected."""
        return _frames_of(self._waiting.get(stream, ())) + self._passed_over.get(stream, 0)

    def passed_over(self, streams_max: int) -> list[tuple[BacklogStream, int]]:
        """Return streams with rejected frames, and the numbers, once there is space; each once."""
        streams: list[tuple[BacklogStream, int]] = []
        while self._passed_over and len(streams) < streams_max and not self.is_pressed:
            streams.append(self._passed_over.popitem())
        return streams

    def drop(self, stream: BacklogStream) -> None:
        """Remove the queue of a stream that ended: its agent still has the frames."""
        self._passed_over.pop(stream, None)
        for batch in self._waiting.pop(stream, ()):
            self._count(-batch.frames, -batch.size_bytes)

    def step(self, now: float, lag_seconds: float, room: float) -> None:
        """Take the frames that are allowed now."""
        allowed_total = self.fleet_quota.step(now, lag_seconds, room)
        taken = 0
        for stream, allowed in self._rounds(now):
            if taken >= allowed_total or not (
                frames := self._take(stream, min(allowed, allowed_total - taken))
            ):
                break
            taken += frames
        self.fleet_quota.consume(taken)

    def _rounds(self, now: float) -> Iterator[tuple[BacklogStream, int]]:
        """Yield streams that may send, and the number of frames; a served stream goes to the end.

        A message that was begun is completed first; otherwise each of 10,000 streams could keep
        decoder state.
        """
        idle = 0
        while self._waiting and idle < len(self._waiting):
            stream = next(iter(self._waiting))
            if (allowed := stream.quota.allowed(now)) > 0:
                idle = 0
                yield stream, allowed
            else:
                idle += 1
            if stream in self._waiting and not (
                allowed > 0 and self._waiting[stream][0].is_started
            ):
                self._waiting.move_to_end(stream)

    def _take(self, stream: BacklogStream, frames_max: int) -> int:
        """Take frames from one message of *stream*; return their number, 0 if the store is full."""
        queue = self._waiting[stream]
        batch = queue[0]
        taken = stream.take_backlog(batch.message, min(frames_max, batch.frames))
        stream.quota.consume(taken)
        batch.is_started = batch.is_started or taken > 0
        batch.frames -= taken
        self.waiting_frames -= taken
        if not batch.frames:
            queue.popleft()
            self.waiting_bytes -= batch.size_bytes
        if not queue:
            del self._waiting[stream]
        return taken

    def _count(self, frames: int, size_bytes: int) -> None:
        self.waiting_frames += frames
        self.waiting_bytes += size_bytes


def _size_bytes(message: TelemetryBatch) -> int:
    size = len(message.frame) + len(message.differences) + 256
    return size + sum(len(late_frame) + 64 for late_frame in message.late)


def _frames_of(waiting: Iterable[QueuedBatch]) -> int:
    return sum(batch.frames for batch in waiting)


def host_fraction(host: str) -> float:
    """Return a constant pseudo-random fraction for a host, from 0 to 1."""
    return random.Random(host).random()


class ReconnectSpread:
    """Time over which agents reconnect, so that live frames are still served."""

    def __init__(self, reconnects_per_second: int) -> None:
        self._hertz = reconnects_per_second

    def seconds(self, hosts: int) -> int:
        """Return the time for *hosts* hosts; 0: at once."""
        return min(hosts // self._hertz, RECONNECT_SECONDS_MAX)

    def retry_seconds(self, host: str, hosts: int) -> float:
        """Return the delay of this host, when all *hosts* must reconnect now."""
        return 0.5 + host_fraction(host) * self.seconds(hosts)


class RegistrationQueue:
    """Limits registrations, so that a fleet that reconnects at once does not block live frames.

    A token bucket holds a second's worth. When it is empty, a host gets a slot of its own in a
    line; later hosts get slots behind it.
    """

    def __init__(self, reconnects_per_second: int, now: float) -> None:
        self._hertz = float(reconnects_per_second)
        self._bucket = TokenBucket(self._hertz, self._hertz, now)
        self._due_times: OrderedDict[str, float] = OrderedDict()
        #: Count of deferred registrations.
        self.deferred = 0

    def wait_seconds(self, host: str, now: float) -> float:
        """Return how long *host* must wait to register; 0: now, and the registration is counted."""
        self._forget_passed(now)
        due = self._due_times.get(host)
        if due is None and not self._bucket.try_take(now):
            return 0.0
        if due is not None and due <= now:
            del self._due_times[host]
            return 0.0
        if due is None and self._bucket.paid_at - now >= RECONNECT_SECONDS_MAX:
            self.deferred += 1  # the line is full: the host must ask again
            return RECONNECT_SECONDS_MAX * (0.5 + host_fraction(host) / 2)
        if due is None:
            due = self._due_times[host] = now + self._bucket.take(1.0, now)
        self.deferred += 1
        return max(due - now, 1 / self._hertz)

    def _forget_passed(self, now: float) -> None:
        while self._due_times:
            host, due = next(iter(self._due_times.items()))
            if due + SLOT_SECONDS > now:
                return
            del self._due_times[host]
