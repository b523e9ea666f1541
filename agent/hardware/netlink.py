"""Builds and parses netlink messages by hand, because importing pyroute2 costs 19 MB (PSS).

Layouts: include/uapi/linux/netlink.h, rtnetlink.h, if_link.h, ethtool_netlink.h, genetlink.h;
Documentation/networking/ethtool-netlink.rst. All numbers are in the host's byte order. Parsers take
bytes and never raise: they stop at truncated or malformed data. A value that a driver does not
report is None.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass

#: Buffer of a recv. The kernel's dumps come in parts of at most 32 KiB; its notifications are
#: smaller.
DATAGRAM_BYTES_MAX = 1 << 16
#: Attributes per place beyond this number are ignored; a link has about 60.
ATTRIBUTES_MAX = 512

MESSAGE_ERROR, MESSAGE_DONE = 2, 3
NEW_LINK, DELETED_LINK, GET_LINK = 16, 17, 18
REQUEST, DUMP = 0x1, 0x300
DUMP_INTERRUPTED = 0x10
GROUP_LINK = 1  # RTMGRP_LINK

_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port
_ATTRIBUTE = struct.Struct("=HH")  # length, type
_LINK = struct.Struct("=BxHiII")  # family, hardware type, index, flags, changed flags
_ERROR = struct.Struct("=i")
_TYPE_MASK = 0x3FFF  # without NLA_F_NESTED and NLA_F_NET_BYTEORDER
_NESTED = 0x8000
_ERRNO_MAX = 4095

_UP, _RUNNING = 0x1, 0x40  # IFF_UP, IFF_RUNNING
# IFLA_IFNAME, IFLA_OPERSTATE, IFLA_LINKINFO with IFLA_INFO_KIND, IFLA_CARRIER, and its three counts
_NAME, _OPERATIONAL, _INFO, _KIND, _CARRIER = 3, 16, 18, 1, 33
_CHANGES, _UPS, _DOWNS = 35, 47, 48

#: The kernel's queue, some 1,300 messages of about 1.5 KiB; then ENOBUFS.
RECEIVE_BUFFER_BYTES = 2 << 20
_SO_RCVBUFFORCE = 33


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a datagram; the payload follows its header."""

    type: int
    flags: int
    sequence: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class LinkInfo:
    """An interface from RTM_NEWLINK; None: not reported."""

    index: int
    name: str
    up: bool  # switched on, with a carrier
    switched_on: bool = True
    kind: str = ""  # `veth`, `bond`, `vlan`; mostly empty for physical interfaces
    operational: int | None = None  # RFC 2863
    changes: int | None = None  # number of changes of the carrier since the interface exists
    ups: int | None = None
    downs: int | None = None


@dataclass(frozen=True, slots=True)
class LinkRemoved:
    """The removal of an interface, from RTM_DELLINK."""

    index: int


@dataclass(frozen=True, slots=True)
class DumpEnd:
    """The end of a dump: 0, or the errno of the kernel's refusal."""

    failed: int = 0


@dataclass(frozen=True, slots=True)
class MalformedMessage:
    """A message about a link that could not be read."""


@dataclass(frozen=True, slots=True)
class LinkMessage:
    """The content of a message about links; `answer`: part of the requested dump."""

    content: LinkInfo | LinkRemoved | DumpEnd | MalformedMessage
    answer: bool = False
    interrupted: bool = False  # links came or went during the dump: its content may be inconsistent


def messages(data: bytes) -> Iterator[Message]:
    """Yield the messages of a datagram, up to the first truncated one."""
    offset = 0
    while offset + _HEADER.size <= len(data):
        length, kind, flags, sequence, _ = _HEADER.unpack_from(data, offset)
        if length < _HEADER.size or offset + length > len(data):
            return
        yield Message(kind, flags, sequence, data[offset + _HEADER.size : offset + length])
        offset += (length + 3) & ~3


def attributes(data: bytes) -> dict[int, bytes]:
    """Return the attributes by type, without the type's flags; the first of equal types."""
    by_type: dict[int, bytes] = {}
    for kind, value in each_attribute(data):
        by_type.setdefault(kind, value)
    return by_type


def each_attribute(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (type without its flags, value) of each attribute, up to the first truncated one.

    A list has many attributes of the same type.
    """
    offset = 0
    for _ in range(ATTRIBUTES_MAX):
        if offset + _ATTRIBUTE.size > len(data):
            return
        length, kind = _ATTRIBUTE.unpack_from(data, offset)
        if length < _ATTRIBUTE.size or offset + length > len(data):
            return
        yield kind & _TYPE_MASK, data[offset + _ATTRIBUTE.size : offset + length]
        offset += (length + 3) & ~3


def number(data: bytes | None) -> int | None:
    """Return an attribute of 1, 2, 4 or 8 bytes as an unsigned number; None for any other size."""
    if data is None or len(data) not in (1, 2, 4, 8):
        return None
    return int.from_bytes(data, sys.byteorder)


def _count(data: bytes | None) -> int | None:
    """Return a 32-bit count (IFLA_CARRIER_CHANGES, IFLA_CARRIER_UP_COUNT, ...); else None."""
    return number(data) if data is not None and len(data) == 4 else None


def text(data: bytes | None) -> str:
    """Return an attribute's string up to its zero byte. Kernel names are bytes (`os.fsdecode`)."""
    return os.fsdecode((data or b"").partition(b"\0")[0])


def parse_link(payload: bytes) -> LinkInfo | None:
    """Return the interface of an RTM_NEWLINK payload; None if it is not named."""
    if len(payload) < _LINK.size:
        return None
    _, _, index, flags, _ = _LINK.unpack_from(payload)
    fields = attributes(payload[_LINK.size :])
    name, carrier = text(fields.get(_NAME)), number(fields.get(_CARRIER))
    if index <= 0 or not name:
        return None
    has_carrier = bool(flags & _RUNNING) if carrier is None else bool(carrier)
    return LinkInfo(
        index=index,
        name=name,
        up=bool(flags & _UP) and has_carrier,
        switched_on=bool(flags & _UP),
        kind=text(attributes(fields.get(_INFO, b"")).get(_KIND)),
        operational=number(fields.get(_OPERATIONAL)),
        changes=_count(fields.get(_CHANGES)),
        ups=_count(fields.get(_UPS)),
        downs=_count(fields.get(_DOWNS)),
    )


def parse_link_messages(data: bytes, sequence: int) -> list[LinkMessage]:
    """Return the messages about links in a NETLINK_ROUTE datagram.

    *sequence*: number of the requested dump. Messages of other families than AF_UNSPEC concern
    ports of a bridge, not links.
    """
    link_messages: list[LinkMessage] = []
    for message in messages(data):
        answer = message.sequence == sequence
        content = _link_content(message, answer)
        if content is not None:
            link_messages.append(
                LinkMessage(content, answer, bool(message.flags & DUMP_INTERRUPTED))
            )
    return link_messages


def _link_content(
    message: Message, answer: bool
) -> LinkInfo | LinkRemoved | DumpEnd | MalformedMessage | None:
    if message.type in (NEW_LINK, DELETED_LINK):
        if message.payload[:1] not in (b"", bytes([socket.AF_UNSPEC])):
            return None
        link = parse_link(message.payload)
        if link is None:
            return MalformedMessage()
        return link if message.type == NEW_LINK else LinkRemoved(link.index)
    if answer and message.type == MESSAGE_DONE:
        return DumpEnd()
    if answer and message.type == MESSAGE_ERROR and (failed := parse_error(message.payload)):
        return DumpEnd(failed)
    return None


def parse_error(payload: bytes) -> int:
    """Return the errno of NLMSG_ERROR; 0 for an acknowledgement or an impossible number."""
    if len(payload) < _ERROR.size:
        return 0
    (code,) = _ERROR.unpack_from(payload)
    return -code if -_ERRNO_MAX <= code < 0 else 0


def make_message(kind: int, flags: int, sequence: int, payload: bytes) -> bytes:
    """Return a message as bytes; the kernel sets the port."""
    return _HEADER.pack(_HEADER.size + len(payload), kind, flags, sequence, 0) + payload


def make_attribute(kind: int, value: bytes, *, nested: bool = False) -> bytes:
    """Return an attribute as bytes, padded to a multiple of four."""
    size = _ATTRIBUTE.size + len(value)
    head = _ATTRIBUTE.pack(size, kind | (_NESTED if nested else 0))
    return head + value + bytes(-size % 4)


def all_links(sequence: int) -> bytes:
    """Return the request for a dump of all links."""
    return make_message(
        GET_LINK, REQUEST | DUMP, sequence, _LINK.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
    )


class Overrun(Exception):
    """Messages were lost: the known links may be out of date until they are listed again."""


class LinkSocket:
    """Receives notifications of links (NETLINK_ROUTE, RTMGRP_LINK). For one reader.

    `wake` ends a wait from another thread.
    """

    def __init__(self, receive_buffer_bytes: int = RECEIVE_BUFFER_BYTES) -> None:
        """Open and subscribe. Raises OSError (a container's seccomp filter, no netlink)."""
        self._socket = socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE
        )
        self._wake_receiver, self._wake_sender = socket.socketpair()
        try:
            self._set_buffer(receive_buffer_bytes)
            self._socket.bind((0, GROUP_LINK))
            self._socket.setblocking(False)
        except OSError:
            self.close()
            raise

    def _set_buffer(self, size: int) -> None:
        """Set the buffer; beyond the host's limit (net.core.rmem_max) only with CAP_NET_ADMIN."""
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, size)
        except PermissionError:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)

    def request_all(self, sequence: int) -> None:
        """Request a dump of all links.

        Raises OSError, with EBUSY while the last dump is not read to its end.
        """
        self._socket.sendto(all_links(sequence), (0, 0))

    def receive(self) -> bytes | None:
        """Return a datagram; None without one. Raises Overrun, OSError.

        A datagram from another process than the kernel is returned as empty.
        """
        try:
            data, address = self._socket.recvfrom(DATAGRAM_BYTES_MAX)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as error:
            if error.errno == errno.ENOBUFS:
                raise Overrun from error
            raise
        return data if address[0] == 0 else b""

    def wait(self, seconds: float) -> bool:
        """Wait for a datagram, `wake` or *seconds*; return False after `wake`."""
        # select() supports no descriptor above 1,023, and counter files keep thousands
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.register(self._wake_receiver, select.POLLIN)
        return self._wake_receiver.fileno() not in {
            number for number, _ in poll.poll(seconds * 1000)
        }

    def wake(self) -> None:
        """End the wait, now and always. Any thread may call it; never raises."""
        with contextlib.suppress(OSError):
            self._wake_sender.send(b"\0")

    def close(self) -> None:
        """Close the socket, in the reader's thread."""
        for endpoint in (self._socket, self._wake_receiver, self._wake_sender):
            endpoint.close()
