"""A storm is one growing event: its last revision is stored, also after a crash in between."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import duckdb
import grpc
import pytest

from gangline.aggregator.ingest.sessions import (
    EVENT_ATTRIBUTES_MAX,
    EVENT_COUNT_MAX,
    FORM_CHARACTERS_MAX,
    FORMS_MAX,
)
from gangline.aggregator.store import duckdb_file, store_folder
from gangline.aggregator.store.journal import StoredEvent, encode_record
from gangline.aggregator.store.store import Store
from gangline.contract.wire import telemetry_pb2 as wire


def storm(revision: int, count: int, event_id: str = "storm", **more: Any) -> wire.HealthEvent:
    fields: dict[str, Any] = {
        "device_kind": "gpu", "device": "GPU-0", "name": "gpu.xid", "code": 95,
        "message": "Uncontained ECC error", "forms": ["Uncontained ECC error at #"],
        "forms_count": 29, "process_id": 4711, "process_name": "python3",
        "attributes": {"memory": "DRAM"}, "boottime_ns": 10**9, "last_boottime_ns": 4 * 10**9,
    }  # fmt: skip
    return wire.HealthEvent(event_id=event_id, revision=revision, count=count, **(fields | more))


async def report(agent: Any, *events: wire.HealthEvent) -> wire.ReportEventsResponse:
    answer: wire.ReportEventsResponse = await agent.stub.ReportEvents(
        wire.ReportEventsRequest(events=events), metadata=agent.metadata
    )
    return answer


@pytest.mark.usefixtures("operators_file")
async def test_a_later_revision_replaces_the_row_and_an_earlier_one_never_does(lab: Any) -> None:
    """800,000 lines of one incident: one row with the latest count."""
    async with lab.aggregator() as aggregator, lab.agent(aggregator) as agent:
        first = await report(agent, storm(0, 1))
        assert (first.accepted, list(first.duplicate_event_ids)) == (1, [])
        grown = await report(agent, storm(3, 800_000))
        assert (grown.accepted, list(grown.duplicate_event_ids)) == (1, [])
        for late in (storm(3, 800_000), storm(2, 500)):
            answer = await report(agent, late)
            assert (answer.accepted, list(answer.duplicate_event_ids)) == (0, ["storm"])
        [record] = aggregator.fleet.active_events
        assert (record.count, record.process_name) == (800_000, "python3")
    for file, where in (("gangline.duckdb", "events"), ("operators.duckdb", "ops.faults")):
        assert lab.rows(
            "SELECT code, count, forms, forms_count, process_id, process_name, "
            f"attributes['memory'], epoch(last_time - time) FROM {where}",
            file,
        ) == [(95, 800_000, ["Uncontained ECC error at #"], 29, 4711, "python3", "DRAM", 3.0)]


@pytest.mark.slow
async def test_revisions_of_one_request_are_one_row(lab: Any) -> None:
    """After an outage an agent sends all its revisions at once, in any order."""
    async with lab.aggregator() as aggregator, lab.agent(aggregator) as agent:
        answer = await report(agent, storm(1, 10), storm(2, 20), storm(0, 1))
        assert (answer.accepted, list(answer.duplicate_event_ids)) == (1, ["storm"])
    assert lab.rows("SELECT revision, count FROM events") == [(2, 20)]


@pytest.mark.slow
@pytest.mark.parametrize("stored_revision", [0, 5])
def test_a_crash_between_two_revisions_keeps_the_later(lab: Any, stored_revision: int) -> None:
    """kill -9 after the receipt: the journal has a later revision than the store, or an earlier."""

    async def run_aggregator(*events: wire.HealthEvent) -> int:
        async with lab.aggregator() as aggregator, lab.agent(aggregator) as agent:
            if events:
                await report(agent, *events)
            return sum(record.count for record in aggregator.fleet.active_events)

    asyncio.run(run_aggregator(storm(stored_revision, 100 + stored_revision)))
    now_ns = time.time_ns()
    journaled = [
        StoredEvent("host-1", now_ns, now_ns, storm(revision, 100 + revision))
        for revision in (2, 3)
    ]
    (lab.folder / "events.journal").write_bytes(b"".join(map(encode_record, journaled)))
    asyncio.run(run_aggregator())
    last = max(stored_revision, 3)
    assert lab.rows("SELECT revision, count FROM events") == [(last, 100 + last)]
    asyncio.run(run_aggregator(storm(2, 102)))  # sent again by an agent without the receipt
    assert lab.rows("SELECT revision, count FROM events") == [(last, 100 + last)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"forms": ["x"] * (FORMS_MAX + 1)}, "events.forms: 33 of them, at most 32"),
        ({"forms": ["x" * (FORM_CHARACTERS_MAX + 1)]}, "events.forms: 257 characters, at most 256"),
        (
            {"attributes": {str(n): "" for n in range(EVENT_ATTRIBUTES_MAX + 1)}},
            "events.attributes: 33 of them, at most 32",
        ),
        ({"attributes": {"link": "x" * 2000}}, "events.attributes[link]: 2000 characters"),
        ({"process_name": "x" * 200}, "events.process_name: 200 characters"),
        ({"device": "x" * 2000}, "events.device: 2000 characters"),
        ({"name": "x" * 200}, "events.name: 200 characters"),
        ({"boot_id": b"short"}, "events.boot_id: 16 bytes or none, got 5"),
    ],
)
async def test_an_event_past_a_limit_is_refused_with_words(
    lab: Any, more: dict[str, Any], message: str
) -> None:
    """For a defective or foreign agent: the excess, and the limit."""
    async with lab.aggregator() as aggregator, lab.agent(aggregator) as agent:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await report(agent, storm(0, 1, **more))
        assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert message in str(error.value.details())
        with pytest.raises(grpc.aio.AioRpcError, match=r"events\.count"):
            await report(agent, storm(0, EVENT_COUNT_MAX + 1))
    assert lab.rows("FROM events") == []


@pytest.mark.slow
def test_a_first_start_tells_of_weeks_and_each_event_is_as_old_as_it_is(
    lab: Any, make_agent: Any, until: Any
) -> None:
    """A host up for a month: XID 48 of today, XID 94 five hours later, an OOM kill a week ago.

    XID 79 of the previous boot waited in the spool. Then kill -9.
    """
    month = 30 * 86_400
    agent = make_agent(booted_ns=time.time_ns() - month * 10**9)

    def event_at(
        name: str, ago: int, code: int = 0, boottime: int | None = None
    ) -> wire.HealthEvent:
        at_ns = month - ago if boottime is None else boottime
        return wire.HealthEvent(
            event_id=f"{name} {code}", device="GPU-0" if code else "host", name=name, code=code,
            boottime_ns=at_ns * 10**9, last_boottime_ns=at_ns * 10**9,
            wall_time_ns=time.time_ns() - ago * 10**9,
        )  # fmt: skip

    events = [
        event_at("gpu.xid", 6 * 3600, 48), event_at("gpu.xid", 3600, 94),
        event_at("host.out_of_memory", 7 * 86_400), event_at("gpu.xid", month + 600, 79, 90 * 86_400),
    ]  # fmt: skip

    def active_codes(aggregator: Any) -> set[int]:
        return {record.code for record in aggregator.fleet.active_events}

    async def run_aggregator(*events: wire.HealthEvent) -> None:
        async with lab.aggregator() as aggregator, lab.agent(aggregator, agent) as connection:
            if events:
                await report(connection, *events)
            assert active_codes(aggregator) == {48, 94}
            version = aggregator.snapshot_holder.snapshot.version
            await until(lambda: aggregator.snapshot_holder.snapshot.version > version + 1)
            [record] = [event for event in aggregator.fleet.active_events if event.code == 48]
            [incident] = record.incidents.values()
            assert incident.apart_ns == {94: 5 * 3600 * 10**9}

    asyncio.run(run_aggregator(*events))
    asyncio.run(run_aggregator())  # and from the store
    ages = dict(lab.rows("SELECT event_id, date_sub('hour', time, received) FROM events"))
    assert ages == {"gpu.xid 48": 6, "gpu.xid 94": 1, "host.out_of_memory 0": 168,
                    "gpu.xid 79": month // 3600}  # fmt: skip


def old_store(folder: Path) -> None:
    """Write a file of the version without growing events."""
    folder.mkdir()
    [(version, text), *_] = duckdb_file.migrations()
    with duckdb.connect(str(folder / store_folder.STORE_FILE)) as connection:
        connection.execute(text)
        connection.execute("CREATE TABLE gangline_store (schema_version INTEGER)")
        connection.execute("INSERT INTO gangline_store VALUES (?)", [version])
        connection.execute(
            "INSERT INTO events VALUES ('host-1', 'old', 'gpu', 'GPU-0', 'gpu.xid', 79, 'lost', "
            "now()::TIMESTAMP, 5, now()::TIMESTAMP)"
        )
        connection.execute(
            "INSERT INTO findings VALUES ('host-1', 'clock.offset', '', 'off', now()::TIMESTAMP, NULL)"
        )


@pytest.mark.slow
async def test_a_store_of_before_opens_and_keeps_what_it_had(lab: Any) -> None:
    """An upgrade on a Friday keeps yesterday's events beside today's."""
    old_store(lab.folder)
    unjudged = lab.aggregator(judge_seconds=60.0)
    async with unjudged as aggregator, lab.agent(aggregator) as agent:
        await report(agent, storm(1, 7), storm(1, 2, event_id="old"))
    assert lab.rows(
        "SELECT event_id, revision, count, forms, process_name, last_time >= time FROM events "
        "ORDER BY event_id"
    ) == [
        ("old", 1, 2, ["Uncontained ECC error at #"], "python3", True),
        ("storm", 1, 7, ["Uncontained ECC error at #"], "python3", True),
    ]
    # The other finding is of the stored XID, which counts before the host registers.
    query = "SELECT message, cleared IS NULL FROM findings WHERE name NOT LIKE 'gpu.%'"
    assert lab.rows(query) == [("off", False)]


@pytest.mark.slow
def test_an_old_event_reads_as_one_line(tmp_path: Path) -> None:
    """An event stored by an older version reads as one line, not as NULL lines."""
    folder = tmp_path / "data"
    old_store(folder)
    store = Store.open(folder)
    store.close()
    with duckdb.connect(str(folder / store_folder.STORE_FILE), read_only=True) as connection:
        row = connection.execute(
            "SELECT revision, count, forms, forms_count, last_boottime_ns, cardinality(attributes) "
            "FROM events"
        ).fetchone()
    assert row == (0, 1, [], 0, 5, 0)
    [event] = store.recent_events
    assert (event.event.event_id, event.event.count) == ("old", 1)
