"""Answers to advice are on disk before they are acknowledged, whatever the store's commits."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.aggregator.advisories.advisory import AdvisoryState
from gangline.aggregator.advisories.engine import AdvisoryEngine
from gangline.aggregator.advisories.messages import Acked
from gangline.aggregator.advisories.workloads import Gang
from gangline.aggregator.errors import ServiceUnavailable
from gangline.aggregator.store import answer_journal
from gangline.aggregator.store.answer_journal import (
    AnswerJournal,
    AnswerRecord,
    encode_answer,
    parse_answers,
)
from tests.aggregator.advisories.served import Tables, book_of, dead_gpu, observe
from tests.processes import GUARD_SECONDS
from tests.worlds import World

ACCEPTED, DONE = AdvisoryState.ACCEPTED, AdvisoryState.DONE

RECORDS = st.lists(st.builds(AnswerRecord, st.integers(1, 9), st.just("Acked"), st.text(st.characters(codec="ascii", exclude_characters="\n\r"))))  # fmt: skip


class BusyDisk(Tables):
    """A store whose commits wait until `is_free`, and write nothing after the process is killed."""

    def __init__(self) -> None:
        super().__init__()
        self.is_free, self.is_killed, self.commits = threading.Event(), False, 0
        self.is_free.set()

    def in_transaction(self, work: Callable[[Any], Any], *, ahead: bool = False) -> Any:
        assert self.is_free.wait(GUARD_SECONDS)
        if self.is_killed:
            raise OSError("killed")
        self.commits += 1
        return super().in_transaction(work, ahead=ahead)


def started(path: Path, store: Tables, world: World) -> AdvisoryEngine:
    return book_of(store, world, journal=AnswerJournal(path))


def gang(world: World) -> Gang:
    return Gang("train-8", ("h0",), 8, 0.0, world.now_ns * 2, "slurm", world.now_ns)


async def answer(book: AdvisoryEngine, world: World, state: AdvisoryState) -> None:
    acked = Acked(world.now_ns, "a1", state, "slurm")
    await asyncio.wait_for(book.answer(acked), GUARD_SECONDS)


async def proposed(path: Path, store: Tables, world: World) -> AdvisoryEngine:
    """Return an engine that has proposed a1, on disk."""
    book = started(path, store, world)
    observe(book, world)
    await book.flush()
    return book


async def answered_and_killed(path: Path, store: BusyDisk, world: World) -> None:
    """Accept a1 and report it as done while a commit of the store hangs; then die."""
    book = await proposed(path, store, world)
    commits = store.commits
    store.is_free.clear()
    book.update_gangs([gang(world)], ())
    hanging = asyncio.create_task(book.flush())
    await answer(book, world, ACCEPTED)
    await answer(book, world, DONE)
    assert store.commits == commits
    shown = book.find("a1")
    assert shown is not None and shown.state is DONE, "others see what is acknowledged"
    states = [change.advisory.state for change in book.feed.after(0) or () if change.advisory]
    assert states == [AdvisoryState.PROPOSED, ACCEPTED, DONE]
    store.is_killed = True
    store.is_free.set()
    with pytest.raises(OSError, match="killed"):
        await hanging


def test_an_answer_waits_for_no_commit_and_survives_a_kill(tmp_path: Path) -> None:
    """Accepts took 5 to 140 s on a busy machine: each waited for a commit of up to 10 s."""
    store, world, path = BusyDisk(), dead_gpu(), tmp_path / "answers"
    asyncio.run(answered_and_killed(path, store, world))
    store.is_killed = False
    # Killed again before the store had a commit.
    books = [started(path, store, world), started(path, store, world)]
    for book in books:
        shown = book.find("a1")
        assert shown is not None and (shown.state, shown.owner) == (DONE, "slurm")
    asyncio.run(books[-1].flush())
    assert path.stat().st_size == 0, "the store has all"
    kinds = store.connection.execute("SELECT kind FROM advice_events ORDER BY number").fetchall()
    assert [kind for (kind,) in kinds].count("Acked") == 2
    store.close()


async def test_what_is_told_early_is_told_once(tmp_path: Path) -> None:
    """The store commits after the journal: watchers must not see an earlier state again."""
    store, world = BusyDisk(), dead_gpu()
    book = await proposed(tmp_path / "answers", store, world)
    await answer(book, world, ACCEPTED)
    await book.flush()
    await answer(book, world, DONE)
    await book.flush()
    store.close()
    revisions = [change.advisory.revision for change in book.feed.after(0) or () if change.advisory]
    assert revisions == sorted(set(revisions)) and len(revisions) == 3


def test_after_a_jump_of_the_clock_an_answer_waits_for_the_store(tmp_path: Path) -> None:
    """A jump is not an event: later answers, replayed without the jump, would be refused."""

    async def run() -> tuple[int, int]:
        store, world = BusyDisk(), dead_gpu()
        book = await proposed(tmp_path / "answers", store, world)
        book.apply_clock_jump(10**12, world.now_ns + 10**12)
        commits = store.commits
        await answer(book, world, ACCEPTED)
        after_jump = store.commits - commits
        await answer(book, world, DONE)
        return after_jump, store.commits - commits

    assert asyncio.run(run()) == (1, 1)


async def test_a_disk_that_refuses_refuses_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer that is not on disk is refused; a later retry is acknowledged."""
    store, world = BusyDisk(), dead_gpu()
    book = await proposed(tmp_path / "answers", store, world)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", _full)
        with pytest.raises(ServiceUnavailable, match="No space left"):
            await answer(book, world, ACCEPTED)
    shown = book.find("a1")
    assert shown is not None and shown.state is AdvisoryState.PROPOSED
    await book.answers_durable()
    shown = book.find("a1")
    assert shown is not None and shown.state is ACCEPTED


def _full(_: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_journal_waits_for_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal is bounded; beyond its limit answers are as slow as the store, not refused."""
    monkeypatch.setattr(answer_journal, "ANSWERS_BYTES_MAX", 10)

    async def run() -> int:
        store, world = BusyDisk(), dead_gpu()
        book = await proposed(tmp_path / "answers", store, world)
        commits = store.commits
        await answer(book, world, ACCEPTED)
        return store.commits - commits

    assert asyncio.run(run()) == 1


@given(RECORDS, st.integers(0, 10_000), st.binary(max_size=40))
def test_a_torn_end_costs_only_itself(records: list[AnswerRecord], at: int, torn: bytes) -> None:
    """After a power cut in the middle of an append the earlier records are readable."""
    lines = [encode_answer(record) for record in records]
    data = b"".join(lines)
    at = min(at, len(data))
    complete, size = 0, 0
    while complete < len(lines) and size + len(lines[complete]) <= at:
        size += len(lines[complete])
        complete += 1
    parsed = list(parse_answers(data[:at] + b"\0" + torn))
    assert parsed[:complete] == records[:complete] and len(parsed) <= complete


def test_answers_that_do_not_follow_the_store_are_not_replayed(tmp_path: Path) -> None:
    """An older store restored next to a newer journal has other advisories than the journal."""
    store, world, path = BusyDisk(), dead_gpu(), tmp_path / "answers"
    asyncio.run(proposed(path, store, world))
    path.write_bytes(encode_answer(AnswerRecord(4711, "Tick", '{"now_ns": 1}')))
    assert (
        started(path, store, world).machine.state.advisories["a1"].state is AdvisoryState.PROPOSED
    )
    store.close()
