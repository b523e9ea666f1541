"""How fast one caller may go: buckets by a clock that is handed in, and streams that are read more slowly."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.aggregator.auth.access import AccessControl
from gangline.aggregator.auth.limits import BURST_SECONDS, KeyedTokenBuckets
from gangline.aggregator.config import AggregatorConfig
from gangline.aggregator.errors import ResourceExhausted
from gangline.aggregator.principal import Principal, Role
from gangline.contract.token_bucket import TokenBucket
from gangline.contract.wire import telemetry_pb2
from tests.aggregator.auth.secured import Secured, bearer, telemetry

AGENT = Principal(Role.AGENT, "a", "a", "token 1", (1, 1))
OPERATOR = Principal(Role.OPERATOR, "a", auth_method="token 2", proof=(1, 1))


@given(
    st.floats(0.1, 1000.0),
    st.lists(st.tuples(st.floats(0.0, 50.0), st.floats(0.0, 5000.0)), max_size=40),
)
def test_who_waits_as_told_never_goes_faster(rate: float, turns: list[tuple[float, float]]) -> None:
    """Over any span at most the rate and a burst, with any request sizes, if the caller keeps each wait."""
    now, total, last = 0.0, 0.0, 0.0
    bucket = TokenBucket(rate, rate * BURST_SECONDS, now)
    for pause, amount in turns:
        now += pause
        wait = bucket.take(amount, now)
        now += wait
        total, last = total + amount, amount
    assert total - last <= rate * (now + BURST_SECONDS) * (1 + 1e-9) + 1e-6


def test_who_asks_too_often_is_told_when_to_come_again() -> None:
    """A refused request costs no tokens: a client in a loop would otherwise stay locked out."""
    bucket = TokenBucket(2.0, 40.0, 100.0)
    assert [bucket.try_take(100.0) for _ in range(40)] == [0.0] * 40
    assert [bucket.try_take(100.0) for _ in range(1000)] == [0.5] * 1000
    assert bucket.try_take(100.5) == 0.0 and bucket.try_take(100.5) == pytest.approx(0.5)
    assert bucket.try_take(0.0) > 0.0  # a clock that went back gives nothing away


def test_each_has_a_bucket_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A million names are a million buckets: those used longest ago go."""
    monkeypatch.setattr("gangline.aggregator.auth.limits.BUCKETS_MAX", 3)
    buckets = KeyedTokenBuckets(1 / BURST_SECONDS, lambda: 0.0)
    assert [buckets.try_take(name) for name in "abc"] == [0.0] * 3
    assert buckets.try_take("a") > 0.0
    assert buckets.try_take("d") == 0.0 and len(buckets._buckets) == 3
    assert buckets.try_take("a") > 0.0 and buckets.try_take("b") == 0.0


class World:
    """A door with a clock of the test's."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.now = 0.0
        config = AggregatorConfig(data=folder, **changes)
        self.door = AccessControl(config, lambda: self.now, lambda: self.now)

    def count(self, caller: Principal, request: Any = None) -> str:
        try:
            self.door.admit(caller, request)
        except ResourceExhausted as error:
            assert error.retry_seconds
            return str(error)
        return ""


def test_an_agents_calls_and_their_bytes_are_counted(tmp_path: Path) -> None:
    """Registrations of megabytes in a loop are limited by count and bytes. Other roles have no such limit."""
    world = World(tmp_path, agent_calls_per_minute_max=3.0, agent_bytes_per_second_max=100_000.0)
    assert world.count(AGENT) == "" and "more than 3 times a minute" in world.count(AGENT)
    world.now += 20.0
    large = telemetry_pb2.RegisterNodeRequest(agent_version="x" * 2_500_000)
    assert "more than 100000 bytes" in world.count(AGENT, large)
    assert [world.count(OPERATOR, large) for _ in range(100)] == [""] * 100


def test_devices_and_events_cost_more_than_their_bytes(tmp_path: Path) -> None:
    """3000 devices are 0.3 MB and 11 ms of the loop that all receipts wait for; a thousand events are 40 kB."""
    world = World(tmp_path, agent_rows_per_second_max=100.0)
    device = telemetry_pb2.Device(kind="gpu", key="a")
    inventory = telemetry_pb2.RegisterNodeRequest(devices=[device] * 2001)
    assert world.count(AGENT, inventory) and "a device costs" in world.count(AGENT, inventory)
    world.now += 100.0
    events = telemetry_pb2.ReportEventsRequest(events=[telemetry_pb2.HealthEvent(code=79)] * 100)
    assert [bool(world.count(AGENT, events)) for _ in range(3)] == [False, False, True]


def test_who_was_refused_and_waits_as_told_is_let_in(tmp_path: Path) -> None:
    """Agents return exactly at the announced time: a refusal as expensive as the call would repeat without end."""
    world = World(tmp_path, agent_rows_per_second_max=100.0)
    events = telemetry_pb2.ReportEventsRequest(events=[telemetry_pb2.HealthEvent(code=79)] * 150)
    assert world.count(AGENT, events) == ""
    for _ in range(3):
        with pytest.raises(ResourceExhausted) as refused:
            world.door.admit(AGENT, events)
        assert refused.value.retry_seconds is not None
        world.now += refused.value.retry_seconds + 0.001  # as on the wire, in whole milliseconds
        assert world.count(AGENT, events) == ""


def test_refusals_are_held_back_from_who_wants_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls without a login at full speed cost the server as much as the client, until the answers slow down."""
    world, slept = World(tmp_path), list[float]()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)

    async def refuse(count: int, peer: str, caller: Principal | None = None) -> int:
        slept.clear()
        for _ in range(count):
            await world.door.throttle_refusal(caller, peer)
        return len(slept)

    assert asyncio.run(refuse(110, "ipv4:10.0.0.1:1000")) == 10
    assert asyncio.run(refuse(10, "ipv4:10.0.0.1:2000")) == 10, "another port of the same address"
    assert asyncio.run(refuse(10, "ipv4:10.0.0.2:1000")) == 0
    assert asyncio.run(refuse(10, "ipv4:10.0.0.1:1000", AGENT)) == 0, "a login is its own"
    world.now += 60.0
    assert asyncio.run(refuse(10, "ipv4:10.0.0.1:1000")) == 0
    assert world.door.refused_count == 150


@pytest.mark.slow
def test_a_stream_that_sends_too_much_is_read_more_slowly(
    lab: Any, secured: Secured, make_agent: Any, until: Any
) -> None:
    """Nothing is refused or lost: the data stays in the agent's spool, and a finding gives the reason of the delay."""

    async def way() -> None:
        tokens = {name: bearer(secured.token("agent", name)) for name in ("host-1", "host-2")}
        tls = secured.settings(client_certificates=False, agent_frames_per_second_max=1.0)
        async with lab.aggregator(**tls) as aggregator:
            channel = secured.channel(aggregator.port)
            streams = {}
            for name, login in tokens.items():
                agent = make_agent(host=name, run_id=name.encode().ljust(16))
                answer = await telemetry(channel).RegisterNode(agent.registration(), metadata=login)
                metadata = (*login, ("gangline-session", answer.session))
                streams[name] = agent, telemetry(channel).StreamTelemetry(metadata=metadata)
            fast, stream = streams["host-1"]
            for sequence in range(1, 61):
                await stream.write(fast.message(sequence))
            await until(
                lambda: any(key[1] == "ingest.held_back" for key in aggregator.fleet.findings)
            )
            assert {key[0] for key in aggregator.fleet.findings} == {"host-1"}
            well, other = streams["host-2"]
            await other.write(well.message(1))
            ack = await other.read()
            assert not ack.refused
            await channel.close()

    asyncio.run(way())
    ((stored,),) = lab.rows(
        "SELECT count(DISTINCT boottime_ns) FROM readings.gpu_1s WHERE host = 'host-1'"
    )
    assert 20 <= stored < 60
