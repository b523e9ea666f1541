"""The event queue: a stored XID is on disk, and a damaged line does not affect others."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.agent.gpu_list import GpuList
from gangline.agent.kernel_log.checkpoint_file import CheckpointFile
from gangline.agent.local.findings_state import FindingsState, FindingsStateFile
from gangline.agent.release_state import ReleaseStateFile
from gangline.agent.spool.event_queue import MESSAGE_CHARACTERS_MAX, EventQueue, parse_line
from gangline.agent.spool.lockdir import FolderError
from gangline.agent.spool.spool import read_run
from gangline.contract.wire.telemetry_pb2 import HealthEvent
from tests.agent.test_spool import disk_that_takes_nothing

PUTTER = """
import sys
from pathlib import Path
from gangline.agent.spool.event_queue import EventQueue
from gangline.contract.wire.telemetry_pb2 import HealthEvent
queue = EventQueue.open(Path(sys.argv[1]))
number = len(queue)
while True:
    queue.put(HealthEvent(event_id=f"event-{number}", message="x" * 100))
    print(number, flush=True)
    number += 1
"""

#: Queues of the running test.
_OPENED: list[EventQueue] = []


def xid(number: int, message: str = "NVRM: Xid") -> HealthEvent:
    return HealthEvent(event_id=f"event-{number}", name="gpu.xid", code=number, message=message)


def ids(queue: EventQueue) -> list[str]:
    return [event.event_id for event in queue.pending(1000)]


def opened(folder: Path, **limits: int) -> EventQueue:
    """Open a queue that ends with the test."""
    _OPENED.append(EventQueue.open(folder, **limits))
    return _OPENED[-1]


def reopened(queue: EventQueue, **limits: int) -> EventQueue:
    queue.close()
    return opened(queue.folder, **limits)


@pytest.fixture(autouse=True)
def closed_queues() -> Iterator[None]:
    yield
    while _OPENED:
        _OPENED.pop().close()


@pytest.fixture
def queue(tmp_path: Path) -> EventQueue:
    return opened(tmp_path / "events")


def test_a_fifo_in_place_of_a_file_blocks_nothing(tmp_path: Path) -> None:
    """A FIFO named `events` blocked the agent's start: opening it waits for a writer."""
    files = ("events", "meta.json", "gpus.json", "findings.json", "released.json", "position.json")
    for name in (*files, *(f"{file}.new" for file in files), ".released.json"):
        os.mkfifo(tmp_path / name)
    queue = opened(tmp_path)
    assert queue.write_errors
    assert not queue.put(xid(79)) and ids(queue) == ["event-79"], "only in memory"
    (tmp_path / "events.new").unlink()
    assert queue.put(xid(94)) and ids(reopened(queue)) == ["event-79", "event-94"]
    assert read_run(tmp_path) is None
    gpus = GpuList(tmp_path)
    assert "not a regular file" in gpus.last_error
    findings = FindingsStateFile(tmp_path)
    assert findings.load(b"boot") == FindingsState(b"boot")
    assert not findings.save(FindingsState(b"boot"))
    assert CheckpointFile(tmp_path).load() is None
    releases = ReleaseStateFile(tmp_path, b"boot")
    releases.write([])
    assert releases.read(0) == []


def test_events_wait_for_their_receipt_over_restarts(queue: EventQueue) -> None:
    """The host reset itself after the XID: its last event must not be lost."""
    for number in range(5):
        queue.put(xid(number))
    queue.put(xid(3))  # the same again
    queue.acknowledge(["event-0", "event-2", "unknown"])
    assert ids(queue) == ["event-1", "event-3", "event-4"]
    assert queue.pending(1) == [xid(1)]
    queue = reopened(queue)
    assert set(ids(queue)) >= {"event-1", "event-3", "event-4"}
    queue.acknowledge(ids(queue))
    queue = reopened(queue)
    assert (ids(queue), queue.dropped_events) == ([], 0)


def test_kill_9_loses_no_event_that_put_took(tmp_path: Path) -> None:
    """The agent is killed while a burst of XIDs comes in."""
    seen = -1
    for _ in range(2):
        with subprocess.Popen(
            [sys.executable, "-c", PUTTER, str(tmp_path / "e")], stdout=subprocess.PIPE, text=True
        ) as agent:
            assert agent.stdout is not None
            for _ in range(20):
                seen = int(agent.stdout.readline())
            agent.kill()
    queue = opened(tmp_path / "e")
    assert ids(queue)[: seen + 1] == [f"event-{number}" for number in range(seen + 1)]


def test_too_many_drop_the_oldest_and_count(tmp_path: Path) -> None:
    """A card that reports an XID a millisecond, and an unreachable aggregator."""
    queue = opened(tmp_path / "events", events_max=10)
    for number in range(25):
        queue.put(xid(number))
    assert ids(queue) == [f"event-{number}" for number in range(15, 25)]
    assert (queue.dropped_events, queue.last_drop) == (15, "too many waited")


def test_an_event_without_an_id_gets_one_and_a_flood_of_words_is_cut(queue: EventQueue) -> None:
    """A driver dumped its whole state into one kernel line."""
    queue.put(HealthEvent(message="x" * 10 * MESSAGE_CHARACTERS_MAX))
    [event] = queue.pending(9)
    assert event.event_id and len(event.message) == MESSAGE_CHARACTERS_MAX


def test_the_file_stays_small(queue: EventQueue, tmp_path: Path) -> None:
    """A thousand events a day for a year, each receipted soon, and one without a receipt."""
    queue.put(xid(0))
    for number in range(1, 200):
        queue.put(xid(number, "x" * 2000))
        queue.acknowledge([f"event-{number}"])
    assert (tmp_path / "events" / "events").stat().st_size < 100_000
    queue = reopened(queue)
    assert "event-0" in ids(queue)


def test_a_disk_that_takes_nothing_keeps_events_in_memory(queue: EventQueue) -> None:
    """The disk fails, and the XID has the reason: it must still be sent."""
    queue.put(xid(1))
    with disk_that_takes_nothing():
        queue.put(xid(2))
    assert (ids(queue), queue.write_errors) == (["event-1", "event-2"], 1)
    queue.put(xid(3))  # the disk works again: events missing on it are written, too
    queue = reopened(queue)
    assert ids(queue) == ["event-1", "event-2", "event-3"]


def test_the_folder_is_held(queue: EventQueue, tmp_path: Path) -> None:
    """Two agents must not share a queue."""
    with pytest.raises(FolderError, match="in use by process"):
        EventQueue.open(tmp_path / "events")
    queue.put(xid(1))
    queue.close()
    queue.put(xid(2))
    assert queue.dropped_events == 1


def revision(number: int, count: int) -> HealthEvent:
    return HealthEvent(event_id="storm", name="gpu.xid", revision=number, count=count)


def test_a_higher_revision_takes_the_place_of_a_lower_one(queue: EventQueue) -> None:
    """A storm's count grows while the aggregator is unreachable: it gets the last count, once."""
    assert queue.put(revision(0, 1)) and queue.put(xid(1)) and queue.put(revision(2, 500))
    queue.put(revision(1, 20))  # an older one, repeated after a crash
    assert queue.pending(9) == [revision(2, 500), xid(1)]
    queue = reopened(queue)
    assert queue.pending(9) == [revision(2, 500), xid(1)]


def test_a_receipt_is_for_the_revision_that_was_sent(queue: EventQueue) -> None:
    """The count rose while the event was in flight: the new count must also be sent."""
    queue.put(revision(0, 1))
    assert queue.pending(9) == [revision(0, 1)]
    queue.put(revision(1, 20))
    queue.acknowledge(["storm"])
    assert queue.pending(9) == [revision(1, 20)]
    queue.acknowledge(["storm"])
    assert queue.pending(9) == []
    queue.put(revision(2, 30))
    assert queue.pending(9) == [revision(2, 30)]


def test_put_says_whether_the_event_is_on_disk(queue: EventQueue) -> None:
    """A log reader must not advance past a line whose event a crash would lose."""
    with disk_that_takes_nothing():
        assert not queue.put(xid(1))
    assert queue.put(xid(2))
    queue.close()
    assert not queue.put(xid(3))


@settings(max_examples=100, deadline=None)
@given(at=st.integers(0, 10_000), flip=st.integers(1, 255), cut=st.booleans())
def test_damage_costs_the_lines_it_touches(at: int, flip: int, cut: bool) -> None:
    """One bit flipped on the disk must not cost the other nine XIDs."""
    with tempfile.TemporaryDirectory() as temporary:
        queue = EventQueue.open(Path(temporary))
        for number in range(10):
            queue.put(xid(number))
        queue.close()
        path = Path(temporary) / "events"
        content = bytearray(path.read_bytes())
        at %= len(content)
        touched = bytes(content[:at]).count(b"\n")
        if cut:
            del content[at:]
        else:
            content[at] ^= flip
        path.write_bytes(content)
        queue = EventQueue.open(Path(temporary))
        left = 10 if not cut else touched
        untouched = {f"event-{n}" for n in range(left) if n not in (touched, touched + 1)}
        assert untouched <= set(ids(queue)) <= {f"event-{n}" for n in range(10)}
        assert cut or queue.dropped_events + len(ids(queue)) >= 9
        assert not queue.dropped_events or queue.last_drop.startswith(f"{path} was damaged: ")
        queue.close()


@given(st.binary(max_size=300))
def test_no_bytes_make_parse_line_raise_anything_but_value_error(line: bytes) -> None:
    """The agent starts with any file content."""
    with pytest.raises(ValueError):
        parse_line(line)


def of_job(number: int, revision: int = 0) -> HealthEvent:
    return HealthEvent(event_id=f"job-{number}", name="gpu.process", revision=revision)


def test_who_runs_gives_way_to_a_fault(tmp_path: Path) -> None:
    """A day without aggregator: events of short jobs displaced the XID of the first hour."""
    queue = opened(tmp_path / "events", events_max=10)
    queue.put(xid(0))
    for number in range(50):
        queue.put(of_job(number))
    queue.put(xid(1))
    assert ids(queue) == ["event-0", "event-1", *(f"job-{n}" for n in range(42, 50))]
    assert queue.dropped_events == 42
    queue = reopened(queue, events_max=10)
    for number in range(2, 14):
        queue.put(xid(number))
    assert ids(queue) == [f"event-{n}" for n in range(4, 14)]
    queue.put(of_job(99))  # no space among faults: it is reported again later
    assert ids(queue) == [f"event-{n}" for n in range(4, 14)]


def test_a_fault_is_sent_before_who_runs(queue: EventQueue) -> None:
    """A job of 500 processes began, and the XID of its first second waited behind them."""
    for number in range(3):
        queue.put(of_job(number))
    queue.put(xid(0))
    assert [event.event_id for event in queue.pending(2)] == ["event-0", "job-0"]
    queue.put(of_job(0, revision=1))  # a later revision keeps waiting
    queue.acknowledge(["event-0", "job-0"])
    assert ids(queue) == ["job-0", "job-1", "job-2"]
    queue.acknowledge(ids(queue))
    queue.put(xid(1))
    assert ids(queue) == ["event-1"]


def test_no_fsync_for_who_runs(queue: EventQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job of 500 processes blocked the daemon for ten seconds, with an fsync for each."""
    synced: list[int] = []
    monkeypatch.setattr("gangline.agent.spool.event_queue.os.fsync", synced.append)
    for number in range(5):
        assert queue.put(of_job(number))
    assert synced == []
    queue.put(xid(0))
    assert len(synced) == 1
    queue = reopened(queue)
    assert len(ids(queue)) == 6
