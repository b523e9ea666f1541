"""`gangline advise` against the service of a real aggregator."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gangline import cli
from gangline.aggregator.advisories import replay
from gangline.aggregator.commands import advise, advise_text
from gangline.aggregator.commands.advise import FORMATTERS
from gangline.aggregator.commands.explain import explanation_text
from gangline.aggregator.commands.host_table import render
from gangline.aggregator.store.store import Store
from gangline.contract.wire import advisory_pb2 as wire
from gangline.contract.wire import score_pb2
from tests.aggregator.advisories.served import book_of, dead_gpu, observe, served
from tests.processes import GUARD_SECONDS

Say = Callable[..., str]


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """An aggregator's services with one advisory, in a thread of their own."""
    ready, addresses, stop = threading.Event(), list[str](), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def run() -> None:
        world = dead_gpu()
        store = Store.open(tmp_path)
        assert world.snapshot is not None
        store.submit_scores(world.snapshot, world.snapshot.hosts)
        book = book_of(store, world)
        observe(book, world)
        await book.flush()
        async with served(book, world, addresses):
            ready.set()
            await stop.wait()
        store.close()

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()))
    thread.start()
    assert ready.wait(GUARD_SECONDS)
    yield addresses[0]
    loop.call_soon_threadsafe(stop.set)
    thread.join(GUARD_SECONDS)
    loop.close()


@pytest.fixture
def say(address: str, capsys: pytest.CaptureFixture[str]) -> Say:
    """Run `gangline advise` with *message*, expect *code*, and return stdout and stderr."""

    def said(*message: str, code: int = 0) -> str:
        assert cli.main(["advise", *message, "--aggregator", address]) == code
        captured = capsys.readouterr()
        return captured.out + captured.err

    return said


@pytest.mark.slow
def test_a_replay_that_takes_long_is_no_other_program(
    address: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a million pieces of evidence took three minutes: "an aggregator that hangs"."""
    done = threading.Event()

    def evaluated(*_: Any) -> replay.ReplayReport:
        assert done.wait(GUARD_SECONDS)
        return replay.ReplayReport((), (), (), 0, 0)

    monkeypatch.setattr(replay, "replay_rule", evaluated)
    monkeypatch.setattr(advise, "WHAT_IF_SECONDS", 0.5)
    try:
        assert cli.main(["advise", "what-if", "gpu.xid 95", "--aggregator", address]) == 1
    finally:
        done.set()
    message = "gangline advise: no result after 0.5 s; the aggregator continues"
    assert capsys.readouterr().err.startswith(message)


def test_an_operator_lists_shows_accepts_and_is_refused(say: Say) -> None:
    """The steps of an on-call operator, from the list to the report that it is done."""
    listed = say("list")
    assert "a1" in listed and "DRAIN_AT_CHECKPOINT" in listed and "host h2" in listed
    shown = say("show", "a1")
    assert "then RESET_GPU" in shown and "waiting" in shown and "acting" in shown
    assert "state    PROPOSED as of" in shown and shown.count("policy: drain") == 1
    accepted = say("accept", "a1")
    assert "ACCEPTED" in accepted
    assert "`gangline advise done a1`" in accepted.replace("\n           ", " ")
    before = datetime.fromisoformat(json.loads(say("show", "a1", "--json"))["lease_expire_time"])
    say("accept", "a1", "--for", "8h")
    after = datetime.fromisoformat(json.loads(say("show", "a1", "--json"))["lease_expire_time"])
    assert timedelta(hours=7.8) < after - before < timedelta(hours=8)
    assert "lease: 691200 s, expected 10 s to 7 days" in say("accept", "a1", "--for", "8d", code=1)
    assert "host h2" in say(), "without a command: list"
    assert "DONE" in say("done", "a1", "--reason", "drained by hand")
    assert "DONE" in say("list", "--all")
    left = say("list")
    assert "nothing is advised" in left
    assert "out of service by advice that has ended: 1 host; they count" in left
    assert "a1 DRAIN_AT_CHECKPOINT: done by " in left and "drained by hand" in left
    assert "has ended" in say("list", "--host", "h2")
    assert "has ended" not in say("list", "--host", "h1")
    assert "it has ended" in say("reject", "a1", "--reason", "no", code=1)
    assert "a99" in say("show", "a99", code=4)
    replayed = say("what-if", "gpu.xid 95", "--days", "30")
    assert "1 episode; 1 advisory, 0 cases held back" in replayed and "h2" in replayed
    assert say("what-if", "XID 95") == replayed and "nothing" in say("what-if", "gpu.xid 79")
    assert "did you mean gpu_thermal or " in say("what-if", "gpu_termal", code=1)


def test_what_was_read_is_what_is_answered(
    address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An operator read a drain and accepted an eviction: the answering command fetched the etag."""

    def say(*message: str, code: int = 0) -> tuple[str, str]:
        assert cli.main(["advise", *message, "--aggregator", address]) == code
        captured = capsys.readouterr()
        return captured.out, captured.err

    assert "etag     a1-1" in say("show", "a1")[0]
    assert json.loads(say("list", "--json")[0])["format"] == cli.JSON_FORMAT
    assert json.loads(say("list", "--json")[0])["advisories"][0]["etag"] == "a1-1"
    assert say("accept", "a1", "--etag", "a1-1")[1] == ""
    assert "it is 'a1-2' by now" in say("done", "a1", "--etag", "a1-1", code=1)[1]
    assert say("done", "a1")[1] == (
        "gangline advise: reporting done for the current version: DRAIN_AT_CHECKPOINT for host h2 "
        "(use --etag a1-2 to answer only this version)\n"
    )
    assert "etag " not in say("show", "a1")[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        # With an empty script variable, any current version was accepted.
        *[(["accept", "a1", "--etag", etag], "expected an etag, such as a12-3") for etag in ("", "a1", "1", "a1-x", "*")],
        # `advise show gpu-007` answered INVALID_ARGUMENT: name: 'advisories/gpu-007'.
        *[(["show", name], "expected the name of an advisory, such as a12")
          for name in ("h2", "", "a", "12", "a1 ", "a-1", "advisories/x")],
        # A pattern such as `gpu-*` would take unknown hosts out.
        (["out", "gpu-*", "--reason", "x"], "expected host names"),
        (["out", "h[1-99999]", "--reason", "x"], "at most 10,000"),
        (["out", "h[2", "--reason", "x"], "h[2"),
        # A number outside the range of the wire type, or a wrong one of hours, raised a traceback.
        *[(["what-if", "gpu.xid 95", "--days", days], "expected a ")
          for days in ("-1", "99999999999", "1e2", "\u0663")],
        *[(["out", "h1", "--reason", "x", "--hours", hours], "expected a duration from 36s to 7d")
          for hours in ("nan", "-1", "1e9", "x")],
        # Without a reason nobody could explain later why the host stayed in service.
        (["reject", "a1"], "--reason"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_told_before_anybody_is_asked(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main(["advise", *arguments])
    assert message in capsys.readouterr().err


def test_hosts_out_and_back_by_name_and_range(say: Say) -> None:
    """A typing error in a name was reported next to another user's count, with exit code 0."""
    out = say("out", "h[0-1]", "h9", "--reason", "burn-in", "--hours", "2", code=4)
    assert out.startswith(
        "no agent has registered as h9: not counted\nreported out by you in all: 2 hosts;"
    )
    listed = say("list")
    assert "reported out by others: 2 hosts" in listed and ": burn-in" in listed
    assert "reported out by others: 1 host, which" in say("list", "--host", "nodes/h0")
    assert "reported out by you in all: 1 host;" in say("back", "h0")
    assert "reported out by you in all: 0 hosts;" in say("back", "h1")
    assert "burn-in" not in say("list")
    assert "no agent has registered as h9" in say("back", "h9", code=4)
    assert "no agent has registered as h9" in say("list", "--host", "h9", code=4)


def test_what_others_took_out_is_still_out(
    address: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`back h1` reported success while the scheduler kept h1 out."""
    args = ["--aggregator", address]
    monkeypatch.setattr("getpass.getuser", lambda: "slurm")
    assert cli.main(["advise", "out", "h1", "--reason", "kernel update", *args]) == 0
    monkeypatch.setattr("getpass.getuser", lambda: "alice")
    assert cli.main(["advise", "back", "h1", *args]) == 0
    assert "still out of service, as reported by another user: h1" in capsys.readouterr().err


def test_what_advice_holds_out_is_given_up(say: Say) -> None:
    """A host was returned to its vendor, and still counted as out in its rack."""
    say("accept", "a1")
    say("done", "a1")
    assert "you accept it, run `gangline advise back HOST`" in say("list")
    say("out", "h2", "--reason", "burn-in")
    assert "still out of service by advice, a1: `gangline advise back h2` again" in say(
        "back", "h2"
    )
    assert "still out" not in say("back", "h2") and "out by advice" not in say("list")


def test_what_is_put_off_for_want_of_room_is_not_accepted(
    address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """After `accept` the operator missed the refusal, exit code 0, and drained a host too many."""
    args = ["--aggregator", address]
    assert cli.main(["advise", "out", "h0", "--reason", "burn-in", *args]) == 0
    assert cli.main(["advise", "accept", "a1", *args]) == 1
    captured = capsys.readouterr()
    assert "DEFERRED" in captured.out and "not accepted: do not act on the host" in captured.err


def test_days_are_within_a_year(say: Say) -> None:
    """The message of the aggregator is passed on."""
    assert "days" in say("what-if", "gpu.xid 95", "--days", "999", code=1)


@pytest.mark.parametrize("width", [80, 120, 200])
def test_what_is_advised_fits_the_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines of 150 characters on a console of 80, and a name that colors it red."""
    monkeypatch.setenv("COLUMNS", str(width))
    advisory = wire.Advisory(
        name="advisories/a12", subject="rack rack-005 \x1b[31mpower", action=wire.DRAIN_AT_CHECKPOINT,
        state=wire.WITHDRAWN, reason_text="word " * 60, cost_of_waiting_gpu_hours=1234.5, scope="rack",
    )  # fmt: skip
    listed = FORMATTERS["list"](wire.ListAdvisoriesResponse(advisories=[advisory] * 2))
    shown = FORMATTERS["show"](advisory)
    for text in (listed, shown):
        assert "word word" in text and "\x1b" not in text
        assert all(len(line) <= width for line in text.split("\n"))
    assert "1,234.5" in listed and "expires" not in shown, "it has ended"


def test_a_moment_that_is_over_is_said_to_be() -> None:
    """An advisory listed at 00:48 had "act by 00:32"."""
    advisory = wire.Advisory(name="advisories/a1", subject="host h1", state=wire.PROPOSED)
    advisory.act_by_time.FromDatetime(datetime(2026, 11, 23, 0, 32))
    before, after = (datetime(2026, 11, 23, 0, minute, tzinfo=UTC) for minute in (31, 48))
    assert "from then on waiting has cost more" in advise_text.advisory_text(advisory, before)
    assert "that time has passed: waiting has cost more" in advise_text.advisory_text(
        advisory, after
    )


def test_what_only_a_later_aggregator_knows_is_told_by_its_number() -> None:
    """An upgraded aggregator sent a new action, and an older `gangline advise` crashed."""
    advisory: Any = wire.Advisory(
        name="advisories/a12", subject="host h1", scope="host", reason_text="hot"
    )
    advisory.action = advisory.then_action = advisory.basis = advisory.state = 99
    held: Any = wire.HeldBack(node="nodes/h1")
    held.action = 98
    listed = FORMATTERS["list"](
        wire.ListAdvisoriesResponse(advisories=[advisory], held_back=[held], held_back_count=1)
    )
    assert "host h1" in listed and "99" in listed and "h1  98: " in listed
    assert "99, then 99 for host h1" in FORMATTERS["show"](advisory)
    score: Any = score_pb2.NodeScore(node="nodes/h1", relative_speed=0.5)
    score.state = 97
    assert "h1 is 97" in explanation_text(score, 80) and "97" in render([score], 80)


@pytest.mark.parametrize(
    ("state_text", "told"),
    [
        ("hot", ""), ("it has got worse: hot", ": it has got worse"),
        ("accepted by ann", ": accepted by ann"), ("", ""),
    ],
)  # fmt: skip
def test_why_is_told_once(state_text: str, told: str) -> None:
    """The same three lines under `why` and `state` hid any news."""
    advisory = wire.Advisory(
        name="advisories/a1", state=wire.PROPOSED, reason_text="hot", state_text=state_text
    )
    lines = FORMATTERS["show"](advisory).split("\n")
    assert [line.partition(" UTC")[2] for line in lines if line.startswith("  state ")] == [told]


def test_what_would_have_held_advice_back_is_told_of_its_episode() -> None:
    """The report counted two held-back cases, but did not show which of a hundred, nor why."""
    held = wire.RuleEpisode(
        node="nodes/h3",
        action=wire.EVICT_NOW,
        message="lost data",
        held_back_text="2 of rack r1 are out",
    )
    given = wire.RuleEpisode(
        node="nodes/h1", action=wire.EVICT_NOW, advised=True, message="lost data"
    )
    answer = wire.EvaluateRuleResponse(episodes=[given, held], episodes_count=2, held_back_count=1)
    lines = FORMATTERS["what-if"](answer).split("\n")
    (of_h1,), (of_h3,) = (
        [line for line in lines if line.startswith(host)] for host in ("h1", "h3")
    )
    assert of_h1.endswith("  lost data")
    assert of_h3.endswith("held back: 2 of rack r1 are out; lost data")
