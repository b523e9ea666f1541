"""The path of readings survives: real processes on loopback, killed; acknowledged data is stored exactly once."""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pytest

from gangline.contract.client.connection import CommandError
from gangline.contract.client.score_client import ScoreClient
from gangline.contract.signal import Kind
from gangline.contract.signals import TABLES
from tests.processes import Process, free_port, until, with_store
from tests.survival.sender import values

FRAMES = 300
#: An aggregator's word that it serves.
LISTENING = "gangline aggregator: listening on"


class World:
    """An aggregator and a sender, each to be killed and started again."""

    def __init__(self, place: Path, frames: int = FRAMES, **sender: str) -> None:
        self.folder = place
        self.port = free_port()
        address = f"127.0.0.1:{self.port}"
        data = ["--data", str(with_store(place / "aggregator")), "--listen", address]
        # The sender's second is a hundredth.
        for setting in ("backlog_frames_per_second=1000", "commit_seconds=0.1", "ops_seconds=0"):
            data += ["--set", setting]
        self.aggregator = Process(["aggregator", *data], place / "aggregator.log")
        spool = sender.pop("folder", str(place))
        more = [word for key, value in sender.items() for word in (f"--{key}", value)]
        self.sender = Process(
            ["--target", address, "--folder", spool, "--frames", str(frames), *more],
            place / "sender.log",
            module="tests.survival.sender",
        )
        self.appended = Path(spool) / "appended"
        self._starts = 0

    def start_aggregator(self) -> None:
        """Start the aggregator, and wait for its own log line: another program may answer on its port."""
        self.aggregator.start()
        self._starts += 1
        until(
            lambda: (
                self.aggregator.said().count(LISTENING) == self._starts
                or not self.aggregator.alive()
            ),
            lambda: f"listening; {self.state()}",
        )
        assert self.aggregator.alive(), self.state()

    def state(self) -> str:
        ended = "" if self.aggregator.alive() else "the aggregator has ended; "
        last = {
            process.log.name: process.said()[-2000:]
            for process in (self.aggregator, self.sender)
            if process.log.exists()
        }
        return ended + "".join(f"\n{name}:\n{text}" for name, text in last.items())

    def numbers(self) -> list[int]:
        """Return the frames that the sender's spool accepted, as far as the sender noted them."""
        return [int(n) for n in self.appended.read_text().split()] if self.appended.exists() else []

    def until_appended(self, count: int) -> None:
        until(lambda: len(self.numbers()) >= count, lambda: f"{count} frames; {self.state()}")

    def until_done(self) -> dict[str, int]:
        until(
            lambda: "\ndone " in self.sender.said() or not self.aggregator.alive(),
            lambda: f"all receipts; {self.state()}",
        )
        assert "\ndone " in self.sender.said(), self.state()
        return {k: int(v) for k, v in re.findall(r"(\w+)=(\d+)", self.sender.said())}

    def stored(self) -> list[tuple[int, int]]:
        """End the aggregator and return (number, count of its stored copies).

        The data stored under each number equals its frame, to the last bit.
        """
        assert self.aggregator.stop() == 0
        with duckdb.connect(
            str(self.folder / "aggregator" / "gangline.duckdb"), read_only=True
        ) as base:
            rows = base.execute("SELECT * FROM readings.host_1s WHERE host = 'sender'")
            names = [column[0] for column in rows.description]
            frames_stored = [dict(zip(names, row, strict=True)) for row in rows.fetchall()]
        gauges = {s.column for s in TABLES["host_1s"] if s.kind is Kind.GAUGE}
        for row in frames_stored:
            gauges_sent = {name: row[name] for name in gauges if row[name] is not None}
            assert gauges_sent == values(row["context_switches_count"])
        return sorted(Counter(row["context_switches_count"] for row in frames_stored).items())


@contextmanager
def world(place: Path, frames: int = FRAMES, **sender: str) -> Iterator[World]:
    started_world = World(place, frames, **sender)
    try:
        yield started_world
    finally:
        started_world.sender.kill()
        started_world.aggregator.kill()


def assert_each_once(stored: list[tuple[int, int]], appended: list[int]) -> None:
    """Nothing lost, nothing doubled. A killed sender may have appended one more than it noted."""
    assert {n for n, times in stored if times != 1} == set(), "doubled"
    assert set(appended) - {n for n, _ in stored} == set(), "lost"


@pytest.mark.parametrize("kills", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_the_aggregator_is_killed_under_load(tmp_path: Path, kills: int) -> None:
    """An out-of-memory kill of the service, three times within as many seconds."""
    frames = FRAMES * (kills + 1) // 4
    with world(tmp_path, frames) as running:
        running.start_aggregator()
        running.sender.start()
        for kill in range(1, kills + 1):
            running.until_appended(kill * FRAMES // 4)
            running.aggregator.kill()
            running.start_aggregator()
        counted = running.until_done()
        assert_each_once(running.stored(), running.numbers())
        assert (counted["dropped"], counted["refused"], counted["write_errors"]) == (0, 0, 0)


@pytest.mark.slow
def test_the_agent_is_killed(tmp_path: Path) -> None:
    """An agent that crashes, or is upgraded the rough way, three times."""
    with world(tmp_path) as running:
        running.start_aggregator()
        running.sender.start()
        for kill in (1, 2, 3):
            running.until_appended(kill * FRAMES // 4)
            running.sender.kill()
            running.sender.start()
        running.until_done()
        assert_each_once(running.stored(), running.numbers())


@pytest.mark.slow
def test_both_are_killed(tmp_path: Path) -> None:
    """The power of a rack that holds the service as well."""
    with world(tmp_path) as running:
        running.start_aggregator()
        running.sender.start()
        for kill in (1, 2):
            running.until_appended(kill * FRAMES // 3)
            running.aggregator.kill()
            running.sender.kill()
            running.sender.start()
            running.start_aggregator()
        running.until_done()
        assert_each_once(running.stored(), running.numbers())


@pytest.mark.slow
def test_the_aggregator_is_away_for_a_minute(tmp_path: Path) -> None:
    """A minute's readings wait on the host and arrive under their own time when it is back."""
    with world(tmp_path, frames=90) as running:
        running.start_aggregator()
        running.sender.start()
        running.until_appended(20)
        running.aggregator.kill()
        running.until_appended(80)
        running.start_aggregator()
        assert running.until_done()["dropped"] == 0
        assert_each_once(running.stored(), running.numbers())


@pytest.mark.slow
def test_a_stream_that_cannot_be_followed(tmp_path: Path) -> None:
    """One turned bit in either memory costs one reconnect and no reading; a new inventory not even that."""
    options = {"confuse-at": "20", "register-every": "40"}
    with world(tmp_path, FRAMES, **options) as running:
        running.start_aggregator()
        running.sender.start()
        counted = running.until_done()
        assert_each_once(running.stored(), running.numbers())
        assert counted == {"dropped": 0, "refused": 0, "write_errors": 0, "reconnects": 2}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real filesystem of 256 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", f"gangline-test-{os.getpid()}", str(folder)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("mounting a small tmpfs needs root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.slow
def test_a_full_spool_disk(tmp_path: Path, small_disk: Path) -> None:
    """Somebody's core dump fills the disk while the aggregator is away: oldest first, and counted."""
    options = {"folder": str(small_disk), "period-seconds": "0", "bytes-max": str(64 << 20)}
    with world(tmp_path, frames=1500, **options) as running:
        running.sender.start()
        running.until_appended(1500)
        running.start_aggregator()
        counted = running.until_done()
        stored, appended = running.stored(), running.numbers()
    numbers = [n for n, _ in stored]
    assert counted["dropped"] > 0
    assert {times for _, times in stored} == {1}
    assert len(stored) + counted["dropped"] == len(appended)
    assert numbers[-100:] == appended[-100:], "the newest are kept"


def fresh(address: str) -> bool:
    """Return whether the service has a frame of host `this` from the last two seconds."""
    try:
        with ScoreClient(address) as client:
            score = client.host("this")
    except CommandError:
        return False
    return score.HasField("data_age") and score.data_age.ToNanoseconds() < 2_000_000_000


@pytest.mark.slow
def test_the_real_agent_and_both_kills(tmp_path: Path) -> None:
    """This machine's own readings: agent and service killed in turn, no second stored twice."""
    port = free_port()
    address, folder = f"127.0.0.1:{port}", tmp_path / "aggregator"
    places = [f"{key}_folder={tmp_path / key}" for key in ("spool", "events")]
    places.append(f"spool_head_folder={tmp_path}")
    settings = [word for place in places for word in ("--set", place)]
    aggregator = Process(["aggregator", "--data", str(folder), "--listen", address], tmp_path / "a")
    agent = Process(
        ["agent", "--aggregator", address, "--set", "host=this", *settings], tmp_path / "b"
    )
    with aggregator, agent:
        for victim in (agent, aggregator, agent):
            until(lambda: fresh(address), f"heard; {tmp_path / 'b'}")
            victim.kill()
            until(lambda: not fresh(address), "silent")
            victim.start()
        until(lambda: fresh(address), f"heard; {tmp_path / 'b'}")
        assert agent.stop() == 0
        assert aggregator.stop() == 0
    with duckdb.connect(str(folder / "gangline.duckdb"), read_only=True) as base:
        rows = base.execute(
            "SELECT count(*), count(DISTINCT boottime_ns) FROM readings.host_1s"
        ).fetchone()
        received = base.execute(
            "SELECT sum(last_sequence - first_sequence + 1) FROM received"
        ).fetchone()
    assert rows is not None
    assert received is not None
    assert rows[0] == rows[1] > 0
    assert received[0] >= rows[0]
