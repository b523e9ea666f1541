"""What all streams are told when, with the time in hand: less credit at once, and a word to who waits long."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gangline.aggregator.config import AggregatorConfig
from gangline.aggregator.errors import ResourceExhausted
from gangline.aggregator.service.telemetry import QUIET_SECONDS_MAX, AdmissionControl
from gangline.contract.wire import telemetry_pb2 as wire


class Store:
    room = 1.0


class Ingest:
    """Credit by the store's room, as the real one has it."""

    storing, credit_frames = True, 64


class Stream:
    def __init__(self) -> None:
        self.words, self.since = 0, 1e12  # waits for nothing

    def send_credit(self) -> None:
        self.words += 1

    def quiet_since(self, since: float) -> bool:
        return self.since <= since


def made(store: Any, ingest: Any) -> AdmissionControl:
    """Return turns whose task does nothing: the test looks."""
    turns = AdmissionControl(ingest, store, [], AggregatorConfig(data=Path()))  # type: ignore[arg-type]
    turns._task.cancel()
    return turns


def test_all_are_told_when_credit_has_shrunk_by_half() -> None:
    """A commit hangs, no receipt tells anybody anything, and each agent sends on to its 64 frames."""

    async def way() -> None:
        ingest, stream = Ingest(), Stream()
        turns, now = made(Store(), ingest), 0.0
        turns.streams.add(stream)  # type: ignore[arg-type]
        told = []
        for credit in (64, 50, 32, 30, 16, 64, 32, 1):
            ingest.credit_frames = credit
            now += 0.1
            turns.poll(now, 0.0)
            told.append(stream.words)
        assert told == [0, 0, 1, 1, 2, 2, 3, 4]

    asyncio.run(way())


def test_a_name_that_is_none_is_not_remembered_for_its_turn() -> None:
    """In a restart's crowd each registration under four megabytes of name kept its place in the line for a minute."""

    class Nobody:
        def is_registered(self, *_: object) -> bool:
            return False

    async def way() -> None:
        ingest = Ingest()
        ingest.sessions = Nobody()  # type: ignore[attr-defined]
        turns = made(Store(), ingest)
        for number in range(2000):
            turns.admit(wire.RegisterNodeRequest(node="x" * 300 + str(number)), "here")
        assert not turns.registrations._due_times and not turns.registrations.deferred
        with pytest.raises(ResourceExhausted, match="register at once; try again in"):
            for number in range(2000):
                turns.admit(wire.RegisterNodeRequest(node=f"x{number}"), "here")

    asyncio.run(way())


def test_who_waits_for_receipts_hears_a_word() -> None:
    """A disk that takes 40 s for a commit: after 30 s of silence agents come again, and send all again."""

    async def way() -> None:
        turns = made(Store(), Ingest())
        waits, idle = Stream(), Stream()
        turns.streams |= {waits, idle}  # type: ignore[arg-type]
        start = turns._checked
        waits.since = start
        for tick in range(10 * int(QUIET_SECONDS_MAX)):
            turns.poll(start + tick / 10, 0.0)
        assert (waits.words, idle.words) == (0, 0)
        for tick in range(30):
            turns.poll(start + QUIET_SECONDS_MAX + tick / 10, 0.0)
        assert waits.words >= 1 and idle.words == 0

    asyncio.run(way())


def test_who_waits_for_room_goes_on_when_there_is_some_or_none_is_to_be_had() -> None:
    """A stream that nobody wakes is a host that is silent; one that is woken for nothing costs the others CPU."""

    async def way() -> None:
        store, ingest = Store(), Ingest()
        turns = made(store, ingest)
        store.room = 0.0
        waiting = asyncio.create_task(turns.room())
        await asyncio.sleep(0)
        turns.poll(1.0, 0.0)
        await asyncio.sleep(0)
        assert not waiting.done()
        store.room = 0.1
        turns.poll(2.0, 0.0)
        await waiting
        store.room, ingest.storing = (
            0.0,
            False,
        )  # the disk is full: what comes is judged, not stored
        waiting = asyncio.create_task(turns.room())
        await asyncio.sleep(0)
        turns.poll(3.0, 0.0)
        await waiting
        gone = asyncio.create_task(turns.room())
        await asyncio.sleep(0)
        gone.cancel()  # one stream ends while it waits: the others' turn comes all the same
        await asyncio.wait([gone])
        waiting = asyncio.create_task(turns.room())
        await asyncio.sleep(0)
        turns.poll(4.0, 0.0)
        await waiting

    asyncio.run(way())
