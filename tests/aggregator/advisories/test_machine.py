"""The machine, incident by incident: events in, instructions out."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from gangline.aggregator.advisories.advisory import (
    Action,
    AdvisoryState,
    Basis,
    Price,
    Scope,
)
from gangline.aggregator.advisories.advisory_limits import SECOND_NS, AdvisoryLimits
from gangline.aggregator.advisories.failure_domains import FailureDomains
from gangline.aggregator.advisories.messages import (
    Acked,
    Act,
    Available,
    Breaker,
    Clear,
    Frozen,
    HeldBack,
    Instruction,
    Probation,
    Publish,
    Refused,
    Renew,
    Unavailable,
    Well,
)
from gangline.aggregator.advisories.rows import to_json
from gangline.aggregator.errors import (
    AdviceFrozen,
    EtagMismatch,
    FailedPrecondition,
    InvalidArgument,
    PermissionDenied,
)
from tests.aggregator.advisories.machine_world import AdviceMachine, proposing, published, told


def test_a_dead_gpu_is_proposed_accepted_done_verified_and_returned() -> None:
    """The whole life of one advisory, and of its host, with the reasons."""
    world = AdviceMachine()
    world.see("h1")
    assert published(world.later(0)) == [("host h1", "EVICT_NOW", "PROPOSED")]
    (act,) = told(world.answer("a1", AdvisoryState.ACCEPTED, "slurm"), Act)
    assert (act.host, act.action, act.scope, act.owner) == (
        "h1",
        Action.EVICT_NOW,
        Scope.GPU,
        "slurm",
    )
    assert published(world.answer("a1", AdvisoryState.DONE, "slurm")) == [
        ("host h1", "EVICT_NOW", "DONE")
    ]
    world.recover("h1")
    assert world.later(899) == []
    assert published(world.later(1)) == [("host h1", "RETURN_TO_SERVICE", "PROPOSED")]
    assert told(world.answer("a2", AdvisoryState.ACCEPTED, "slurm"), Clear) == [
        Clear(
            "a1",
            "h1",
            "slurm",
            "it has been healthy for 15 min: what a1 set can be removed",
        )
    ]
    (probation,) = told(world.answer("a2", AdvisoryState.DONE, "slurm"), Probation)
    assert probation.host == "h1" and probation.until_ns == world.now_ns + 7 * 86_400 * SECOND_NS


def test_a_statistical_verdict_asks_for_nothing_behind_its_drain() -> None:
    """A suspicion may drain a host after its job, but not reboot it as well."""
    world = AdviceMachine()
    world.see("h1", basis=Basis.STATISTICAL, action=Action.DRAIN_AFTER_JOB, then=Action.REBOOT)
    world.see("h9", then=Action.RESET_GPU, action=Action.DRAIN_AFTER_JOB)
    followups = {
        publication.advisory.host: publication.advisory.then
        for publication in told(world.later(5), Publish)
    }
    assert followups == {"h1": None, "h9": Action.RESET_GPU}


@pytest.mark.parametrize(("action", "left"), [(Action.EVICT_NOW, True), (Action.AVOID, False)])
def test_a_job_is_not_held_to_hosts_that_it_lost_long_ago(action: Action, left: bool) -> None:
    """A job that lost two hosts for repair may lose a third; an avoided host still works for it.

    A job of months got no advice about its third bad host, because of the two hosts that it had
    left.
    """
    world = AdviceMachine(job_hosts_max=2, cluster_share_max=0.5)
    for number in (1, 9):
        world.see(f"h{number}", job="train", action=action)
    assert len(published(world.later(5))) == 2
    for name in ("a1", "a2"):
        world.answer(name, AdvisoryState.ACCEPTED)
    world.see("h17", job="train", action=action)
    assert published(world.later(5)) == [], "two are on their way out of it"
    for name in ("a1", "a2"):
        world.answer(name, AdvisoryState.DONE)
    assert bool(published(world.later(5))) is left
    world.see("h2", "ECC_TREND", job="other", action=action)
    assert published(world.later(5)), "one more of the rack"
    world.carry_out("a4" if left else "a3")
    world.see("h3", job="another", action=action)
    assert published(world.later(5)) == [], "of the rack two are out all the same"


def test_a_storm_is_one_advisory_told_a_few_times() -> None:
    """One incident wrote 800,000 lines."""
    world, all_told = AdviceMachine(), list[Instruction]()
    for count in range(1, 800_001, 997):
        all_told += world.see("h1", count=count)
        all_told += world.later(0.001)
    all_told += world.later(10)
    names = {publication.advisory.name for publication in told(all_told, Publish)}
    assert names == {"a1"} and len(told(all_told, Publish)) <= 7


def test_a_statistic_never_evicts() -> None:
    """A forecast of 3 % an hour took a job of 512 GPUs down."""
    world = AdviceMachine()
    world.see("h1", basis=Basis.STATISTICAL)
    world.see("h10", basis=Basis.STATISTICAL, action=Action.INSPECT)
    assert published(world.later(3)) == [
        ("host h1", "DRAIN_AFTER_JOB", "PROPOSED"), ("host h10", "AVOID", "PROPOSED"),
    ]  # fmt: skip


def test_a_drain_at_a_checkpoint_needs_a_cadence() -> None:
    """The drain waited for a checkpoint of an inference service."""
    world = AdviceMachine()
    world.see("h1", action=Action.DRAIN_AT_CHECKPOINT)
    world.see("h10", action=Action.DRAIN_AT_CHECKPOINT, checkpoint_seconds=600.0)
    actions = {subject: action for subject, action, _ in published(world.later(3))}
    assert actions == {"host h1": "DRAIN_AFTER_JOB", "host h10": "DRAIN_AT_CHECKPOINT"}


def test_no_more_of_a_rack_than_may_be_whoever_took_them_out() -> None:
    """An operator had two hosts of the rack out already."""
    world = AdviceMachine()
    for number in (1, 2):
        world.give(
            Unavailable(world.now_ns, f"h{number}", "drained by hand", FailureDomains(rack="r0"))
        )
    world.see("h3")
    (held,) = told(world.later(3), HeldBack)
    assert held.host == "h3" and "rack r0" in held.message and "2" in held.message
    world.give(Available(world.now_ns, "h1"))
    assert published(world.later(1)) == [("host h3", "EVICT_NOW", "PROPOSED")]


def test_a_suspicion_makes_room_for_a_dead_gpu() -> None:
    """An unanswered proposal to avoid a host held back an eviction."""
    world = AdviceMachine(hosts=7)
    world.see("h1", "ECC_TREND", basis=Basis.STATISTICAL)
    assert published(world.later(3)) == [("host h1", "DRAIN_AFTER_JOB", "PROPOSED")]
    world.see("h2")
    assert published(world.later(3)) == [("host h2", "EVICT_NOW", "PROPOSED")]
    world.answer("a2", AdvisoryState.ACCEPTED)
    assert published(world.answer("a1", AdvisoryState.ACCEPTED)) == [
        ("host h1", "DRAIN_AFTER_JOB", "DEFERRED")
    ]


def test_a_forecast_that_costs_more_to_act_on_is_held_back() -> None:
    """One chance in a thousand was weighed against 64 GPU-hours of idling."""
    world = AdviceMachine()
    world.see("h1", basis=Basis.STATISTICAL, price=Price(3.0, 64.0))
    (held,) = told(world.later(3), HeldBack)
    assert held.message.startswith("waiting costs less (")
    world.see("h1", basis=Basis.STATISTICAL, price=Price(100.0, 64.0))
    assert published(world.later(1)) == [("host h1", "DRAIN_AFTER_JOB", "PROPOSED")]


def test_what_was_proposed_is_weighed_again_when_it_is_accepted() -> None:
    """Between proposal and answer an operator drained the rest of the rack."""
    world = proposing("h3")
    for number in (1, 2):
        world.give(
            Unavailable(world.now_ns, f"h{number}", "drained by hand", FailureDomains(rack="r0"))
        )
    assert published(world.answer("a1", AdvisoryState.ACCEPTED)) == [
        ("host h3", "EVICT_NOW", "DEFERRED")
    ]


def test_the_rate_opens_a_breaker_that_tries_one_host_before_it_closes() -> None:
    """A new driver condemned a host every two minutes, each within every limit."""
    world = AdviceMachine(hosts_per_hour_max=3, cluster_share_max=1.0, proposal_seconds=7200.0)
    for number in range(0, 40, 8):
        world.see(f"h{number}")
    world.later(3)
    for name in ("a1", "a2", "a3"):
        world.carry_out(name)
    assert told(world.answer("a4", AdvisoryState.ACCEPTED), Breaker)[0].position == "open"
    assert told(world.later(900), Breaker)[0].position == "half-open"
    world.later(2700)
    names = [advisory.name for advisory in world.machine.state.advisories.values()]
    assert told(world.answer(names[0], AdvisoryState.ACCEPTED), Act)
    assert not told(world.answer(names[1], AdvisoryState.ACCEPTED), Act)
    assert told(world.answer(names[0], AdvisoryState.DONE), Breaker)[0].position == "closed"


def test_what_waits_for_room_does_not_expire_as_if_nobody_had_answered() -> None:
    """An accepted advisory without room expired after an hour as "no answer in time"."""
    world = proposing("h3")
    for number in (1, 2):
        world.give(
            Unavailable(world.now_ns, f"h{number}", "drained by hand", FailureDomains(rack="r0"))
        )
    world.answer("a1", AdvisoryState.ACCEPTED)
    for _ in range(12):
        assert {state for _, _, state in published(world.later(900))} <= {"DEFERRED"}
    world.give(Available(world.now_ns, "h1"))
    assert published(world.later(900)) == [("host h3", "EVICT_NOW", "PROPOSED")]


@pytest.mark.parametrize("put_off", [False, True])
def test_what_became_graver_is_asked_anew(put_off: bool) -> None:
    """A more severe action gets a new time to answer.

    A host's GPU fell off the bus while its AVOID was deferred until Monday; another proposal was 59
    minutes old, and its eviction expired a minute later.
    """
    world = proposing("h1", "ECC_TREND", action=Action.AVOID)
    if put_off:
        until_ns = world.now_ns + 86_400 * SECOND_NS
        world.answer("a1", AdvisoryState.DEFERRED, until_ns=until_ns)
    world.later(3590)
    world.see("h1")
    (publication,) = told(world.later(3), Publish)
    assert (publication.advisory.name, publication.advisory.action.name) == ("a1", "EVICT_NOW")
    assert publication.advisory.state is AdvisoryState.PROPOSED
    assert publication.advisory.expires_ns == world.now_ns + 3600 * SECOND_NS


def test_a_breaker_closes_by_its_trial_only() -> None:
    """A drain from before the breaker opened ended well, and eight more hosts went out untested."""
    world = AdviceMachine(failures_max=2, cluster_share_max=1.0, proposal_seconds=7200.0)
    for number in range(0, 48, 8):
        world.see(f"h{number}")
    world.later(3)
    world.answer("a1", AdvisoryState.ACCEPTED)
    for name in ("a2", "a3"):
        world.answer(name, AdvisoryState.ACCEPTED)
        world.answer(name, AdvisoryState.FAILED)
    world.later(450)
    world.answer("a1", AdvisoryState.ACCEPTED)  # still working
    assert told(world.later(450), Breaker)[0].position == "half-open"
    assert told(world.answer("a1", AdvisoryState.DONE), Breaker) == []
    assert told(world.answer("a4", AdvisoryState.ACCEPTED), Act)
    (refused,) = told(world.answer("a5", AdvisoryState.ACCEPTED), Publish)
    assert "one host at a time until a4 succeeds" in refused.message
    assert told(world.answer("a4", AdvisoryState.DONE), Breaker)[0].position == "closed"


def test_a_trial_that_does_not_end_is_given_up() -> None:
    """A trial eviction blocked by a disruption budget was renewed for days, blocking all others."""
    world = AdviceMachine(failures_max=2, cluster_share_max=1.0, proposal_seconds=7200.0)
    for number in range(0, 48, 8):
        world.see(f"h{number}")
    world.later(3)
    for name in ("a1", "a2"):
        world.answer(name, AdvisoryState.ACCEPTED)
        world.answer(name, AdvisoryState.FAILED)
    world.later(900)
    assert told(world.answer("a3", AdvisoryState.ACCEPTED), Act)
    for _ in range(2):
        world.later(449)
        world.answer("a3", AdvisoryState.ACCEPTED, message="the budget allows no disruption")
    (breaker,) = told(world.later(2), Breaker)
    assert breaker.position == "half-open" and "a3 did not end in time" in breaker.message
    assert told(world.answer("a4", AdvisoryState.ACCEPTED), Act)
    assert told(world.answer("a4", AdvisoryState.DONE), Breaker)[0].position == "closed"


@pytest.mark.parametrize("is_back", [False, True])
def test_why_a_return_came_to_nothing_is_what_was_so(*, is_back: bool) -> None:
    """A host that was healthy for hours until its hold expired was "not well again after all"."""
    world = AdviceMachine(proposal_seconds=100_000.0)
    world.see("h1")
    world.later(3)
    world.carry_out("a1")
    world.recover("h1")
    world.later(900)
    if is_back:
        world.give(Well(world.now_ns, "h1", False))
    publications = [
        publication for _ in range(12) for publication in told(world.later(1800), Publish)
    ]
    (ended,) = [
        publication.message
        for publication in publications
        if publication.advisory.state is AdvisoryState.WITHDRAWN
    ]
    assert ended == ("it is not healthy again after all" if is_back else "the hold expired")


def test_nothing_comes_of_what_was_rejected() -> None:
    """A slow executor carried out rejected advice."""
    world = proposing("h1")
    for nothing in ("", "   "):
        assert told(world.answer("a1", AdvisoryState.REJECTED, "alice", message=nothing), Refused)
    world.answer("a1", AdvisoryState.REJECTED, "alice", message="it is in a burn-in")
    (refused,) = world.answer("a1", AdvisoryState.ACCEPTED)
    assert isinstance(refused, Refused) and type(refused.error) is FailedPrecondition
    assert "burn-in" in refused.message
    ends = datetime.fromtimestamp(world.now_ns // SECOND_NS + 86_400, UTC)
    later = world.later(3600)
    assert told(later, Publish) == []  # it is not proposed again either
    (held,) = told(later, HeldBack)
    assert f"not repeated before {ends:%Y-%m-%d %H:%M} UTC" in held.message, (
        "who looks at night knows"
    )


def test_what_was_rejected_stays_so_though_something_graver_came_and_went() -> None:
    """A drain rejected for the day was proposed again after a GPU had hung for a moment."""
    world = proposing("h1", "ECC_TREND", action=Action.AVOID)
    world.answer("a1", AdvisoryState.REJECTED, "alice", message="it is in a burn-in")
    world.see("h1")
    assert published(world.later(3)) == [("host h1", "EVICT_NOW", "PROPOSED")]
    world.gone("h1")
    assert published(world.later(1)) == [("host h1", "EVICT_NOW", "WITHDRAWN")]
    assert published(world.later(600)) == []  # by then withdrawn advice may be proposed again
    world.see("h1")
    assert published(world.later(3)) == [("host h1", "EVICT_NOW", "PROPOSED")]
    world.gone("h1")
    world.later(1)
    assert published(world.later(86_400)) == [("host h1", "AVOID", "PROPOSED")]


def test_an_answer_to_what_it_was_before_is_refused() -> None:
    """The advice became an eviction between reading and accepting."""
    world = AdviceMachine()
    world.see("h1", action=Action.DRAIN_AFTER_JOB)
    (publication,) = told(world.later(3), Publish)
    world.see("h1", "PCIE")
    world.later(3)
    (refused,) = world.answer("a1", AdvisoryState.ACCEPTED, etag=publication.advisory.etag)
    assert isinstance(refused, Refused) and isinstance(refused.error, EtagMismatch)


def test_what_its_owner_left_goes_into_what_is_asked_for_beside_it() -> None:
    """A host had two proposals: a drain whose owner fell silent, and a later eviction."""
    world = AdviceMachine()
    world.see("h1", "ECC_TREND", action=Action.DRAIN_AFTER_JOB)
    world.later(5)
    world.answer("a1", AdvisoryState.ACCEPTED)
    world.see("h1")
    assert published(world.later(5)) == [("host h1", "EVICT_NOW", "PROPOSED")]
    lapsed = published(world.later(AdvisoryLimits().lease_seconds))
    assert ("host h1", "DRAIN_AFTER_JOB", "WITHDRAWN") in lapsed
    world.later(5)
    (left,) = world.machine.state.advisories.values()
    assert left.name == "a2", "the milder trouble goes under what is set on the host"


def test_a_lease_lasts_as_long_as_its_owner_said() -> None:
    """A person had to accept a drain after the job again every ten minutes until the job ended."""
    world, hour = AdviceMachine(), 3600.0
    world.see("h1")
    world.later(3)
    world.answer("a1", AdvisoryState.ACCEPTED, "x", lease_seconds=8 * hour)
    for _ in range(7):
        assert published(world.later(hour)) == []
        world.see("h1")
    # an acceptance without a lease time shortens nothing
    world.answer("a1", AdvisoryState.ACCEPTED, "x")
    assert published(world.later(hour - 1)) == []
    world.answer("a1", AdvisoryState.ACCEPTED, "x", lease_seconds=60.0)  # an explicit time counts
    assert published(world.later(59)) == []
    assert published(world.later(1)) == [("host h1", "EVICT_NOW", "PROPOSED")]


@pytest.mark.parametrize(
    ("to", "seconds", "message"),
    [
        (AdvisoryState.ACCEPTED, 9.9, "lease: 9.9 s, expected 10 s to 7 days"),
        (AdvisoryState.ACCEPTED, 604_801.0, "expected 10 s to 7 days"),
        (AdvisoryState.ACCEPTED, -1.0, "expected 10 s to 7 days"),
        (AdvisoryState.REJECTED, 60.0, "lease: only an acceptance has one"),
        (AdvisoryState.ACCEPTED, 10.0, ""),
        (AdvisoryState.ACCEPTED, 604_800.0, ""),
    ],
)
def test_a_lease_is_bounded(to: AdvisoryState, seconds: float, message: str) -> None:
    """A lease for a year would keep a host from others after its owner left."""
    world = proposing("h1")
    event = Acked(world.now_ns, "a1", to, "x", "why", lease_seconds=seconds)
    if message:
        with pytest.raises(InvalidArgument, match=message):
            world.machine.preview(event)
        (refused,) = told(world.give(event), Refused)
        assert isinstance(refused.error, InvalidArgument) and message in refused.message
    else:
        until_ns = world.now_ns + int(seconds * 1e9)
        assert world.machine.preview(event).lease_until_ns == until_ns
        assert told(world.give(event), Refused) == []
        assert world.machine.state.advisories["a1"].lease_until_ns == until_ns


def test_an_owner_that_falls_silent_loses_its_lease() -> None:
    """A dead executor kept its lease, and later continued."""
    world = proposing("h1")
    (first,) = told(world.answer("a1", AdvisoryState.ACCEPTED, "x"), Act)
    assert published(world.later(600)) == [("host h1", "EVICT_NOW", "PROPOSED")]
    (second,) = told(world.answer("a1", AdvisoryState.ACCEPTED, "y"), Act)
    assert second.token > first.token
    (refused,) = told(world.answer("a1", AdvisoryState.DONE, "x"), Refused)
    assert isinstance(refused.error, PermissionDenied)


def test_what_is_set_is_renewed_while_its_cause_stands_and_else_runs_out() -> None:
    """A taint outlived the aggregator that had set it by a month."""
    world = proposing("h1")
    world.carry_out("a1")
    assert told(world.later(3600), Renew)
    world.recover("h1")
    cleared = [clear for _ in range(12) for clear in told(world.later(1800), Clear)]
    assert [clear.host for clear in cleared] == [
        "h1"
    ]  # its return was proposed, and never answered


def test_while_frozen_nothing_is_proposed_and_nothing_granted() -> None:
    """The aggregator's own switch failed, and half of the fleet looked silent."""
    world = proposing("h1")
    world.give(Frozen(world.now_ns, "half is silent"))
    world.see("h20")
    assert world.later(10) == []
    (refused,) = told(world.answer("a1", AdvisoryState.ACCEPTED), Refused)
    assert isinstance(refused.error, AdviceFrozen)
    assert to_json(refused).startswith('{"name":"a1","why":"frozen","message":"nothing is granted')
    world.give(Frozen(world.now_ns, ""))
    assert published(world.later(1)) == [("host h20", "EVICT_NOW", "PROPOSED")]


def test_who_carries_something_out_keeps_it_while_frozen() -> None:
    """In an outage of 15 minutes executors lost their leases, and others began the same drains."""
    world = proposing("h1")
    world.answer("a1", AdvisoryState.ACCEPTED, "x")
    world.give(Frozen(world.now_ns, "half is silent"))
    for _ in range(3):
        world.later(500)
        (still,) = told(world.answer("a1", AdvisoryState.ACCEPTED, "x"), Publish)
        assert (still.advisory.state, still.advisory.token) == (AdvisoryState.ACCEPTED, 1)
    assert published(world.answer("a1", AdvisoryState.DONE, "x")) == [
        ("host h1", "EVICT_NOW", "DONE")
    ]


def test_a_graver_fault_takes_the_place_of_a_milder_one() -> None:
    """A drain after the job was running when the GPU fell off the bus."""
    world = proposing("h1", "ECC_TREND", action=Action.DRAIN_AFTER_JOB)
    world.answer("a1", AdvisoryState.ACCEPTED)
    world.see("h1")
    assert published(world.later(3)) == [("host h1", "EVICT_NOW", "PROPOSED")]
    assert ("host h1", "DRAIN_AFTER_JOB", "WITHDRAWN") in published(
        world.answer("a2", AdvisoryState.ACCEPTED)
    )
    assert world.machine.state.holds["h1"].name == "a2"


@pytest.mark.parametrize("relapses", [0, 1, 2])
def test_a_host_that_relapses_is_verified_for_longer(relapses: int) -> None:
    """Most failed repairs show within a day; the third return took as long as the first."""
    world = AdviceMachine(hosts_per_hour_max=100)
    for turn in range(relapses + 1):
        world.see("h1")
        world.later(3)
        names = list(world.machine.state.advisories)
        world.carry_out(names[0])
        world.recover("h1")
        assert world.later(900 * 2**turn - 1) == []
        assert published(world.later(1)) == [("host h1", "RETURN_TO_SERVICE", "PROPOSED")]
        world.carry_out(next(iter(world.machine.state.advisories)))
        world.give(Well(world.now_ns, "h1", False))


def leap(world: AdviceMachine, seconds: int) -> None:
    """Set the clock forward."""
    world.now_ns += seconds * SECOND_NS
    world.machine.apply_clock_jump(seconds * SECOND_NS, world.now_ns)


def test_a_clock_that_leaps_forward_ends_nothing() -> None:
    """A clock set forward ends no lease, hold, verification or proposal.

    NTP moved the clock by three hours: running work lost its owner, holds were cleared, a faulty
    host was back in service, and unanswered proposals had expired.
    """
    world = AdviceMachine()
    for host in ("h1", "h9"):
        world.see(host)
    world.later(5)
    for name in ("a1", "a2"):
        world.answer(name, AdvisoryState.ACCEPTED)
    world.answer("a1", AdvisoryState.DONE)
    world.see("h17")
    assert published(world.later(5)) == [("host h17", "EVICT_NOW", "PROPOSED")]
    leap(world, 3 * 3600)
    assert world.later(1) == []
    assert published(world.later(594)) == [("host h9", "EVICT_NOW", "PROPOSED")], "a lease is one"
    world.recover("h1")
    leap(world, 3600)
    assert world.later(898) == []
    assert published(world.later(3)) == [("host h1", "RETURN_TO_SERVICE", "PROPOSED")]


def test_a_clock_that_leaps_after_it_was_set_back_stood_still_meanwhile() -> None:
    """The rest of the jump is the time that passed while the clock was behind."""
    world = AdviceMachine()
    world.see("h1")
    world.later(5)
    world.answer("a1", AdvisoryState.ACCEPTED)
    world.later(-3600)
    world.later(100)
    leap(world, 3600)
    assert world.later(590) == []
    assert published(world.later(10)) == [("host h1", "EVICT_NOW", "PROPOSED")]
    leap(world, -60)
    assert world.machine.state.now_ns == world.now_ns + 60 * SECOND_NS
