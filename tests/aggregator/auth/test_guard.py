"""The allowed methods per role, over real connections: by certificate, by token, and without either."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, cast

import grpc
import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID
from google.protobuf.any_pb2 import Any as Packed
from google.protobuf.duration_pb2 import Duration
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from gangline.aggregator.errors import PermissionDenied, ResourceExhausted
from gangline.aggregator.principal import PERMISSIONS, Role, current_principal, roles_of
from gangline.aggregator.service.status import details_of
from gangline.contract.wire import permit_pb2, score_pb2, telemetry_pb2
from tests.aggregator.auth.secured import Secured, bearer, permits, scores, status_of, telemetry
from tests.processes import GUARD_SECONDS

OK = grpc.StatusCode.OK
DENIED = grpc.StatusCode.PERMISSION_DENIED
UNKNOWN = grpc.StatusCode.UNAUTHENTICATED
MUCH = grpc.StatusCode.RESOURCE_EXHAUSTED

#: Role -> its allowed methods. An agent without a session gets UNAUTHENTICATED from the ingest, not
#: from the guard.
LET_IN = {
    "agent": {"health", "events"},
    "scheduler": {"health", "reflection", "read"},
    "operator": {"health", "reflection", "read", "permit", "grant"},
    "admin": {"health", "reflection", "read", "permit", "grant", "events"},
}


class _Methods(grpc.GenericRpcHandler):
    """Takes the place of gRPC's lookup of handlers, and records the registered methods."""

    def service(self, handler_call_details: Any) -> None: ...


def test_every_method_of_every_service_is_in_the_table(
    monkeypatch: pytest.MonkeyPatch, lab: Any
) -> None:
    """A method missing from the role table would be unreachable or, worse, open to everyone."""
    served: set[str] = set()
    make = grpc.method_handlers_generic_handler

    def remember(service: str, handlers: dict[str, Any]) -> Any:
        served.update(f"/{service}/{method}" for method in handlers)
        return make(service, handlers)

    monkeypatch.setattr(grpc, "method_handlers_generic_handler", remember)

    async def way() -> None:
        async with lab.aggregator():
            pass

    asyncio.run(way())
    assert len(served) >= 12
    assert [method for method in sorted(served) if not roles_of(method)] == []
    assert all(Role.ADMIN in roles_of(method) for method in served)
    agents = {method for method in served if Role.AGENT in roles_of(method)}
    assert agents - {
        f"/grpc.health.v1.Health/{method}" for method in ("Check", "Watch", "List")
    } == {
        f"/gangline.v1.TelemetryService/{permission}"
        for permission in PERMISSIONS["gangline.v1.TelemetryService"]
    }


def test_a_method_that_no_table_names_is_nobodys() -> None:
    assert not roles_of("/gangline.v1.ScoreServiceX/GetNodeScore")
    assert not roles_of("/gangline.v1.ScoreService/Drain")
    assert not roles_of("")


def test_a_service_without_a_guard_answers_nobody() -> None:
    """A server without the interceptor refuses all calls."""
    with pytest.raises(PermissionDenied, match="no guard"):
        current_principal(None)


def calls(channel: Any, metadata: Any = ()) -> dict[str, Any]:
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    reflect: Any = cast(Any, reflection_pb2_grpc).ServerReflectionStub(channel).ServerReflectionInfo
    check: Any = cast(Any, health_pb2_grpc).HealthStub(channel).Check

    async def reflected() -> None:
        async for _ in reflect(iter([request]), metadata=metadata):
            return

    return {
        "health": check(health_pb2.HealthCheckRequest(), metadata=metadata),
        "reflection": reflected(),
        "read": scores(channel).GetNodeDictionary(
            score_pb2.GetNodeDictionaryRequest(), metadata=metadata
        ),
        "permit": permits(channel).GetPermit(permit_pb2.GetPermitRequest(), metadata=metadata),
        "grant": permits(channel).GrantPermit(
            permit_pb2.GrantPermitRequest(seconds=60, reason="trial"), metadata=metadata
        ),
        "events": telemetry(channel).ReportEvents(
            telemetry_pb2.ReportEventsRequest(), metadata=metadata
        ),
    }


async def let_in(channel: Any, metadata: Any = ()) -> set[str]:
    statuses = {name: await status_of(call) for name, call in calls(channel, metadata).items()}
    assert all(
        code in (OK, DENIED, UNKNOWN, grpc.StatusCode.UNAVAILABLE) for code, _ in statuses.values()
    )
    return {
        name
        for name, (code, message) in statuses.items()
        if code not in (DENIED, UNKNOWN) or "gangline-session" in message
    }


@pytest.mark.slow
@pytest.mark.parametrize("way_in", ["certificate", "token"])
def test_each_role_may_what_its_row_says(way_in: str, lab: Any, secured: Secured) -> None:
    """An agent's key, taken from a stolen host, reads no other host's scores and grants nothing."""

    async def way() -> None:
        tls = secured.settings(client_certificates=way_in == "certificate")
        tokens = {role: secured.token(role, "host-1") for role in LET_IN}
        async with lab.aggregator(**tls) as aggregator:
            for role, expected in LET_IN.items():
                files = secured.certificate(role, "host-1") if way_in == "certificate" else None
                channel = secured.channel(aggregator.port, files)
                metadata = () if files else bearer(tokens[role])
                assert await let_in(channel, metadata) == expected, role
                await channel.close()
            grant = aggregator._permits.active_grant.reason
            assert grant == "admin host-1: trial"

    asyncio.run(way())


def test_without_a_login_only_the_health_is_told(lab: Any, secured: Secured) -> None:
    """A laptop in the management network gets only the health, and the error names the ways to log in."""

    async def way() -> None:
        async with lab.aggregator(**secured.settings(client_certificates=False)) as aggregator:
            channel = secured.channel(aggregator.port)
            assert await let_in(channel) == {"health"}
            code, message = await status_of(
                permits(channel).GetPermit(permit_pb2.GetPermitRequest())
            )
            assert code == UNKNOWN and "gangline admin token new" in message
            for wrong in (
                "Bearer nonsense",
                "Basic eHh4",
                "Bearer gangline_" + "0" * 12 + "_" + "A" * 43,
            ):
                code, message = await status_of(
                    permits(channel).GetPermit(
                        permit_pb2.GetPermitRequest(), metadata=(("authorization", wrong),)
                    )
                )
                assert code == UNKNOWN and wrong.split()[1] not in message
            await channel.close()

    asyncio.run(way())


def test_what_is_refused_is_not_read(lab: Any, secured: Secured) -> None:
    """Any client that reached the port could send megabytes of a registration before the login check."""

    async def way() -> None:
        tls = secured.settings(client_certificates=False)
        async with lab.aggregator(**tls) as aggregator:
            channel = secured.channel(aggregator.port)
            half = channel.stream_stream(
                "/gangline.v1.TelemetryService/RegisterNode",
                request_serializer=bytes,
                response_deserializer=bytes,
            )()  # nothing is ever sent on it
            async with asyncio.timeout(GUARD_SECONDS):
                assert await half.code() == UNKNOWN
            await channel.close()

    asyncio.run(way())


@pytest.mark.slow
def test_plain_loopback_is_the_machines_own_until_there_is_a_token(
    lab: Any, connect: Any, make_agent: Any, secured: Secured, until: Any
) -> None:
    """The first token ends the local user's open access, also on running streams."""

    async def way() -> None:
        async with (
            lab.aggregator(access_look_seconds=0.1) as aggregator,
            lab.agent(aggregator) as agent,
            grpc.aio.insecure_channel(f"127.0.0.1:{aggregator.port}") as channel,
        ):
            await agent.send(agent.agent.message(1))
            assert await let_in(channel) == {
                "health",
                "reflection",
                "read",
                "permit",
                "grant",
                "events",
            }
            token = secured.token("operator", "alice")
            async with asyncio.timeout(GUARD_SECONDS):
                assert await agent.stream.code() == UNKNOWN
            assert await let_in(channel) == {"health"}
            assert await let_in(channel, bearer(token)) == LET_IN["operator"]

    asyncio.run(way())


def test_an_agent_writes_as_its_own_host_only(lab: Any, secured: Secured, make_agent: Any) -> None:
    """One host's key, and readings in the name of another, so that the scheduler drains that one."""

    async def way() -> None:
        async with lab.aggregator(**secured.settings()) as aggregator:
            mine = secured.channel(aggregator.port, secured.certificate("agent", "host-1"))
            other = secured.channel(aggregator.port, secured.certificate("agent", "host-2"))
            answer = await telemetry(mine).RegisterNode(make_agent().registration())
            code, message = await status_of(
                telemetry(other).RegisterNode(make_agent().registration())
            )
            assert code == DENIED and "host-2" in message and "host-1" in message
            stolen = (("gangline-session", answer.session),)
            code, _ = await status_of(
                telemetry(other).ReportEvents(telemetry_pb2.ReportEventsRequest(), metadata=stolen)
            )
            assert code == UNKNOWN
            code, _ = await status_of(
                telemetry(mine).ReportEvents(telemetry_pb2.ReportEventsRequest(), metadata=stolen)
            )
            assert code == OK
            assert aggregator.fleet.names == ["host-1"]
            await mine.close()
            await other.close()

    asyncio.run(way())


def test_the_better_proof_of_a_name_has_it(lab: Any, secured: Secured, make_agent: Any) -> None:
    """A reinstalled host with a new certificate need not wait for its old session to end."""
    old = secured.certificate("agent", "host-1", timedelta(days=2))
    files = old.certificate.read_bytes(), old.key.read_bytes()

    async def way() -> None:
        async with lab.aggregator(**secured.settings()) as aggregator:
            first = secured.channel(aggregator.port, old)
            await telemetry(first).RegisterNode(make_agent().registration())
            again = secured.channel(aggregator.port, old)
            code, message = await status_of(
                telemetry(again).RegisterNode(make_agent(run_id=b"s" * 16).registration())
            )
            assert code == grpc.StatusCode.ALREADY_EXISTS and "stays" in message
            assert files[0] == old.certificate.read_bytes()
            newer = secured.channel(
                aggregator.port, secured.certificate("agent", "host-1", force=True)
            )
            code, message = await status_of(
                telemetry(newer).RegisterNode(make_agent(run_id=b"s" * 16).registration())
            )
            assert code == OK, message
            code, _ = await status_of(telemetry(first).RegisterNode(make_agent().registration()))
            assert code == grpc.StatusCode.ALREADY_EXISTS
            for channel in (first, again, newer):
                await channel.close()

    asyncio.run(way())
    rows = lab.rows("SELECT DISTINCT message FROM findings WHERE name = 'identity.duplicate_name'")
    both = " ".join(message for (message,) in rows)
    assert "72727272" in both and "73737373" in both


@pytest.mark.slow
def test_a_revoked_token_ends_the_stream_it_opened(
    lab: Any, secured: Secured, make_agent: Any
) -> None:
    """Revoked on Friday evening: the stream that was open went on until the next restart."""

    async def way() -> None:
        token = secured.token("agent", "host-1")
        stays = secured.token("agent", "host-2")
        tls = secured.settings(client_certificates=False)
        async with lab.aggregator(**tls) as aggregator:
            streams = {}
            channel = secured.channel(aggregator.port)
            for host, secret in (("host-1", token), ("host-2", stays)):
                agent = make_agent(host=host, run_id=host.encode().ljust(16))
                answer = await telemetry(channel).RegisterNode(
                    agent.registration(), metadata=bearer(secret)
                )
                streams[host] = telemetry(channel).StreamTelemetry(
                    metadata=(*bearer(secret), ("gangline-session", answer.session))
                )
                await streams[host].write(agent.message(1))
                await streams[host].read()
            secured.revoke("host-1")
            async with asyncio.timeout(GUARD_SECONDS):
                assert await streams["host-1"].code() == UNKNOWN
            assert "log in again" in await streams["host-1"].details()
            await streams["host-2"].write(
                make_agent(host="host-2", run_id=b"host-2".ljust(16)).message(2)
            )
            await streams["host-2"].read()
            await channel.close()

    asyncio.run(way())


@pytest.mark.slow
def test_a_certificate_of_no_role_is_told_what_it_lacks(lab: Any, secured: Secured) -> None:
    """The site's own CA, whose certificates say DNS names: nothing until a pattern is set, and then the pattern's role."""
    site = secured.authority()._issue(
        "site",
        "Gpu-7.gpu.example",
        [x509.DNSName("Gpu-7.gpu.example")],
        ExtendedKeyUsageOID.CLIENT_AUTH,
        30,
        force=False,
    )

    async def way(patterns: tuple[str, ...]) -> tuple[grpc.StatusCode, str]:
        async with lab.aggregator(**secured.settings(certificate_names=patterns)) as aggregator:
            channel = secured.channel(aggregator.port, site)
            try:
                return await status_of(permits(channel).GetPermit(permit_pb2.GetPermitRequest()))
            finally:
                await channel.close()

    code, message = asyncio.run(way(()))
    assert code == UNKNOWN and "Gpu-7.gpu.example" in message and "certificate_names" in message
    code, message = asyncio.run(way(("operator={name}.ops.example", "agent={name}.gpu.example")))
    assert code == DENIED and "agent 'gpu-7'" in message


def test_a_second_port_takes_tokens_where_the_first_wants_certificates(
    lab: Any, secured: Secured
) -> None:
    """A CI job that has a token and no certificate, beside agents that have one."""

    async def way() -> None:
        token = secured.token("scheduler", "slurm")
        async with lab.aggregator(**secured.settings(listen_tokens="127.0.0.1:0")) as aggregator:
            first, second = (
                secured.channel(port) for port in (aggregator.port, aggregator.token_port)
            )
            read = score_pb2.GetNodeDictionaryRequest()
            code, _ = await status_of(
                scores(first).GetNodeDictionary(read, metadata=bearer(token), timeout=GUARD_SECONDS)
            )
            assert code == grpc.StatusCode.UNAVAILABLE  # hands are not even shaken
            assert await let_in(second, bearer(token)) == LET_IN["scheduler"]
            code, message = await status_of(scores(second).GetNodeDictionary(read))
            assert code == UNKNOWN and "no token" in message
            await first.close()
            await second.close()

    asyncio.run(way())


def test_too_many_calls_are_refused_with_when_to_come_again(
    lab: Any, secured: Secured, make_agent: Any
) -> None:
    """An agent registers in a loop; a scheduler leaks its streams. Other callers are not refused."""

    async def way() -> None:
        limits = secured.settings(agent_calls_per_minute_max=6.0, calls_per_caller_max=2)
        async with lab.aggregator(**limits) as aggregator:
            mad = secured.channel(aggregator.port, secured.certificate("agent", "host-1"))
            register = telemetry(mad).RegisterNode
            assert [
                (await status_of(register(make_agent().registration())))[0] for _ in range(2)
            ] == [OK, OK]
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await register(make_agent().registration())
            assert refused.value.code() == MUCH and "more than 6 times a minute" in str(
                refused.value.details()
            )
            details: Any = dict(list(refused.value.trailing_metadata()))["grpc-status-details-bin"]
            assert b"google.rpc.RetryInfo" in details
            well = secured.channel(aggregator.port, secured.certificate("agent", "host-2"))
            code, _ = await status_of(
                telemetry(well).RegisterNode(
                    make_agent(host="host-2", run_id=b"2" * 16).registration()
                )
            )
            assert code == OK
            leaks = secured.channel(aggregator.port, secured.certificate("operator", "o"))
            reflect: Any = (
                cast(Any, reflection_pb2_grpc).ServerReflectionStub(leaks).ServerReflectionInfo
            )
            streams = [reflect() for _ in range(2)]
            for stream in streams:
                await stream.write(reflection_pb2.ServerReflectionRequest(list_services=""))
                await stream.read()
            code, message = await status_of(permits(leaks).GetPermit(permit_pb2.GetPermitRequest()))
            assert code == MUCH and "calls_per_caller_max" in message
            streams[0].cancel()
            async with asyncio.timeout(GUARD_SECONDS):
                while (await status_of(permits(leaks).GetPermit(permit_pb2.GetPermitRequest())))[
                    0
                ] != OK:
                    await asyncio.sleep(0)
            for channel in (mad, well, leaks):
                await channel.close()

    asyncio.run(way())


def test_retry_info_is_as_googles_clients_read_it() -> None:
    """Two messages written by hand: their bytes are those that protobuf's own library makes and reads."""
    message = "x" * 300
    (*_, (_, data)) = details_of(ResourceExhausted(message, 1.5))
    delay = Duration(seconds=1, nanos=500_000_000).SerializeToString()
    value = b"\x0a" + bytes([len(delay)]) + delay
    packed = Packed(
        type_url="type.googleapis.com/google.rpc.RetryInfo", value=value
    ).SerializeToString()
    assert (
        data == b"\x08\x08\x12\xac\x02" + message.encode() + b"\x1a" + bytes([len(packed)]) + packed
    )
