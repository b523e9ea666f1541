"""Following the kernel's log: no event twice, none missed, and losses are reported."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.agent.collectors import kernel_log as collector_module
from gangline.agent.kernel_log.checkpoint_file import (
    FILE_NAME,
    CheckpointFile,
    LogPosition,
    format_position,
    parse_position,
)
from gangline.agent.kernel_log.incidents import QUIET_NS
from gangline.agent.kernel_log.network_rules import AdapterFilter
from gangline.agent.kernel_log.reader import SAVE_NS, SAVE_SOON_NS, JobLookup, LineFilter, LogReader
from gangline.agent.kernel_log.rules import classify
from gangline.agent.kernel_log.timestamps import TimestampConverter
from gangline.agent.spool.event_queue import EventQueue
from gangline.contract.wire.telemetry_pb2 import HealthEvent
from tests.agent.fakes import HandedClock

SECOND = 1_000_000_000
BOOT = bytes(range(16))
XID = "NVRM: Xid (PCI:0000:{:02x}:00): {}, pid=1, name=python, words"

LINES = st.lists(
    st.one_of(
        st.tuples(st.just("xid"), st.integers(1, 2), st.sampled_from([79, 94])),
        st.tuples(st.just("noise"), st.just(0), st.just(0)),
    ),
    max_size=25,
)
KILLED = """
import os, sys
from pathlib import Path
from gangline.agent.collectors.kernel_log import KernelLog
from gangline.agent.hardware.files import Roots
from gangline.agent.clock import SystemClock
from gangline.agent.events import EventPublisher
from gangline.agent.spool.event_queue import EventQueue
folder = Path(sys.argv[1])
queue = EventQueue.open(folder / "events")
log = KernelLog(Roots(dev=folder / "dev", state=folder / "state"))
log.start(EventPublisher(SystemClock(), queue, lambda: print(len(queue), flush=True)))
sys.stdin.read()
log.close()
"""
FAILS = "mlx5_core 0000:98:00.0: poll_health:812:(pid 0): device's health compromised - reached miss count"
LOADS = "mlx5_core 0000:{}:00.0: firmware version: 28.39.1002"


class Ring:
    """The kernel's ring, with its behavior: EPIPE after an overrun, EINVAL for a record too long."""

    def __init__(self, *lines: str, records_max: int = 1000) -> None:
        self.clock = HandedClock(5000 * SECOND)
        self.records: dict[int, bytes] = {}
        self.next = 0
        self.records_max = records_max
        for line in lines:
            self.say(line)

    def say(self, text: str, *, facility: int = 0, ago: float = 0, flags: str = "-") -> None:
        stamp = (self.clock.now_ns - int(ago * SECOND)) // 1000
        head = f"{facility * 8 + 3},{self.next},{stamp},{flags};"
        self.records[self.next] = (head + text + "\n").encode()
        self.next += 1
        while len(self.records) > self.records_max:
            del self.records[min(self.records)]

    def open(self) -> Reader:
        return Reader(self, min(self.records, default=self.next))


class Reader:
    def __init__(self, ring: Ring, at: int) -> None:
        self.ring, self.at = ring, at

    def fileno(self) -> int:
        return -1

    def read(self) -> bytes:
        oldest = min(self.ring.records, default=self.ring.next)
        if self.at < oldest:
            self.at = oldest
            raise BrokenPipeError(errno.EPIPE, "overwritten")
        if self.at >= self.ring.next:
            raise BlockingIOError(errno.EAGAIN, "nothing")
        self.at += 1
        data = self.ring.records[self.at - 1]
        if len(data) > 8192:
            raise OSError(errno.EINVAL, "too long")
        return data

    def close(self) -> None: ...


class Agent:
    """One life of an agent: its events go into *told*, which survives it."""

    def __init__(
        self,
        ring: Ring,
        folder: Path | None = None,
        told: list[HealthEvent] | None = None,
        boot: bytes = BOOT,
        wanted: LineFilter = lambda notice, text: True,
        job_of: JobLookup = lambda pid: {},
    ):
        self.clock = ring.clock
        self.told: list[HealthEvent] = [] if told is None else told
        self.on_disk = True
        self.tellings = 0
        self.dies_at = -1
        self.follower = LogReader(
            boot,
            self._tell,
            CheckpointFile(folder),
            self.clock,
            TimestampConverter(),
            is_wanted=wanted,
            job_of=job_of,
        )
        self.ring = ring
        self.source = ring.open()
        self.follower.on_open()

    def _tell(self, event: HealthEvent) -> bool:
        self.tellings += 1
        if self.tellings == self.dies_at:
            raise Killed
        self.told.append(event)
        return self.on_disk

    def read(self) -> Agent:
        """Do the thread's work until it waits."""
        while True:
            drained = collector_module._read_group(self.source, self.follower, live=False)
            if drained and not self.follower.on_drained():
                self.source = self.ring.open()
                self.follower.on_open()
                continue
            self.follower.flush_due()
            if drained:
                return self

    def wait(self, ns: int = SAVE_SOON_NS) -> Agent:
        """Do the thread's work after *ns* without records."""
        self.clock.now_ns += ns
        self.follower.on_drained()
        self.follower.flush_due()
        return self


class Killed(BaseException):
    """kill -9 at this very point."""


def kept(told: list[HealthEvent]) -> dict[str, HealthEvent]:
    """Return the aggregator's events: of each the highest revision, and of one revision the first."""
    events: dict[str, HealthEvent] = {}
    for event in told:
        if event.event_id not in events or events[event.event_id].revision < event.revision:
            events[event.event_id] = event
    return events


def test_the_whole_ring_is_read_at_the_first_start_and_each_event_has_its_own_time() -> None:
    """The agent was installed because a GPU failed this morning."""
    ring = Ring()
    ring.say("Linux version 6.8", ago=5000)
    ring.say(XID.format(0x9B, 79), ago=3999.5)
    agent = Agent(ring).read()
    [event] = agent.told
    assert event.boottime_ns == 1000.5 * SECOND
    assert event.wall_time_ns == agent.clock.wall_ns() - 3999.5 * SECOND
    assert event.event_id == f"kmsg-{BOOT.hex()}-0-1"
    assert agent.follower.lost_count == 0


def test_a_complete_line_with_the_flag_of_a_fragment_joins_no_other() -> None:
    """An H200's driver sets flag `c` on each line: an older record joined an XID's message."""
    ring = Ring()
    ring.say("/proc/cgroups lists only v1 controllers", ago=83.6)
    ring.say("NVRM: GPU at PCI:0000:00:06: GPU-00000000-0000-4000-8000-000000000001", flags="c")
    ring.say("NVRM: GPU Board Serial Number: 1650000000001", flags="c")
    ring.say("NVRM: Xid (PCI:0000:00:06): 31, pid=2164, name=oob, channel 0x0000000a", flags="c")
    ring.say("NVRM: nvGpuOpsReportFatalError: uvm encountered global fatal error 0x60", flags="c")
    agent = Agent(ring).read()
    assert [event.message for event in agent.told] == [
        "NVRM: Xid (PCI:0000:00:06): 31, pid=2164, name=oob, channel 0x0000000a",
        "NVRM: nvGpuOpsReportFatalError: uvm encountered global fatal error 0x60",
    ]


@pytest.mark.parametrize(
    ("between", "ago", "is_joined"),
    [((), 0.0, True), (("usb 1-1: new device",), 0.0, False), ((), 30.0, False)],
)
def test_a_fragment_joins_its_line(between: tuple[str, ...], ago: float, is_joined: bool) -> None:
    ring = Ring()
    ring.say("INFO: task python:4711 blocked ", ago=ago)
    for line in between:
        ring.say(line)
    ring.say("for more than 120 seconds.", flags="c")
    agent = Agent(ring).read()
    assert [event.name for event in agent.told] == ["host.hung_task"] * is_joined


def test_a_long_lockup_counts_once_a_shorter_one_was_reported() -> None:
    """A virtual machine that was suspended for an hour resumed with one such line on each core."""
    ring = Ring()
    for ago, cpu, seconds in ((60, 1, 112), (60, 2, 3208), (38, 1, 134), (16, 1, 156)):
        ring.say(f"watchdog: BUG: soft lockup - CPU#{cpu} stuck for {seconds}s! [x:1]", ago=ago)
    agent = Agent(ring).read()
    assert [(event.name, event.code) for event in agent.told] == [
        ("host.lockup", 0), ("host.lockup", 3),
    ]  # fmt: skip


def test_the_process_and_the_job_of_an_xid_may_be_in_a_later_line() -> None:
    """XID 13 names its process in its third line; the job was known but not reported."""
    ring, asked = Ring(), []

    def job_of(pid: int) -> dict[str, str]:
        asked.append(pid)
        return {"job": "Slurm job 42", "job_source": "slurm", "job_id": "42"}

    for message in (
        "pid='<unknown>', name=<unknown>, Graphics SM Warp Exception on (GPC 0, TPC 0, SM 0): Illegal Address",
        "pid='<unknown>', name=<unknown>, Graphics Exception: ESR 0x504730=0x0",
        "pid=2238, name=trap, Graphics Exception: channel 0x0000000a, Class 0000cbc0",
        "pid=2238, name=trap, Graphics Exception: channel 0x0000000a, Class 0000cbc0",
    ):
        ring.say(f"NVRM: Xid (PCI:0000:00:06): 13, {message}", flags="c")
    agent = Agent(ring, job_of=job_of).read().wait(2 * SECOND)
    (event,) = kept(agent.told).values()
    assert (event.count, event.process_id, event.process_name) == (4, 2238, "trap")
    assert event.attributes["job"] == "Slurm job 42" and event.attributes["job_id"] == "42"
    assert asked == [2238]  # a storm asks once


def test_only_the_kernel_speaks_for_the_kernel() -> None:
    """A user wrote an XID into /dev/kmsg to get a rival's host drained."""
    ring = Ring()
    for facility in (1, 3, 23):
        ring.say(XID.format(0x9B, 79), facility=facility)
    agent = Agent(ring).read()
    assert (agent.told, agent.follower.read_count) == ([], 3)


def test_a_restart_goes_on_where_it_was(tmp_path: Path) -> None:
    """An update of the agent repeats nothing, and reports later events."""
    ring, reported = Ring(XID.format(1, 79)), list[HealthEvent]()
    Agent(ring, tmp_path, reported).read().wait()
    ring.say(XID.format(2, 79))
    second = Agent(ring, tmp_path, reported).read().wait()
    assert [e.device for e in reported] == ["0000:01:00.0", "0000:02:00.0"]
    assert second.follower.read_count == 1
    Agent(ring, tmp_path, reported).read()
    assert len(reported) == 2


def test_another_boot_is_another_log(tmp_path: Path) -> None:
    """After a reboot numbers start again: low numbers are not old."""
    ring, reported = Ring(), list[HealthEvent]()
    for _ in range(5):
        ring.say(XID.format(1, 79))
    Agent(ring, tmp_path, reported).read()
    fresh = Ring(XID.format(1, 79))
    Agent(fresh, tmp_path, reported, boot=bytes(16)).read()
    assert len({e.event_id for e in reported}) == 2


def test_falling_numbers_are_a_new_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A sandbox was restored from its image, boot id and all."""
    ring, reported = Ring(), list[HealthEvent]()
    for _ in range(50):
        ring.say("nothing")
    ring.say(XID.format(1, 79))
    Agent(ring, tmp_path, reported).read().wait()
    fresh = Ring(XID.format(2, 79))
    agent = Agent(fresh, tmp_path, reported).read()
    assert "the kernel log restarted" in caplog.text
    assert [e.device for e in kept(reported).values()] == ["0000:01:00.0", "0000:02:00.0"]
    assert agent.follower.lost_count == 0
    fresh.next, agent.source.at = 0, 0  # and once more, during the run
    fresh.records.clear()
    fresh.say(XID.format(3, 79))
    agent.read()
    assert reported[-1].device == "0000:03:00.0"
    assert len({e.event_id for e in reported}) == 3


def test_an_overrun_is_told_with_how_many_were_lost() -> None:
    """A storm wrote faster than the agent read: lost records must not look like silence."""
    ring = Ring("first", records_max=10)
    agent = Agent(ring).read()
    for number in range(35):
        ring.say(f"line {number}")
    agent.read()
    [event] = agent.told
    assert (event.name, event.count, event.device_kind) == ("host.kernel_log_lost", 25, "host")
    for number in range(35):
        ring.say(f"line {number}")
    agent.read()
    assert agent.follower.lost_count == 50
    agent.wait(QUIET_NS + 1)
    assert [e.count for e in kept(agent.told).values()] == [50]


def test_what_was_overwritten_while_the_agent_was_down_is_told(tmp_path: Path) -> None:
    """The agent was stopped for a day; the ring holds an hour."""
    ring = Ring("x", records_max=10)
    first = Agent(ring, tmp_path).read()
    first.follower.finish()
    for _ in range(100):
        ring.say("x")
    agent = Agent(ring, tmp_path).read()
    assert [(e.name, e.count) for e in agent.told] == [("host.kernel_log_lost", 90)]


def test_a_record_that_is_too_long_or_no_record_costs_itself() -> None:
    """EINVAL: the kernel has skipped it; the next is read, and it does not count as an overrun."""
    ring = Ring("a")
    ring.say("b" * 9000)
    ring.say(XID.format(1, 79))
    ring.records[ring.next] = b"\xff garbage"
    ring.next += 1
    ring.say(XID.format(2, 79))
    agent = Agent(ring).read()
    assert [e.name for e in agent.told] == ["gpu.xid", "gpu.xid"]
    follower = agent.follower
    assert (follower.not_understood_count, follower.lost_count, follower.read_count) == (2, 0, 5)


def test_a_line_in_pieces_is_read_whole() -> None:
    """Older kernels break a line where another CPU printed."""
    ring = Ring()
    ring.say("NVRM: Xid (PCI:0000:01:00): ", flags="-")
    ring.say("pcieport 0000:80:01.1: DPC: containment ", flags="c")
    ring.say("event, status:0x1f01 source:0x0000", flags="+")
    agent = Agent(ring).read()
    assert [e.name for e in agent.told] == ["gpu.driver_message", "pcie.aer"]


@pytest.mark.parametrize(
    "restarts", [True, False], ids=["a crash", "a week later the ring was reported as lost"]
)
def test_an_event_that_is_in_memory_only(tmp_path: Path, restarts: bool) -> None:
    """The disk of the events was full: it holds the position back until the disk takes events."""
    ring, reported = Ring(XID.format(1, 79)), list[HealthEvent]()
    agent = Agent(ring, tmp_path, reported)
    agent.on_disk = False
    agent.read().wait()
    assert not (tmp_path / FILE_NAME).exists()
    if restarts:
        Agent(ring, tmp_path, reported).read().wait()
    else:
        agent.on_disk = True
        agent.wait(SAVE_NS)
        assert {e.revision for e in reported} == {0}
    assert len(kept(reported)) == 1
    assert parse_position((tmp_path / FILE_NAME).read_bytes()).sequence == 0


def test_a_position_that_cannot_be_kept_leaves_nothing_behind(tmp_path: Path) -> None:
    """On a full disk half a position remained, and took the last blocks that an XID needed."""
    (tmp_path / FILE_NAME).mkdir()
    keeper = CheckpointFile(tmp_path)
    assert not keeper.save(LogPosition(BOOT.hex(), 1))
    assert "directory" in keeper.last_error
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


def test_an_unsaved_position_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The state folder was a file: each restart read the whole ring again, without a hint."""
    (tmp_path / "state").write_text("in the way")
    ring, reported = Ring(), list[HealthEvent]()
    agent = Agent(ring, tmp_path / "state", reported)
    for bus in range(3):
        ring.say(XID.format(bus, 79))
        agent.read().wait()
    [message] = [
        r.getMessage() for r in caplog.records if "cannot save the position" in r.getMessage()
    ]
    assert f"{tmp_path / 'state' / FILE_NAME}: File exists. A restart reads" in message
    assert [e.device for e in reported] == [f"0000:{bus:02x}:00.0" for bus in range(3)]


def test_a_log_that_tells_nothing_moves_its_position_too(tmp_path: Path) -> None:
    """Otherwise each restart reads a week of chatter, and reports overwritten records as a loss."""
    ring = Ring("nothing")
    agent = Agent(ring, tmp_path).read()
    due = agent.follower.next_ns()
    assert due is not None and not (tmp_path / FILE_NAME).exists()
    agent.wait(SAVE_NS)
    assert agent.clock.now_ns >= due
    assert parse_position((tmp_path / FILE_NAME).read_bytes()).sequence == 0
    assert agent.follower.next_ns() is None


@settings(max_examples=150, deadline=None)
@given(lives=st.lists(st.tuples(LINES, st.integers(-1, 6), st.booleans()), min_size=1, max_size=6))
def test_killed_anywhere(lives: list[tuple[list[tuple[str, int, int]], int, bool]]) -> None:
    """kill -9 between record, event and position, life after life; the last life reads to the end."""
    ring, reported = Ring(), list[HealthEvent]()
    truth: dict[tuple[str, int], int] = {}
    with tempfile.TemporaryDirectory() as temporary:
        for lines, dies_at, orderly in [*lives, ([], -1, True)]:
            agent = Agent(ring, Path(temporary), reported)
            agent.dies_at = dies_at
            try:
                for kind, bus, code in lines:
                    ring.say(XID.format(bus, code) if kind == "xid" else "noise")
                    if kind == "xid":
                        key = f"0000:{bus:02x}:00.0", code
                        truth[key] = truth.get(key, 0) + 1
                    agent.read()
                    agent.clock.now_ns += SECOND
                agent.read()
                if orderly:
                    agent.follower.finish()
            except Killed:
                continue
    counted = {(e.device, e.code): e.count for e in kept(reported).values()}
    assert counted == truth  # one event each, with every line


def test_kill_9_of_a_real_agent(tmp_path: Path) -> None:
    """A real process, its real files, killed while it reports, five times."""
    (tmp_path / "dev").mkdir()
    log = tmp_path / "dev/kmsg"
    for life in range(6):
        with log.open("a") as file:
            for number in range(40):
                at = life * 40 + number
                text = XID.format(at % 200, 100 + at // 200)
                file.write(f"3,{at},{100_000_000 + at},-;{text}\n")
        with subprocess.Popen(
            [sys.executable, "-c", KILLED, str(tmp_path)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        ) as agent:  # fmt: skip
            assert agent.stdout is not None and agent.stdin is not None
            stop = 240 if life == 5 else 13 + 40 * life
            while (line := agent.stdout.readline()) and int(line) < stop:
                pass
            if life == 5:
                agent.stdin.close()
            else:
                agent.send_signal(signal.SIGKILL)
    queue = EventQueue.open(tmp_path / "events")
    events = queue.pending(1000)
    queue.close()
    assert len({e.event_id for e in events}) == len(events) == 240
    assert {(e.device, e.code) for e in events} == {
        (f"0000:{index % 200:02x}:00.0", 100 + index // 200) for index in range(240)
    }


def test_only_an_adapter_that_failed_is_back(tmp_path: Path) -> None:
    """Eight adapters load at every boot: none of them has recovered from a failure."""
    ring = Ring()
    for address in ("98", "9a"):
        ring.say(LOADS.format(address))
    adapters = AdapterFilter(tmp_path)
    agent = Agent(ring, tmp_path, wanted=adapters.is_wanted).read()
    assert agent.told == []
    ring.say(FAILS)
    agent.read()
    ring.say(LOADS.format("98"))
    ring.say(LOADS.format("9a"))
    agent.read()
    reported = [(e.name, e.device, e.attributes.get("state")) for e in agent.told]
    failed = "rdma.adapter_failed", "0000:98:00.0"
    assert reported == [(*failed, None), (*failed, "back")]
    agent.wait()
    again = Agent(ring, tmp_path, agent.told, wanted=adapters.is_wanted)
    assert again.follower.resumed and not agent.follower.resumed
    after = AdapterFilter(tmp_path)
    after.resumed = again.follower.resumed  # earlier failures are unknown here
    line = LOADS.format("98")
    notice = classify(line)
    assert notice is not None and after.is_wanted(notice, line)


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"net/ens1/carrier_up_count": "0\n"}, False),  # an empty cage
        ({"net/ens1/carrier_up_count": "2\n"}, True),
        ({"net/ib0/carrier_up_count": "0\n", "net/ib1/carrier_up_count": "1\n"}, True),
        ({"net/ens1/mtu": "1500\n"}, False),  # a kernel without this file
        ({"net/ens1/carrier_changes": "1\n"}, False),
        ({"net/ens1/carrier_changes": "2\n"}, True),  # a kernel before 4.16
        ({"vendor": "0x15b3\n"}, False),  # its driver is loading
        (
            {"infiniband/mlx5_0/fw_ver": "28.39.1002\n"},
            False,
        ),  # no IPoIB: the state of its port is read
        ({}, False),  # unknown
    ],
)
def test_an_empty_cage(files: dict[str, str], told: bool, tmp_path: Path) -> None:
    """Half of the ports were never cabled: each boot put their hosts into WATCH."""
    for name, text in files.items():
        path = tmp_path / "bus/pci/devices/0000:98:00.0" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    ring = Ring("mlx5_core 0000:98:00.0: Port module event: module 0, Cable unplugged")
    agent = Agent(ring, wanted=AdapterFilter(tmp_path).is_wanted).read()
    assert [e.name for e in agent.told] == ["rdma.driver_error"] * told
    ring.say("mlx5_core 0000:98:00.0 ens1: Link up")
    ring.say("mlx5_core 0000:98:00.0: Port module event: module 0, Cable unplugged")
    agent.read().wait()
    assert (
        sum(e.count for e in agent.told if e.name == "rdma.driver_error" and e.revision == 0) == 1
    ), "it had a link"


@given(
    sequence=st.integers(0, 2**63),
    epoch=st.integers(0, 9),
    counts=st.lists(st.integers(1, 2**40), max_size=4),
)
def test_a_position_comes_back(sequence: int, epoch: int, counts: list[int]) -> None:
    incidents = tuple(
        (("gpu.xid", f"d{n}", n, ""), HealthEvent(event_id=f"e{n}", count=count, forms=["a", "b"]))
        for n, count in enumerate(counts)
    )
    position = LogPosition("ab" * 16, sequence, epoch, incidents)
    assert parse_position(format_position(position)) == position


@given(st.one_of(st.binary(max_size=200), st.tuples(st.integers(0, 300), st.integers(1, 255))))
def test_a_damaged_position_is_none(damage: bytes | tuple[int, int]) -> None:
    """A power cut, a corrupted disk: the ring is read again, and ids make this harmless."""
    if isinstance(damage, tuple):
        content = bytearray(
            format_position(
                LogPosition("ab" * 16, 7, 0, ((("x", "y", 1, ""), HealthEvent(event_id="e")),))
            )
        )
        content[damage[0] % len(content)] ^= damage[1]
        damage = bytes(content)
    try:
        position = parse_position(damage)
    except ValueError:
        return
    assert 0 <= position.sequence < 1 << 64


def test_stamps_learn_how_far_the_logs_clock_is_off() -> None:
    """Two months up at 30 ppm: the log's clock is 155 s behind, and XIDs must not be."""
    stamps = TimestampConverter()
    now = 5_000_000 * SECOND
    assert stamps.boottime_ns(4_999_845_000_000, now) == now - 155 * SECOND
    stamps.learn(4_999_845_000_000, now + 900_000)
    stamps.learn(4_999_846_000_000, now + SECOND + 40_000_000)  # read late
    assert stamps.boottime_ns(4_999_845_000_000, now + SECOND) == now + 900_000
    assert stamps.boottime_ns(2**63, now) == now  # never later than the read
    assert TimestampConverter(lambda: SECOND).boottime_ns(5, now) == SECOND + 5000


def test_a_suspension_moves_the_stamps_at_once() -> None:
    """The log's clock stopped for an hour; adapting to that takes sixteen records."""
    slept = [0]
    stamps = TimestampConverter(lambda: slept[0])
    for seconds in range(16):
        stamps.learn(seconds * 1_000_000, seconds * SECOND + 1000)
    slept[0] = 3600 * SECOND
    assert stamps.boottime_ns(20_000_000, 9999 * SECOND) == 3620 * SECOND + 1000


def test_what_was_learned_long_ago_is_forgotten() -> None:
    """One line an hour, and a clock that drifts by 50 ppm: sixteen old samples would be off by 3 s."""
    stamps = TimestampConverter()
    for hours in range(16):
        written = hours * 3600 * 1_000_000
        now = written * 1000 + hours * 180_000_000
        stamps.learn(written, now)
        assert stamps.boottime_ns(written, now) == now
