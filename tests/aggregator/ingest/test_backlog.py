"""How fast late frames and returning agents are accepted: decisions on a test clock."""

from __future__ import annotations

import heapq
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from gangline.aggregator.ingest.backlog import (
    BACKLOG_RATE_RATIO,
    BURST_FRAMES,
    FLEET_HERTZ,
    FLEET_HERTZ_MAX,
    FLEET_HERTZ_MIN,
    LAG_SECONDS_MAX,
    RECONNECT_SECONDS_MAX,
    SLOT_SECONDS,
    STREAMS_MIN,
    WAITING_FRAMES_MAX,
    BacklogQueue,
    FleetQuota,
    HostQuota,
    ReconnectSpread,
    RegistrationQueue,
    host_fraction,
)
from gangline.contract.wire.telemetry_pb2 import TelemetryBatch

#: Live frames a second of a host, for its quota by time.
HERTZ = 2.0


class Lane:
    """A stream: the accepted frames, and whether the store has room."""

    def __init__(self) -> None:
        self.quota = HostQuota(HERTZ, 0.0)
        self.taken: list[int] = []
        self.room = True
        self.again = 0

    def take_backlog(self, message: TelemetryBatch, frames_max: int) -> int:
        if not self.room:
            return 0
        self.taken += [message.sequence] * frames_max
        return frames_max

    def request_resend(self, frames: int) -> None:
        self.again = frames


def message(sequence: int, size_bytes: int = 100) -> TelemetryBatch:
    return TelemetryBatch(sequence=sequence, frame=bytes(size_bytes), backlog=True)


@given(
    st.lists(st.tuples(st.floats(0.0, 3.0), st.integers(0, 9), st.integers(0, 40)), max_size=60),
)
def test_no_host_sends_its_past_faster_than_twice_its_present(
    steps: list[tuple[float, int, int]],
) -> None:
    """Accepted late frames are limited by live frames or by time, at any speed of the agent."""
    pace, now, live, taken = HostQuota(HERTZ, 0.0), 0.0, 0, 0
    for seconds, frames, late in steps:
        now += seconds
        live += frames
        pace.live_frames += frames
        for _ in range(late):
            if pace.allowed(now):
                pace.consume()
                taken += 1
        assert taken <= BURST_FRAMES + BACKLOG_RATE_RATIO * live + HERTZ * now


def test_an_agent_that_keeps_its_own_pace_is_never_held() -> None:
    """Agents of all versions send two late frames with each live frame."""
    pace = HostQuota(HERTZ, 0.0)
    for second in range(3600):
        pace.live_frames += 1
        for _ in range(2):
            assert pace.allowed(float(second))
            pace.consume()


def test_what_was_not_used_is_not_saved_up() -> None:
    """A host without backlog for a day has no right to a burst of a day."""
    pace = HostQuota(HERTZ, 0.0)
    pace.live_frames += 86_400
    taken = 0
    while pace.allowed(86_400.0):
        pace.consume()
        taken += 1
    assert taken == BURST_FRAMES


def test_a_fleet_sends_less_of_its_past_while_its_present_suffers() -> None:
    """After an hour's switch outage 2,000 hosts returned at once; receipts took half a minute."""
    pace = FleetQuota(0.0)
    assert pace.step(0.1, 0.0, 1.0) == int((FLEET_HERTZ + 50) * 0.1)
    pace.consume(10**6)
    for tick in range(2, 12):  # the loop is late, or the queue half full
        lag, room = (2 * LAG_SECONDS_MAX, 1.0) if tick % 2 else (0.0, 0.4)
        before = pace.hertz
        assert pace.step(tick / 10, lag, room) <= before / 2 * 0.11 or before == FLEET_HERTZ_MIN
    assert pace.hertz == FLEET_HERTZ_MIN
    for second in range(2, 200):
        pace.step(float(second), 0.0, 0.9)
    assert pace.hertz == FLEET_HERTZ_MAX


def test_late_frames_go_in_rounds_each_in_its_order() -> None:
    """A host with many late frames does not come before a hundred hosts with few."""
    late, lanes = BacklogQueue(1 << 20, 0.0), [Lane() for _ in range(3)]
    for sequence in range(6):
        for lane in lanes[: 1 if sequence > 1 else 3]:
            assert late.enqueue(lane, message(sequence))
    late.fleet_quota.hertz = 30.0
    late.step(0.1, 0.0, 1.0)  # 80 * 0.1: the rate has risen
    assert [lane.taken for lane in lanes] == [[0, 1, 2, 3], [0, 1], [0, 1]]
    late.step(10.0, 0.0, 1.0)
    assert lanes[0].taken == list(range(6))
    assert (late.waiting_frames, late.waiting_bytes) == (0, 0) and not late.is_waiting(lanes[0])


def test_late_frames_beyond_their_room_are_not_taken_into_memory() -> None:
    """A hostile agent marks all its frames as late, and sends them at full speed."""
    late, hostile_lane, roomy_lane = BacklogQueue(32 << 20, 0.0), Lane(), Lane()
    large, other_lanes = 1 << 19, [Lane() for _ in range(STREAMS_MIN)]
    assert (
        sum(late.enqueue(hostile_lane, message(n, large)) for n in range(100)) == 3
    )  # these fill 2 MiB
    taken = 3 + sum(late.enqueue(lane, message(n, large)) for lane in other_lanes for n in range(4))
    assert late.waiting_frames == taken and late.is_pressed
    assert late.waiting_bytes <= 32 << 20
    assert late.passed_over_frames == 100 + 4 * STREAMS_MIN - taken
    assert late.frames_of(hostile_lane) == 100 and not late.passed_over(
        9
    )  # no stream has ended yet
    for lane in other_lanes:
        late.drop(lane)
    assert late.passed_over(9) == [(hostile_lane, 97)] and not late.passed_over(9)
    late.drop(hostile_lane)
    assert (late.waiting_frames, late.waiting_bytes, late.is_pressed) == (0, 0, False)
    roomy = BacklogQueue(1 << 30, 0.0)
    assert sum(roomy.enqueue(roomy_lane, message(n)) for n in range(1000)) == WAITING_FRAMES_MAX


def test_a_full_store_lets_late_frames_wait() -> None:
    """No late frame is lost, and no frame overtakes the frame without room."""
    late, lane = BacklogQueue(1 << 20, 0.0), Lane()
    late.enqueue(lane, message(1))
    late.enqueue(lane, message(2))
    lane.room = False
    late.step(1.0, 0.0, 1.0)
    assert lane.taken == [] and late.waiting_frames == 2
    lane.room = True
    late.step(2.0, 0.0, 1.0)
    assert lane.taken == [1, 2]


def test_frames_that_come_in_one_message_wait_and_are_taken_as_frames() -> None:
    """A limit on messages would have accepted sixteen times the intended frames."""
    late, lane = BacklogQueue(1 << 20, 0.0), Lane()
    batch = TelemetryBatch(sequence=1, late=[bytes(100)] * 16, backlog=True)
    fit = WAITING_FRAMES_MAX // 16
    assert [late.enqueue(lane, batch) for _ in range(fit + 2)] == [True] * fit + [False] * 2
    assert (late.waiting_frames, late.passed_over_frames) == (16 * fit, 32)
    assert late.frames_of(lane) == 16 * fit + 32
    assert 16 * fit * 100 < late.waiting_bytes < 16 * fit * 200
    late.step(1.0, 0.0, 1.0)
    late.step(1.1, 0.0, 1.0)
    assert len(lane.taken) == BURST_FRAMES and late.waiting_frames == 16 * fit - BURST_FRAMES
    late.fleet_quota.hertz, late.fleet_quota._frames, lane.quota = 35.0, 0.0, HostQuota(1000.0, 0.0)
    late.step(1.2, 0.0, 1.0)  # 80 * 0.1: the rate of the whole fleet
    assert len(lane.taken) == BURST_FRAMES + 8
    late.drop(lane)
    assert (late.waiting_frames, late.waiting_bytes) == (0, 0)


def test_a_message_that_was_begun_is_ended_before_another() -> None:
    """A begun message keeps up to 32 kB: 0.3 GB if 10,000 hosts each send two frames at a time."""
    late, lanes = BacklogQueue(1 << 20, 0.0), [Lane() for _ in range(3)]
    for lane in lanes:
        assert late.enqueue(lane, TelemetryBatch(sequence=1, late=[b"frame"] * 16, backlog=True))
    late.fleet_quota.hertz = FLEET_HERTZ_MIN
    for tick in range(1, 60):
        before = late.waiting_frames
        late.step(tick / 10, 2 * LAG_SECONDS_MAX, 1.0)
        assert before - late.waiting_frames <= 2, "or it is no test"
        assert sum(0 < len(lane.taken) < 16 for lane in lanes) <= 1
    assert not late.waiting_frames


def test_who_has_begun_a_message_and_may_not_go_on_holds_nobody_up() -> None:
    """Its own quota ends in the middle of a message: the other hosts have their turns."""
    late, limited, unlimited = BacklogQueue(1 << 20, 0.0), Lane(), Lane()
    limited.quota.consume(4)
    for lane in (limited, unlimited):
        assert late.enqueue(lane, TelemetryBatch(sequence=1, late=[b"frame"] * 16, backlog=True))
    late.step(0.1, 0.0, 1.0)
    assert (len(limited.taken), len(unlimited.taken)) == (12, 16)


def test_a_fleet_comes_back_within_tens_of_seconds_and_one_host_at_once() -> None:
    """A single host does not wait; ten thousand hosts do not return in one second."""
    spread = ReconnectSpread(300)
    assert [spread.seconds(hosts) for hosts in (0, 1, 299, 300, 10_000, 10**6)] == [
        0, 0, 0, 1, 33, RECONNECT_SECONDS_MAX,
    ]  # fmt: skip
    hosts = [f"host-{n:05d}" for n in range(10_000)]
    when = [spread.retry_seconds(host, len(hosts)) for host in hosts]
    a_second = Counter(int(seconds) for seconds in when)
    assert max(a_second.values()) < 400 and max(when) < 34
    assert spread.retry_seconds("host-1", 1) == 0.5
    assert host_fraction("host-1") == host_fraction("host-1") != host_fraction("host-2")


def test_ten_thousand_agents_register_in_turn() -> None:
    """All ask at once, and return after their delay: no second is overloaded, all are accepted."""
    admission, served = RegistrationQueue(300, 0.0), Counter[int]()
    waiting = [(0.0, host) for host in (f"host-{n}" for n in range(10_000))]
    requests = 0
    while waiting:
        now, host = heapq.heappop(waiting)
        requests += 1
        if seconds := admission.wait_seconds(host, now):
            heapq.heappush(waiting, (now + seconds, host))
        else:
            served[int(now)] += 1
    assert sum(served.values()) == 10_000
    assert (
        max(served.values()) <= 601 and max(served) <= 34
    )  # the bucket, and the first hosts in the queue
    assert requests == 20_000 - 300 and admission.deferred == requests - 10_000


def test_who_comes_before_its_turn_keeps_its_place() -> None:
    """An older agent tries again by its own back-off, and keeps its place in the queue."""
    admission = RegistrationQueue(1, 0.0)
    assert admission.wait_seconds("a", 0.0) == 0.0
    assert admission.wait_seconds("b", 0.0) == 1.0
    assert admission.wait_seconds("c", 0.0) == 2.0
    assert admission.wait_seconds("c", 0.5) == 1.5
    assert admission.wait_seconds("d", 1.9) > 1.0  # while a queue exists, new hosts wait behind it
    assert admission.wait_seconds("c", 2.0) == 0.0
    assert admission.wait_seconds("b", 2.0 + SLOT_SECONDS) == 0.0  # late, and the queue is empty


def test_a_million_names_do_not_make_a_line_of_an_hour() -> None:
    """A hostile peer registers under invented names."""
    admission = RegistrationQueue(300, 0.0)
    waits = [admission.wait_seconds(f"name-{n}", 0.0) for n in range(100_000)]
    assert max(waits) <= RECONNECT_SECONDS_MAX + 1
    assert len(admission._due_times) <= 300 * RECONNECT_SECONDS_MAX + 1
    assert admission.wait_seconds("honest", SLOT_SECONDS + RECONNECT_SECONDS_MAX + 2) == 0.0
    assert not admission._due_times
