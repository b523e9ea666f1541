"""Pairs of virtual interfaces, made and taken away by netlink: real hot-plug, without a card to pull."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

NEW, DELETE = 16, 17
REQUEST, ACKNOWLEDGE, CREATE, EXCLUSIVE = 0x1, 0x4, 0x400, 0x200
IFF_UP = 1
NAME, LINK_INFO, INFO_KIND, INFO_DATA, PEER = 3, 18, 1, 2, 1


def attribute(kind: int, value: bytes) -> bytes:
    """Return an attribute encoded by hand, so that the agent's encoder does not test itself."""
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def change(kind: int, flags: int, body: bytes, *, index: int = 0, up: bool | None = None) -> None:
    """Send one change of a link and wait for its acknowledgement. Raises OSError when it is refused."""
    mask = 0 if up is None else IFF_UP
    link = struct.pack("=BxHiII", 0, 0, index, IFF_UP if up else 0, mask) + body
    head = struct.pack("=IHHII", 16 + len(link), kind, REQUEST | ACKNOWLEDGE | flags, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as route:
        route.settimeout(10)
        route.bind((0, 0))
        route.send(head + link)
        (code,) = struct.unpack_from("=i", route.recv(65536), 16)
        if code:
            raise OSError(-code, os.strerror(-code))


def add(name: str, peer: str) -> None:
    """Make a pair."""
    other = attribute(
        PEER, struct.pack("=BxHiII", 0, 0, 0, 0, 0) + attribute(NAME, peer.encode() + b"\0")
    )
    info = attribute(INFO_KIND, b"veth\0") + attribute(INFO_DATA, other)
    body = attribute(NAME, name.encode() + b"\0") + attribute(LINK_INFO, info)
    change(NEW, CREATE | EXCLUSIVE, body)


def switch(name: str, up: bool) -> None:
    change(NEW, 0, b"", index=index_of(name), up=up)


def rename(name: str, to: str) -> None:
    change(NEW, 0, attribute(NAME, to.encode() + b"\0"), index=index_of(name))


def delete(name: str) -> None:
    """Remove a pair, by either name."""
    change(DELETE, 0, b"", index=index_of(name))


def index_of(name: str) -> int:
    return int(Path(f"/sys/class/net/{name}/ifindex").read_text())


def send(name: str, packets: int) -> None:
    """Send packets of 60 bytes, so that the counters of both ends rise."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as raw:
        raw.bind((name, 0))
        for _ in range(packets):
            raw.send(b"\xff" * 6 + bytes(6) + b"\x88\xb5" + bytes(46))


def wait_until_up(name: str, seconds_max: float = 20) -> None:
    """Return when the interface carries packets: the kernel switches it through a moment later."""
    deadline = time.monotonic() + seconds_max
    while Path(f"/sys/class/net/{name}/operstate").read_text() != "up\n":
        if time.monotonic() > deadline:
            raise TimeoutError(f"{name} is not up after {seconds_max:g} s")


@contextmanager
def pair(name: str) -> Iterator[tuple[str, str]]:
    """Yield the two names of a pair that is up, and remove its rest at the end. Skip the test
    without the right to make interfaces: not root, or a container without CAP_NET_ADMIN.
    """
    names = f"{name}{os.getpid() % 100_000}a", f"{name}{os.getpid() % 100_000}b"
    try:
        add(*names)
    except OSError as error:
        pytest.skip(f"no virtual interfaces can be made here: {error}")
    try:
        for entry in names:
            switch(entry, True)
        for entry in names:
            wait_until_up(entry)
        yield names
    finally:
        with suppress(OSError):
            delete(names[0])
