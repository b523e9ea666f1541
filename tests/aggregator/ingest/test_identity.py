"""Names, clocks and dictionaries of registered hosts."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc
import pytest

from gangline.agent.frame_builder import signal_dictionary
from gangline.contract.block import Block
from gangline.contract.signals import TABLES
from gangline.contract.wire import telemetry_pb2 as wire
from tests.processes import GUARD_SECONDS

HOUR_NS = 3600 * 10**9
FINDINGS = "SELECT host, name, message FROM findings ORDER BY ALL"

LIMITS: list[tuple[dict[str, Any], str]] = [
    ({"protocol_version": 9}, "protocol_version: 9; this aggregator speaks 1 to 2"),
    ({"node": ""}, "node: ''"),
    ({"node": "../etc"}, "node: '../etc' is not a host name"),
    ({"node": "x" * 300}, "at most 253"),
    ({"run_id": b"short"}, "run_id: 5 bytes, expected 16"),
    ({"boot_id": b""}, "boot_id: 0 bytes, expected 16"),
    ({"agent_version": "v" * 65}, "agent_version: 65 characters, at most 64"),
    ({"devices": [wire.Device(kind="gpu", key="k" * 97)]}, "devices.key"),
    ({"devices": [wire.Device(kind="gpu", key="k")] * 4097}, "devices: 4097 of them, at most 4096"),
    (
        {"signals": [wire.SignalDefinition(signal_id=1000, name="gpu.other_watts", kind="gauge")]},
        "id 1000 is gpu.other_watts (gauge) there and gpu.sm_clock_hertz (gauge) here",
    ),
    (
        {
            "signals": [
                wire.SignalDefinition(signal_id=1000, name="gpu.sm_clock_hertz", kind="state")
            ]
        },
        "id 1000 is gpu.sm_clock_hertz (state) there and gpu.sm_clock_hertz (gauge) here",
    ),
    (
        {"signals": [wire.SignalDefinition(signal_id=7, name="DROP TABLE", kind="gauge")]},
        "signals.name: 'DROP TABLE'",
    ),
    (
        {"signals": [wire.SignalDefinition(signal_id=70_000, name="gpu.a_watts", kind="gauge")]},
        "signals.signal_id: 70000",
    ),
]


class Clock:
    """The aggregator's wall clock, moved by the test."""

    def __init__(self) -> None:
        self.ahead_ns = 0

    def __call__(self) -> int:
        return time.time_ns() + self.ahead_ns


async def refused(call: Any, code: grpc.StatusCode = grpc.StatusCode.ALREADY_EXISTS) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    assert error.value.code() == code
    return str(error.value.details())


@pytest.mark.slow
def test_the_incumbent_of_a_name_stays(lab: Any, connect: Any, make_agent: Any, until: Any) -> None:
    """Two hosts share a name: the first continues, the second waits and gets the reason."""
    clock = Clock()

    async def register_twice() -> None:
        async with lab.aggregator(clock) as aggregator, lab.agent(aggregator) as first:
            await first.send(first.agent.message(1))
            second = connect(aggregator.port, make_agent(run_id=b"s" * 16))
            reason = await refused(second.register())
            assert first.agent.run_id.hex()[:8] in reason
            assert second.agent.run_id.hex()[:8] in reason
            assert "127.0.0.1" in reason and "60 s" in reason
            await first.send(first.agent.message(2))
            assert first.durable == {1, 2}
            await until(lambda: aggregator.fleet.findings)
            clock.ahead_ns = 30 * 10**9
            await refused(second.register())
            await first.send(first.agent.message(3))
            clock.ahead_ns = (30 + 61) * 10**9
            await second.register()
            await second.send(second.agent.message(1))
            await _no_session(first)
            await second.close()

    asyncio.run(register_twice())
    ((host, name, reason),) = lab.rows(FINDINGS)
    assert (host, name) == ("host-1", "identity.duplicate_name")
    assert "72727272" in reason and "73737373" in reason
    assert lab.rows("SELECT count(*) FROM readings.gpu_1s") == [(8,)]


async def _no_session(agent: Any) -> None:
    """Check that the replaced session ends with a reason at its next frame."""
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await agent.send(agent.agent.message(4))
    assert error.value.code() == grpc.StatusCode.UNAUTHENTICATED
    assert "registered again" in str(error.value.details())


@pytest.mark.slow
def test_a_restart_keeps_the_incumbent(lab: Any, connect: Any, make_agent: Any) -> None:
    """The aggregator restarts, and the impostor happens to be the first to call."""

    async def restart() -> None:
        async with lab.aggregator() as aggregator, lab.agent(aggregator):
            pass
        async with lab.aggregator() as aggregator:
            second = connect(aggregator.port, make_agent(run_id=b"s" * 16))
            reasons.append(await refused(second.register()))
            await second.close()
            async with lab.agent(aggregator) as first:
                await first.send(first.agent.message(1))

    reasons: list[str] = []
    asyncio.run(restart())
    assert len(reasons) == 1 and (b"r" * 16).hex()[:8] in reasons[0] and "60 s" in reasons[0]
    assert lab.rows("SELECT count(*) FROM readings.gpu_1s") == [(2,)]


@pytest.mark.slow
def test_a_rebooted_host_goes_on_with_its_spool(lab: Any, connect: Any, make_agent: Any) -> None:
    """A known run id with a new boot id is a reboot after the stream's end, a clone before it."""

    async def reboot() -> None:
        async with lab.aggregator() as aggregator:
            async with lab.agent(aggregator) as before:
                await before.send(before.agent.message(1))
                clone = connect(aggregator.port, make_agent(boot_id=b"c" * 16))
                reason = await refused(clone.register())
                assert "cloned machine image" in reason
                await clone.close()
            after = connect(aggregator.port, make_agent(boot_id=b"c" * 16))
            async with asyncio.timeout(GUARD_SECONDS):
                while not after.metadata:  # until the server has seen the end of the stream
                    try:
                        await after.register()
                    except grpc.aio.AioRpcError:
                        await asyncio.sleep(0.01)
            await after.send(after.agent.message(2))
            await after.close()

    asyncio.run(reboot())
    ((_, name, reason),) = lab.rows(FINDINGS)
    assert name == "identity.cloned_image"
    assert "62626262" in reason and "63636363" in reason  # both boots are named


@pytest.mark.slow
async def test_a_cloned_image_under_two_names(lab: Any, connect: Any, make_agent: Any) -> None:
    """A disk was copied with its spool, and renamed: both hosts continue, both have a finding."""
    async with lab.aggregator() as aggregator, lab.agent(aggregator) as first:
        await first.send(first.agent.message(1))
        other = connect(aggregator.port, make_agent(host="host-2", boot_id=b"c" * 16))
        await other.register()
        await other.send(other.agent.message(1))
        await asyncio.sleep(0)
        while (
            not aggregator.snapshot_holder.snapshot
            or len(aggregator.snapshot_holder.snapshot.hosts) < 2
        ):
            await asyncio.sleep(0.01)
        await other.close()
    findings = lab.rows(FINDINGS)
    assert [(host, name) for host, name, _ in findings] == [
        ("host-1", "identity.cloned_image"),
        ("host-2", "identity.cloned_image"),
    ]
    assert all("host-1" in message and "host-2" in message for _, _, message in findings)
    assert lab.rows("SELECT host, count(*) FROM readings.gpu_1s GROUP BY 1 ORDER BY 1") == [
        ("host-1", 2),
        ("host-2", 2),
    ]


@pytest.mark.slow
async def test_an_old_finding_ends(lab: Any, connect: Any, make_agent: Any, until: Any) -> None:
    """The impostor was renamed: five minutes later the finding ends."""
    clock = Clock()
    async with lab.aggregator(clock) as aggregator, lab.agent(aggregator):
        second = connect(aggregator.port, make_agent(run_id=b"s" * 16))
        await refused(second.register())
        await second.close()
        await until(lambda: aggregator.fleet.findings)
        version = (
            aggregator.snapshot_holder.snapshot.version
            if aggregator.snapshot_holder.snapshot
            else 0
        )
        await until(
            lambda: (
                aggregator.snapshot_holder.snapshot
                and aggregator.snapshot_holder.snapshot.version > version + 1
            )
        )
        clock.ahead_ns = 301 * 10**9
        await until(lambda: not aggregator.fleet.findings)
    assert lab.rows("SELECT cleared > since FROM findings") == [(True,)]


@pytest.mark.slow
@pytest.mark.parametrize("error_ns", [HOUR_NS, -HOUR_NS])
async def test_a_clock_an_hour_off(lab: Any, make_agent: Any, until: Any, error_ns: int) -> None:
    """One host without time synchronization: its readings have right times; a finding names it."""
    async with lab.aggregator() as aggregator:
        wrong = make_agent(host="wrong", clock_error_ns=error_ns)
        async with lab.agent(aggregator) as right, lab.agent(aggregator, wrong) as agent:
            await right.send(right.agent.message(1))
            await agent.send(agent.agent.message(1))
            await until(lambda: ("wrong", "clock.offset", "") in aggregator.fleet.findings)
            wrong.clock_error_ns = 0  # an operator corrected it
            await agent.send(agent.agent.message(2))
            await until(lambda: not aggregator.fleet.findings)
    now = time.time_ns() // 1000
    ((first, last),) = lab.rows(
        "SELECT epoch_us(min(time)), epoch_us(max(time)) FROM readings.gpu_1s"
    )
    assert now - 60_000_000 < first <= last <= now
    ((host, name, message),) = lab.rows(FINDINGS)
    assert (host, name) == ("wrong", "clock.offset")
    assert ("60.0 minutes ahead" if error_ns > 0 else "60.0 minutes behind") in message


@pytest.mark.slow
async def test_a_late_frame_keeps_its_time(lab: Any) -> None:
    """An hour of backlog after an outage: stored with its own times, not its arrival."""
    async with lab.aggregator() as aggregator, lab.agent(aggregator) as agent:
        block = agent.agent.block(1)
        block.offset_ns = -HOUR_NS // 2
        late = wire.TelemetryBatch(sequence=1, frame=agent.agent.frame(1, [block]), backlog=True)
        await agent.send(late)
    ((age,),) = lab.rows(
        "SELECT epoch_us(registered) - epoch_us(time) FROM readings.gpu_1s, hosts LIMIT 1"
    )
    assert 1790e6 < age < 1810e6


@pytest.mark.slow
async def test_an_older_and_a_newer_dictionary_side_by_side(lab: Any, make_agent: Any) -> None:
    """In an upgrade: signals that the old agent lacks are NULL, new signals are stored by name."""
    gpu = TABLES["gpu_1s"]
    old_ids = [s.signal_id for s in gpu if s.column in ("power_watts", "temperature_celsius")]
    new = wire.SignalDefinition(
        signal_id=60_000, name="gpu.quantum_flux_ratio", kind="gauge", width_bits=64, table="gpu_1s"
    )
    count = wire.SignalDefinition(
        signal_id=60_001, name="fan.turns_count", kind="counter", width_bits=64, table="fan_1s"
    )
    old = make_agent(host="old", signals=[s for s in signal_dictionary() if s.signal_id in old_ids])
    young = make_agent(host="young", run_id=b"y" * 16, signals=[*signal_dictionary(), new, count])
    async with (
        lab.aggregator() as aggregator,
        lab.agent(aggregator, old) as old_connection,
        lab.agent(aggregator, young) as young_connection,
    ):
        old_block = Block("gpu_1s", ["GPU-0"], old_ids[::-1])
        old_block.put_float(0, 0, 55.0)
        old_block.put_float(1, 0, 300.0)
        await old_connection.send(wire.TelemetryBatch(sequence=1, frame=old.frame(1, [old_block])))
        new_block = Block("gpu_1s", ["GPU-0"], [*(s.signal_id for s in gpu), 60_000])
        new_block.put_float(len(gpu), 0, 0.5)
        new_block.put_float([s.column for s in gpu].index("power_watts"), 0, 400.0)
        fans = Block("fan_1s", ["fan0", "fan1"], [60_001])
        fans.put_int(0, 1, 2**63 + 1)
        blocks = [new_block, fans]
        await young_connection.send(wire.TelemetryBatch(sequence=1, frame=young.frame(1, blocks)))
    assert lab.rows(
        "SELECT host, power_watts, temperature_celsius FROM readings.gpu_1s ORDER BY 1"
    ) == [("old", 300.0, 55.0), ("young", 400.0, None)]
    assert lab.rows("SELECT device, signal, value, raw FROM readings.by_name ORDER BY ALL") == [
        ("GPU-0", "gpu.quantum_flux_ratio", 0.5, None),
        ("fan1", "fan.turns_count", None, 2**63 + 1),
    ]
    assert lab.rows("SELECT name FROM signals WHERE NOT known ORDER BY 1") == [
        ("fan.turns_count",),
        ("gpu.quantum_flux_ratio",),
    ]


@pytest.mark.slow
async def test_a_dictionary_that_grows_in_mid_stream(lab: Any, make_agent: Any) -> None:
    """A GPU fell off, or a driver was loaded: the new registration ended the agent's stream."""
    new = wire.SignalDefinition(
        signal_id=60_000, name="gpu.quantum_flux_ratio", kind="gauge", width_bits=64, table="gpu_1s"
    )
    agent = make_agent(signals=signal_dictionary())
    async with lab.aggregator() as aggregator, lab.agent(aggregator, agent) as connection:
        await connection.send(agent.message(1))
        before = connection.metadata
        agent.signals.append(new)
        await connection.register()
        assert connection.metadata == before
        flux = Block("gpu_1s", ["GPU-0"], [60_000])
        flux.put_float(0, 0, 0.5)
        await connection.send(
            wire.TelemetryBatch(sequence=2, frame=agent.frame(2, [flux])), agent.message(3)
        )
        assert connection.durable == {1, 2, 3}
    assert lab.rows("SELECT signal, value FROM readings.by_name") == [
        ("gpu.quantum_flux_ratio", 0.5)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "message"), LIMITS, ids=[message[:24] for _, message in LIMITS]
)
def test_a_registration_past_a_limit_names_field_and_limit(
    lab: Any, connect: Any, make_agent: Any, changes: dict[str, Any], message: str
) -> None:
    """A defective agent gets INVALID_ARGUMENT with the field, its value and the limit."""

    async def register() -> str:
        async with lab.aggregator() as aggregator:
            agent = connect(aggregator.port, make_agent())
            try:
                return await refused(agent.register(**changes), grpc.StatusCode.INVALID_ARGUMENT)
            finally:
                await agent.close()

    assert message in asyncio.run(register())


@pytest.mark.slow
async def test_more_hosts_than_the_limit(lab: Any, connect: Any, make_agent: Any) -> None:
    """A script that registers without end does not fill the memory; known hosts continue."""
    async with lab.aggregator(hosts_max=1) as aggregator, lab.agent(aggregator) as first:
        second = connect(aggregator.port, make_agent(host="host-2", run_id=b"s" * 16))
        reason = await refused(second.register(), grpc.StatusCode.RESOURCE_EXHAUSTED)
        assert "hosts_max" in reason
        await second.close()
        await first.register()
