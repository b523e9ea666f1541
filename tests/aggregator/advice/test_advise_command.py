"""`gangline advise` against a real aggregator's service, in its own words."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gangline import cli
from gangline.aggregator.commands.advise import TOLD
from gangline.aggregator.store.store import Store
from gangline.fingerprints.wire import advisory_pb2 as wire
from tests.aggregator.advice.served import book_of, dead_gpu, observe, served
from tests.processes import GUARD_SECONDS


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """An aggregator's services with one advisory, in a thread of their own."""
    ready, found, stop = threading.Event(), list[str](), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def run() -> None:
        world = dead_gpu()
        store = Store.open(tmp_path)
        assert world.snapshot is not None
        store.submit_scores(world.snapshot, world.snapshot.hosts)
        book = book_of(store, world)
        observe(book, world)
        await book.flush()
        async with served(book, world, found):
            ready.set()
            await stop.wait()
        store.close()

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()))
    thread.start()
    assert ready.wait(GUARD_SECONDS)
    yield found[0]
    loop.call_soon_threadsafe(stop.set)
    thread.join(GUARD_SECONDS)
    loop.close()


def test_an_operator_lists_shows_accepts_and_is_refused(
    address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The on-call's way, from what is advised to having said that it is done."""

    def say(*words: str, code: int = 0) -> str:
        assert cli.main(["advise", *words, "--aggregator", address]) == code
        told = capsys.readouterr()
        return told.out + told.err

    listed = say("list")
    assert "a1" in listed and "DRAIN_AT_CHECKPOINT" in listed and "host h2" in listed
    shown = say("show", "a1")
    assert "then RESET_GPU" in shown and "waiting" in shown and "acting" in shown
    assert "ACCEPTED" in say("accept", "a1")
    assert "DONE" in say("done", "a1", "--reason", "drained by hand")
    assert "DONE" in say("list", "--all") and "nothing is advised" in say("list")
    assert "it has ended" in say("reject", "a1", "--reason", "no", code=1)
    assert "a99" in say("show", "a99", code=4)
    replayed = say("what-if", "gpu.xid 95", "--days", "30")
    assert "1 episodes; 1 advisories, 0 cases held back" in replayed and "h2" in replayed
    assert "nothing" in say("what-if", "gpu.xid 79")
    out = say("out", "h1", "h9", "--reason", "burn-in", "--hours", "2")
    assert out.startswith("1 hosts are out by your word") and "no agent has registered as h9" in out
    listed = say("list")
    assert "out by others' word: 1 hosts" in listed and ": burn-in" in listed
    assert say("back", "h1").startswith("0 hosts are out") and "burn-in" not in say("list")
    assert "days" in say("what-if", "gpu.xid 95", "--days", "999", code=1)


@pytest.mark.parametrize("days", ["-1", "99999999999", "1e2", "\u0663"])
def test_days_that_are_none_are_refused(days: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A number that the wire does not bear was a stack trace."""
    with pytest.raises(SystemExit):
        cli.main(["advise", "what-if", "gpu.xid 95", "--days", days])
    assert "expected a whole number of days" in capsys.readouterr().err


@pytest.mark.parametrize("width", [80, 120, 200])
def test_what_is_advised_fits_the_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines of 150 characters on a console of 80, and a name that paints it red."""
    monkeypatch.setenv("COLUMNS", str(width))
    one = wire.Advisory(
        name="advisories/a12", subject="rack rack-005 \x1b[31mpower", action=wire.DRAIN_AT_CHECKPOINT,
        state=wire.WITHDRAWN, reason_text="word " * 60, cost_of_waiting_gpu_hours=1234.5, scope="rack",
    )  # fmt: skip
    listed = TOLD["list"](wire.ListAdvisoriesResponse(advisories=[one] * 2))
    shown = TOLD["show"](one)
    for text in (listed, shown):
        assert "word word" in text and "\x1b" not in text
        assert all(len(line) <= width for line in text.split("\n"))
    assert "1,234.5" in listed and "expires" not in shown, "it has ended"


def test_a_rejection_needs_a_reason(capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody could say later why the host had been left in."""
    with pytest.raises(SystemExit):
        cli.main(["advise", "reject", "a1"])
    assert "--reason" in capsys.readouterr().err


@pytest.mark.parametrize("hours", ["nan", "-1", "1e9", "x"])
def test_how_long_is_a_number_of_hours(hours: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A trace was all that an operator got."""
    with pytest.raises(SystemExit):
        cli.main(["advise", "out", "h1", "--reason", "x", "--hours", hours])
    assert "expected hours from 0.01 to 168" in capsys.readouterr().err
