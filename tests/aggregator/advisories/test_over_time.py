"""Advice as time passes: outages, milder and worse faults, and hosts that never return."""

from __future__ import annotations

from typing import Any

import pytest

from gangline.aggregator.advisories.advisory import Action, AdvisoryState, Basis, Price
from gangline.aggregator.advisories.advisory_limits import HOUR_NS, SECOND_NS
from gangline.aggregator.advisories.failure_domains import FailureDomains
from gangline.aggregator.advisories.messages import (
    Acked,
    Available,
    Clear,
    Frozen,
    HeldBack,
    Member,
    Probation,
    Publish,
    PutBack,
    Refused,
    Renew,
    TakenOut,
    Unavailable,
    Well,
)
from gangline.aggregator.errors import FailedPrecondition
from tests.aggregator.advisories.machine_world import AdviceMachine, proposing, published, told


def accepted(hosts: int = 1000) -> AdviceMachine:
    """A world whose first host is being drained."""
    world = AdviceMachine(hosts)
    world.see("h1")
    world.later(5)
    world.answer("a1", AdvisoryState.ACCEPTED)
    return world


def test_who_carried_something_out_while_we_were_down_has_its_host_counted() -> None:
    """After an outage of three hours a drained host was not counted, and never returned."""
    world = accepted(hosts=60)
    world.now_ns += 3 * HOUR_NS
    world.machine.resume(world.now_ns)
    told_first = world.later(1)
    assert not told(told_first, Clear) and told(told_first, Renew)
    world.see("h17")
    assert published(world.later(5)) == [], "one of sixty may be out"
    world.answer("a1", AdvisoryState.DONE)
    world.gone("h1")
    world.gone("h17")
    world.give(Well(world.now_ns, "h1", True))
    assert published(world.later(900)) == [("host h1", "RETURN_TO_SERVICE", "PROPOSED")]


@pytest.mark.parametrize("to", [AdvisoryState.ACCEPTED, AdvisoryState.DONE])
def test_what_an_owner_has_out_is_held_again_by_its_word(to: AdvisoryState) -> None:
    """After an earlier version dropped the hold, the owner's DONE changed nothing."""
    world = accepted()
    hold = world.machine.state.holds["h1"]
    world.machine._editor.drop(hold, "it ran out")
    (renew,) = told(world.answer("a1", to), Renew)
    held = world.machine.state.holds["h1"]
    assert (renew.name, renew.until_ns) == ("a1", world.now_ns + 2 * HOUR_NS)
    assert (held.name, held.confirmed) == ("a1", to is AdvisoryState.DONE)
    assert world.machine.state.probation["h1"].relapses == 0


def test_a_host_that_recovers_before_its_eviction_succeeds_is_returned() -> None:
    """A disruption budget refused the eviction, and the executor repeated it for days on a healthy host."""
    world = accepted()
    world.answer("a1", AdvisoryState.ACCEPTED, message="job 7 was left: a budget forbids it")
    world.recover("h1")
    world.later(400)
    world.answer("a1", AdvisoryState.ACCEPTED)
    assert published(world.later(499)) == []
    assert published(world.later(1)) == [("host h1", "RETURN_TO_SERVICE", "PROPOSED")]
    assert told(world.answer("a2", AdvisoryState.ACCEPTED), Clear)
    instructions = world.answer("a2", AdvisoryState.DONE)
    assert published(instructions) == [
        ("host h1", "RETURN_TO_SERVICE", "DONE"),
        ("host h1", "EVICT_NOW", "WITHDRAWN"),
    ]
    assert "h1" not in world.machine.state.holds and told(instructions, Probation)
    assert published(world.later(3600)) == []


@pytest.mark.parametrize(("owner", "is_returned"), [("slurm", True), ("alice", False)])
def test_an_executor_does_not_return_a_host_on_which_a_person_works(
    owner: str, is_returned: bool
) -> None:
    """The executor's own AVOID was in force there: its return would have ended the lease of a person."""
    world = AdviceMachine()
    world.see("h1", action=Action.AVOID)
    world.later(5)
    for state in (AdvisoryState.ACCEPTED, AdvisoryState.DONE):
        world.answer("a1", state, "slurm")
    world.see("h1")
    world.later(5)
    world.answer("a2", AdvisoryState.ACCEPTED, owner, lease_seconds=8 * 3600)
    world.recover("h1")
    returns = [("host h1", "RETURN_TO_SERVICE", "PROPOSED")] if is_returned else []
    assert published(world.later(900)) == returns


def test_a_fault_that_comes_back_withdraws_the_return_of_an_unfinished_advisory() -> None:
    """The host was offered for return while its owner still evicted, and then failed again."""
    world = accepted()
    world.recover("h1")
    world.later(400)
    world.answer("a1", AdvisoryState.ACCEPTED)
    assert published(world.later(500)) == [("host h1", "RETURN_TO_SERVICE", "PROPOSED")]
    world.give(Well(world.now_ns, "h1", False))
    world.see("h1")
    assert ("host h1", "RETURN_TO_SERVICE", "WITHDRAWN") in published(world.later(1))
    assert world.machine.state.advisories["a1"].state is AdvisoryState.ACCEPTED
    world.answer("a1", AdvisoryState.DONE)
    assert world.machine.state.holds["h1"].confirmed


def test_a_drain_for_a_job_that_has_ended_is_not_to_be_accepted_any_more() -> None:
    """For an hour a drain could be accepted at the price of a job that had ended."""
    world = AdviceMachine()
    drain = {"basis": Basis.STATISTICAL, "action": Action.DRAIN_AFTER_JOB}
    world.see("h1", "ECC_TREND", **drain, job="llm-7", price=Price(90.0, 60.0))
    assert published(world.later(5)) == [("host h1", "DRAIN_AFTER_JOB", "PROPOSED")]
    world.see("h1", "ECC_TREND", **drain, price=Price(3.0, 60.0))
    instructions = world.later(1)
    assert published(instructions) == [("host h1", "DRAIN_AFTER_JOB", "WITHDRAWN")]
    assert told(instructions, HeldBack)[0].message.startswith("waiting costs less (")
    assert world.later(200) == []


def test_a_fault_that_became_milder_is_asked_for_as_it_is() -> None:
    """A drain stayed proposed although the fault became one to avoid, because its rack was full."""
    world = AdviceMachine()
    world.see("h3")
    world.later(5)
    for number in (1, 2):
        world.give(
            Unavailable(world.now_ns, f"h{number}", "drained by hand", FailureDomains(rack="r0"))
        )
    world.see("h3", action=Action.AVOID)
    instructions = world.later(1)
    assert published(instructions) == [("host h3", "AVOID", "PROPOSED")]
    assert told(instructions, Publish)[0].message.startswith(
        "a lesser action is needed than before: h3 has it"
    )
    assert not told(instructions, HeldBack) and world.later(200) == []


def test_what_fell_back_to_what_was_rejected_is_withdrawn() -> None:
    """After a rejected AVOID a drain was proposed, and stayed when the fault became milder."""
    world = AdviceMachine()
    world.see("h1", action=Action.AVOID)
    world.later(5)
    world.answer("a1", AdvisoryState.REJECTED, message="it is in a burn-in")
    world.see("h1", action=Action.DRAIN_AFTER_JOB)
    assert published(world.later(1)) == [("host h1", "DRAIN_AFTER_JOB", "PROPOSED")]
    world.see("h1", action=Action.AVOID)
    instructions = world.later(1)
    assert published(instructions) == [("host h1", "DRAIN_AFTER_JOB", "WITHDRAWN")]
    assert "the same advisory was rejected" in told(instructions, Publish)[0].message


def test_what_is_left_beside_a_fault_that_ended_has_its_own_price() -> None:
    """A dead GPU was replaced; a suspicion not worth a drain took over its drain."""
    world = AdviceMachine()
    world.see("h1")
    drain = {"basis": Basis.STATISTICAL, "action": Action.DRAIN_AFTER_JOB}
    world.see("h1", "ECC_TREND", **drain, price=Price(3.0, 60.0))
    assert published(world.later(5)) == [("host h1", "EVICT_NOW", "PROPOSED")]
    world.gone("h1")
    assert {state for _, _, state in published(world.later(1))} == {"WITHDRAWN"}


def drained(host: str = "h1") -> AdviceMachine:
    """A world with one drained host."""
    world = AdviceMachine()
    world.see(host)
    world.later(5)
    world.carry_out("a1")
    return world


def ticked(world: AdviceMachine, hours: int) -> list[Any]:
    return [instruction for _ in range(hours) for instruction in world.later(3600)]


def test_a_host_that_never_returns_is_held_for_a_day() -> None:
    """A host returned to its vendor reduced its rack's capacity permanently."""
    world = drained()
    assert not told(ticked(world, 48), Clear), "its fault stands, as far as anybody knows"
    world.gone("h1")
    assert not told(ticked(world, 20), Clear), "who repairs it has a day"
    instructions = ticked(world, 10)
    assert [clear.host for clear in told(instructions, Clear)] == ["h1"]
    assert "h1" not in world.machine.state.holds


def test_a_day_without_a_host_begins_anew_once_it_was_well() -> None:
    """A host under repair was inspected for a moment each day."""
    world = drained()
    world.gone("h1")
    ticked(world, 20)
    world.give(Well(world.now_ns, "h1", True))
    world.later(1)
    world.give(Well(world.now_ns, "h1", False))
    assert not told(ticked(world, 20), Clear)


def test_what_advice_that_has_ended_holds_out_can_be_given_up() -> None:
    """The hold of a host that left, or whose fault is accepted, could not be ended."""
    world = drained()
    instructions = world.give(PutBack(world.now_ns, "alice", ("h1", "h2")))
    (clear,), (back,) = told(instructions, Clear), told(instructions, Probation)
    assert (clear.name, clear.host, back.name) == ("a1", "h1", "a1")
    assert clear.message == "alice reports that it is back in service"
    assert published(world.later(3500)) == [], "its fault stands, and is borne for now"
    assert published(world.later(200)) == [("host h1", "EVICT_NOW", "PROPOSED")]


def test_what_is_being_carried_out_is_not_given_up() -> None:
    """A put-back of another report does not end a running or done drain."""
    world = accepted()
    assert not told(world.give(PutBack(world.now_ns, "alice", ("h1",))), Clear)
    world.answer("a1", AdvisoryState.DONE)
    out = TakenOut(world.now_ns, "slurm", "burn-in", world.now_ns + HOUR_NS, (Member("h1"),))
    world.give(out)
    assert not told(world.give(PutBack(world.now_ns, "slurm", ("h1",))), Clear)
    assert told(world.give(PutBack(world.now_ns, "slurm", ("h1",))), Clear)


def test_a_return_that_waits_is_withdrawn_with_what_was_set() -> None:
    """A return was proposed after its hold had ended."""
    world = drained()
    world.recover("h1")
    world.later(900)
    assert published(world.give(PutBack(world.now_ns, "alice", ("h1",)))) == [
        ("host h1", "RETURN_TO_SERVICE", "WITHDRAWN")
    ]


def test_what_becomes_graver_while_another_of_its_faults_goes_is_asked_anew() -> None:
    """When one deferred suspicion ended and the other got worse, the eviction was deferred."""
    world = AdviceMachine()
    for reason in ("ECC_TREND", "PCIE"):
        world.see("h1", reason, action=Action.AVOID)
    world.later(5)
    world.answer("a1", AdvisoryState.DEFERRED, until_ns=world.now_ns + 24 * HOUR_NS)
    world.gone("h1", "PCIE")
    world.see("h1", "ECC_TREND")
    published_advisory = told(world.later(1), Publish)[-1].advisory
    assert (published_advisory.name, published_advisory.action, published_advisory.state) == (
        "a1",
        Action.EVICT_NOW,
        AdvisoryState.PROPOSED,
    )
    assert published_advisory.expires_ns == world.now_ns + HOUR_NS
    assert not published_advisory.deferred_until_ns


@pytest.mark.parametrize("by", ["maintenance", "alice"])
@pytest.mark.parametrize("put_off", [False, True])
def test_what_is_asked_of_a_host_waits_while_others_have_it_out(by: str, *, put_off: bool) -> None:
    """Within a maintenance window a drain was granted, and deferred advice was proposed."""
    world = AdviceMachine()
    world.see("h1")
    world.later(5)
    if put_off:
        world.answer("a1", AdvisoryState.DEFERRED)
    if by == "maintenance":
        world.give(Unavailable(world.now_ns, "h1", by))
    else:
        until_ns = world.now_ns + 3 * HOUR_NS
        world.give(TakenOut(world.now_ns, by, "burn-in", until_ns, (Member("h1"),)))
    with pytest.raises(FailedPrecondition) as previewed:
        world.machine.preview(Acked(world.now_ns, "a1", AdvisoryState.ACCEPTED, "x"))
    (refused,) = told(world.answer("a1", AdvisoryState.ACCEPTED), Refused)
    assert refused.message == str(previewed.value) and type(refused.error) is FailedPrecondition
    assert refused.message.startswith(f"the host is out already: {by}: nothing is granted on it")
    for _ in range(8):
        assert {state for _, _, state in published(world.later(900))} <= {"DEFERRED"}
    world.give(Available(world.now_ns, "h1"))
    world.give(PutBack(world.now_ns, by, ("h1",)))
    assert published(world.later(900)) == [("host h1", "EVICT_NOW", "PROPOSED")]
    assert published(world.answer("a1", AdvisoryState.ACCEPTED)) == [
        ("host h1", "EVICT_NOW", "ACCEPTED")
    ]


def test_running_work_leaves_a_host_that_takes_no_new_work() -> None:
    """Another controller's taint deferred the eviction, and the gang kept a dead GPU."""
    world = AdviceMachine()
    world.see("h1", action=Action.AVOID)
    world.later(5)
    until_ns = world.now_ns + 3 * HOUR_NS
    world.give(TakenOut(world.now_ns, "k8s", "cordoned", until_ns, (Member("h1"),), True))
    assert published(world.later(1)) == [("host h1", "AVOID", "DEFERRED")]
    world.see("h1")
    assert published(world.later(5)) == [("host h1", "EVICT_NOW", "PROPOSED")]
    world.see("h2")
    world.give(TakenOut(world.now_ns, "k8s", "cordoned", until_ns, (Member("h2"),), True))
    assert published(world.later(5)) == [("host h2", "EVICT_NOW", "PROPOSED")]
    assert published(world.answer("a2", AdvisoryState.ACCEPTED)) == [
        ("host h2", "EVICT_NOW", "ACCEPTED")
    ]
    # A person who reports a host also decides about its running work.
    world.give(TakenOut(world.now_ns, "alice", "burn-in", until_ns, (Member("h1"),)))
    assert published(world.later(1)) == [("host h1", "EVICT_NOW", "DEFERRED")]


def test_advice_is_proposed_again_as_soon_as_the_host_is_back() -> None:
    """After a taint of one second work was not kept off the bad host for 15 minutes."""
    world = AdviceMachine()
    until_ns = world.now_ns + 3 * HOUR_NS
    for host in ("h1", "h2"):
        world.see(host, action=Action.AVOID)
    world.later(5)
    world.answer("a2", AdvisoryState.DEFERRED, until_ns=world.now_ns + HOUR_NS)
    world.give(TakenOut(world.now_ns, "k8s", "tainted", until_ns, (Member("h1"), Member("h2"))))
    world.later(1)
    world.give(PutBack(world.now_ns, "k8s", ("h1", "h2")))
    assert published(world.later(1)) == [("host h1", "AVOID", "PROPOSED")]


@pytest.mark.parametrize("by", ["maintenance", "slurm"])
def test_what_is_being_carried_out_goes_on_though_others_have_its_host_out(by: str) -> None:
    """The scheduler that drained the host for an advisory also reports it as out."""
    world = accepted()
    world.give(TakenOut(world.now_ns, "slurm", "a1", world.now_ns + HOUR_NS, (Member("h1"),)))
    if by == "maintenance":
        world.give(Unavailable(world.now_ns, "h1", by))
    world.later(1)
    assert published(world.answer("a1", AdvisoryState.ACCEPTED)) == [
        ("host h1", "EVICT_NOW", "ACCEPTED")
    ]
    assert published(world.answer("a1", AdvisoryState.DONE)) == [("host h1", "EVICT_NOW", "DONE")]


def test_after_an_outage_longer_than_a_hold_active_faults_stay_out() -> None:
    """For a minute after an outage of three hours a node with a dead GPU was open."""
    world = AdviceMachine()
    for host in ("h1", "h10"):
        world.see(host)
    world.later(5)
    for name in ("a1", "a2"):
        world.carry_out(name)
    world.gone("h10")
    world.now_ns += 3 * HOUR_NS
    world.machine.resume(world.now_ns)
    assert world.machine.state.holds["h1"].until_ns > world.now_ns
    world.give(Frozen(world.now_ns, "agents reconnect"))
    (renewed,) = told(world.later(1), Renew)
    assert renewed.name == "a1" and renewed.until_ns > world.now_ns + HOUR_NS
    assert world.machine.state.holds.keys() == {"h1"}


@pytest.mark.parametrize("put_off", [False, True])
def test_what_nobody_may_accept_does_not_expire(*, put_off: bool) -> None:
    """In an outage of four hours acceptances were refused, and then "no answer in time"."""
    world = AdviceMachine()
    world.see("h1")
    world.later(5)
    if put_off:
        world.answer("a1", AdvisoryState.DEFERRED)
    world.give(Frozen(world.now_ns, "half is silent"))
    assert ticked(world, 4) == []
    (again,) = told(world.give(Frozen(world.now_ns, "")), Publish)
    assert again.advisory.expires_ns == world.now_ns + 600 * SECOND_NS
    assert published(world.later(1)) == ([("host h1", "EVICT_NOW", "PROPOSED")] if put_off else [])
    assert published(world.later(598)) == []
    assert published(world.later(1)) == [("host h1", "EVICT_NOW", "EXPIRED")]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "it has got worse: h1 has it"),
        ({"action": Action.AVOID}, "a lesser action is needed than before: h1 has it"),
        ({"action": Action.DRAIN_AFTER_JOB, "price": Price(900.0, 5.0)}, "it has changed: h1 has it"),
    ],
)  # fmt: skip
def test_what_changed_is_told_as_what_it_is(changes: dict[str, Any], message: str) -> None:
    """A changed price or a milder fault was reported as "it has got worse"."""
    world = AdviceMachine()
    world.see("h1", action=Action.DRAIN_AFTER_JOB)
    world.later(5)
    world.see("h1", **changes)
    (publication,) = told(world.later(1), Publish)
    assert publication.message == publication.advisory.state_message == message


def test_a_drain_goes_on_though_something_milder_was_done_before_it() -> None:
    """A host counted as in service while its drain still waited for the end of the job."""
    world = proposing("h1", "GANG_WAITS", action=Action.AVOID)
    world.carry_out("a1")
    world.see("h1", "GANG_WAITS", action=Action.DRAIN_AFTER_JOB)
    world.later(3)
    world.answer("a2", AdvisoryState.ACCEPTED)
    world.gone("h1", "GANG_WAITS")
    world.give(Well(world.now_ns, "h1", True))
    renewed = set[str]()
    for _ in range(30 * 12):
        now = [*world.later(300), *world.answer("a2", AdvisoryState.ACCEPTED)]
        renewed |= {renewal.name for renewal in told(now, Renew)}
        assert not told(now, Clear)
    assert world.machine.state.holds["h1"].name == "a2"
    assert renewed == {"a1", "a2"}, "who set the milder one was told of no more, and took it away"
    assert "a1" in world.machine.state.ended, "it ended more than a day ago"


def test_a_return_that_was_put_off_for_a_day_waits_for_a_day() -> None:
    """An operator deferred a return until the morning; the host was back the same night."""
    world = accepted()
    world.answer("a1", AdvisoryState.DONE)
    world.recover("h1")
    world.later(900)
    until_ns = world.now_ns + 24 * HOUR_NS
    world.answer("a2", AdvisoryState.DEFERRED, until_ns=until_ns)
    for _ in range(47):
        assert not told(world.later(1800), Clear)
    assert published(world.later(1800)) == [("host h1", "RETURN_TO_SERVICE", "PROPOSED")]


def test_an_eviction_that_was_put_off_does_not_yield_to_a_suspicion() -> None:
    """While an eviction was deferred for 15 minutes, a suspicion took the last slot for days."""
    world = AdviceMachine(hosts=60)
    world.see("h1")
    world.later(3)
    world.answer("a1", AdvisoryState.DEFERRED)
    world.see("h17", "ECC_TREND", basis=Basis.STATISTICAL)
    assert published(world.later(3)) == [("host h17", "DRAIN_AFTER_JOB", "PROPOSED")]
    assert published(world.later(900)) == [("host h1", "EVICT_NOW", "PROPOSED")]
