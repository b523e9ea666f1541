"""Reservations: no node is promised twice, whatever expires, crashes or is set meanwhile."""

from __future__ import annotations

import asyncio
import json
import random
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from gangline import cli
from gangline.aggregator.errors import EtagMismatch, NotFound, PermissionDenied, ResourceExhausted
from gangline.aggregator.reservations import (
    FILE_NAME,
    LOGIN_HOURS_MAX,
    RESERVATIONS_MAX,
    SECOND_NS,
    TTL_SECONDS_MAX,
    HostReservation,
    Reservations,
)
from gangline.contract.wire import reservation_pb2 as wire
from gangline.contract.wire.reservation_pb2_grpc import ReservationServiceStub
from tests.aggregator.process import Process
from tests.processes import GUARD_SECONDS

HOSTS = [f"gpu-{index}" for index in range(12)]
TTL_NS = 60 * SECOND_NS


class Clocks:
    """A wall clock that steps now and then, and a steady clock."""

    def __init__(self) -> None:
        self.wall = 1_700_000_000 * SECOND_NS
        self.steady = 0

    def run(self, seconds: int) -> None:
        self.wall += seconds * SECOND_NS
        self.steady += seconds * SECOND_NS

    def load(self, folder: Path) -> Reservations:
        return Reservations(folder, lambda: self.wall, lambda: self.steady)


@pytest.mark.parametrize("seed", range(12))
def test_no_node_is_promised_twice(tmp_path: Path, seed: int) -> None:
    """With many callers, expiries, renewals, crashes and clock steps: at most one valid promise per
    node, and tokens only grow.
    """
    chance, clocks = random.Random(seed), Clocks()
    current = clocks.load(tmp_path)
    #: Answers to callers: the reservation, and the steady time until which they may act.
    promised: dict[int, tuple[HostReservation, int]] = {}
    tokens: list[int] = []

    def hold(one: HostReservation) -> None:
        promised[one.token] = one, clocks.steady + one.ttl_ns

    for _ in range(150):
        turn = chance.random()
        standing = [
            reservation for reservation, until in promised.values() if until > clocks.steady
        ]
        if turn < 0.45:
            hosts = chance.sample(HOSTS, chance.randint(1, 4))
            if all(current.of_host(host) is None for host in hosts):
                reservation = current.reserve(
                    chance.choice("ab"), hosts, chance.randint(5, 60) * SECOND_NS
                )
                if chance.random() < 0.8:
                    asyncio.run(current.persisted())
                    hold(reservation)
                    tokens.append(reservation.token)
                else:  # killed before the answer
                    current = clocks.load(tmp_path)
        elif turn < 0.6 and standing:
            before = chance.choice(standing)
            reservation = current.renew(before.name, before.owner, before.token, TTL_NS)
            asyncio.run(current.persisted())
            hold(reservation)
        elif turn < 0.7 and standing:
            before = chance.choice(standing)
            assert current.release(before.name, before.owner, before.token)
            asyncio.run(current.persisted())
            del promised[before.token]
        elif turn < 0.85:
            clocks.run(chance.randint(1, 30))
        elif turn < 0.93:
            current = clocks.load(tmp_path)  # kill -9, and started again at once
        else:
            # The wall clock is set during the run: reservations are written with the next change.
            clocks.wall += chance.randint(-1000, 1000) * SECOND_NS
            reservation = current.reserve("clock", [f"other-{len(tokens)}"], TTL_NS)
            asyncio.run(current.persisted())
            hold(reservation)
            tokens.append(reservation.token)
        held: dict[str, int] = {}
        for reservation, until in promised.values():
            if until > clocks.steady:
                for host in reservation.hosts:
                    assert host not in held
                    held[host] = reservation.token
                    holder = current.of_host(host)
                    assert holder is not None and holder.token == reservation.token
    assert tokens == sorted(set(tokens))


def test_who_may_renew_and_release(tmp_path: Path) -> None:
    """Another owner, a wrong token and a name that has expired are refused, each in its own way."""
    clocks = Clocks()
    current = clocks.load(tmp_path)
    reservation = current.reserve("slurm", ["a", "b"], TTL_NS, request_id="r")
    assert (
        current.of_request("slurm", "r") == reservation and current.of_request("other", "r") is None
    )
    with pytest.raises(PermissionDenied, match="is of 'slurm'"):
        current.renew(reservation.name, "other", reservation.token, TTL_NS)
    with pytest.raises(EtagMismatch, match="send the token that Reserve returned"):
        current.release(reservation.name, "slurm", reservation.token + 1)
    clocks.run(61)
    with pytest.raises(NotFound, match="Reserve again"):
        current.renew(reservation.name, "slurm", reservation.token, TTL_NS)
    assert (
        not current.release(reservation.name, "slurm", reservation.token) and not current.active()
    )


def test_a_restart_keeps_what_stands_and_its_request(tmp_path: Path) -> None:
    """A caller that lost the answer in a crash repeats the request, and gets the same reservation."""
    clocks = Clocks()
    first = clocks.load(tmp_path)
    reservation = first.reserve(
        "slurm", ["a"], TTL_NS, workload="train", decision="d1", request_id="r1"
    )
    asyncio.run(first.persisted())
    clocks.run(10)
    again = clocks.load(tmp_path)
    restored = again.of_request("slurm", "r1")
    assert restored is not None and restored._replace(expire_ns=0) == reservation._replace(
        expire_ns=0
    )
    assert again.expire_wall_ns(restored) == clocks.wall + 50 * SECOND_NS
    clocks.run(51)
    assert not clocks.load(tmp_path).active()


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", '{"version": 2, "last_token": 1, "reservations": []}',
        '{"version": 1, "last_token": "x", "reservations": [{"token": 1}]}',
        '{"version": 1, "last_token": 1, "reservations": [{"token": 1, "owner": "a", "hosts": [1], "expire_ns": 1, "ttl_ns": 1}]}',
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_read_is_set_aside(tmp_path: Path, text: str) -> None:
    """The aggregator starts; new tokens are still higher than all earlier ones."""
    clocks = Clocks()
    before = clocks.load(tmp_path).reserve("a", ["h"], TTL_NS)
    clocks.run(1)
    (tmp_path / FILE_NAME).write_text(text)
    current = clocks.load(tmp_path)
    assert not current.active() and (tmp_path / "reservations.unreadable").read_text() == text
    assert current.reserve("a", ["h"], TTL_NS).token > before.token


def test_reservations_are_bounded(tmp_path: Path) -> None:
    """A scheduler that never releases gets an error, and fills neither memory nor the file."""
    current = Clocks().load(tmp_path)
    for index in range(RESERVATIONS_MAX):
        current.reserve("a", [f"h{index}"], TTL_NS)
    with pytest.raises(ResourceExhausted, match="Release some"):
        current.reserve("a", ["one more"], TTL_NS)


def test_reservations_outlive_kill_9(
    lab: Any, make_agent: Any, connect: Any, until: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """A real aggregator is killed right after it promised: the next one keeps the promise, and refuses the node to others."""

    async def register(port: int) -> Any:
        connection = connect(port, make_agent(host="gpu-1"))
        await connection.register()
        connection.open()
        return connection

    async def reserve(port: int, owner: str) -> wire.ReserveResponse:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub: Any = ReservationServiceStub(channel)  # type: ignore[no-untyped-call]
            request = wire.ReserveRequest(owner=owner, node_index=[0], request_id="incident-1")
            async with asyncio.timeout(GUARD_SECONDS):
                while True:
                    try:
                        reply: wire.ReserveResponse = await stub.Reserve(request)
                        return reply
                    except grpc.aio.AioRpcError as error:  # not judged yet
                        assert error.code() in (
                            grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INVALID_ARGUMENT
                        ), error.details()  # fmt: skip
                        await asyncio.sleep(0.05)

    async def live(owner: str, kill: int) -> wire.ReserveResponse:
        process = Process(lab.folder, "--set", "judge_seconds=0.1")
        connection = await register(process.port)
        try:
            reply = await reserve(process.port, owner)
            if kill == signal.SIGTERM:
                url = f"127.0.0.1:{process.port}"
                assert await asyncio.to_thread(cli.main, ["reservations", "--aggregator", url]) == 0
            return reply
        finally:
            process.end(kill)
            await connection.close()

    promised = asyncio.run(live("slurm", signal.SIGKILL)).reservation
    assert promised.fencing_token and list(promised.node_index) == [0]
    again = asyncio.run(live("slurm", signal.SIGKILL)).reservation
    assert again.fencing_token == promised.fencing_token
    other = asyncio.run(live("kueue", signal.SIGTERM))
    assert not other.HasField("reservation")
    assert [(change.node_index, change.change) for change in other.changes] == [
        (0, wire.NODE_RESERVED)
    ]
    assert f"{promised.name} of slurm" in other.changes[0].message
    assert promised.name in capsys.readouterr().out
    stored = json.loads((lab.folder / FILE_NAME).read_text())
    assert stored["last_token"] == promised.fencing_token


def test_a_revoked_login_holds_nothing(tmp_path: Path) -> None:
    """A scheduler's token was revoked, and 60 nodes stayed reserved for 24 h; so also after a restart."""
    clocks, logins = Clocks(), {"scheduler a", "scheduler b"}

    def load() -> Reservations:
        return Reservations(
            tmp_path, lambda: clocks.wall, lambda: clocks.steady, lambda login: login in logins
        )

    current = load()
    for name in "ab":
        current.reserve(name, [name], TTL_NS, login=f"scheduler {name}", by_token=True)
    current.reserve("c", ["c"], TTL_NS, login="scheduler c", by_token=False)  # by a certificate
    asyncio.run(current.persisted())
    logins.remove("scheduler a")
    for reservations in (current, load()):
        assert [reservation.owner for reservation in reservations.active()] == ["b", "c"]
        assert reservations.of_host("a") is None
    asyncio.run(current.persisted())
    logins.add("scheduler a")
    assert [reservation.owner for reservation in load().active()] == ["b", "c"], (
        "what was released is not back"
    )


def test_a_reservation_ends_a_day_after_it_began(tmp_path: Path) -> None:
    """One scheduler renewed the reservation of the whole fleet endlessly."""
    clocks = Clocks()
    current = clocks.load(tmp_path)
    reservation = current.reserve("a", ["h"], TTL_NS)
    for _ in range(24 * 60 - 1):
        clocks.run(59)
        reservation = current.renew(
            reservation.name, "a", reservation.token, TTL_SECONDS_MAX * SECOND_NS
        )
        assert reservation.expire_ns <= TTL_SECONDS_MAX * SECOND_NS
    asyncio.run(current.persisted())
    current = clocks.load(tmp_path)
    clocks.run(24 * 60 + 58)
    current.renew(reservation.name, "a", reservation.token, TTL_SECONDS_MAX * SECOND_NS)
    clocks.run(3)
    with pytest.raises(NotFound, match="Reserve again"):
        current.renew(reservation.name, "a", reservation.token, TTL_NS)


def test_an_operator_releases_what_others_reserved(tmp_path: Path) -> None:
    """A scheduler's reservation of the whole fleet could not be undone."""
    current = Clocks().load(tmp_path)
    reservation = current.reserve("a", ["h"], TTL_NS, login="scheduler a")
    with pytest.raises(PermissionDenied, match="operator"):
        current.release(reservation.name, "b", 0)
    assert current.release(reservation.name, "b", 0, by_operator=True) and not current.active()


@pytest.mark.parametrize("seed", range(4))
def test_a_login_holds_half_of_its_share_within_any_day(tmp_path: Path, seed: int) -> None:
    """A login reserved its nodes again as soon as their day ended: no other login ever got them."""
    source, clocks, minutes = random.Random(seed), Clocks(), 5
    current = clocks.load(tmp_path)
    held: list[int] = []
    for _ in range(3 * 24 * 60 // minutes):
        free = [host for host in HOSTS[:4] if current.of_host(host) is None]
        ttl_ns = source.choice((600, 3600, 39_900, TTL_SECONDS_MAX)) * SECOND_NS
        with suppress(ResourceExhausted):
            if free:
                current.reserve(
                    "a",
                    free[: source.randint(1, 4)],
                    ttl_ns,
                    login="scheduler a",
                    login_nodes_max=4,
                )
        for reservation in current.active():
            if source.random() < 0.3:
                current.renew(reservation.name, "a", reservation.token, ttl_ns, 4)
            elif source.random() < 0.01:
                current.release(reservation.name, "a", reservation.token)
        if source.random() < 0.02:
            asyncio.run(current.persisted())
            clocks.steady = source.randrange(10**15)
            current = clocks.load(tmp_path)
        held.append(sum(len(reservation.hosts) for reservation in current.active()))
        clocks.run(60 * minutes)
    per_day = 24 * 60 // minutes
    days = [
        sum(held[index : index + per_day]) / 60 * minutes for index in range(len(held) - per_day)
    ]
    assert 30 < max(days) <= 4 * LOGIN_HOURS_MAX + 4 * minutes / 60


def test_the_refusal_names_what_would_be_granted(tmp_path: Path) -> None:
    """A login without a limit is not counted; released time is given back."""
    clocks = Clocks()
    current = clocks.load(tmp_path)
    day_ns = TTL_SECONDS_MAX * SECOND_NS
    current.reserve("b", ["b"], day_ns)
    for _ in range(3):
        reservation = current.reserve(
            "a", ["h", "i"], day_ns // 4, login="scheduler a", login_nodes_max=2
        )
        clocks.run(60)
        assert current.release(reservation.name, "a", reservation.token)
    with pytest.raises(ResourceExhausted) as refused:
        current.reserve("a", ["h", "i"], day_ns, login="scheduler a", login_nodes_max=2)
    assert (
        "reserved 0.1 node-hours within 24 h and asks for 48.0 more, at most 24 (12 for each of 2 nodes)"
        in str(refused.value)
    )
