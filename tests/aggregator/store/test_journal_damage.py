"""The event journal with hostile or damaged events, and while it is compacted."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.aggregator.errors import InvalidArgument, ResourceExhausted, ServiceUnavailable
from gangline.aggregator.ingest.sessions import EVENT_BYTES_MAX, check_events
from gangline.aggregator.store import journal
from gangline.aggregator.store.journal import EventJournal, StoredEvent, encode_record
from gangline.contract import durable_file as folders
from gangline.contract.wire import telemetry_pb2 as wire
from tests.aggregator.process import Process

#: Field 1000, with 1 MiB: no version knows it.
UNKNOWN = b"\xc2\x3e\x80\x80\x40" + b"x" * (1 << 20)


def xid(event_id: str, **more: Any) -> wire.HealthEvent:
    return wire.HealthEvent(event_id=event_id, name="gpu.xid", code=79, **more)


def hostile(event_id: str) -> wire.HealthEvent:
    """Return an event with 1 MiB in an unknown field."""
    event: wire.HealthEvent = wire.HealthEvent.FromString(
        xid(event_id).SerializeToString() + UNKNOWN
    )
    assert event.ByteSize() > 1 << 20
    return event


def stored(event: wire.HealthEvent, host: str = "a") -> StoredEvent:
    return StoredEvent(host, 1, 1, event)


def ids(path: Path) -> list[str]:
    """Return the ids of the events that a start reads from the journal at *path*."""
    opened = EventJournal(path)
    opened.close()
    return [stored_event.event.event_id for stored_event in opened.replayed]


def test_fields_that_nobody_knows_are_dropped() -> None:
    """1 MiB of unknown fields, at the top or in a map's entry, made a record unreadable."""
    entry = b"\x0a\x01k\x12\x01v" + b"\xc2\x3e\x64" + b"x" * 100
    data = xid("e").SerializeToString()
    field = wire.HealthEvent.DESCRIPTOR.fields_by_name["attributes"].number
    nested = data + bytes([field << 3 & 0x7F | 0x80 | 2, field >> 4, len(entry)]) + entry
    for event in (hostile("e"), wire.HealthEvent.FromString(nested)):
        request = wire.ReportEventsRequest(events=[event])
        check_events(request)
        assert request.events[0].ByteSize() < len(data) + 20


def test_an_event_too_long_is_refused() -> None:
    """An event may be too long although each field is within its limit, by 4-byte characters."""
    attributes = {f"{n}": "\N{BRAIN}" * 1024 for n in range(32)}
    request = wire.ReportEventsRequest(events=[xid("e", attributes=attributes)])
    with pytest.raises(
        InvalidArgument, match=rf"events: 13\d+ bytes of one event, at most {EVENT_BYTES_MAX}"
    ):
        check_events(request)


def test_what_cannot_be_read_back_is_not_written(tmp_path: Path) -> None:
    """An oversized event that passes the check of a request costs no event behind it."""
    event_journal = EventJournal(tmp_path / "events.journal")
    event_journal.append([stored(xid("e0"))])
    with pytest.raises(ValueError, match=r"an event of 10\d+ bytes, at most 1048576"):
        event_journal.append([stored(xid("e1")), stored(hostile("evil"), "evil")])
    event_journal.append([stored(xid("e2"))])
    event_journal.close()
    assert ids(tmp_path / "events.journal") == ["e0", "e2"]


@pytest.mark.slow
def test_an_honest_hosts_events_survive_beside_a_hostile_ones(
    lab: Any, connect: Any, make_agent: Any
) -> None:
    """After an unknown field of 1 MiB and kill -9, another host's 5 XIDs were lost."""

    async def report_and_kill() -> None:
        process = Process(lab.folder, "--set", "commit_seconds=60")
        try:
            for host, events in (
                ("evil", [hostile("evil")]),
                ("good", [xid(f"e{number}") for number in range(5)]),
            ):
                agent = connect(process.port, make_agent(host=host, run_id=host.ljust(16).encode()))
                await agent.register()
                request = wire.ReportEventsRequest(events=events)
                answer = await agent.stub.ReportEvents(request, metadata=agent.metadata)
                assert answer.accepted == len(events)
                await agent.close()
        finally:
            process.end(signal.SIGKILL)

    asyncio.run(report_and_kill())
    last = Process(lab.folder)
    assert last.end(signal.SIGTERM) == 0
    assert lab.rows("SELECT event_id FROM events ORDER BY ALL") == [
        *((f"e{number}",) for number in range(5)), ("evil",)
    ]  # fmt: skip


def test_a_long_record_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    """A long record of an earlier version is stored without its unknown fields."""
    path = tmp_path / "events.journal"
    events = [stored(xid("e0")), stored(hostile("evil")), stored(xid("e1"))]
    path.write_bytes(b"".join(map(encode_record, events)))
    opened = EventJournal(path)
    opened.close()
    assert [stored_event.event for stored_event in opened.replayed] == [
        xid("e0"),
        xid("evil"),
        xid("e1"),
    ]
    assert opened.loss_message == ""


def _of_another_version(size: int) -> bytes:
    body = struct.pack("<HQQ", 1, 1, 1) + b"a" + b"\xff" * size
    return struct.pack("<II", len(body), zlib.crc32(body)) + body


def _damaged(size: int) -> bytes:
    record = bytearray(encode_record(stored(xid("gone", message="m" * size))))
    record[40] ^= 1
    return bytes(record)


@pytest.mark.parametrize("size", [100, 3 << 20])
@pytest.mark.parametrize("bad", [_of_another_version, _damaged])
def test_a_bad_record_is_skipped_by_its_length(tmp_path: Path, bad: Any, size: int) -> None:
    """A bad record of any length is skipped and reported; the records behind it are read."""
    path, record = tmp_path / "events.journal", bad(size)
    first = encode_record(stored(xid("e0")))
    path.write_bytes(first + record + first + record + encode_record(stored(xid("e1"))))
    opened = EventJournal(path)
    opened.close()
    assert [stored_event.event.event_id for stored_event in opened.replayed] == ["e0", "e0", "e1"]
    expected = (
        f"damaged at byte {len(first)}; 2 events after that were read, {2 * len(record)} bytes"
    )
    assert expected in opened.loss_message
    assert path.with_name("events.journal.damaged").stat().st_size > 2 * len(record)
    assert ids(path) == ["e0", "e0", "e1"]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compact small files as well."""
    monkeypatch.setattr(journal, "COMPACT_BYTES_MIN", 100)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 100)), max_size=30))
def test_the_file_is_about_as_large_as_what_waits(
    tmp_path_factory: pytest.TempPathFactory, turns: list[tuple[int, int]]
) -> None:
    """With each commit a little behind, the file grew to 64 MiB, and all events were refused."""
    path = tmp_path_factory.mktemp("journal") / "events.journal"
    size, number, waiting = len(encode_record(stored(xid("e0000")))), 0, list[tuple[str, int]]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal, "COMPACT_BYTES_MIN", 100)
        event_journal = EventJournal(path)
        for appended, share in turns:
            for _ in range(appended):
                waiting.append(
                    (f"e{number:04}", event_journal.append([stored(xid(f"e{number:04}"))]))
                )
                number += 1
            done = len(waiting) * share // 100
            if done:
                event_journal.mark_stored(waiting[done - 1][1])
                del waiting[:done]
            assert event_journal.size_bytes == path.stat().st_size <= 2 * len(waiting) * size + 100
        event_journal.close()
    assert [event_id for event_id in ids(path) if event_id >= (waiting or [("f", 0)])[0][0]] == [
        event_id for event_id, _ in waiting
    ]


@pytest.mark.usefixtures("small")
def test_a_full_journal_says_what_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stored events count neither for the refusal nor in its message."""
    event_journal = EventJournal(tmp_path / "events.journal")
    positions = [event_journal.append([stored(xid(f"e{number:02}"))]) for number in range(20)]
    size = positions[0]
    monkeypatch.setattr(journal, "JOURNAL_BYTES_MAX", 20 * size)
    with pytest.raises(
        ResourceExhausted, match=f"{20 * size} bytes of events wait for the store, at most"
    ):
        event_journal.append([stored(xid("e20"))])
    event_journal.mark_stored(positions[4])  # too few for a new file: the size stays
    assert event_journal.size_bytes == 20 * size
    for number in range(20, 25):
        event_journal.append([stored(xid(f"e{number:02}"))])
    with pytest.raises(ResourceExhausted, match=f"{20 * size} bytes of events wait"):
        event_journal.append([stored(xid("e25"))])
    event_journal.close()


class Disk:
    """The journal's system calls, with a copy of the folder before each of them.

    `seen`: the files after a kill of the process. `synced`: after a power loss, the contents and
    names as of the last fsync.
    """

    def __init__(self, folder: Path, kept: Path) -> None:
        self.folder, self.kept, self.steps = folder, kept, list[str]()
        self._names = dict[str, int]()
        self._data = dict[int, bytes]()
        self.fails = ""

    def __getattr__(self, name: str) -> Any:
        call = getattr(os, name)
        if name not in ("pwrite", "fsync", "replace", "ftruncate"):
            return call

        def told(*arguments: Any) -> Any:
            self._keep(name)
            if name == self.fails:
                raise OSError(5, "Input/output error")
            result = call(*arguments)
            if name == "fsync":
                self._sync(arguments[0])
            return result

        return told

    def _sync(self, descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if path.is_dir():
            self._names = {file.name: file.stat().st_ino for file in path.iterdir()}
        else:
            self._data[os.fstat(descriptor).st_ino] = path.read_bytes()

    def _keep(self, name: str) -> None:
        folder_of_step = self.kept / str(len(self.steps))
        self.steps.append(name)
        shutil.copytree(self.folder, folder_of_step / "seen")
        (folder_of_step / "synced").mkdir(parents=True)
        for file, number in self._names.items():
            (folder_of_step / "synced" / file).write_bytes(self._data.get(number, b""))

    def left(self, since: int) -> Iterator[Path]:
        """Yield both copies of the folder before each step from *since* on."""
        for step in range(since, len(self.steps)):
            yield from (self.kept / str(step) / "seen", self.kept / str(step) / "synced")


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    (tmp_path / "data").mkdir()
    traced_disk = Disk(tmp_path / "data", tmp_path / "kept")
    monkeypatch.setattr(journal, "os", traced_disk)
    monkeypatch.setattr(folders, "os", traced_disk)
    return traced_disk


@pytest.mark.usefixtures("small")
def test_no_step_of_a_smaller_file_costs_an_event(disk: Disk, monkeypatch: Any) -> None:
    """After a kill or power loss at each step, all acknowledged events not in the store remain."""
    path = disk.folder / "events.journal"
    event_journal = EventJournal(path)
    positions = [event_journal.append([stored(xid(f"e{number}"))]) for number in range(9)]
    since = len(disk.steps)
    event_journal.mark_stored(positions[6])
    assert "replace" in disk.steps[since:]
    late = len(disk.steps)
    event_journal.append([stored(xid("e9"))])
    done = len(disk.steps)
    event_journal.mark_stored(event_journal.position)
    event_journal.close()
    monkeypatch.undo()
    for index, folder in enumerate(disk.left(since)):
        found_ids, step = ids(folder / "events.journal"), since + index // 2
        expected = ["e7", "e8", *(["e9"] if step >= done else [])]
        assert found_ids[-len(expected) :] == expected or "e9" in found_ids, (
            step,
            disk.steps[step],
            found_ids,
        )
        assert set(expected) <= set(found_ids), (step, disk.steps[step], found_ids)
        assert not (folder / "events.journal.new").exists()
        opened = EventJournal(folder / "events.journal")
        assert opened.loss_message == ""
        opened.close()
    assert since < late < done < len(disk.steps)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("fails", ["pwrite", "fsync", "replace"])
def test_a_disk_that_refuses_a_smaller_file_costs_nothing(
    disk: Disk, fails: str, caplog: pytest.LogCaptureFixture
) -> None:
    """On a full disk the file keeps its size, a line is logged, and a later commit tries again."""
    path = disk.folder / "events.journal"
    event_journal = EventJournal(path)
    positions = [event_journal.append([stored(xid(f"e{number}"))]) for number in range(9)]
    disk.fails = fails
    event_journal.mark_stored(positions[6])
    assert "cannot be made smaller: Input/output error" in caplog.text
    if fails != "replace":
        with pytest.raises(ServiceUnavailable):
            event_journal.append([stored(xid("none"))])
    disk.fails = ""
    event_journal.append([stored(xid("e9"))])
    event_journal.mark_stored(positions[7])
    assert event_journal.size_bytes == path.stat().st_size == 2 * positions[0]
    event_journal.close()
    assert ids(path) == ["e8", "e9"]
