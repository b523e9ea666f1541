"""A day of running does not increase memory, descriptors or disk use."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from gangline.agent.collector import Collector
from gangline.agent.collectors import COLLECTORS
from gangline.agent.daemon import Daemon, LoopTimeouts
from gangline.agent.events import EventPublisher
from gangline.agent.frame_builder import FrameBuilder
from gangline.agent.latest import LatestReadings
from gangline.agent.spool.event_queue import EventQueue
from gangline.agent.spool.spool import Spool
from gangline.contract.block import Block
from tests import hosts
from tests.agent.fakes import HandedClock
from tests.agent.test_daemon import BOOT, RUN, SECOND, START, CountingClient

#: Seconds at the begin and end of the day that run second by second.
BUSY_SECONDS = 1200
JUMP_SECONDS = 86_400 - 3 * BUSY_SECONDS
#: Frames are receipted this many seconds late.
LATE_FRAMES = 3
#: Collectors of NVML and of this machine's own kernel, which have tests of their own.
LEFT_OUT = ("gpu", "nvlink", "nvml", "c2c", "mig", "kernel_log", "rtnetlink", "kubelet")


class Here(Collector):
    """A collector of a driver's files in this process, instead of in its sampler."""

    enters_driver = False

    def __init__(self, collector: Collector) -> None:
        self.name, self.pace, self._collector = collector.name, collector.pace, collector

    def collect(self) -> Sequence[Block]:
        return self._collector.collect()


@dataclass
class Held:
    """Resources of the process."""

    blocks: int  # of memory, counted by the interpreter
    resident_bytes: int
    descriptors: int
    spool_bytes: int
    disk_bytes: int


class DayHost:
    """A complete agent without its processes, over a host folder, with regular receipts."""

    def __init__(self, folder: Path) -> None:
        self.host = hosts.unpack("h100-ib", folder / "host")
        self.clock = HandedClock(START)
        (folder / "head").mkdir()
        self.spool = Spool.open(
            folder / "spool", bytes_max=1 << 24, boot_id=BOOT, owner="here",
            memory_folder=folder / "head", seconds=lambda: self.clock.now_ns / SECOND,
        )  # fmt: skip
        self.events = EventQueue.open(folder / "events")
        self.folder = folder
        collectors = [
            Here(make(self.host.roots))
            for name, make in COLLECTORS.items()
            if not name.startswith(LEFT_OUT)
        ]
        self.daemon = Daemon(
            collectors,
            clock=self.clock,
            spool=self.spool,
            events=self.events,
            client=cast(Any, CountingClient()),
            frame_builder=FrameBuilder(RUN, BOOT),
            publisher=EventPublisher(self.clock, self.events, lambda: None, boot_id=BOOT),
            latest=LatestReadings(),
            timeouts=LoopTimeouts(frame_wait_seconds=0),
        )
        self._receipted = 0

    def run(self, seconds: int) -> None:
        """Tick until *seconds* have passed. Counters increase, and at times a port is recreated."""
        end_ns = self.clock.now_ns + seconds * SECOND
        while self.clock.now_ns < end_ns:
            second = self.clock.now_ns // SECOND
            if second % 100 == 0:
                self._count(second)
            if second % 200 == 0:
                self._make_anew()
            self.clock.now_ns = self.daemon.tick()
            self._receipt()

    def _count(self, second: int) -> None:
        port = self.host.roots.sys / "class/infiniband/mlx5_0/ports/1/counters"
        (port / "port_rcv_data").write_text(f"{second << 20}\n")

    def _make_anew(self) -> None:
        """Remove a link of an RDMA device and restore it: all files are listed and opened again."""
        link = self.host.roots.sys / "class/infiniband/mlx5_1"
        target = os.readlink(link)
        link.unlink()
        self.daemon.tick()
        link.symlink_to(target)

    def _receipt(self) -> None:
        done = self.spool.next_sequence() - 1 - LATE_FRAMES
        if done > self._receipted:
            self.spool.acknowledge(self._receipted + 1, done)
            self._receipted = done

    def held(self) -> Held:
        """Return the current resources, after a garbage collection."""
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        kept = ("spool", "head", "events")
        files = [path for name in kept for path in (self.folder / name).rglob("*")]
        return Held(
            sys.getallocatedblocks(),
            pages * os.sysconf("SC_PAGESIZE"),
            len(os.listdir("/proc/self/fd")),
            self.spool.bytes,
            sum(path.stat().st_size for path in files if path.is_file()),
        )

    def close(self) -> None:
        self.events.close()
        self.spool.close()


@pytest.mark.slow
def test_a_day_leaves_memory_descriptors_and_disk_where_they_were(tmp_path: Path) -> None:
    """An agent that kept one object a frame took the host's last gigabyte after three weeks.

    The test runs part of the 86,400 seconds: twenty minutes to settle, twenty second by second, a
    night in one step (the host was suspended), and twenty more. Growth per turn shows within these
    minutes, because minute readings occur twenty times in each; growth over time shows in the
    night. `make soak-gpu` runs longer, for real.
    """
    agent = DayHost(tmp_path)
    agent.run(BUSY_SECONDS)
    before = agent.held()
    agent.run(BUSY_SECONDS)
    agent.clock.now_ns += JUMP_SECONDS * SECOND
    agent.run(BUSY_SECONDS)
    after = agent.held()
    assert agent.clock.now_ns - START == pytest.approx(86_400 * SECOND, abs=2 * SECOND)
    assert agent.spool.next_sequence() > 3 * BUSY_SECONDS
    assert agent.spool.unacknowledged_frames <= LATE_FRAMES
    assert agent.spool.dropped_frames == agent.events.dropped_events == 0
    assert after.blocks - before.blocks < BUSY_SECONDS  # less than one per frame
    assert after.resident_bytes - before.resident_bytes < 4 << 20
    assert after.descriptors <= before.descriptors + 2  # a folder being read may be open or closed
    assert after.spool_bytes <= 2 * before.spool_bytes
    assert after.disk_bytes <= before.disk_bytes + (1 << 20)
    agent.close()
