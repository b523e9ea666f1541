"""The loop with a test's clock: after any failure, the rest is sampled on the grid."""

from __future__ import annotations

import gc
import itertools
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import pytest

from gangline.agent.collector import Collector, CollectOutcome, CollectResult, NoData
from gangline.agent.daemon import Daemon, LoopTimeouts, SkipCounter
from gangline.agent.events import EventPublisher
from gangline.agent.frame_builder import FrameBuilder
from gangline.agent.sampler.messages import TimedResult
from gangline.agent.spool.spool import Spool
from gangline.contract import frame as frames
from gangline.contract.block import Block
from gangline.contract.signal import Pace
from gangline.contract.signals import TABLES
from gangline.contract.wire import telemetry_pb2
from tests.agent.fakes import HandedClock, KeptEvents
from tests.processes import GUARD_SECONDS

SECOND = 1_000_000_000
START = 1200 * SECOND  # on the grid of every pace except the slowest
RUN, BOOT = b"r" * 16, b"b" * 16


@dataclass
class KeptFrames:
    frames: list[frames.Frame] = field(default_factory=list)
    sequence: int = 1
    dropped_frames: int = 0
    write_errors: int = 0
    refused_frames: int = 0
    unacknowledged_frames: int = 0

    def next_sequence(self) -> int:
        return self.sequence

    def append(self, sequence: int, frame: bytes) -> None:
        assert sequence == self.sequence
        self.sequence += 1
        self.frames.append(frames.decode(frame))

    @property
    def bytes(self) -> int:  # last: within the class it hides the type
        return 77


@dataclass
class CountingClient:
    reconnects: int = 0
    notified: int = 0

    def notify(self) -> None:
        self.notified += 1


class Numa(Collector):
    """A collector of one table with the test's behavior."""

    enters_driver = False

    def __init__(
        self,
        act: Callable[[], None] = lambda: None,
        name: str = "numa",
        table: str = "numa_10s",
        pace: Pace = Pace.TEN_SECONDS,
    ) -> None:
        self.name, self.pace, self._act = name, pace, act
        self._block = Block(table, ["0", "1"])
        self.turns = 0

    def collect(self) -> Sequence[Block]:
        self.turns += 1
        self._act()
        for cell in range(len(self._block.valid)):
            self._block.ints[cell] = self.turns
            self._block.valid[cell] = 1
        return [self._block]


class Fixture:
    """A daemon, its dependencies, and a wait that advances the clock."""

    def __init__(
        self,
        *collectors: Numa,
        linger_seconds: float = GUARD_SECONDS,
        on_second: Callable[[], None] = lambda: None,
    ) -> None:
        self.clock = HandedClock(START)
        self.spool, self.events, self.client = KeptFrames(), KeptEvents(), CountingClient()
        self.stop = threading.Event()
        self.framer = FrameBuilder(RUN, BOOT)
        ids = (f"event-{number}" for number in itertools.count(1))
        notify = self.client.notify
        self.teller = EventPublisher(self.clock, self.events, notify, lambda: next(ids), BOOT)
        self.daemon = Daemon(
            collectors,
            clock=self.clock,
            spool=cast(Any, self.spool),
            events=cast(Any, self.events),
            client=cast(Any, self.client),
            frame_builder=self.framer,
            timeouts=LoopTimeouts(frame_wait_seconds=linger_seconds),
            publisher=self.teller,
            on_second=on_second,
        )

    def run(self, seconds: int) -> None:
        end_ns = self.clock.now_ns + seconds * SECOND
        self.stop.clear()

        def wait(until_ns: int) -> None:
            self.clock.now_ns = max(self.clock.now_ns, until_ns)
            if self.clock.now_ns >= end_ns:
                self.stop.set()

        self.daemon.run(self.stop, wait)

    def tables(self, name: str) -> list[tuple[int, Block]]:
        return [
            (frame.stamp.boottime_ns + block.offset_ns, block)
            for frame in self.spool.frames
            for block in frame.blocks
            if block.table == name
        ]

    def outcomes(self) -> list[tuple[str, str, int, str]]:
        return [(e.event_id, e.device, e.code, e.message) for e in self.events.events]


def cell(block: Block, row: int, column: int) -> float | int | None:
    return list(block.values(row))[column][1]


@pytest.fixture(autouse=True)
def records(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.INFO, "gangline"):
        yield caplog


def test_each_collector_at_its_own_pace_in_one_frame_a_second() -> None:
    fast = Numa(name="host", table="host_1s", pace=Pace.SECOND)
    fixture = Fixture(fast, Numa())
    fixture.clock.now_ns = START - 400_000_000
    fixture.run(31)
    assert [time_ns for time_ns, _ in fixture.tables("host_1s")] == [
        START + s * SECOND for s in range(31)
    ]
    assert [time_ns for time_ns, _ in fixture.tables("numa_10s")] == [
        START + s * SECOND for s in (0, 10, 20, 30)
    ]
    stamps = [frame.stamp for frame in fixture.spool.frames]
    assert [stamp.sequence for stamp in stamps] == list(range(1, 32))
    assert {stamp.wall_ns - stamp.boottime_ns for stamp in stamps} == {1_700_000_000 * SECOND}
    assert fixture.client.notified == 31


def test_a_collector_that_is_blind_in_part_gives_what_it_saw_and_says_what_it_did_not() -> None:
    """One port of eight is a restricted function: seven good readings must not be dropped for it."""

    class OneEyed(Numa):
        access_error = "mlx5_7/1 refuses its counters; give it to the host with: rdma system set"

    fixture = Fixture(OneEyed())
    fixture.run(1)
    ((_, block),) = fixture.tables("numa_10s")
    assert block.rows == 2
    ((_, device, code, message),) = fixture.outcomes()
    assert (device, code, message) == ("numa", CollectOutcome.BLIND, OneEyed.access_error)


def test_a_requested_inventory_is_read_at_the_next_tick_but_not_at_every_tick() -> None:
    """A NIC that flaps for an hour must not start the inventory's child each second."""
    inventory = Numa(name="inventory", table="numa_60s", pace=Pace.BOOT)
    fixture = Fixture(inventory)
    fixture.run(1)
    for _ in range(25):
        fixture.teller.request_inventory("eth0 appeared")
        fixture.run(1)
    assert inventory.turns == 1 + 3


def test_an_inventory_that_is_asked_for_later_is_read_then() -> None:
    """A GPU without description is asked again later, which delays no earlier request."""
    inventory = Numa(name="inventory", table="numa_60s", pace=Pace.BOOT)
    fixture = Fixture(inventory)
    fixture.run(1)
    fixture.teller.request_inventory_after("1 GPU has no description", 40.0)
    fixture.run(39)
    assert inventory.turns == 1
    fixture.run(2)
    assert inventory.turns == 2
    fixture.teller.request_inventory_after("1 GPU has no description", 80.0)
    fixture.teller.request_inventory("eth0 appeared")
    fixture.run(11)
    assert inventory.turns == 3


def test_what_a_collector_tells_is_whole_and_leaves_at_once() -> None:
    """An event needs its id and time to be told from others."""
    fixture = Fixture()
    fixture.teller.publish(telemetry_pb2.HealthEvent(name="gpu.xid", code=79))
    fixture.teller.publish(
        telemetry_pb2.HealthEvent(event_id="mine", boottime_ns=5, wall_time_ns=6)
    )
    first, second = fixture.events.events
    assert (first.event_id, first.boottime_ns, first.wall_time_ns) == (
        "event-1",
        fixture.clock.boottime_ns(),
        fixture.clock.wall_ns(),
    )
    assert (second.event_id, second.boottime_ns, second.wall_time_ns) == ("mine", 5, 6)
    assert first.boot_id == second.boot_id == BOOT
    assert fixture.client.notified == 2


class Quiet(Numa):
    """Error counters, all zero."""

    def collect(self) -> Sequence[Block]:
        (block,) = super().collect()
        for cell in range(len(block.ints)):
            block.ints[cell] = 0
        return [block]


def test_what_travels_on_change_travels_whole_to_who_has_just_heard_of_us() -> None:
    """Readings before the registration counted as late: the first error was the first reading."""
    fixture = Fixture(Quiet(table="gpu_1s_changes", pace=Pace.SECOND))
    fixture.run(3)
    fixture.client.reconnects += 1
    fixture.run(3)
    assert [time_ns - START for time_ns, _ in fixture.tables("gpu_1s_changes")] == [0, 3 * SECOND]


def test_the_agent_tells_of_itself() -> None:
    fixture = Fixture(Numa())
    fixture.spool.dropped_frames, fixture.events.dropped_events = 3, 4
    fixture.client.reconnects = 5
    fixture.run(1)
    ((_, own),) = fixture.tables("agent_10s")
    values = {s.column: cell(own, 0, i) for i, s in enumerate(TABLES["agent_10s"])}
    assert values["spool_bytes"] == 77.0
    assert (values["spool_dropped_frames"], values["dropped_events"]) == (3, 4)
    assert values["reconnects_count"] == 5
    memory, seconds = values["memory_bytes"], values["cpu_seconds"]
    assert memory is not None and 1 << 20 < memory < 1 << 34
    assert seconds is not None and 0 < seconds < 1e5
    ((_, turns),) = fixture.tables("collector_10s")
    assert (turns.devices, [v for _, v in turns.values(0)]) == (("numa",), [0.0, 0, 0])


def test_one_broken_sensor_ends_nothing_and_its_outcome_is_told_once() -> None:
    """A kernel upgrade changed one file's format; 86,400 messages a day are too many."""

    def fail() -> None:
        raise ValueError("expected MemTotal, got ''")

    healthy = Numa(name="host", table="host_1s", pace=Pace.SECOND)
    fixture = Fixture(Numa(fail), healthy)
    fixture.run(60)
    assert (healthy.turns, fixture.tables("numa_10s")) == (60, [])
    message = "ValueError: expected MemTotal, got ''"
    assert fixture.outcomes() == [("event-1", "numa", CollectOutcome.ERROR, message)]
    event = fixture.events.events[0]
    assert (event.name, event.device_kind) == ("collector.outcome", "collector")
    assert (event.boottime_ns, event.wall_time_ns) == (START, START + 1_700_000_000 * SECOND)
    _, turns = fixture.tables("collector_10s")[-1]
    assert [cell(turns, row, 1) for row in range(2)] == [CollectOutcome.ERROR, CollectOutcome.OK]


def test_no_hardware_is_told_and_a_return_to_health_too() -> None:
    answers: list[Exception | None] = [NoData("no RDMA device"), NoData("still none"), None, None]

    def act() -> None:
        if error := answers.pop(0):
            raise error

    fixture = Fixture(Numa(act))
    fixture.run(40)
    assert fixture.outcomes() == [
        ("event-1", "numa", CollectOutcome.NO_DATA, "no RDMA device"),
        ("event-2", "numa", CollectOutcome.OK, ""),
    ]


def test_a_collector_that_passes_over_its_turn_is_not_called_and_nothing_is_missed() -> None:
    """A host without a source paid for an exception each second."""
    absent = Numa(name="host", table="host_1s", pace=Pace.SECOND)
    skips = itertools.cycle([False, True, True, True])
    with patch.object(absent, "skip", lambda: next(skips)):
        fixture = Fixture(absent)
        fixture.run(20)
    assert absent.turns == len(fixture.tables("host_1s")) == 5
    _, turns = fixture.tables("collector_10s")[-1]
    assert [cell(turns, 0, column) for column in (1, 2)] == [CollectOutcome.OK, 0]


def test_the_client_is_woken_once_a_second_last_of_all_and_even_if_that_fails() -> None:
    """Two threads awake at once waited for each other at the interpreter's lock."""
    order: list[str] = []

    def on_second() -> None:
        order.append("second")
        if len(order) > 2:
            raise RuntimeError("the disk is full")

    fixture = Fixture(Numa(name="host", table="host_1s", pace=Pace.SECOND), on_second=on_second)
    with patch.object(fixture.client, "notify", lambda: order.append("woken")):
        fixture.run(3)
    assert order == ["second", "woken"] * 3


def test_a_flapping_sensor_is_reported_at_most_every_ten_seconds() -> None:
    """A fan answered every other second; its outcomes filled the event queue and dropped an XID."""
    turns = itertools.count()

    def act() -> None:
        if next(turns) % 2 == 0:
            raise OSError("read failed")

    fixture = Fixture(Numa(act, name="host", table="host_1s", pace=Pace.SECOND))
    fixture.run(600)
    assert 2 <= len(fixture.events.events) <= 61


def test_a_stall_is_counted_in_the_signal_of_every_collector_that_missed_turns() -> None:
    """The host's disk froze the agent for 25 s: the gap must be attributed to the agent."""
    host = Numa(name="host", table="host_1s", pace=Pace.SECOND)
    fixture = Fixture(host, Numa())
    fixture.run(5)
    fixture.clock.now_ns += 25 * SECOND
    fixture.run(20)
    _, turns = fixture.tables("collector_10s")[-1]
    skipped = {device: cell(turns, row, 2) for row, device in enumerate(turns.devices)}
    assert skipped == {"host": 25, "numa": 2}


def test_a_tick_that_fails_is_logged(records: pytest.LogCaptureFixture) -> None:
    """An event queue on a broken disk raised; the daemon must survive its own faults."""
    host = Numa(name="host", table="host_1s", pace=Pace.SECOND)
    fixture = Fixture(host)

    def refuse(*_: object) -> bytes:
        raise MemoryError("not now")

    fixture.framer.build = refuse  # type: ignore[method-assign, assignment]
    fixture.run(3)
    del fixture.framer.build
    fixture.run(2)
    assert host.turns == 5
    assert len(fixture.spool.frames) == 2
    failed = [r for r in records.records if getattr(r, "cause", "") == "daemon.tick"]
    assert len(failed) == 3


def test_a_table_left_out_is_said_and_counted(records: pytest.LogCaptureFixture) -> None:
    many = Numa(name="net", table="net_1s", pace=Pace.SECOND)
    many._block = Block("net_1s", [f"eth{n}" for n in range(5000)])
    fixture = Fixture(many)
    fixture.run(11)
    assert "5000 rows" in records.text
    _, own = fixture.tables("agent_10s")[-1]
    column = [s.name for s in TABLES["agent_10s"]].index("agent.left_out_count")
    assert cell(own, 0, column) == 10  # as of the previous frame


@pytest.mark.slow
def test_six_hours_leave_memory_and_spool_bounded_and_samples_on_the_grid(tmp_path: Path) -> None:
    """No aggregator, one sensor always fails: bounded memory, and the newest frames remain."""

    def fail() -> None:
        raise OSError("no such sensor")

    collectors = [
        Numa(name="host", table="host_1s", pace=Pace.SECOND),
        Numa(name="net", table="net_1s_changes", pace=Pace.SECOND),
        Numa(fail),
        Numa(name="filesystem", table="filesystem_60s", pace=Pace.MINUTE),
    ]
    bytes_max = 1 << 20
    spool = Spool.open(tmp_path, bytes_max=bytes_max, boot_id=BOOT, owner="here")
    fixture = Fixture(*collectors)
    fixture.daemon._spool = spool
    kept = []
    for _ in range(24):
        fixture.run(900)
        gc.collect()
        kept.append(sys.getallocatedblocks())
        assert spool.bytes <= bytes_max
    assert [c.turns for c in collectors] == [21_600, 21_600, 2_160, 360]
    assert kept[-1] - kept[2] < 2_000
    assert len(fixture.events.events) == 1
    on_disk = [frames.read_stamp(frame) for _, frame in spool.pending(0, 1 << 20)]
    newest = spool.pending(spool.next_sequence() - 11, 10)
    stamps = [frames.read_stamp(frame).boottime_ns for _, frame in newest]
    assert stamps == [START + s * SECOND for s in range(21_590, 21_600)]
    assert all(stamp.boottime_ns % SECOND == 0 for stamp in on_disk)
    assert spool.dropped_frames + spool.unacknowledged_frames == 21_600
    assert spool.dropped_frames > 10_000  # full for most of the time
    spool.close()


def test_turns_that_a_sampler_left_out_are_counted_from_when_it_took_the_others() -> None:
    """A takeover begins a new schedule, which does not know earlier turns."""
    skips = SkipCounter({"gpu_1s": SECOND})

    def turn(at: float, outcome: CollectOutcome = CollectOutcome.OK) -> int:
        return skips.count(TimedResult(int(at * SECOND), CollectResult("gpu_1s", (), 0.0, outcome)))

    assert [turn(time_ns) for time_ns in (10.01, 11.2, 12.0)] == [0, 0, 0]
    assert turn(12.5, CollectOutcome.HUNG) == 0  # reported, not run
    assert turn(15.9) == 2
    assert [turn(time_ns) for time_ns in (15.95, 16.0, 17.99)] == [2, 2, 2]
    assert [turn(time_ns, CollectOutcome.NO_DATA) for time_ns in (18.0, 28.0)] == [
        2,
        2,
    ]  # no result
    assert [turn(time_ns) for time_ns in (38.0, 40.0)] == [2, 3]
