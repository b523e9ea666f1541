"""Limits of connections without a login, and per login: the choice is pure, real sockets show the effect."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.aggregator.auth.limits import (
    AcceptedConnection,
    ConnectionLimits,
    Connections,
    peer_address,
    too_many,
)
from gangline.aggregator.principal import Principal, Role
from gangline.contract.wire import permit_pb2
from tests.aggregator.auth.secured import Secured, bearer, permits
from tests.processes import GUARD_SECONDS

LIMITS = ConnectionLimits(
    per_caller_max=2, unknown_max=3, unknown_per_address_max=2, login_seconds_max=10.0
)
ALICE = Principal(Role.OPERATOR, "alice", auth_method="token 1", proof=(1, 1))
BOB = Principal(Role.OPERATOR, "bob", auth_method="token 2", proof=(1, 1))


def at(inode: int, address: str = "10.0.0.1", since: float = 0.0) -> AcceptedConnection:
    return AcceptedConnection(inode, (address, inode), since, inode)


def ended(*connections: AcceptedConnection, now: float = 0.0, **callers: list[int]) -> set[int]:
    whose = {"alice": ALICE, "bob": BOB}
    by_peer = {
        connection.peer: whose[name]
        for name, inodes in callers.items()
        for connection in connections
        if connection.inode in inodes
    }
    return {connection.inode for connection in too_many(connections, by_peer, LIMITS, now)}


def test_of_one_caller_the_oldest_go() -> None:
    """An agent reconnects after a network failure, and its dead connections still exist: the newest is the live one."""
    mine = [at(number, since=float(number)) for number in range(1, 5)]
    assert ended(*mine, alice=[1, 2, 3, 4]) == {1, 2}
    assert ended(*mine, alice=[1, 2], bob=[3, 4]) == set()


def test_a_simulated_fleet_comes_by_one_login() -> None:
    """`gangline simulate --hosts 32` with an admin's token: 24 of its hosts were cut off in turn."""
    mine = [at(number, since=float(number)) for number in range(1, 33)]
    root = Principal(Role.ADMIN, "root", auth_method="token 3", proof=(1, 1))
    assert too_many(mine, {connection.peer: root for connection in mine}, LIMITS, 0.0) == []


def test_who_does_not_log_in_goes() -> None:
    """Silent sockets are closed after ten seconds, and beyond two per address."""
    assert ended(at(1), at(2, since=5.0), now=10.5) == {1}
    assert ended(at(1), at(2), at(3), at(4, "10.0.0.2")) == {3}
    crowd = [at(number, f"10.0.0.{number}", float(number)) for number in range(1, 6)]
    assert ended(*crowd) == {1, 2}
    assert ended(*crowd, alice=[1, 2]) == set()


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.floats(0, 30), st.sampled_from(["", "alice", "bob"])),
        max_size=30,
    )
)
def test_what_is_left_is_within_the_limits(drawn: list[tuple[int, float, str]]) -> None:
    """A connection with a login is never closed in favor of connections without, and the rest is bounded."""
    all_ = [at(number, f"10.0.0.{a}", since) for number, (a, since, _) in enumerate(drawn)]
    names = [name for _, _, name in drawn]
    whose = {
        name: [n for n, holder in enumerate(names) if holder == name] for name in ("alice", "bob")
    }
    over = ended(*all_, now=30.0, **whose)
    remaining = [connection for connection in all_ if connection.inode not in over]
    unknown = [connection for connection in remaining if not names[connection.inode]]
    assert len(unknown) <= LIMITS.unknown_max
    assert all(30.0 - connection.since <= LIMITS.login_seconds_max for connection in unknown)
    for inodes in whose.values():
        assert len([n for n in inodes if n not in over]) == min(len(inodes), LIMITS.per_caller_max)


@pytest.mark.parametrize(
    ("peer", "found"),
    [
        ("ipv4:127.0.0.1:4711", ("127.0.0.1", 4711)),
        ("ipv6:%5B::1%5D:4711", ("::1", 4711)),
        ("ipv6:%5B::ffff:10.0.0.1%5D:80", ("10.0.0.1", 80)),
        ("ipv6:%5Bfe80::1%25eth0%5D:80", ("fe80::1", 80)),
        ("unix:/run/x", None),
        ("ipv4:nonsense", None),
        ("", None),
    ],
)
def test_where_a_peer_is(peer: str, found: tuple[str, int] | None) -> None:
    assert peer_address(peer) == found


@contextmanager
def accepted(count: int) -> Iterator[tuple[int, list[socket.socket], list[socket.socket]]]:
    """A listening port, and both ends of its connections."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = int(server.getsockname()[1])
        theirs = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
        ours = [server.accept()[0] for _ in range(count)]
        try:
            yield port, ours, theirs
        finally:
            for connection in ours + theirs:
                connection.close()


def test_only_what_was_accepted_is_ended() -> None:
    """The process also has outgoing connections and files: closing one of them would break the store."""
    with accepted(4) as (port, ours, theirs), open(os.devnull) as file:
        now = [0.0]
        connections = Connections([port], LIMITS, lambda: now[0])
        peer = f"ipv4:127.0.0.1:{theirs[0].getsockname()[1]}"
        peers = {peer: ALICE, "ipv4:127.0.0.1:1": BOB}
        connections.refresh(peers)
        assert peers == {peer: ALICE}
        assert connections.count == 4 and connections.ended_count == 1
        now[0] = 11.0
        connections.refresh(peers)
        for end in theirs:
            end.settimeout(GUARD_SECONDS)
        theirs[0].setblocking(False)
        with pytest.raises(BlockingIOError):
            theirs[0].recv(1)
        assert [end.recv(1) for end in theirs[1:]] == [b""] * 3
        assert not file.closed and os.fstat(file.fileno())
        for end in ours[1:]:
            end.close()
        connections.refresh(peers)
        assert connections.count == 1


def test_an_aggregator_ends_what_does_not_log_in(lab: Any, secured: Secured) -> None:
    """Slow loris: connections that open a handshake or HTTP/2 and stay silent; logged-in clients stay."""
    settings = secured.settings(client_certificates=False, connections_unknown_per_address_max=5)
    token = bearer(secured.token("operator", "alice"))

    async def way() -> None:
        async with lab.aggregator(**settings) as aggregator:
            channel = secured.channel(aggregator.port)
            ask = permits(channel).GetPermit
            await ask(permit_pb2.GetPermitRequest(), metadata=token)
            idle = [await asyncio.open_connection("127.0.0.1", aggregator.port) for _ in range(20)]
            ended = asyncio.Semaphore(0)

            async def wait(reader: asyncio.StreamReader) -> None:
                await reader.read(1)
                ended.release()

            waiting = [asyncio.create_task(wait(reader)) for reader, _ in idle]
            async with asyncio.timeout(GUARD_SECONDS):
                for _ in range(15):
                    await ended.acquire()
            await ask(permit_pb2.GetPermitRequest(), metadata=token)
            ended_count = aggregator.access_control.connections.ended_count
            for task in waiting:
                task.cancel()
            for _, writer in idle:
                writer.close()
            await channel.close()
        # On a busy machine one may end by itself before it is counted.
        assert ended_count >= 10

    asyncio.run(way())


def test_more_connections_than_there_may_be_are_refused(lab: Any, secured: Secured) -> None:
    """Ten thousand within the second between two checks: each has TLS buffers, logged in or not."""
    settings = secured.settings(
        client_certificates=False, connections_max=16, access_look_seconds=60.0
    )

    async def way() -> None:
        async with lab.aggregator(**settings) as aggregator:
            idle = [await asyncio.open_connection("127.0.0.1", aggregator.port) for _ in range(40)]
            async with asyncio.timeout(GUARD_SECONDS):
                done, waiting = set[asyncio.Task[bytes]](), set[asyncio.Task[bytes]]()
                waiting |= {asyncio.create_task(reader.read(1)) for reader, _ in idle}
                while len(done) < 24:
                    more, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                    done |= more
            assert len(waiting) == 16
            for task in waiting:
                task.cancel()
            for _, writer in idle:
                writer.close()

    asyncio.run(way())
