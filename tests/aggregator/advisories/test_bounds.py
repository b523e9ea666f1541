"""Bounds that hold for any caller: feeds, outcomes, and a full disk."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import grpc
import pytest

from gangline.aggregator.advisories import declared_out, replay, rows
from gangline.aggregator.advisories import engine as books
from gangline.aggregator.advisories.advisory import Action, Advisory, AdvisoryState, Basis, Scope
from gangline.aggregator.advisories.advisory_limits import HOUR_NS, SECOND_NS
from gangline.aggregator.advisories.messages import (
    Acked,
    Frozen,
    Instruction,
    Member,
    Probation,
    Publish,
    Renew,
    TakenOut,
)
from gangline.aggregator.advisories.observer import Observer
from gangline.aggregator.advisories.publisher import Publisher
from gangline.aggregator.advisories.state import DeclaredOut, MachineState
from gangline.aggregator.advisories.watch_feed import WatchFeed
from gangline.aggregator.advisories.workloads import Gang, ScheduledGangs
from gangline.aggregator.commands.advise_text import list_text
from gangline.aggregator.errors import ServiceUnavailable
from gangline.aggregator.service.advisory import AdvisoryService
from gangline.contract.wire import advisory_pb2, outcome_pb2
from tests.aggregator.advisories.served import (
    LIMITS,
    Tables,
    book_of,
    dead_gpu,
    observe,
    observed,
    served,
)
from tests.processes import GUARD_SECONDS
from tests.worlds import World

OUTCOMES: dict[str, tuple[dict[str, Any], str]] = {
    "a node": ({"nodes": ["h1"]}, "outcomes[0].nodes: 'h1', expected nodes/NODE"),
    "a node of two lines": (
        {"nodes": ["nodes/a\nb"]},
        "outcomes[0].nodes: 'nodes/a\\nb', expected",
    ),
    "whom it blames": ({"blamed_node": "h1"}, "outcomes[0].blamed_node: 'h1', expected nodes/NODE"),
    "one that was not there": (
        {"blamed_node": "nodes/h9"},
        "outcomes[0].blamed_node: 'nodes/h9' is not one of its nodes",
    ),
    "its advice": ({"advisory": "a1"}, "outcomes[0].advisory: 'a1', expected advisories/a12"),
    "no begin": ({"start_time": {}}, "outcomes[0].start_time: is missing"),
    "no end": ({"end_time": {}}, "outcomes[0].end_time: expected later than start_time"),
    "no id": ({"outcome_id": ""}, "outcomes[0].outcome_id: expected 1 to 128"),
    "a loss": ({"lost_gpu_hours": -1.0}, "outcomes[0].lost_gpu_hours: -1.0, expected 0 to 1e9"),
}


def advisory(number: int, state: AdvisoryState) -> Advisory:
    return Advisory(
        f"a{number}", "host h1", ("h1",), Action.AVOID, Scope.HOST, Basis.STATISTICAL, "PCIE", "", state,
        "", 0, 0, 0,
    )  # fmt: skip


async def test_a_watcher_that_fell_behind_does_not_spin() -> None:
    """With its whole backlog dropped and no open advisory, a watcher's loop never yielded."""
    feed = WatchFeed(1, changes_max=2)
    changes = feed.watch(None)
    assert (await anext(changes)).advisory is None
    for number in range(1, 6):
        feed.publish(advisory(number, AdvisoryState.WITHDRAWN))
    bookmark = await anext(changes)
    assert (bookmark.number, bookmark.advisory) == (5, None)
    feed.publish(advisory(6, AdvisoryState.PROPOSED))
    change = await anext(changes)
    assert change.advisory is not None and change.advisory.name == "a6"
    for number in range(7, 12):
        feed.publish(advisory(number, AdvisoryState.WITHDRAWN))
    again = [await anext(changes) for _ in range(2)]
    assert [received.advisory and received.advisory.name for received in again] == ["a6", None]


async def test_who_breaks_off_in_the_middle_of_what_is_open_begins_anew() -> None:
    """A watcher that breaks off in the middle of the open advisories starts over.

    After a restart an executor read three of a thousand, lost its connection, continued after the
    third, and never received the others.
    """
    feed = WatchFeed(1)
    feed.restore([advisory(number, AdvisoryState.PROPOSED) for number in range(1, 6)])
    changes = feed.watch(None)
    seen = [await anext(changes) for _ in range(3)]
    assert [change.number for change in seen] == [None] * 3
    after_restart = [await anext(changes) for _ in range(3)]
    assert (after_restart[-1].number, after_restart[-1].advisory) == (0, None)
    feed.publish(advisory(6, AdvisoryState.PROPOSED))
    assert (await anext(changes)).number == 1
    resumed = feed.watch(0)  # from the bookmark on, nothing twice
    assert (await anext(resumed)).number == 1


def test_what_changed_and_was_renewed_at_once_is_told_in_order() -> None:
    """After a full disk watchers saw DONE before ACCEPTED: a renewal carried the later state."""
    accepted, done, other = (
        advisory(1, AdvisoryState.ACCEPTED), advisory(1, AdvisoryState.DONE), advisory(2, AdvisoryState.DONE),
    )  # fmt: skip
    instructions: list[Instruction] = [
        Renew("a1", "h1", 7, "x"), Publish(accepted, "x"), Publish(done, "x"),
        Probation("h1", 9, "x", "a1"), Renew("a2", "h2", 7, "x"),
    ]  # fmt: skip
    batch = rows.AdvisoryBatch(
        decisions=[(number, 5, instruction) for number, instruction in enumerate(instructions)]
    )
    assert [*batch.watch_updates({"a1": done, "a2": other})] == [accepted, done, other]


class Full(Tables):
    """A disk that refuses writes while *full*."""

    full = False

    def in_transaction(self, work: Callable[[Any], Any], *, ahead: bool = False) -> Any:
        if self.full:
            raise OSError("no space left")
        return super().in_transaction(work, ahead=ahead)


async def test_a_disk_that_takes_nothing_does_not_fill_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Eight executors retried each second, for a night."""
    monkeypatch.setattr(books, "ROWS_WAITING_MAX", 6)
    world, store, book = observed(Full())
    await book.flush()
    store.full = True
    messages = set()
    for _ in range(50):
        with pytest.raises(ServiceUnavailable) as raised:
            await book.answer(Acked(world.now_ns, "a1", AdvisoryState.ACCEPTED, "slurm"))
        messages.add(str(raised.value))
    assert any("queue for it is full" in message for message in messages)
    assert len(book._batch.decisions) < 12
    store.full = False
    await book.flush()
    assert (
        await book.answer(Acked(world.now_ns, "a1", AdvisoryState.DONE, "slurm"))
    ).state is AdvisoryState.DONE


async def test_a_gang_told_again_and_again_to_a_full_disk_counts_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ten thousand hosts each half minute: ten minutes of a full disk stopped all advice."""
    monkeypatch.setattr(books, "HOSTS_WAITING_MAX", 20)
    world, store = dead_gpu(), Full()
    book = book_of(store, world)
    store.full = True
    gang = Gang("w", tuple(f"h{n}" for n in range(8)), 0, 0.0, 2 * world.now_ns, "s", 0)
    for _ in range(50):
        book.update_gangs([gang], [])
        book.update_gangs([gang], [])
        with pytest.raises(ServiceUnavailable):
            await book.persisted()
    assert book._batch.hosts == 8
    book.update_gangs([gang._replace(workload=name) for name in ("v", "x")], [])
    with pytest.raises(ServiceUnavailable, match="queue for it is full"):
        book.check_room()
    store.close()


async def test_nothing_is_told_before_it_is_on_disk() -> None:
    """An unstored a12 was listed; after a restart a12 was another host's, and was accepted."""
    world, store = dead_gpu(), Full()
    book = book_of(store, world)
    store.full = True
    observe(book, world)
    with pytest.raises(OSError, match="no space left"):
        await book.flush()
    assert book.machine.state.advisories.keys() == {"a1"}
    assert (book.find("a1"), book.known_advisories()) == (None, [])
    store.full = False
    await book.flush()
    shown = book.find("a1")
    assert shown is not None
    assert shown.state is AdvisoryState.PROPOSED
    assert book.known_advisories() == [shown]
    store.full = True
    with pytest.raises(ServiceUnavailable):
        await book.answer(Acked(world.now_ns, "a1", AdvisoryState.ACCEPTED, "slurm"))
    assert book.find("a1") == shown


async def test_a_fleet_told_again_and_again_to_a_full_disk_does_not_fill_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A scheduler reported ten thousand absent nodes each minute: a row each, and a megabyte."""
    monkeypatch.setattr(books, "HOSTS_WAITING_MAX", 20)
    world, store = dead_gpu(), Full()
    book = book_of(store, world)
    store.full = True
    async with served(book, world) as (stub, _):
        nodes = [advisory_pb2.UnavailableNode(node=f"nodes/h{n}", reason="x") for n in range(4)]
        request = advisory_pb2.ReportUnavailableNodesRequest(actor="slurm", nodes=nodes)
        messages = set[str]()
        for _ in range(50):
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await stub.ReportUnavailableNodes(request)
            assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
            messages.add(raised.value.details() or "")
        assert any("queue for it is full" in message for message in messages)
        assert book._batch.hosts <= 28 and len(book._batch.events) < 10
        store.full = False
        await book.flush()
        assert book._batch.hosts == 0 and (await stub.ReportUnavailableNodes(request)).nodes_count
    store.close()


async def test_what_was_decided_before_a_turn_failed_is_written() -> None:
    """A bug in each turn: proposals made before it in the same turn were never published."""
    world, store = dead_gpu(), Tables()
    book: Any = book_of(store, world)

    def observe_then_fail(*given: Any) -> None:
        books.AdvisoryEngine.observe(book, *given)
        raise ZeroDivisionError

    book.observe = observe_then_fail
    publisher = Publisher(book)
    publisher.observe(world.snapshot, world.fleet.gpus)  # type: ignore[arg-type]
    assert publisher._task is not None
    await publisher._task
    assert [shown.name for shown in book.feed.open] == ["a1"]
    store.close()


class Slow(Tables):
    """A disk that is slow until `go`."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go = threading.Event(), threading.Event()
        self.slow = False

    def in_transaction(self, work: Callable[[Any], Any], *, ahead: bool = False) -> Any:
        if self.slow:
            self.begun.set()
            assert self.go.wait(GUARD_SECONDS)
        return super().in_transaction(work, ahead=ahead)


async def test_who_hangs_up_while_it_is_written_does_not_have_it_written_twice() -> None:
    """After a scheduler's deadline of 1 s on a slow disk its outcome and answer counted twice."""
    world, store, book = observed(Slow())
    await book.flush()
    store.slow = True
    answer = Acked(world.now_ns, "a1", AdvisoryState.ACCEPTED, "slurm")
    asking = asyncio.create_task(book.answer(answer))
    await asyncio.to_thread(store.begun.wait, GUARD_SECONDS)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    store.go.set()
    await book.flush()
    rows = store.connection.execute(
        "SELECT advisory, revision, count(*) FROM advisories GROUP BY ALL ORDER BY ALL"
    )
    assert rows.fetchall() == [("a1", 1, 1), ("a1", 2, 1)]
    assert [shown.state for shown in book.feed.open] == [AdvisoryState.ACCEPTED]
    again = book_of(store, world)
    assert again.find("a1") == book.find("a1")


def outcome(world: World, number: int = 1, ahead_seconds: int = 0) -> outcome_pb2.Outcome:
    result = outcome_pb2.Outcome(outcome_id=f"job-{number}", workload="w", nodes=["nodes/h2"])
    result.start_time.FromSeconds(world.now_ns // SECOND_NS - 7200)
    result.end_time.FromSeconds(world.now_ns // SECOND_NS + ahead_seconds)
    return result


async def test_outcomes_that_are_known_are_so_many_and_the_newest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each id was remembered for as long as the aggregator ran."""
    monkeypatch.setattr(books, "OUTCOMES_KNOWN_MAX", 3)
    world, store = dead_gpu(), Tables()
    book = book_of(store, world)
    async with served(book, world) as (_, stub):
        request = outcome_pb2.ReportOutcomesRequest()
        for number in range(6):
            request = outcome_pb2.ReportOutcomesRequest(outcomes=[outcome(world, number)])
            assert (await stub.ReportOutcomes(request)).accepted_count == 1
            world.now_ns += SECOND_NS
        assert (await stub.ReportOutcomes(request)).known_count == 1
    assert [name for _, name in book._outcomes] == ["job-3", "job-4", "job-5"]
    again = book_of(store, world)
    assert [name for _, name in again._outcomes] == ["job-3", "job-4", "job-5"]


def test_each_who_tells_of_a_host_counts() -> None:
    """An adapter that signed with its process id reported the same hosts as another each run."""
    memory = MachineState()
    members = tuple(Member(f"h{number}") for number in range(3))
    memory.absent = {
        f"h{number}": {"a": DeclaredOut("", 0, 1)} for number in range(declared_out.HOSTS_MAX - 3)
    }
    out = TakenOut(0, "b", "", 1, members)
    assert declared_out.has_room_for(memory, [out, out])
    memory.absent["h7"]["c"] = DeclaredOut("", 0, 1)
    assert not declared_out.has_room_for(memory, [out])
    assert declared_out.has_room_for(memory, [replace(out, by="a")])  # reported again


async def test_who_hangs_up_does_not_have_two_rules_evaluated_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A dashboard with a short deadline retried, and each evaluation continued in a thread."""
    world, store = dead_gpu(), Tables()
    book = book_of(store, world)
    begun, go = threading.Event(), threading.Event()

    def what_if(*_: object) -> replay.ReplayReport:
        begun.set()
        assert go.wait(GUARD_SECONDS)
        return replay.ReplayReport((), (), (), 0, 0)

    monkeypatch.setattr(book, "what_if", what_if)
    async with served(book, world) as (stub, _), asyncio.timeout(GUARD_SECONDS):
        request = advisory_pb2.EvaluateRuleRequest(rule="gpu.xid 95", days=30)
        asking = stub.EvaluateRule(request)
        waiting = asyncio.ensure_future(asking.code())
        await asyncio.to_thread(begun.wait, GUARD_SECONDS)
        asking.cancel()
        assert await waiting is grpc.StatusCode.CANCELLED
        for _ in range(3):
            with pytest.raises(grpc.aio.AioRpcError, match="another rule is being evaluated"):
                await stub.EvaluateRule(request)
        go.set()
        while True:
            try:
                assert not (await stub.EvaluateRule(request)).episodes_count
                break
            except grpc.aio.AioRpcError as error:
                assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    store.close()


def test_a_clock_that_was_set_back_is_told() -> None:
    """A server booted in the year 2031; after its clock was set, no advice came for five years."""
    world, store = dead_gpu(), Tables()
    book = book_of(store, world)
    behind_ns = 0
    service = AdvisoryService(book, lambda: world.now_ns - behind_ns, lambda host: None)
    assert service._withheld_reason() == ""
    behind_ns = 5 * HOUR_NS
    assert "set back: advice is paused until it has caught up 5.0 h" in service._withheld_reason()
    store.close()


def test_what_the_breaker_keeps_back_is_what_is_told() -> None:
    """The list began with "no advice is given for now" although it contained a trial advisory."""
    world, store = dead_gpu(), Tables()
    book = book_of(store, world)
    service = AdvisoryService(book, lambda: world.now_ns, lambda host: None)
    fuse, lately = book.machine.state.fuse, "because too much was advised or failed recently"
    fuse.position, fuse.until_ns = "open", 1_760_000_000 * SECOND_NS
    assert service._withheld_reason() == (
        f"the breaker is open, {lately}: no more hosts are taken out until 2025-10-09 08:53 UTC"
    )
    fuse.position = "half-open"
    for trial, what in (("", "one host may be taken out as a trial"), ("a7", "a7 is tried")):
        fuse.trial = trial
        assert service._withheld_reason() == (
            f"the breaker is half-open, {lately}: {what}, and no more until that succeeds"
        )
    answer = advisory_pb2.ListAdvisoriesResponse(withheld_reason=service._withheld_reason())
    assert list_text(answer).startswith("advice is withheld for now: the breaker is half-open")
    store.close()


async def test_who_is_out_counts_also_while_our_clock_is_set_back() -> None:
    """An end in one hour, by a clock five hours behind, was over: the report had no effect."""
    world, store, book = observed(Tables())
    world.now_ns -= 5 * HOUR_NS
    async with served(book, world) as (stub, _):
        node = advisory_pb2.UnavailableNode(node="nodes/h1", reason="x")
        request = advisory_pb2.ReportUnavailableNodesRequest(actor="slurm", nodes=[node])
        assert (await stub.ReportUnavailableNodes(request)).nodes_count == 1
    assert book.machine.state.absent.keys() == {"h1"}
    store.close()


async def test_a_clock_that_leaps_forward_is_on_disk_before_anything_ends_by_it() -> None:
    """After a jump of five hours a gang was forgotten, and after a restart a lease too."""
    world, store = dead_gpu(), Tables()
    book = book_of(store, world)
    gang = book.gangs.on("h2")
    assert gang is not None
    book.update_gangs([gang._replace(until_ns=world.now_ns + HOUR_NS)], [])
    observe(book, world)
    before = await book.answer(Acked(world.now_ns, "a1", AdvisoryState.ACCEPTED, "slurm"))
    world.now_ns += 5 * HOUR_NS
    book.apply_clock_jump(5 * HOUR_NS, world.now_ns)
    shown = book.find("a1")
    assert shown is not None
    assert shown.lease_until_ns == before.lease_until_ns + 5 * HOUR_NS
    await book.flush()
    again = book_of(store, world)
    assert again.machine.state.holds["h2"].until_ns > world.now_ns
    assert again.find("a1") == book.find("a1")
    (until_ns,) = [stored_gang.until_ns for stored_gang in rows.read_gangs(store.connection)]
    assert until_ns == world.now_ns + HOUR_NS
    store.close()


async def test_a_machine_that_stood_still_goes_on_as_after_a_restart() -> None:
    """After five hours without connections its owner has a lease's time to report."""
    world, store, book = observed(Tables())
    await book.answer(Acked(world.now_ns, "a1", AdvisoryState.ACCEPTED, "slurm"))
    world.now_ns += 5 * HOUR_NS
    book.resume_after_suspend(world.now_ns)
    await book.flush()
    shown = book.find("a1")
    assert shown is not None and shown.state is AdvisoryState.ACCEPTED
    assert shown.lease_until_ns == world.now_ns + 600 * SECOND_NS
    assert book_of(store, world).machine.state == book.machine.state
    store.close()


@pytest.mark.slow
@pytest.mark.parametrize("way", ["leap", "stood_still"])
@pytest.mark.parametrize("to", [AdvisoryState.PROPOSED, AdvisoryState.ACCEPTED, AdvisoryState.DONE])
def test_watchers_are_told_once_of_times_that_moved(way: str, to: AdvisoryState) -> None:
    """After a clock jump of five hours executors saw expired leases, and gave up their hosts."""
    world, store, book = observed(Tables())

    async def run() -> None:
        await book.flush()
        for answer in (AdvisoryState.ACCEPTED, AdvisoryState.DONE)[
            : [AdvisoryState.PROPOSED, AdvisoryState.ACCEPTED, AdvisoryState.DONE].index(to)
        ]:
            await book.answer(Acked(world.now_ns, "a1", answer, "slurm"))
        before, last = book.find("a1"), book.feed.last
        assert before is not None
        until_ns = book.expires_ns(before)
        world.now_ns += 5 * HOUR_NS
        if way == "leap":
            book.apply_clock_jump(5 * HOUR_NS, world.now_ns)
        else:
            book.resume_after_suspend(world.now_ns)
        assert book.feed.last == last, "nothing is told before it is on disk"
        await book.flush()
        changed = [shown.advisory for shown in book.feed.after(last) or []]
        if to is AdvisoryState.DONE and way == "stood_still":
            assert changed == [], "its time has passed"
            return
        (shown,) = changed
        assert shown is not None and shown == book.find("a1") and shown.state is to
        assert book.expires_ns(shown) > until_ns
        assert to is AdvisoryState.DONE or book.feed.open == [shown]
        book.snapshot_state()
        await book.flush()
        assert book.feed.last == last + 1

    asyncio.run(run())
    store.close()


async def test_what_an_outcome_may_not_be() -> None:
    """An error named a field "name", which an outcome does not have."""
    world, store = dead_gpu(), Tables()
    book = book_of(store, world)
    async with served(book, world) as (_, stub):
        for case, (changes, reason) in OUTCOMES.items():
            report = outcome(world)
            for field in changes:
                report.ClearField(field)
            report.MergeFrom(outcome_pb2.Outcome(**changes))
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await stub.ReportOutcomes(outcome_pb2.ReportOutcomesRequest(outcomes=[report]))
            assert reason in (raised.value.details() or ""), case
        report = outcome(world)
        report.nodes.append(report.nodes[0])  # a host named twice counts once
        other = outcome_pb2.Outcome()
        other.CopyFrom(report)
        other.interrupted = True
        # A batch of a thousand with one id twice was refused, and repeated endlessly.
        twice = outcome_pb2.ReportOutcomesRequest(outcomes=[report, other])
        for validate_only in (True, False):
            twice.validate_only = validate_only
            reply = await stub.ReportOutcomes(twice)
            assert (reply.accepted_count, reply.known_count) == (1, 1)
    query = "SELECT hosts, host_hours, interrupted FROM outcomes"
    hours = (report.end_time.ToNanoseconds() - report.start_time.ToNanoseconds()) / HOUR_NS
    assert store.connection.execute(query).fetchall() == [(["h2"], hours, False)]
    store.close()


async def test_an_outcome_of_the_future_is_refused() -> None:
    """A job that ran until 2242 "should" have failed many times: every hazard became a tenth."""
    world = dead_gpu()
    book = book_of(Tables(), world)
    async with served(book, world) as (_, stub):
        request = outcome_pb2.ReportOutcomesRequest(outcomes=[outcome(world, 1, 7200)])
        with pytest.raises(
            grpc.aio.AioRpcError,
            match=r"outcomes\[0\].end_time: 2.0 h ahead of the aggregator's clock",
        ):
            await stub.ReportOutcomes(request)
        request = outcome_pb2.ReportOutcomesRequest(outcomes=[outcome(world, 1, 300)])
        assert (await stub.ReportOutcomes(request)).accepted_count == 1


def test_why_nothing_is_advised_is_what_is_so_now() -> None:
    """An hour after a restart the list still gave it as the reason, despite a later outage."""
    world = dead_gpu()
    snapshot = world.snapshot
    assert snapshot is not None
    observer, book = Observer(), books.AdvisoryEngine(
        Tables(), LIMITS, Observer(), world.now_ns, shadow=False, gangs=ScheduledGangs()
    )  # fmt: skip

    def frozen(message: str) -> list[str]:
        judged = replace(snapshot, degraded_reason=message)
        events = [*observer.events(book.machine.state, judged, world.fleet.gpus)]
        for event in events:
            book.machine.step(event)
        return [event.message for event in events if isinstance(event, Frozen)]

    assert frozen("restarted at 10:00:00 UTC: 3 of 4 hosts") == [
        "restarted at 10:00:00 UTC: 3 of 4 hosts"
    ]
    assert frozen("restarted at 10:00:00 UTC: 2 of 4 hosts") == []
    assert frozen("4 of 4 hosts fell silent") == ["4 of 4 hosts fell silent"]
    assert frozen("") == [""]
