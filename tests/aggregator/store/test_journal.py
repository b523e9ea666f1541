"""The event journal: its contents after a crash, and events through the whole service."""

from __future__ import annotations

import asyncio
import os
import struct
import time
import zlib
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.aggregator.errors import ResourceExhausted
from gangline.aggregator.store import journal
from gangline.aggregator.store.journal import (
    EventJournal,
    StoredEvent,
    encode_record,
    parse_records,
)
from gangline.contract.wire import telemetry_pb2 as wire


def xid(number: int, **more: Any) -> wire.HealthEvent:
    return wire.HealthEvent(
        event_id=f"e{number}", device_kind="gpu", device="GPU-0", name="gpu.xid", code=95, **more
    )


EVENTS = st.lists(
    st.builds(
        lambda host, time_ns, text: StoredEvent(host, time_ns, time_ns, xid(1, message=text)),
        st.text(max_size=20),
        st.integers(0, 2**64 - 1),
        st.text(max_size=50),
    ),
    max_size=8,
)


@given(EVENTS, st.data())
def test_a_torn_journal_gives_back_what_was_whole(events: list[StoredEvent], data: Any) -> None:
    """After a power loss within a write only the complete records before it are read."""
    encoded = b"".join(map(encode_record, events))
    cut = data.draw(st.integers(0, len(encoded)))
    sizes = [len(encode_record(event)) for event in events]
    expected = [e for position, e in enumerate(events) if sum(sizes[: position + 1]) <= cut]
    assert [event for event, _ in parse_records(encoded[:cut])] == expected
    assert [event for event, _ in parse_records(encoded[:cut] + bytes(7))] == expected


@given(EVENTS, st.binary(max_size=200))
def test_any_bytes_are_read_without_an_error(events: list[StoredEvent], data: bytes) -> None:
    """Arbitrary bytes end the journal where they begin."""
    encoded = b"".join(map(encode_record, events))
    unparsable = struct.pack("<II", len(data), zlib.crc32(data)) + data
    assert [event for event, _ in parse_records(encoded + data)] == events
    assert [event for event, _ in parse_records(encoded + unparsable)][: len(events)] == events


@given(EVENTS.filter(bool), st.data())
def test_a_damaged_record_ends_the_journal(events: list[StoredEvent], data: Any) -> None:
    """A flipped bit on the disk must not become an XID that never happened."""
    encoded, last = bytearray(b"".join(map(encode_record, events))), len(encode_record(events[-1]))
    encoded[-data.draw(st.integers(1, last))] ^= 1 << data.draw(st.integers(0, 7))
    assert [event for event, _ in parse_records(bytes(encoded))] == events[:-1]


def test_events_wait_in_the_journal_until_they_are_stored(tmp_path: Path) -> None:
    """The file is emptied once the store has all events, not before."""
    path = tmp_path / "events.journal"
    first_event, second_event = StoredEvent("a", 1, 1, xid(1)), StoredEvent("a", 2, 2, xid(2))
    first = EventJournal(path)
    position = first.append([first_event])
    first.append([second_event])
    first.mark_stored(position)  # `two` is not stored yet
    first.close()
    again = EventJournal(path)
    assert again.replayed == [first_event, second_event]
    again.mark_stored(again.position)
    again.close()
    assert path.read_bytes() == b""


def test_a_torn_tail_is_cut_off_and_counted(tmp_path: Path) -> None:
    """Records appended after a torn record must be readable."""
    path = tmp_path / "events.journal"
    event = StoredEvent("a", 1, 1, xid(1))
    path.write_bytes(encode_record(event) + b"torn")
    first = EventJournal(path)
    assert (first.replayed, first.torn_bytes) == ([event], 4)
    first.append([event])
    first.close()
    assert path.read_bytes() == encode_record(event) * 2


def test_a_full_journal_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the store is stuck, events are refused; they are accepted once it has caught up."""
    monkeypatch.setattr(journal, "JOURNAL_BYTES_MAX", 100)
    event_journal = EventJournal(tmp_path / "events.journal")
    position = event_journal.append([StoredEvent("a", 1, 1, xid(1))])
    with pytest.raises(ResourceExhausted, match="at most 100"):
        event_journal.append([StoredEvent("a", 1, 1, xid(2, message="x" * 100))])
    event_journal.mark_stored(position)
    event_journal.append([StoredEvent("a", 1, 1, xid(2))])
    event_journal.close()


@pytest.mark.slow
def test_an_event_sent_twice_is_stored_once(lab: Any) -> None:
    """The response to ReportEvents was lost, or the aggregator restarted in between."""

    async def report_twice() -> None:
        async with lab.aggregator() as aggregator, lab.agent(aggregator) as agent:
            answer = await _report(agent, xid(1), xid(2), xid(1))
            assert (answer.accepted, list(answer.duplicate_event_ids)) == (2, ["e1"])
            again = await _report(agent, xid(2), xid(3))
            assert (again.accepted, list(again.duplicate_event_ids)) == (1, ["e2"])
        async with lab.aggregator() as aggregator, lab.agent(aggregator) as agent:
            answer = await _report(agent, xid(3))
            assert (answer.accepted, list(answer.duplicate_event_ids)) == (0, ["e3"])

    asyncio.run(report_twice())
    assert lab.rows("SELECT event_id, code FROM events ORDER BY ALL") == [
        ("e1", 95),
        ("e2", 95),
        ("e3", 95),
    ]
    assert (lab.folder / "events.journal").read_bytes() == b""


@pytest.mark.slow
def test_a_journal_left_behind_is_moved_at_the_start(lab: Any) -> None:
    """A kill -9 came between acknowledgement and commit; an earlier event was committed."""

    async def live(*events: wire.HealthEvent) -> None:
        async with lab.aggregator() as aggregator, lab.agent(aggregator) as agent:
            if events:
                await _report(agent, *events)

    asyncio.run(live(xid(1)))
    left = [StoredEvent("host-1", 1, 1, xid(1)), StoredEvent("host-1", 2, 2, xid(2))]
    (lab.folder / "events.journal").write_bytes(b"".join(map(encode_record, left)))
    asyncio.run(live())
    assert lab.rows("SELECT event_id FROM events ORDER BY ALL") == [("e1",), ("e2",)]


@pytest.mark.slow
def test_a_restart_forgets_no_fault(lab: Any, until: Any) -> None:
    """After a GPU fell off the bus, an update of the aggregator must not make the host healthy."""

    def fatal(aggregator: Any) -> list[str]:
        hosts = getattr(aggregator.snapshot_holder.snapshot, "hosts", ())
        return [host.host for host in hosts if host.state.name == "UNHEALTHY"]

    async def report_and_restart() -> None:
        async with lab.aggregator() as aggregator, lab.agent(aggregator) as agent:
            now_ns = time.time_ns()
            lost = xid(1, wall_time_ns=now_ns, boottime_ns=now_ns - agent.agent.booted_ns)
            await _report(agent, lost)
            await agent.send(agent.agent.message(1))
            unhealthy_hosts.append(await until(lambda: fatal(aggregator)))
        async with lab.aggregator() as aggregator, lab.agent(aggregator) as agent:
            await agent.send(agent.agent.message(2))
            unhealthy_hosts.append(await until(lambda: fatal(aggregator)))

    unhealthy_hosts: list[list[str]] = []
    asyncio.run(report_and_restart())
    assert unhealthy_hosts == [["host-1"], ["host-1"]]


def test_an_event_that_cannot_be_written_counts_once(lab: Any) -> None:
    """An event sent repeatedly while the disk is full is judged once, as one fault."""

    async def report_repeatedly() -> None:
        async with lab.aggregator() as aggregator, lab.agent(aggregator) as agent:
            journal_file: int = aggregator.store._journal._descriptor
            kept, full = os.dup(journal_file), os.open("/dev/full", os.O_RDWR)
            os.dup2(full, journal_file)
            for _ in range(3):
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    await _report(agent, xid(1))
                assert error.value.code() == grpc.StatusCode.UNAVAILABLE
                assert "No space left" in str(error.value.details())
            os.dup2(kept, journal_file)
            os.close(kept)
            os.close(full)
            answer = await _report(agent, xid(1))
            assert (answer.accepted, list(answer.duplicate_event_ids)) == (1, [])
            [record] = aggregator.fleet.active_events
            assert record.count == 1

    asyncio.run(report_repeatedly())
    assert lab.rows("SELECT event_id FROM events") == [("e1",)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("event", "message"),
    [
        (wire.HealthEvent(name="gpu.xid"), "events.event_id"),
        (xid(1, message="x" * 5000), "events.message: 5000 characters, at most 4096"),
    ],
)
def test_events_past_a_limit_are_refused(lab: Any, event: wire.HealthEvent, message: str) -> None:
    """An endless kernel log line is refused with the limit, and nothing of the request stays."""

    async def report_refused() -> None:
        async with lab.aggregator() as aggregator, lab.agent(aggregator) as agent:
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await _report(agent, xid(7), event)
            assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert message in str(error.value.details())

    asyncio.run(report_refused())
    assert lab.rows("FROM events") == []


async def _report(agent: Any, *events: wire.HealthEvent) -> wire.ReportEventsResponse:
    request = wire.ReportEventsRequest(events=events)
    answer: wire.ReportEventsResponse = await agent.stub.ReportEvents(
        request, metadata=agent.metadata
    )
    return answer
