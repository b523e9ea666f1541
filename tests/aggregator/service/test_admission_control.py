"""Admission control of all streams, on a test clock: less credit at once, and keepalives."""

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
    """Credit by the store's room, as in the real ingest."""

    storing, credit_frames = True, 64


class Stream:
    def __init__(self) -> None:
        self.message, self.since = 0, 1e12  # waits for nothing

    def send_credit(self) -> None:
        self.message += 1

    def quiet_since(self, since: float) -> bool:
        return self.since <= since


def made(store: Any, ingest: Any) -> AdmissionControl:
    """Return an admission control without its task: the test polls."""
    admission = AdmissionControl(ingest, store, [], AggregatorConfig(data=Path()))  # type: ignore[arg-type]
    admission._task.cancel()
    return admission


async def test_all_are_told_when_credit_has_shrunk_by_half() -> None:
    """A commit hangs without acknowledgements, and each agent would send on to its 64 frames."""
    ingest, stream = Ingest(), Stream()
    admission, now = made(Store(), ingest), 0.0
    admission.streams.add(stream)  # type: ignore[arg-type]
    word_counts = []
    for credit in (64, 50, 32, 30, 16, 64, 32, 1):
        ingest.credit_frames = credit
        now += 0.1
        admission.poll(now, 0.0)
        word_counts.append(stream.message)
    assert word_counts == [0, 0, 1, 1, 2, 2, 3, 4]


async def test_a_name_that_is_none_is_not_remembered_for_its_turn() -> None:
    """After a restart each registration with a name of megabytes kept its slot for a minute."""

    class Nobody:
        def is_registered(self, *_: object) -> bool:
            return False

    ingest = Ingest()
    ingest.sessions = Nobody()  # type: ignore[attr-defined]
    admission = made(Store(), ingest)
    for number in range(2000):
        admission.admit(wire.RegisterNodeRequest(node="x" * 300 + str(number)), "here")
    assert not admission.registrations._due_times and not admission.registrations.deferred
    with pytest.raises(ResourceExhausted, match="register at once; try again in"):
        for number in range(2000):
            admission.admit(wire.RegisterNodeRequest(node=f"x{number}"), "here")


async def test_who_waits_for_receipts_hears_a_word() -> None:
    """A disk takes 40 s for a commit: after 30 s of silence agents would send all again."""
    admission = made(Store(), Ingest())
    waits, idle = Stream(), Stream()
    admission.streams |= {waits, idle}  # type: ignore[arg-type]
    start = admission._checked
    waits.since = start
    for tick in range(10 * int(QUIET_SECONDS_MAX)):
        admission.poll(start + tick / 10, 0.0)
    assert (waits.message, idle.message) == (0, 0)
    for tick in range(30):
        admission.poll(start + QUIET_SECONDS_MAX + tick / 10, 0.0)
    assert waits.message >= 1 and idle.message == 0


async def test_who_waits_for_room_goes_on_when_there_is_some_or_none_is_to_be_had() -> None:
    """A stream that is not woken is a silent host; a stream woken without need costs CPU."""
    store, ingest = Store(), Ingest()
    admission = made(store, ingest)
    store.room = 0.0
    waiting = asyncio.create_task(admission.room())
    await asyncio.sleep(0)
    admission.poll(1.0, 0.0)
    await asyncio.sleep(0)
    assert not waiting.done()
    store.room = 0.1
    admission.poll(2.0, 0.0)
    await waiting
    store.room, ingest.storing = (
        0.0,
        False,
    )  # the disk is full: frames are judged, not stored
    waiting = asyncio.create_task(admission.room())
    await asyncio.sleep(0)
    admission.poll(3.0, 0.0)
    await waiting
    cancelled = asyncio.create_task(admission.room())
    await asyncio.sleep(0)
    cancelled.cancel()  # a stream ends while it waits: the other streams are still woken
    await asyncio.wait([cancelled])
    waiting = asyncio.create_task(admission.room())
    await asyncio.sleep(0)
    admission.poll(4.0, 0.0)
    await waiting
