"""The fleet's permit: a person grants it for a time, hosts get a minute at a time, revocable."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline import cli
from gangline.aggregator.auth.authenticator import is_local_peer
from gangline.aggregator.errors import InvalidArgument
from gangline.aggregator.model import HealthState, HostScore, Reason, Snapshot
from gangline.aggregator.permits import GRANT_SECONDS_MAX, LEASE_SECONDS, Permits
from gangline.contract.wire import permit_pb2
from gangline.contract.wire.permit_pb2_grpc import PermitServiceStub

GUARD_SECONDS = 60.0
SECOND = 1_000_000_000
START = 1_760_000_000 * SECOND


def snapshot(unhealthy: int = 0, of: int = 100, degraded: str = "") -> Snapshot:
    hosts = tuple(
        HostScore(
            host=f"h{number}",
            node_index=number,
            simulated=False,
            score=1.0,
            score_lower=1.0,
            score_upper=1.0,
            state=HealthState.UNHEALTHY if number < unhealthy else HealthState.HEALTHY,
            hazard_per_hour=0.0,
            relative_speed=1.0,
            reason=Reason.NONE,
            reason_message="",
            clears_when="",
            last_received_ns=START,
        )
        for number in range(of)
    )
    return Snapshot(1, START, 3600.0, hosts, degraded)


class PermitsWithClock:
    """Permits with a test clock and a test snapshot."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now_ns, self.boot_id = folder, START, "this boot"
        self.snapshot: Snapshot | None = snapshot()
        self.permits = self.started()

    def started(self) -> Permits:
        return Permits(self.folder, 0.05, lambda: self.snapshot, lambda: self.now_ns, self.boot_id)

    def seconds(self) -> int:
        lease = self.permits.lease()
        return lease.seconds if lease else 0


@pytest.fixture
def world(tmp_path: Path) -> PermitsWithClock:
    return PermitsWithClock(tmp_path)


def test_nothing_is_granted_until_somebody_does(world: PermitsWithClock) -> None:
    """By default a fleet only reports."""
    assert world.seconds() == 0 and world.permits.seconds_left() == 0


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_grant_is_given_a_minute_at_a_time_and_ends(
    world: PermitsWithClock, is_restarted: bool
) -> None:
    """If the aggregator dies, hosts lose the permit within a minute; an upgrade keeps a grant."""
    world.permits.grant(600, "ops: trial")
    if is_restarted:
        world.permits = world.started()
    assert world.seconds() == LEASE_SECONDS
    world.now_ns += 570 * SECOND
    assert world.seconds() == 30
    world.now_ns += 30 * SECOND
    assert world.seconds() == 0


def test_a_revoked_grant_is_gone_at_once_and_after_a_restart(world: PermitsWithClock) -> None:
    """A permit revoked at night stays revoked after an upgrade in the morning."""
    world.permits.grant(600, "ops: trial")
    world.permits.revoke("ops: stop")
    assert world.seconds() == 0
    world.permits = world.started()
    assert world.seconds() == 0 and world.permits.active_grant.reason == "ops: stop"


def test_a_boot_of_the_aggregators_machine_ends_a_grant(world: PermitsWithClock) -> None:
    """After a revocation lost in a power cut the old grant was in force again."""
    world.permits.grant(600, "ops: trial")
    world.boot_id = "the next"
    world.permits = world.started()
    assert world.seconds() == 0
    assert world.permits.active_grant.reason.endswith("since this machine booted")


def test_a_clock_that_went_back_grants_nothing(world: PermitsWithClock) -> None:
    """NTP set the clock back by a year: the grant would have lasted a year."""
    world.permits.grant(600, "ops: trial")
    world.now_ns -= 86_400 * SECOND
    assert world.seconds() == 0


@pytest.mark.parametrize(
    ("shown", "message"),
    [
        (None, "no host has been judged yet"),
        (snapshot(degraded="7 % of hosts went silent at once"), "degraded: 7 % of hosts"),
        (snapshot(6), "6 of 100 hosts are UNHEALTHY, which is more than 5 %"),
        (snapshot(2, of=8), "2 of 8 hosts are UNHEALTHY"),
    ],
)
def test_it_is_withheld_while_the_fleet_is_in_doubt(
    world: PermitsWithClock, shown: Snapshot | None, message: str
) -> None:
    """A new driver wrote XID 119 on every host within a minute: the fleet was not drained."""
    world.permits.grant(600, "ops: trial")
    world.snapshot = shown
    assert world.seconds() == 0 and message in world.permits.withheld_reason()
    world.snapshot = snapshot(5)
    assert world.seconds() == LEASE_SECONDS and world.permits.withheld_reason() == ""


def test_one_bad_host_of_few_is_enforced_and_ended_simulations_do_not_count(
    world: PermitsWithClock,
) -> None:
    """A lab of four hosts is not locked out by its first fault."""
    world.permits.grant(600, "ops: trial")
    world.snapshot = snapshot(1, of=4)
    assert world.seconds() == LEASE_SECONDS
    bad = snapshot(50)
    gone = tuple(replace(host, simulated=True, last_received_ns=1) for host in bad.hosts[:50])
    world.snapshot = replace(bad, hosts=(*gone, *bad.hosts[50:]), simulation_ended=True)
    assert world.seconds() == LEASE_SECONDS


@pytest.mark.parametrize(
    ("seconds", "reason", "message"),
    [
        (0, "why", "seconds: expected 1 to 604800"),
        (GRANT_SECONDS_MAX + 1, "why", "seconds: expected 1 to 604800"),
        (60, "", "reason: the name and reason"),
        (60, "x" * 201, "reason: the name and reason"),
        (60, "a\x1b[2J", "reason: the name and reason"),
    ],
)
def test_a_grant_has_limits(
    world: PermitsWithClock, seconds: int, reason: str, message: str
) -> None:
    """A grant has an end and a name."""
    with pytest.raises(InvalidArgument, match=message):
        world.permits.grant(seconds, reason)


@given(
    st.binary(max_size=200)
    | st.recursive(
        st.integers() | st.text(max_size=5),
        lambda i: st.dictionaries(
            st.sampled_from(["granted_ns", "until_ns", "reason", "boot_id"]),
            i | st.just("this boot"),
        ),
    ).map(lambda v: json.dumps(v).encode())
)
def test_a_file_that_is_none_grants_nothing(tmp_path_factory: Any, content: bytes) -> None:
    """A torn or hand-written grant file never grants more than the maximum."""
    folder = tmp_path_factory.mktemp("permits")
    (folder / "permit.json").write_bytes(content)
    assert PermitsWithClock(folder).permits.seconds_left() <= GRANT_SECONDS_MAX


@pytest.mark.parametrize(
    ("peer", "here"),
    [
        ("ipv4:127.0.0.1:4711", True), ("ipv6:%5B::1%5D:4711", True), ("unix:", True),
        ("ipv4:10.0.0.5:4711", False), ("ipv6:%5Bfd00::5%5D:1", False), ("", False), ("ipv4:x", False),
    ],
)  # fmt: skip
def test_who_is_on_this_machine(peer: str, here: bool) -> None:
    """Without logins a remote caller may revoke a permit, but not grant it."""
    assert is_local_peer(peer) is here


@pytest.mark.slow
async def test_the_wire_carries_it_and_takes_it_back(lab: Any) -> None:
    """From the operator's call to the host's next receipt, and back, over a real aggregator."""
    async with lab.aggregator() as aggregator, lab.agent(aggregator) as agent:
        stub: Any = PermitServiceStub(agent.channel)  # type: ignore[no-untyped-call]
        assert not (await agent.register()).HasField("permit")
        request = permit_pb2.GrantPermitRequest(seconds=600, reason="ops: trial")
        checked = permit_pb2.GrantPermitRequest(
            seconds=600, reason="ops: trial", validate_only=True
        )
        assert (await stub.GrantPermit(checked)).seconds_left == 600
        assert not (await stub.GetPermit(permit_pb2.GetPermitRequest())).seconds_left
        request.request_id = "one"
        granted = await stub.GrantPermit(request)
        again = await stub.GrantPermit(request)
        assert again.granted_wall_time_ns == granted.granted_wall_time_ns, "it begins anew"
        assert 0 < granted.seconds_left <= 600 and granted.reason == "ops: trial"
        # a host seen for only seconds is judged UNKNOWN
        aggregator._permits.withheld = lambda: ""
        assert (await agent.register()).permit.seconds == LEASE_SECONDS
        assert (await receipt(agent, 1)).permit.seconds == LEASE_SECONDS
        await stub.RevokePermit(permit_pb2.RevokePermitRequest(reason="ops: stop"))
        assert not (await receipt(agent, 2)).HasField("permit")
        again = await stub.GrantPermit(request)
        assert (again.seconds_left, again.reason.endswith("ops: stop")) == (0, True)


async def receipt(agent: Any, sequence: int) -> Any:
    """Send a frame; return its receipt, after any keepalives during a slow commit."""
    if agent.stream is None:
        agent.open()
    stream: Any = agent.stream
    await stream.write(agent.agent.message(sequence))
    async with asyncio.timeout(GUARD_SECONDS):
        while True:
            answer = await agent.acknowledgement()
            if sequence in agent.durable:
                return answer


def test_the_command_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    """`gangline permit grant` alone fails with the correct usage."""
    with pytest.raises(SystemExit) as stop:
        cli.main(["permit", "grant"])
    assert stop.value.code == cli.USAGE
    assert 'grant needs a duration and a reason: --for 8h --reason "' in capsys.readouterr().err
    assert cli.main(["permit", "show", "--aggregator", "127.0.0.1:1"]) == cli.NO_ANSWER
