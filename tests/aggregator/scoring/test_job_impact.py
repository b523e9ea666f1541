"""The host for which a healthy host waits is shown in responses, and never lowers a score."""

from __future__ import annotations

from typing import Any

import pytest

from gangline.aggregator.commands.explain import explanation_text
from gangline.aggregator.model import HealthState
from gangline.aggregator.scoring.score import HORIZON_HOURS
from gangline.aggregator.service import score_messages
from gangline.contract.wire import score_pb2
from tests.worlds import Host, World, busy, gapped, gpu_of, in_job, pass_steps, tell, throttle


def asked(world: World, host: Host) -> score_pb2.NodeScore:
    """Return the full score message of *host*, with its evidence."""
    assert world.snapshot is not None
    return score_messages.score_message(
        world.snapshot, world.score(host), HORIZON_HOURS, full=True, sources=()
    )


def waits_of(world: World) -> dict[str, str]:
    """Return per waiting host the host for which it waits."""
    assert world.snapshot is not None
    waits = {
        host.name: world.snapshot.gang_waits.evidence_for(number)
        for number, host in enumerate(world.hosts)
    }
    return {name: evidence.device for name, evidence in waits.items() if evidence}


def words_of(world: World) -> list[str]:
    """Return the messages of all culprits, once each."""
    assert world.snapshot is not None
    return [culprit.message for culprit in world.snapshot.gang_waits.culprits]


def test_a_victim_is_told_whom_it_waits_for() -> None:
    """`explain` of the slowed host of rank 0 said only "Nothing speaks against it"."""
    world = in_job()
    tell(world, world.hosts[5], "1001", "ended")  # alone, without a fault
    busy(world.hosts[2], 1.09)
    pass_steps(world, 14)
    answer = asked(world, world.hosts[0])
    text = " ".join(explanation_text(answer, 100).split())
    assert "Noted, at no cost: 1. waits for h2 of its job 1001 (h2: computes 9 % longer" in text
    assert "no fault of this host" in text and "costs nothing" in text
    assert "There is no evidence against it" not in text
    assert answer.state == score_pb2.HEALTHY and not answer.reason_message
    assert answer.score == pytest.approx(world.score(world.hosts[5]).score)
    sql = answer.contributions[-1].evidence_sql
    assert sql == world.score(world.hosts[2]).evidence[0].sql
    assert waits_of(world) == dict.fromkeys(("h0", "h1", "h3", "h4"), "h2")
    for well in (2, 5):
        assert not any(
            "waits" in contribution.message
            for contribution in asked(world, world.hosts[well]).contributions
        )


@pytest.mark.parametrize(
    "pressures", [{"pressure_cpu_some_ratio": 0.5}, {"pressure_io_some_ratio": 0.5}]
)
def test_gaps_of_another_are_told_of_too(pressures: dict[str, float]) -> None:
    """A host whose cores are contended, or whose storage stalls, delays the others."""
    world = in_job()
    gapped(world.hosts[1], 0.3, **pressures)
    pass_steps(world, 14)
    assert world.score(world.hosts[1]).state is HealthState.DEGRADED
    assert waits_of(world) == dict.fromkeys(("h0", "h2", "h3", "h4", "h5"), "h1")


def test_what_is_watched_or_was_of_a_job_before_blames_nobody() -> None:
    """An unmeasured host (WATCH) and a fault in a job of an hour ago blame no host."""
    world = in_job(work=False)
    busy(world.hosts[2], 1.09)
    for host in world.hosts:
        host.forget("gpu_fast_1s")
    pass_steps(world, 14)
    assert waits_of(world) == {}
    world = in_job()
    busy(world.hosts[2], 1.09)
    pass_steps(world, 14)
    busy(world.hosts[2], 1.0)
    for host in world.hosts:
        tell(world, host, "1001", "ended")
        tell(world, host, "1002")
    pass_steps(world, 7)
    assert world.score(world.hosts[2]).state is HealthState.DEGRADED, "it is remembered for an hour"
    assert waits_of(world) == {}


def in_two_jobs() -> World:
    """Hosts 0 to 2 run job 1 on their first GPU, 1 to 3 job 2 on their second; 4 runs none."""
    world = World(hosts=5, gpus=2)
    for job, gpu, hosts in (("1", 0, (0, 1, 2)), ("2", 1, (1, 2, 3))):
        for number in hosts:
            host = world.hosts[number]
            world.event(
                host, 0, gpu_of(host, gpu), "gpu.process", event_id=f"/{job}", process_id=7,
                attributes={"state": "running", "source": "slurm", "job_id": job},
            )  # fmt: skip
    world.run(10)
    return world


def test_a_list_of_hosts_says_each_ones_job_and_for_whom_it_waits() -> None:
    """The table showed "nothing wrong" for six waiting hosts; only `explain` said why."""
    world = in_two_jobs()
    world.event(world.hosts[1], 79, gpu_of(world.hosts[1], 0))
    world.run(3)
    assert world.snapshot is not None
    listed = {
        host.name: score_messages.score_message(
            world.snapshot, world.score(host), HORIZON_HOURS, full=False, sources=()
        )
        for host in world.hosts
    }
    waits = {
        name: (message.job, message.waits_for, message.waits_for_job)
        for name, message in listed.items()
    }
    assert waits == {
        "h0": ("1", "nodes/h1", "1"),
        "h1": ("1", "", ""),
        "h2": ("1", "nodes/h1", "1"),
        "h3": ("2", "", ""),
        "h4": ("", "", ""),
    }
    tell_ended(world, "1")
    assert world.snapshot.jobs == {1: "2", 2: "2", 3: "2"}


def tell_ended(world: World, job: str) -> None:
    """End job 1 of `in_two_jobs`."""
    for host in world.hosts[:3]:
        world.event(
            host, 0, gpu_of(host, 0), "gpu.process", event_id=f"/{job}", process_id=7,
            attributes={"state": "ended", "source": "slurm", "job_id": job},
        )  # fmt: skip
    world.run(2)


@pytest.mark.parametrize(("gpu", "victims"), [(0, {"h0", "h2"}), (1, {"h2", "h3"})])
def test_only_the_job_on_the_sick_gpu_waits_for_it(gpu: int, victims: set[str]) -> None:
    """Two jobs share a host: a fault of one job's GPU does not delay the other."""
    world = in_two_jobs()
    world.event(world.hosts[1], 79, gpu_of(world.hosts[1], gpu))
    world.run(3)
    assert waits_of(world) == dict.fromkeys(victims, "h1")
    [message] = words_of(world)
    assert message.startswith(
        f"may be slowed down by h1 of its job {gpu + 1} (h1: GPU-h1-{gpu}… XID 79"
    )


def test_the_gravest_of_a_job_is_named_and_the_others_counted() -> None:
    """The fault that stops the job is named; two culprits do not wait for each other."""
    world = in_two_jobs()
    throttle(world.hosts[0], 0)
    world.run(20)
    assert waits_of(world) == {"h1": "h0", "h2": "h0"}
    [message] = words_of(world)
    assert message.startswith("goes no faster than h0 of its job 1 (h0: GPU-h0-0… SM clock at ")
    world.event(world.hosts[1], 79, gpu_of(world.hosts[1], 0))
    world.run(2)
    assert waits_of(world) == {"h2": "h1"}
    [message] = words_of(world)
    assert message.startswith("may be slowed down by h1 of its job 1 (h1: ")
    assert message.endswith("; 1 more of that job would hold it up, too; no fault of this host")


def test_a_host_that_its_own_policy_bars_holds_nobody_up() -> None:
    """A host that bars itself by its own policy does not slow its job."""
    world = in_two_jobs()
    world.hosts[1].set("agent_10s", "agent", barring_findings_count=1)
    world.run(15)
    assert world.states()["h1"] == "UNHEALTHY"
    assert waits_of(world) == {}


def test_a_view_without_evidence_has_none_of_it() -> None:
    """Schedulers' short responses stay short."""
    world = in_two_jobs()
    world.event(world.hosts[1], 79, gpu_of(world.hosts[1], 0))
    snapshot = world.run(3)
    message: Any = score_messages.score_message(
        snapshot, world.score(world.hosts[0]), HORIZON_HOURS, full=False, sources=()
    )
    assert not message.contributions
