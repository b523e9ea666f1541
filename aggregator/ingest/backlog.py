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

#: Late frames of a host are taken at no more than this many times its live rate.
BACKLOG_RATE_RATIO = 2
#: This many late frames of a host are taken at once after a rest: agents pace by their own clocks, and send so many in a
#: message, of which nothing must be remembered for long.
BURST_FRAMES = LATE_FRAMES_MAX
#: Late frames of one stream that wait for their turn; with more the agent is asked to send them again.
WAITING_FRAMES_MAX = 64
#: Of the memory for what waits for a commit (`queue_bytes_max`), late frames that wait for their turn have one part in:
WAITING_BYTES_SHARE = 4
#: This many streams find room to wait, however large their frames: one is not all that comes late. Each may have this much.
STREAMS_MIN, STREAM_BYTES_MIN = 16, 1 << 20
#: Late frames that a host may have on their way; and while many hosts catch up at once.
BACKLOG_FRAMES, BACKLOG_FRAMES_PRESSED = 16, 1
#: The whole credit of an agent that knows nothing of `backlog_frames`, while many hosts catch up.
CREDIT_FRAMES_PRESSED = 8

#: Late frames a second that all hosts may send: to begin with, at the least, at the most.
FLEET_HERTZ, FLEET_HERTZ_MIN, FLEET_HERTZ_MAX = 500.0, 20.0, 50_000.0
#: More of them each second while live frames do not suffer; half as many when they do, which is so when
#: the service is later than this, or less of the queue is free.
FLEET_HERTZ_STEP = 500.0
LAG_SECONDS_MAX, ROOM_MIN = 0.1, 0.5

#: However large the fleet: within this its agents come back.
RECONNECT_SECONDS_MAX = 60
#: A host keeps its turn to register for this long after it was due.
SLOT_SECONDS = 60.0


class HostQuota:
    """One host's late frames: earned by time or by live frames, whichever gives more."""

    __slots__ = ("_hertz", "_since", "_used", "live_frames")

    def __init__(self, hertz: float, now: float) -> None:
        """*hertz*: late frames a second of a host that sends few live ones: its sampling may hang."""
        self._hertz = hertz
        self._begin(now)

    def _begin(self, now: float) -> None:
        self._since, self._used = now, -BURST_FRAMES
        #: Count each one here.
        self.live_frames = 0

    def allowed(self, now: float) -> int:
        """Return how many late frames may be taken now."""
        by_time = max(0.0, now - self._since) * self._hertz
        earned = max(BACKLOG_RATE_RATIO * self.live_frames, by_time)
        if earned - self._used >= BURST_FRAMES:  # what was not used is not saved up
            self._begin(now)
            return BURST_FRAMES
        return int(earned - self._used)

    def consume(self, frames: int = 1) -> None:
        """Count late frames that were taken."""
        self._used += frames


class FleetQuota:
    """All hosts' late frames: ever more while live frames do not suffer, half as many when they do."""

    def __init__(self, now: float) -> None:
        #: Late frames a second that are let through.
        self.hertz = FLEET_HERTZ
        self._at, self._frames = now, 0.0

    def step(self, now: float, lag_seconds: float, room: float) -> int:
        """Return how many late frames may be taken now. *room*: the free share of the store's queue."""
        seconds = min(max(0.0, now - self._at), 1.0)
        self._at = now
        if lag_seconds > LAG_SECONDS_MAX or room < ROOM_MIN:
            self.hertz, self._frames = max(self.hertz / 2, FLEET_HERTZ_MIN), 0.0
        else:
            self.hertz = min(self.hertz + FLEET_HERTZ_STEP * seconds, FLEET_HERTZ_MAX)
        self._frames = min(self._frames + self.hertz * seconds, self.hertz)
        return int(self._frames)

    def consume(self, frames: int) -> None:
        """Count late frames that were taken."""
        self._frames -= frames


class BacklogStream(Protocol):
    """A stream, as its late frames see it."""

    @property
    def quota(self) -> HostQuota: ...

    def take_backlog(self, message: TelemetryBatch, frames_max: int) -> int:
        """Take the next late frames of a message; return how many: for the one after fewer the store has no room now."""
        ...

    def request_resend(self, frames: int) -> None:
        """End, so that this many skipped late frames are sent again."""
        ...


class QueuedBatch:
    """A message whose frames wait."""

    __slots__ = ("frames", "is_started", "message", "size_bytes")

    def __init__(self, message: TelemetryBatch) -> None:
        self.message = message
        #: Some were taken, and what they were is remembered for the next ones.
        self.is_started = False
        #: Those that were not taken yet.
        self.frames = len(message.late) or 1
        self.size_bytes = _size_bytes(message)


class BacklogQueue:
    """Late frames that wait for their turn, a queue per stream, taken in rounds: one host is as good as another."""

    def __init__(self, bytes_max: int, now: float) -> None:
        """*bytes_max*: what they may take of memory."""
        self._bytes_max = bytes_max
        self._waiting: OrderedDict[BacklogStream, deque[QueuedBatch]] = OrderedDict()
        self._passed_over: dict[BacklogStream, int] = {}
        self.fleet_quota = FleetQuota(now)
        #: What waits.
        self.waiting_frames = self.waiting_bytes = 0
        #: Frames that came when there was no room for them to wait: their agents send them again.
        self.passed_over_frames = 0

    @property
    def is_pressed(self) -> bool:
        """Whether so much waits that agents should send less."""
        return 2 * self.waiting_bytes > self._bytes_max

    def enqueue(self, stream: BacklogStream, message: TelemetryBatch) -> bool:
        """Let a message's late frames wait. False: there is no room, it is not taken."""
        queue = self._waiting.get(stream)
        one = QueuedBatch(message)
        if self._full(queue, one) or self.waiting_bytes + one.size_bytes > self._bytes_max:
            self.passed_over_frames += one.frames
            self._passed_over[stream] = self._passed_over.get(stream, 0) + one.frames
            return False
        if queue is None:
            queue = self._waiting[stream] = deque()
        queue.append(one)
        self._count(one.frames, one.size_bytes)
        return True

    def _full(self, queue: deque[QueuedBatch] | None, one: QueuedBatch) -> bool:
        """Return whether a stream has its share of what may wait."""
        if not queue:
            return False
        share = max(self._bytes_max // STREAMS_MIN, STREAM_BYTES_MIN)
        return (
            _frames_of(queue) + one.frames > WAITING_FRAMES_MAX
            or sum(each.size_bytes for each in queue) + one.size_bytes > share
        )

    def is_waiting(self, stream: BacklogStream) -> bool:
        """Return whether frames of a stream wait."""
        return stream in self._waiting

    def frames_of(self, stream: BacklogStream) -> int:
        """Return how many late frames of a stream have come and not been taken: they wait, or were passed over."""
        return _frames_of(self._waiting.get(stream, ())) + self._passed_over.get(stream, 0)

    def passed_over(self, streams_max: int) -> list[tuple[BacklogStream, int]]:
        """Return streams, and of each how many frames were passed over, once there is room for them; each once."""
        found: list[tuple[BacklogStream, int]] = []
        while self._passed_over and len(found) < streams_max and not self.is_pressed:
            found.append(self._passed_over.popitem())
        return found

    def drop(self, stream: BacklogStream) -> None:
        """Forget what waits of a stream that has ended: its agent has it still."""
        self._passed_over.pop(stream, None)
        for one in self._waiting.pop(stream, ()):
            self._count(-one.frames, -one.size_bytes)

    def step(self, now: float, lag_seconds: float, room: float) -> None:
        """Let go what may go now."""
        may = self.fleet_quota.step(now, lag_seconds, room)
        taken = 0
        for stream, allowed in self._rounds(now):
            if taken >= may or not (frames := self._take(stream, min(allowed, may - taken))):
                break
            taken += frames
        self.fleet_quota.consume(taken)

    def _rounds(self, now: float) -> Iterator[tuple[BacklogStream, int]]:
        """Yield streams whose pace allows frames, and how many, each in its turn; who had a message goes to the end.

        One that was begun is ended first: else each of ten thousand streams would have one of which something is
        remembered.
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
        """Take frames of *stream*, of one message; return how many, 0: the store is full."""
        queue = self._waiting[stream]
        one = queue[0]
        taken = stream.take_backlog(one.message, min(frames_max, one.frames))
        stream.quota.consume(taken)
        one.is_started = one.is_started or taken > 0
        one.frames -= taken
        self.waiting_frames -= taken
        if not one.frames:
            queue.popleft()
            self.waiting_bytes -= one.size_bytes
        if not queue:
            del self._waiting[stream]
        return taken

    def _count(self, frames: int, size_bytes: int) -> None:
        self.waiting_frames += frames
        self.waiting_bytes += size_bytes


def _size_bytes(message: TelemetryBatch) -> int:
    size = len(message.frame) + len(message.differences) + 256
    return size + sum(len(each) + 64 for each in message.late)


def _frames_of(waiting: Iterable[QueuedBatch]) -> int:
    return sum(one.frames for one in waiting)


def host_fraction(host: str) -> float:
    """Return a host's own moment within a span, from 0 to 1: the same each time."""
    return random.Random(host).random()


class ReconnectSpread:
    """Within how many seconds a fleet of agents comes back: as many a second as can be served beside live frames."""

    def __init__(self, reconnects_per_second: int) -> None:
        self._hertz = reconnects_per_second

    def seconds(self, hosts: int) -> int:
        """Return it for this many hosts; 0: at once."""
        return min(hosts // self._hertz, RECONNECT_SECONDS_MAX)

    def retry_seconds(self, host: str, hosts: int) -> float:
        """Return when this one of *hosts* should come, when all are asked to come now."""
        return 0.5 + host_fraction(host) * self.seconds(hosts)


class RegistrationQueue:
    """Who may register now, so that a fleet that comes at once is served in turn and live frames continue.

    A bucket of a second's worth; a caller that finds it empty gets its own time, a place in a line: its debt.
    Anyone who comes while there is a line gets a place behind it.
    """

    def __init__(self, reconnects_per_second: int, now: float) -> None:
        self._hertz = float(reconnects_per_second)
        self._bucket = TokenBucket(self._hertz, self._hertz, now)
        self._due_times: OrderedDict[str, float] = OrderedDict()
        #: Registrations that were deferred.
        self.deferred = 0

    def wait_seconds(self, host: str, now: float) -> float:
        """Return how long *host* is to wait before it registers; 0: it may now, which is counted."""
        self._forget_passed(now)
        due = self._due_times.get(host)
        if due is None and not self._bucket.try_take(now):
            return 0.0
        if due is not None and due <= now:
            del self._due_times[host]
            return 0.0
        if due is None and self._bucket.paid_at - now >= RECONNECT_SECONDS_MAX:
            self.deferred += 1  # the line is long enough: ask again, with luck it is shorter then
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
