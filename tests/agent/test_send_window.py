"""The choice of the next frame: by hand and by the hundred, without socket or sleep."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.agent.spool.spool import Spool
from gangline.agent.transport.backoff import (
    BACKOFF_REFUSED_SECONDS,
    BACKOFF_SECONDS_MAX,
    BACKOFF_SECONDS_MIN,
    Backoff,
)
from gangline.agent.transport.send_window import BACKLOG_RATE_RATIO, LIVE_FRAMES_MAX, SendWindow


class Memory:
    """Frames in memory, with a spool's interface."""

    def __init__(self, count: int) -> None:
        self.waiting = {sequence: b"%d" % sequence for sequence in range(1, count + 1)}
        self.next = count + 1

    def append(self) -> None:
        self.waiting[self.next] = b"%d" % self.next
        self.next += 1

    def next_sequence(self) -> int:
        return self.next

    def pending(self, after: int, count_max: int) -> list[tuple[int, bytes]]:
        later = sorted(sequence for sequence in self.waiting if sequence > after)
        return [(sequence, self.waiting[sequence]) for sequence in later[:count_max]]


class Losing(Memory):
    """Frames whose newest is replaced while it is fetched."""

    def pending(self, after: int, count_max: int) -> list[tuple[int, bytes]]:
        self.waiting.pop(self.next - 1, None)
        self.append()
        return super().pending(after, count_max)


class Unreadable(Memory):
    """Frames of a process without free file descriptors while `is_full`."""

    is_full = False

    def pending(self, after: int, count_max: int) -> list[tuple[int, bytes]]:
        if self.is_full:
            raise BlockingIOError
        return super().pending(after, count_max)


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    spool = Spool.open(tmp_path / "spool", bytes_max=1 << 20, boot_id=b"b" * 16, owner="m")
    yield spool
    spool.close()


def add(spool: Spool, count: int) -> None:
    for _ in range(count):
        spool.append(spool.next_sequence(), b"frame")


def sent(outflow: SendWindow, now: float) -> list[tuple[int, bool]]:
    return [(outgoing.sequence, outgoing.backlog) for outgoing in outflow.next_frames(now)]


def test_what_cannot_be_read_now_is_sent_once_it_can_be() -> None:
    """Without descriptors for a moment, the agent took its backlog for sent."""
    frames = Unreadable(4)
    outflow = SendWindow(frames, 16, live_hertz=1.0, now=100.0)
    frames.append()
    frames.is_full = True
    assert sent(outflow, 110.0) == []
    frames.is_full = False
    assert sent(outflow, 110.0) == [(5, False), (1, True), (2, True), (3, True), (4, True)]


def test_live_goes_before_backlog_and_backlog_at_twice_its_rate(spool: Spool) -> None:
    """The aggregator was unreachable; schedulers must see live frames before the backlog."""
    add(spool, 6)
    outflow = SendWindow(spool, 16, live_hertz=1.0, now=100.0)
    assert sent(outflow, 100.0) == []  # older frames, whose time has not come
    add(spool, 1)
    assert sent(outflow, 100.0) == [(7, False), (1, True), (2, True)]
    assert sent(outflow, 100.9) == []
    add(spool, 1)
    assert sent(outflow, 101.0) == [(8, False), (3, True), (4, True)]
    assert sent(outflow, 101.5) == []
    add(spool, 1)
    assert sent(outflow, 102.0) == [(9, False), (5, True)]  # half of the 16 credits are in use
    assert outflow.complete(1, 4, 102.0) == [(1, 4)]
    add(spool, 1)
    assert sent(outflow, 103.0) == [(10, False), (6, True)]
    add(spool, 1)
    assert sent(outflow, 104.0) == [(11, False)]
    assert not outflow.has_backlog


def test_backlog_goes_without_live_frames_too(spool: Spool) -> None:
    """Sampling hangs, and the hours before it must still be sent."""
    add(spool, 9)
    outflow = SendWindow(spool, 100, live_hertz=1.0, now=0.0)
    assert [s for s, _ in sent(outflow, 1.0)] == [1, 2]
    assert [s for s, _ in sent(outflow, 3.0)] == [3, 4, 5, 6]


def test_credit_is_never_exceeded_and_leaves_room_for_live(spool: Spool) -> None:
    """A slow writer at the aggregator: the backlog must not take all of its credit."""
    add(spool, 50)
    outflow = SendWindow(spool, 4, live_hertz=1.0, now=0.0)
    assert [s for s, _ in sent(outflow, 60.0)] == [1, 2]
    add(spool, 3)
    assert sent(outflow, 61.0) == [(51, False), (52, False)]
    outflow.grant(6)
    assert sent(outflow, 62.0) == [(53, False)]
    outflow.grant(0)  # an answer without credit
    assert outflow.complete(1, 1, 63.0) == [(1, 1)]
    add(spool, 1)
    assert [s for s, _ in sent(outflow, 64.0)] == [54]


def test_when_live_frames_pile_up_the_newest_goes_first(spool: Spool) -> None:
    """A minute without credit: the newest frame goes first, the minute follows as backlog."""
    outflow = SendWindow(spool, 4, live_hertz=1.0, now=0.0)
    add(spool, 4)
    assert len(sent(outflow, 0.0)) == 4
    add(spool, LIVE_FRAMES_MAX + 1)
    assert sent(outflow, 10.0) == []
    newest = spool.next_sequence() - 1
    outflow.complete(1, 4, 11.0)
    spool.acknowledge(1, 4)
    assert sent(outflow, 11.0) == [(newest, False), (5, True)]


def test_a_receipt_for_what_was_not_sent_forgets_nothing(spool: Spool) -> None:
    """An aggregator with a mistake in its ranges must not delete the backlog."""
    add(spool, 5)
    outflow = SendWindow(spool, 16, live_hertz=1.0, now=0.0)
    sent(outflow, 1.0)
    assert outflow.complete(0, 2**64 - 1, 1.0) == [(1, 2)]
    assert outflow.complete(1, 2, 1.0) == []


def test_waiting_for_a_receipt_is_measured_from_the_last_one(spool: Spool) -> None:
    """This distinguishes a stalled aggregator from a slow one."""
    outflow = SendWindow(spool, 16, live_hertz=1.0, now=0.0)
    assert outflow.waiting_seconds(50.0) == 0.0
    add(spool, 2)
    sent(outflow, 60.0)
    assert outflow.waiting_seconds(70.0) == 10.0
    outflow.complete(1, 1, 71.0)
    assert outflow.waiting_seconds(75.0) == 4.0
    outflow.complete(2, 2, 76.0)
    assert outflow.waiting_seconds(99.0) == 0.0


course = st.lists(
    st.one_of(
        st.just("append"),
        st.floats(0.0, 5.0),  # seconds that pass before frames are taken
        # a receipt: first, number of further frames
        st.tuples(st.integers(1, 60), st.integers(0, 10)),
    ),
    max_size=80,
)


@given(st.integers(0, 40), st.integers(1, 12), st.sampled_from([0, 1, 2, 16]), course)
def test_every_frame_goes_once_within_credit_and_live_first(
    before: int, credit: int, together: int, steps: list[str | float | tuple[int, int]]
) -> None:
    """For any order of appends and receipts, no frame is missing or sent twice."""
    frames, now = Memory(before), 0.0
    outflow = SendWindow(frames, credit, live_hertz=1.0, now=now)
    outflow.frames_per_batch = together
    seen: list[tuple[int, bool]] = []
    live_in_all = 0
    for step in [*steps, *[1.0, (1, 1000)] * 200]:
        if step == "append":
            frames.append()
        elif isinstance(step, tuple):
            for first, last in outflow.complete(step[0], step[0] + step[1], now):
                for sequence in range(first, last + 1):
                    del frames.waiting[sequence]
        elif isinstance(step, float):
            now += step
            taken = sent(outflow, now)
            assert taken == sorted(taken, key=lambda one: one[1]), "backlog before live"
            assert outflow.in_flight <= credit
            seen += taken
            live_in_all += sum(not backlog for _, backlog in taken)
            backlog_in_all = len(seen) - live_in_all
            assert backlog_in_all <= BACKLOG_RATE_RATIO * (live_in_all + now)
    assert sorted(sequence for sequence, _ in seen) == list(range(1, frames.next))
    assert all(backlog for sequence, backlog in seen if sequence <= before)


def test_backoff_grows_to_half_a_minute_and_is_spread() -> None:
    """A thousand agents lost one aggregator: they must not reconnect at the same time."""
    backoff = Backoff(random.Random(1))
    waits = [backoff.next_delay(refused=False) for _ in range(200)]
    assert all(BACKOFF_SECONDS_MIN <= wait <= BACKOFF_SECONDS_MAX for wait in waits)
    assert waits[0] <= 2 * BACKOFF_SECONDS_MIN
    assert len(set(waits)) == len(waits) and max(waits) > 0.9 * BACKOFF_SECONDS_MAX
    backoff.reset()
    assert backoff.next_delay(refused=False) <= 2 * BACKOFF_SECONDS_MIN
    assert backoff.next_delay(refused=True) >= BACKOFF_REFUSED_SECONDS


def test_a_frame_goes_under_its_own_number() -> None:
    """The newest frame was lost with its folder while it was fetched, and the next one added."""
    frames = Losing(0)
    outflow = SendWindow(frames, 4, 1.0, 0.0)
    frames.append()
    assert [(out.sequence, out.frame) for out in outflow.next_frames(0.0)] == [(2, b"2")]


def test_what_waits_after_a_long_rest_goes_at_its_pace() -> None:
    """Without a backlog for minutes: this must not allow a burst."""
    frames = Memory(0)
    outflow = SendWindow(frames, 64, 1.0, 0.0)
    for second in range(100):
        frames.append()
        assert len(outflow.next_frames(float(second))) == 1
        outflow.complete(1, 100, float(second))
    for _ in range(LIVE_FRAMES_MAX + 10):
        frames.append()
    assert len(outflow.next_frames(100.0)) <= 1 + BACKLOG_RATE_RATIO


def test_backlog_keeps_to_what_the_aggregator_grants_it(spool: Spool) -> None:
    """Ten thousand hosts catch up at once, and the aggregator allows each one late frame in flight."""
    add(spool, 20)
    outflow = SendWindow(spool, 64, live_hertz=1.0, now=0.0)
    outflow.grant(64, 2)
    assert [s for s, _ in sent(outflow, 30.0)] == [1, 2]
    add(spool, 3)  # live frames still go
    assert [s for s, _ in sent(outflow, 31.0)] == [21, 22, 23]
    assert outflow.complete(21, 23, 31.0) == [(21, 23)]
    assert sent(outflow, 32.0) == []
    outflow.complete(1, 1, 32.0)
    assert [s for s, _ in sent(outflow, 33.0)] == [3]
    outflow.grant(64, 0)  # an aggregator without this field: half of the credit
    assert len(sent(outflow, 34.0)) == 17


def test_backlog_waits_until_there_is_a_message_of_it(spool: Spool) -> None:
    """Each late frame alone in a message cost the aggregator three times its share."""
    add(spool, 22)
    outflow = SendWindow(spool, 64, live_hertz=1.0, now=0.0)
    outflow.frames_per_batch = 8
    outflow.grant(64, 16)
    went = {second: [s for s, _ in sent(outflow, float(second))] for second in range(1, 7)}
    assert went == {1: [1, 2], 2: [], 3: [3, 4, 5, 6], 4: [], 5: [], 6: []}, (
        "twice as many each time"
    )
    add(spool, 1)
    assert [s for s, _ in sent(outflow, 7.0)] == [23, *range(7, 15)], (
        "no later than alone, on average"
    )
    assert sent(outflow, 11.0) == [], "as many are on their way as may be"
    outflow.complete(1, 14, 11.0)
    assert [s for s, _ in sent(outflow, 11.0)] == list(range(15, 23)), "what is left makes one"
    assert not outflow.has_backlog


def test_connections_that_never_last_make_up_for_the_past_too(spool: Spool) -> None:
    """A link broke every five seconds: the wait for a full message restarted each time."""
    add(spool, 20)
    for _ in range(4):
        outflow = SendWindow(spool, 64, live_hertz=1.0, now=0.0)
        outflow.frames_per_batch = 16
        outflow.grant(64, 16)
        for second in range(1, 6):
            for sequence, backlog in sent(outflow, float(second)):
                assert backlog and outflow.complete(sequence, sequence, float(second))
                spool.acknowledge(sequence, sequence)
    assert not spool.unacknowledged_frames


def test_who_may_have_one_late_frame_on_its_way_sends_one(spool: Spool) -> None:
    """Under a limit of late frames no message is full: the backlog would wait forever."""
    add(spool, 40)
    outflow = SendWindow(spool, 8, live_hertz=1.0, now=0.0)
    outflow.frames_per_batch = 16
    outflow.grant(8, 1)
    assert [s for s, _ in sent(outflow, 30.0)] == [1]
    outflow.complete(1, 1, 30.0)
    outflow.grant(8, 16)
    add(spool, 2)  # half of the credit, minus live frames
    assert [s for s, _ in sent(outflow, 31.0)] == [41, 42, 2, 3]
    assert sent(outflow, 32.0) == []


def test_a_fleet_comes_back_spread_by_its_names() -> None:
    """kill -9 of the aggregator: its ten thousand agents notice it at the same moment."""

    def attempts(host: str, fleet_seconds: float) -> list[float]:
        backoff = Backoff(random.Random(host))
        backoff.spread(host, fleet_seconds)
        return [backoff.next_delay(refused=False) for _ in range(6)]

    hosts = [f"host-{n}" for n in range(1000)]
    waits = [attempts(host, 40.0) for host in hosts]
    # the loss may affect this agent alone
    assert all(wait[0] <= 2 * BACKOFF_SECONDS_MIN for wait in waits)
    second = sorted(wait[1] for wait in waits)
    assert second[500] > 18.0 and second[-1] <= 40.0
    assert all(wait[2:] == [40.0] * 4 for wait in waits)
    tenths = [sum(k <= wait / 4 < k + 1 for wait in second) for k in range(10)]
    assert max(tenths) < 150
    assert attempts("host-1", 40.0) == attempts("host-1", 40.0)
    assert max(attempts("host-1", 0.0)[:3]) <= 4.0  # alone: its own back-off


def test_an_aggregator_that_says_when_is_heeded() -> None:
    """The aggregator knows the number of waiting agents, and assigned a time to this one."""
    backoff = Backoff(random.Random(1))
    assert backoff.next_delay(refused=False, retry_seconds=12.5) == 12.5
    assert backoff.next_delay(refused=False) <= 2 * BACKOFF_SECONDS_MIN  # that was not a failure
    assert backoff.next_delay(refused=True, retry_seconds=1.0) >= BACKOFF_REFUSED_SECONDS
