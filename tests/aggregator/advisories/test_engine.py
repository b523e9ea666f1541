"""Advice in service: from a judgement to the store and the watchers, over restarts."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from gangline.aggregator.advisories import outcome_rows, rows
from gangline.aggregator.advisories.advisory import Action, AdvisoryState, Basis
from gangline.aggregator.advisories.advisory_limits import HOUR_NS, AdvisoryLimits
from gangline.aggregator.advisories.messages import Acked, HeldBack, Publish, Tick
from gangline.aggregator.advisories.publisher import Publisher
from gangline.aggregator.advisories.rows import restore_machine
from gangline.aggregator.advisories.state import MachineState
from gangline.aggregator.scoring.calibration import Calibration
from gangline.aggregator.scoring.evaluate import evaluate
from gangline.aggregator.scoring.score import OutcomeFeedback
from gangline.aggregator.store.store import Store
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
from tests.worlds import START_NS

REFUSED: dict[str, tuple[dict[str, Any], grpc.StatusCode, str]] = {
    "no such advisory": ({"name": "advisories/a99"}, grpc.StatusCode.NOT_FOUND, "a99"),
    "no name": ({"name": "a1"}, grpc.StatusCode.INVALID_ARGUMENT, "expected advisories/a12"),
    "a long note": ({"note": "x" * 501}, grpc.StatusCode.INVALID_ARGUMENT, "at most 500"),
    "a long actor": ({"actor": "x" * 129}, grpc.StatusCode.INVALID_ARGUMENT, "at most 128"),
    "a long etag": ({"etag": "x" * 65}, grpc.StatusCode.INVALID_ARGUMENT, "at most 64"),
    "nobody": ({"actor": ""}, grpc.StatusCode.INVALID_ARGUMENT, "the caller's name"),
    "no state": ({"new_state": 0}, grpc.StatusCode.INVALID_ARGUMENT, "ACCEPTED"),
    "a state of ours": ({"new_state": 8}, grpc.StatusCode.INVALID_ARGUMENT, "WITHDRAWN"),
    "no reason": ({"new_state": 5}, grpc.StatusCode.INVALID_ARGUMENT, "needs a reason"),
    "put off until the past": (
        {"new_state": 6, "defer_until_time": {"seconds": 5}},
        grpc.StatusCode.INVALID_ARGUMENT,
        "defer_until_time: expected a time in the future",
    ),
    "put off for a month": (
        {"new_state": 6, "defer_until_time": {"seconds": START_NS // 10**9 + 30 * 86_400}},
        grpc.StatusCode.INVALID_ARGUMENT,
        "days ahead, at most 7: defer it again then",
    ),
    "done by nobody": ({"new_state": 3}, grpc.StatusCode.FAILED_PRECONDITION, "PROPOSED"),
}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(tmp_path, None, lambda: START_NS + 30 * 10**9)
    yield opened
    opened.close()


def asked(store: Store, query: str) -> list[tuple[Any, ...]]:
    rows_of: list[tuple[Any, ...]] = store.in_transaction(
        lambda connection: connection.execute(query).fetchall()
    )
    return rows_of


@pytest.mark.slow
def test_a_fatal_xid_becomes_an_advisory_with_a_price(store: Store) -> None:
    """The advised action is the policy's, with the costs of waiting and acting."""
    *_, book = observed(store)
    asyncio.run(book.flush())
    (advisory,) = book.feed.open
    assert (advisory.subject, advisory.basis) == ("host h2", Basis.DETERMINISTIC)
    assert (advisory.action, advisory.then) == (Action.DRAIN_AT_CHECKPOINT, Action.RESET_GPU)
    assert advisory.price.waiting_gpu_hours > advisory.price.acting_gpu_hours > 0
    assert "32 GPUs" in advisory.price.arithmetic and "policy: drain" in advisory.message
    assert asked(
        store, "SELECT advisory, subject, action, then_action, scope, state, job, shadow FROM ops.advice"
    ) == [("a1", "host h2", "DRAIN_AT_CHECKPOINT", "RESET_GPU", "gpu", "PROPOSED", "train-7", False)]  # fmt: skip
    assert asked(store, "SELECT kind, advisory FROM ops.advice_history") == [("Publish", "a1")]


def test_the_same_judgement_again_says_nothing_new(store: Store) -> None:
    """A row a second for each sick host filled the disk."""
    world = dead_gpu()
    book = book_of(store, world)
    for _ in range(3):
        observe(book, world)
        world.snapshot = world.run(1)
    asyncio.run(book.flush())
    assert asked(store, "SELECT count(*) FROM advisories") == [(1,)]
    assert asked(store, "SELECT kind FROM advice_events ORDER BY number") == [
        ("FleetSize",), ("CaseSeen",), ("Tick",),
    ]  # fmt: skip


@pytest.mark.slow
def test_after_kill_9_it_goes_on_where_it_was(tmp_path: Path) -> None:
    """After the aggregator died during a drain, the scheduler's DONE was refused."""
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.aggregator.advisories.served", str(tmp_path)],
        stdout=subprocess.PIPE,
    )  # fmt: skip
    with child:
        assert child.stdout is not None and child.stdout.readline() == b"accepted\n"
        child.kill()
    world = dead_gpu()
    store = Store.open(tmp_path)
    try:
        book = book_of(store, world)
        (advisory,) = book.feed.open
        assert (advisory.name, advisory.state, advisory.owner) == (
            "a1",
            AdvisoryState.ACCEPTED,
            "slurm",
        )
        assert book.machine.state.holds["h2"].name == "a1"
        done = asyncio.run(book.answer(Acked(world.now_ns, "a1", AdvisoryState.DONE, "slurm")))
        assert done.state is AdvisoryState.DONE
    finally:
        store.close()


def test_our_outage_ends_no_lease_and_no_proposal() -> None:
    """The aggregator's outage ends no lease and no proposal.

    After an hour an executor had lost the host that it drained before it could report, and a
    proposal had expired and was withheld for an hour more.
    """
    world, store, book = observed(Tables())
    asyncio.run(book.answer(Acked(world.now_ns, "a1", AdvisoryState.ACCEPTED, "slurm")))
    world.now_ns += HOUR_NS
    machine = book_of(store, world).machine

    def published(now_ns: int) -> list[AdvisoryState]:
        instructions = machine.step(Tick(now_ns))
        return [
            instruction.advisory.state
            for instruction in instructions
            if isinstance(instruction, Publish)
        ]

    assert published(world.now_ns) == []
    assert machine.state.advisories["a1"].lease_until_ns == world.now_ns + HOUR_NS // 6
    assert published(world.now_ns + HOUR_NS // 6) == [AdvisoryState.PROPOSED]
    world.now_ns += 2 * HOUR_NS
    machine = book_of(store, world).machine
    assert published(world.now_ns) == []
    store.close()


async def test_after_an_orderly_end_it_goes_on_from_what_was_decided() -> None:
    """A lower `advice_proposal_seconds` lost the acceptance of a running drain."""
    world, store = dead_gpu(), Tables()
    book = book_of(store, world)
    telling = Publisher(book)
    telling.observe(world.snapshot, world.fleet.gpus)  # type: ignore[arg-type]
    await book.answer(Acked(world.now_ns + HOUR_NS // 2, "a1", AdvisoryState.ACCEPTED, "slurm"))
    await telling.close()
    machine, _ = restore_machine(store.connection, AdvisoryLimits(proposal_seconds=60.0))
    assert machine.state.advisories["a1"].state is AdvisoryState.ACCEPTED
    assert machine.state.holds.keys() == {"h2"}
    store.close()


def test_in_shadow_mode_all_is_kept_and_nobody_is_told(store: Store) -> None:
    """A new cluster wants to see a month of advice before anybody acts on it."""
    world = dead_gpu()
    book = book_of(store, world, shadow=True)
    observe(book, world)
    asyncio.run(book.flush())
    assert book.feed.open == [] and book.known_advisories() == [] and book.find("a1") is None
    assert asked(store, "SELECT action, reason, advisories FROM ops.advice_shadow") == [
        ("DRAIN_AT_CHECKPOINT", "XID_FATAL", 1)
    ]

    held = [
        HeldBack(f"h{item}/made-up", f"h{item}", item, "two of its rack are out") for item in Action
    ]
    batch = rows.AdvisoryBatch(decisions=[(90 + item.action, world.now_ns, item) for item in held])
    store.in_transaction(lambda connection: rows.write(connection, batch, shadow=True))
    assert asked(
        store,
        "SELECT action, held_back, subjects FROM ops.advice_shadow WHERE held_back NOT NULL ORDER BY first, action",
    ) == sorted((item.name, "two of its rack are out", 1) for item in Action)

    async def shown() -> str:
        async with served(book, world) as (stub, _):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.GetAdvisory(advisory_pb2.GetAdvisoryRequest(name="advisories/a1"))
            return str(refused.value.details())

    assert "advice_shadow is on" in asyncio.run(shown()), (
        "SQL shows an a1: who asks for it is told where"
    )


async def test_watch_list_and_answer(store: Store) -> None:
    """A scheduler watches, reads the etag and accepts; an older etag is refused."""
    world, _, book = observed(store)
    await book.flush()
    async with served(book, world) as (stub, _), asyncio.timeout(GUARD_SECONDS):
        watch = stub.WatchAdvisories(advisory_pb2.WatchAdvisoriesRequest())
        first, bookmark = await watch.read(), await watch.read()
        assert first.advisory.name == "advisories/a1" and bookmark.HasField("bookmark")
        assert not first.resume_token and bookmark.resume_token
        listed = await stub.ListAdvisories(
            advisory_pb2.ListAdvisoriesRequest(node="nodes/h2", page_size=1)
        )
        (advisory,) = listed.advisories
        assert advisory.action == advisory_pb2.DRAIN_AT_CHECKPOINT
        assert advisory.HasField("act_by_time")
        answer = advisory_pb2.AckAdvisoryRequest(
            name=advisory.name,
            etag=advisory.etag,
            new_state=advisory_pb2.ACCEPTED,
            actor="slurm",
        )
        accepted = await stub.AckAdvisory(answer)
        assert accepted.state == advisory_pb2.ACCEPTED and accepted.fencing_token == 1
        assert (await watch.read()).advisory.state == advisory_pb2.ACCEPTED
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await stub.AckAdvisory(answer)
        assert raised.value.code() is grpc.StatusCode.ABORTED
        watch.cancel()
        resumed = stub.WatchAdvisories(
            advisory_pb2.WatchAdvisoriesRequest(resume_token=bookmark.resume_token)
        )
        assert (await resumed.read()).advisory.etag == accepted.etag
        resumed.cancel()


async def test_what_was_set_is_told_to_stand_while_its_fault_does() -> None:
    """DONE advice expires with the hold, which is renewed while the fault lasts.

    An executor gave its taint the proposal's `expire_time`: a host with a dead GPU took jobs again
    within the hour. A day later its advisory was unknown.
    """
    world, store, book = observed(Tables())
    await book.flush()
    machine, hold_ns = book.machine, int(LIMITS.hold_seconds * 1e9)
    async with served(book, world) as (stub, _), asyncio.timeout(GUARD_SECONDS):

        async def expires_ns(call: Any, request: Any) -> int:
            return int((await call(request)).expire_time.ToNanoseconds())

        answer: dict[str, Any] = {"name": "advisories/a1", "actor": "slurm"}
        get = advisory_pb2.GetAdvisoryRequest(name="advisories/a1")
        proposed = world.now_ns + int(LIMITS.proposal_seconds * 1e9)
        assert await expires_ns(stub.GetAdvisory, get) == proposed
        for state in (advisory_pb2.ACCEPTED, advisory_pb2.DONE):
            request = advisory_pb2.AckAdvisoryRequest(new_state=state, **answer)
            assert await expires_ns(stub.AckAdvisory, request) == world.now_ns + hold_ns
        for hours in range(1, 60):
            machine.step(Tick(world.now_ns + hours * HOUR_NS))
            until_ns = await expires_ns(stub.GetAdvisory, get)
            assert 0 < until_ns - (world.now_ns + hours * HOUR_NS) <= hold_ns
    store.close()


async def test_a_watcher_hears_that_what_was_set_stands_for_longer_and_that_it_ended() -> None:
    """Watchers receive renewals and ends of holds.

    An executor had to call `GetAdvisory` for two hundred hosts each hour, and never learned that
    another user put a host back. After a day's absence it did not receive the hosts out of service.
    """
    world, store, book = observed(Tables())
    for state in (AdvisoryState.ACCEPTED, AdvisoryState.DONE):
        await book.answer(Acked(world.now_ns, "a1", state, "slurm"))
    hold_ns = int(LIMITS.hold_seconds * 1e9)
    async with served(book, world) as (stub, _), asyncio.timeout(GUARD_SECONDS):
        watch = stub.WatchAdvisories(advisory_pb2.WatchAdvisoriesRequest())

        async def told_ns() -> int:
            received = (await watch.read()).advisory
            assert (received.name, received.state) == ("advisories/a1", advisory_pb2.DONE)
            return int(received.expire_time.ToNanoseconds())

        assert await told_ns() == world.now_ns + hold_ns, "it has ended, and holds a host out"
        assert (await watch.read()).HasField("bookmark")
        listed = await stub.ListAdvisories(advisory_pb2.ListAdvisoriesRequest(node="nodes/h2"))
        assert not listed.advisories and listed.out_by_advice_count == 1
        assert [received.name for received in listed.out_by_advice] == ["advisories/a1"]
        later_ns = world.now_ns + 2 * 24 * HOUR_NS
        seen = list[int]()
        for now_ns in range(world.now_ns, later_ns, HOUR_NS // 2):
            before = book.feed.last
            book._step(Tick(now_ns))
            await book.flush()
            seen += [await told_ns() for _ in range(book.feed.last - before)]
        assert seen == sorted(set(seen)) and len(seen) > 40 and seen[-1] > later_ns
        book.machine.state.holds["h2"].unsure = True  # it is not renewed any more
        end_ns = later_ns + 3 * HOUR_NS
        book._step(Tick(end_ns))
        assert "a1" not in book.machine.state.ended, "it ended more than a day ago"
        await book.flush()
        assert await told_ns() == end_ns
        again = await stub.ListAdvisories(advisory_pb2.ListAdvisoriesRequest())
        assert not again.out_by_advice_count
        watch.cancel()
    store.close()


async def test_what_an_answer_may_not_be(store: Store) -> None:
    """Each wrong field is answered with its correct form, and changes nothing."""
    world, _, book = observed(store)
    await book.flush()
    async with served(book, world) as (stub, _):
        for case, (changes, code, reason) in REFUSED.items():
            fields = {"name": "advisories/a1", "new_state": 2, "actor": "slurm", **changes}
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await stub.AckAdvisory(advisory_pb2.AckAdvisoryRequest(**fields))
            assert raised.value.code() is code, case
            assert reason in (raised.value.details() or ""), case
        for token in ("x", "1-", "9" * 70):
            with pytest.raises(grpc.aio.AioRpcError, match="resume_token"):
                request = advisory_pb2.WatchAdvisoriesRequest(resume_token=token)
                await stub.WatchAdvisories(request).read()
    assert book.feed.last == 1


async def test_outcomes_are_kept_once_and_say_what_was_regretted(store: Store) -> None:
    """A scheduler reported its outcomes again after a timeout, and each counted twice."""
    world, _, book = observed(store)
    await book.flush()
    assert world.snapshot is not None
    store.submit_scores(world.snapshot, world.snapshot.hosts)
    store.in_transaction(lambda connection: None)
    report = outcome_pb2.Outcome(
        outcome_id="job-7", advisory="advisories/a1", workload="train-7", nodes=["nodes/h2"],
        interrupted=True, blamed_node="nodes/h2", end_reason="NODE_FAIL", lost_gpu_hours=500.0,
    )  # fmt: skip
    report.start_time.FromSeconds(world.now_ns // 10**9 - 7200)
    report.end_time.FromSeconds(world.now_ns // 10**9)
    async with served(book, world) as (_, stub):
        for accepted in (1, 0):
            reply = await stub.ReportOutcomes(outcome_pb2.ReportOutcomesRequest(outcomes=[report]))
            assert (reply.accepted_count, reply.known_count) == (accepted, 1 - accepted)
        report.lost_gpu_hours = float("nan")
        with pytest.raises(grpc.aio.AioRpcError, match=r"outcomes\[0\].lost_gpu_hours"):
            await stub.ReportOutcomes(outcome_pb2.ReportOutcomesRequest(outcomes=[report]))
    ((advisory, followed, interrupted, regret),) = asked(
        store, "SELECT advisory, followed, interrupted, regret_gpu_hours FROM ops.outcomes"
    )
    assert (advisory, followed, interrupted) == ("a1", False, True) and 0 < regret < 500


@pytest.mark.slow
async def test_outcomes_move_hosts_of_such_a_hazard_and_every_page_says_the_same(
    store: Store,
) -> None:
    """One true report of a dead host made every host ten times as good, and the view hid it."""
    world = dead_gpu()
    assert world.snapshot is not None
    plain = evaluate(world.fleet, world.now_ns, world.snapshot)
    store.submit_scores(plain, plain.hosts)
    store.in_transaction(lambda connection: None)
    book = book_of(store, world)
    jobs = [
        # The dead host was UNHEALTHY all the time: its job's end is no evidence about a hazard.
        outcome_pb2.Outcome(outcome_id="dead", nodes=["nodes/h2"], interrupted=True),
        *(
            outcome_pb2.Outcome(outcome_id=f"{number}", nodes=["nodes/h0", "nodes/h1"], interrupted=True)
            for number in range(42)
        ),
    ]  # fmt: skip
    for job in jobs:
        job.start_time.FromNanoseconds(world.now_ns)
        job.end_time.FromNanoseconds(world.now_ns + 60 * 10**9)
    async with served(book, world) as (_, stub):
        request = outcome_pb2.ReportOutcomesRequest(outcomes=jobs)
        assert (await stub.ReportOutcomes(request)).accepted_count == 43
    assert asked(store, "SELECT count(*) FROM ops.outcomes WHERE expected_interruptions IS NULL") == [(1,)]  # fmt: skip
    view = asked(
        store,
        "SELECT hazard_per_hour, outcomes, interruptions, host_hours, factor, interruptions_counted FROM ops.hazard_calibration",
    )
    calm = view[0]
    assert calm[:4] == pytest.approx((3e-4, 42, 42, 42 * 2 / 60))
    assert calm[4] == pytest.approx(3.0, rel=1e-3) and calm[5] == pytest.approx(42, rel=1e-3)
    after = evaluate(world.fleet, world.now_ns, world.snapshot, feedback=book.outcome_feedback)
    store.submit_scores(after, after.hosts)
    for host in (0, 1):
        now, before = after.hosts[host], plain.hosts[host]
        assert now.hazard_per_hour == pytest.approx(calm[4] * before.hazard_per_hour)
        (evidence,) = (item for item in now.evidence if item.signal == "hazard.outcomes")
        assert evidence.value == pytest.approx(calm[4]) and "42.0 interruptions" in evidence.message
        assert asked(
            store,
            f"SELECT exp(max(log_hazard_outcomes)) FROM scores WHERE host = 'h{host}'",
        ) == [(pytest.approx(calm[4]),)]
    again = book_of(store, world)  # after a restart
    for own, restored in zip(book.outcomes, again.outcomes, strict=True):
        assert own == pytest.approx(restored, rel=1e-6)


def test_what_is_expected_is_what_scores_said_without_outcomes(store: Store) -> None:
    """Outcomes raised the hazards that predicted later outcomes, which lowered them, in a loop."""
    world = dead_gpu()
    feedback = OutcomeFeedback(outcomes=Calibration(factors=(10.0,) * 4))
    plain = evaluate(world.fleet, world.now_ns, world.snapshot)
    scaled = evaluate(world.fleet, world.now_ns, world.snapshot, feedback=feedback)
    assert scaled.hosts[0].hazard_per_hour == pytest.approx(10 * plain.hosts[0].hazard_per_hour)
    store.submit_scores(scaled, scaled.hosts)
    store.in_transaction(lambda connection: None)
    minute = outcome_rows.OutcomeHost(0, "h0", world.now_ns, world.now_ns + 60 * 10**9)
    expected = store.in_transaction(
        lambda connection: outcome_rows.expected_outcomes(connection, [minute])
    )
    assert expected[0].interruptions == pytest.approx(plain.hosts[0].hazard_per_hour / 60, rel=1e-3)


async def once(call: Any, request: Any, **ids: Any) -> Any:
    """Return the response to *request* with *ids*."""
    copy = type(request)()
    copy.CopyFrom(request)
    for name, value in ids.items():
        setattr(copy, name, value)
    return await call(copy)


async def test_a_request_that_is_sent_again_is_answered_as_before() -> None:
    """A repeated request gets the same response.

    The response to an acceptance was lost; the repeated request was ABORTED by its old etag, and
    the executor gave up its host.
    """
    world, store, book = observed(Tables())
    await book.flush()
    async with served(book, world) as (stub, outcomes):
        etag = book.feed.open[0].etag
        accept = advisory_pb2.AckAdvisoryRequest(
            name="advisories/a1", etag=etag, new_state=advisory_pb2.ACCEPTED, actor="slurm"
        )
        first = await once(stub.AckAdvisory, accept, request_id="one")
        assert await once(stub.AckAdvisory, accept, request_id="one") == first
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await once(stub.AckAdvisory, accept, request_id="two")
        assert raised.value.code() is grpc.StatusCode.ABORTED
        with pytest.raises(grpc.aio.AioRpcError, match="request_id: 'one' was another request's"):
            await once(stub.AckAdvisory, accept, request_id="one", note="x")
        with pytest.raises(grpc.aio.AioRpcError, match="request_id: 65 characters"):
            await once(stub.AckAdvisory, accept, request_id="x" * 65)
        assert book.machine.state.token == 1
        out = advisory_pb2.ReportUnavailableNodesRequest(actor="slurm", nodes=[
            advisory_pb2.UnavailableNode(node="nodes/h1", reason="x")
        ])  # fmt: skip
        await once(stub.ReportUnavailableNodes, out, request_id="one")
        back = advisory_pb2.ReportUnavailableNodesRequest(
            actor="slurm", returned_nodes=["nodes/h1"]
        )
        await stub.ReportUnavailableNodes(back)
        await once(stub.ReportUnavailableNodes, out, request_id="one")
        assert not book.machine.state.absent, "it came again, late"
        happened = outcome_of(world)
        for _ in range(2):
            reported = await once(outcomes.ReportOutcomes, happened, request_id="one")
            assert reported.accepted_count == 1
    store.close()


async def test_an_acceptance_that_is_sent_again_after_a_rejection_is_none() -> None:
    """An executor whose first acceptance was lost, and then rejected, drained the host."""
    world, store, book = observed(Tables())
    await book.flush()
    async with served(book, world) as (stub, _):
        ack: dict[str, Any] = {"name": "advisories/a1", "request_id": "one"}
        accept = advisory_pb2.AckAdvisoryRequest(
            new_state=advisory_pb2.ACCEPTED, actor="slurm", **ack
        )
        lost = await stub.AckAdvisory(accept)
        assert lost.state == advisory_pb2.ACCEPTED
        reject = advisory_pb2.AckAdvisoryRequest(
            new_state=advisory_pb2.REJECTED, actor="ops", note="we look at it first",
            name="advisories/a1",
        )  # fmt: skip
        rejected = await stub.AckAdvisory(reject)
        again = await stub.AckAdvisory(accept)
        assert (again.state, again.etag) == (advisory_pb2.REJECTED, rejected.etag)
        assert book.machine.state.token == 1
    store.close()


def outcome_of(world: Any) -> outcome_pb2.ReportOutcomesRequest:
    job = outcome_pb2.Outcome(outcome_id="job-7", workload="w", nodes=["nodes/h2"])
    job.start_time.FromSeconds(world.now_ns // 10**9 - 7200)
    job.end_time.FromSeconds(world.now_ns // 10**9)
    return outcome_pb2.ReportOutcomesRequest(outcomes=[job])


async def test_outcomes_that_are_sent_again_are_answered_without_a_look_at_the_store() -> None:
    """A repeated report of outcomes is answered from memory.

    A scheduler reported a thousand outcomes after each timeout: each time they were read again, and
    if that failed, the known response was not sent.
    """
    world, store = dead_gpu(), Tables()
    book: Any = book_of(store, world)
    async with served(book, world) as (_, outcomes):
        first = await once(outcomes.ReportOutcomes, outcome_of(world), request_id="one")

        def failing(spans: object) -> object:
            raise AssertionError("it was read")

        book.expected = failing
        again = await once(outcomes.ReportOutcomes, outcome_of(world), request_id="one")
        assert again == first and again.accepted_count == 1
        checked = await once(
            outcomes.ReportOutcomes, outcome_of(world), request_id="one", validate_only=True
        )
        assert checked.known_count == 1
    store.close()


def ends_seconds(told: Any, world: Any) -> tuple[float | None, ...]:
    """Return the seconds until *told* expires, its lease and its deferral end; None: unset."""
    fields = ("expire_time", "lease_expire_time", "defer_until_time")
    return tuple(
        (getattr(told, field).ToNanoseconds() - world.now_ns) / 1e9
        if told.HasField(field)
        else None
        for field in fields
    )


async def test_what_is_to_be_checked_only_changes_nothing() -> None:
    """Without `validate_only` an adapter's author tried drains on the working fleet."""
    world, store, book = observed(Tables())
    await book.flush()
    number = book._number
    async with served(book, world) as (stub, outcomes):

        async def would(call: Any, request: Any) -> Any:
            return await once(call, request, validate_only=True, request_id="one")

        ack: dict[str, Any] = {"name": "advisories/a1", "actor": "slurm"}
        accept = advisory_pb2.AckAdvisoryRequest(new_state=advisory_pb2.ACCEPTED, **ack)
        previewed = await would(stub.AckAdvisory, accept)
        assert previewed.state == advisory_pb2.ACCEPTED
        assert "nothing was changed" in previewed.state_text
        assert ends_seconds(previewed, world) == (
            LIMITS.hold_seconds,
            LIMITS.lease_seconds,
            None,
        )
        done = advisory_pb2.AckAdvisoryRequest(new_state=advisory_pb2.DONE, **ack)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await would(stub.AckAdvisory, done)
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        node = advisory_pb2.UnavailableNode(node="nodes/h1", reason="x")
        out = advisory_pb2.ReportUnavailableNodesRequest(actor="slurm", nodes=[node])
        assert (await would(stub.ReportUnavailableNodes, out)).nodes_count == 1
        gang = advisory_pb2.Gang(workload="w", nodes=["nodes/h1"])
        gangs = advisory_pb2.ReportGangsRequest(actor="slurm", gangs=[gang])
        assert (await would(stub.ReportGangs, gangs)).gangs_count == 2
        assert (await would(outcomes.ReportOutcomes, outcome_of(world))).accepted_count == 1
        assert book._number == number and book._batch.is_empty and len(book.gangs) == 1
        await stub.ReportUnavailableNodes(out)
        full = await would(stub.AckAdvisory, accept)
        assert full.state == advisory_pb2.DEFERRED and "out of service reached" in full.state_text
        put_off = LIMITS.defer_seconds + LIMITS.proposal_seconds
        assert ends_seconds(full, world) == (put_off, None, LIMITS.defer_seconds)
        defer = advisory_pb2.AckAdvisoryRequest(new_state=advisory_pb2.DEFERRED, **ack)
        previewed = await would(stub.AckAdvisory, defer)
        assert ends_seconds(previewed, world) == (put_off, None, LIMITS.defer_seconds)
        assert (
            await stub.GetAdvisory(advisory_pb2.GetAdvisoryRequest(name=accept.name))
        ).state == 1
        assert ends_seconds(await stub.AckAdvisory(defer), world) == ends_seconds(previewed, world)
    store.close()


def test_what_its_owner_left_half_done_counts_until_it_runs_out(store: Store) -> None:
    """The list showed an end in the past: the advisory had expired, but not its hold."""
    world, _, book = observed(store)
    book.apply_answer(Acked(world.now_ns, "a1", AdvisoryState.ACCEPTED, "x"))
    for seconds in (600, 4200):  # the lease, then the proposal
        at_ns = world.now_ns + seconds * 10**9
        book._step(Tick(at_ns))
    asyncio.run(book.flush())
    (ended,) = book.ended_with_holds()
    assert ended.state is AdvisoryState.EXPIRED
    assert book.expires_ns(ended) == world.now_ns + 2 * HOUR_NS


def test_the_memory_is_stored_once_however_much_happened(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """20,000 events in a turn had the whole state serialized twenty times, on the loop."""
    serialized = list[MachineState]()
    state_json = rows.state_json

    def counted(memory: MachineState) -> str:
        serialized.append(memory)
        return state_json(memory)

    world = dead_gpu()
    book = book_of(store, world)
    asyncio.run(book.flush())
    monkeypatch.setattr(rows, "EVENTS_PER_SNAPSHOT", 1)
    monkeypatch.setattr(rows, "state_json", counted)
    observe(book, world)
    asyncio.run(book.flush())
    assert len(asked(store, "FROM advice_events")) == 3 and len(serialized) == 1
    assert (
        store.in_transaction(lambda connection: restore_machine(connection, LIMITS))[1]
        == book._number
    )
