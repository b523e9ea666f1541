"""Messages of netlink, read and made by hand: importing pyroute2 costs 31 MB.

Layouts: include/uapi/linux/netlink.h, rtnetlink.h, if_link.h. All numbers are in the host's byte order.
Parsers take bytes and never raise: what is cut off or malformed ends the reading there.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass

#: One recv. The kernel's dumps come in at most 32 KiB at a time, and what it tells by itself is smaller.
DATAGRAM_BYTES_MAX = 1 << 16
#: More attributes in one place than this are not read; a link has about 60.
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


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a datagram; the payload is what follows its header."""

    type: int
    flags: int
    sequence: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Link:
    """What RTM_NEWLINK says of an interface; None is what it did not say."""

    index: int
    name: str
    up: bool  # switched on, and has a carrier
    switched_on: bool = True
    kind: str = ""  # `veth`, `bond`, `vlan`; physical ones mostly have none
    operational: int | None = None  # RFC 2863
    changes: int | None = None  # of the carrier, since the interface was made
    ups: int | None = None
    downs: int | None = None


@dataclass(frozen=True, slots=True)
class Removed:
    """What RTM_DELLINK says."""

    index: int


@dataclass(frozen=True, slots=True)
class DumpEnd:
    """No more answers: 0, or the errno with which the kernel refused."""

    failed: int = 0


@dataclass(frozen=True, slots=True)
class Malformed:
    """A message about a link that could not be read."""


@dataclass(frozen=True, slots=True)
class Told:
    """One thing that a datagram said, in its order; `answer`: it answers the dump asked for."""

    what: Link | Removed | DumpEnd | Malformed
    answer: bool = False
    interrupted: bool = False  # links came or went during the dump: it may be neither old nor new


def messages(data: bytes) -> Iterator[Message]:
    """Yield the messages of a datagram, up to the first that is cut off."""
    at = 0
    while at + _HEADER.size <= len(data):
        length, kind, flags, sequence, _ = _HEADER.unpack_from(data, at)
        if length < _HEADER.size or at + length > len(data):
            return
        yield Message(kind, flags, sequence, data[at + _HEADER.size : at + length])
        at += (length + 3) & ~3


def attributes(data: bytes) -> dict[int, bytes]:
    """Return the attributes by type, without the flags of the type; of two alike the first."""
    found: dict[int, bytes] = {}
    for kind, value in each_attribute(data):
        found.setdefault(kind, value)
    return found


def each_attribute(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (type without its flags, value) of each attribute, up to the first that is cut off: a list has
    many of one type."""
    at = 0
    for _ in range(ATTRIBUTES_MAX):
        if at + _ATTRIBUTE.size > len(data):
            return
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if length < _ATTRIBUTE.size or at + length > len(data):
            return
        yield kind & _TYPE_MASK, data[at + _ATTRIBUTE.size : at + length]
        at += (length + 3) & ~3


def number(data: bytes | None) -> int | None:
    """Return an attribute of 1, 2, 4 or 8 bytes as an unsigned number; None for any other."""
    if data is None or len(data) not in (1, 2, 4, 8):
        return None
    return int.from_bytes(data, sys.byteorder)


def _count(data: bytes | None) -> int | None:
    """Return a count of the carrier's changes, of 32 bits (IFLA_CARRIER_CHANGES and its like); None for any other."""
    return number(data) if data is not None and len(data) == 4 else None


def text(data: bytes | None) -> str:
    """Return an attribute's string up to its zero byte. Kernel names are bytes (`os.fsdecode`)."""
    return os.fsdecode((data or b"").partition(b"\0")[0])


def parse_link(payload: bytes) -> Link | None:
    """Return what the payload of RTM_NEWLINK says; None when it names no interface."""
    if len(payload) < _LINK.size:
        return None
    _, _, index, flags, _ = _LINK.unpack_from(payload)
    found = attributes(payload[_LINK.size :])
    name, carrier = text(found.get(_NAME)), number(found.get(_CARRIER))
    if index <= 0 or not name:
        return None
    has_carrier = bool(flags & _RUNNING) if carrier is None else bool(carrier)
    return Link(
        index=index,
        name=name,
        up=bool(flags & _UP) and has_carrier,
        switched_on=bool(flags & _UP),
        kind=text(attributes(found.get(_INFO, b"")).get(_KIND)),
        operational=number(found.get(_OPERATIONAL)),
        changes=_count(found.get(_CHANGES)),
        ups=_count(found.get(_UPS)),
        downs=_count(found.get(_DOWNS)),
    )


def parse_told(data: bytes, sequence: int) -> list[Told]:
    """Return what a datagram of NETLINK_ROUTE says of links, and of the dump asked for as *sequence*.

    Messages of another family than AF_UNSPEC are about ports of a bridge, not about links.
    """
    told: list[Told] = []
    for message in messages(data):
        answer = message.sequence == sequence
        what = _what(message, answer)
        if what is not None:
            told.append(Told(what, answer, bool(message.flags & DUMP_INTERRUPTED)))
    return told


def _what(message: Message, answer: bool) -> Link | Removed | DumpEnd | Malformed | None:
    if message.type in (NEW_LINK, DELETED_LINK):
        if message.payload[:1] not in (b"", bytes([socket.AF_UNSPEC])):
            return None
        link = parse_link(message.payload)
        if link is None:
            return Malformed()
        return link if message.type == NEW_LINK else Removed(link.index)
    if answer and message.type == MESSAGE_DONE:
        return DumpEnd()
    if answer and message.type == MESSAGE_ERROR and (failed := parse_error(message.payload)):
        return DumpEnd(failed)
    return None


def parse_error(payload: bytes) -> int:
    """Return the errno of NLMSG_ERROR; 0 is an acknowledgement, or no error that there can be."""
    if len(payload) < _ERROR.size:
        return 0
    (code,) = _ERROR.unpack_from(payload)
    return -code if -_ERRNO_MAX <= code < 0 else 0


def make_message(kind: int, flags: int, sequence: int, payload: bytes) -> bytes:
    """Return one message as bytes, its port left to the kernel."""
    return _HEADER.pack(_HEADER.size + len(payload), kind, flags, sequence, 0) + payload


def make_attribute(kind: int, value: bytes, *, nested: bool = False) -> bytes:
    """Return one attribute as bytes, filled up to a multiple of four."""
    size = _ATTRIBUTE.size + len(value)
    head = _ATTRIBUTE.pack(size, kind | (_NESTED if nested else 0))
    return head + value + bytes(-size % 4)


def all_links(sequence: int) -> bytes:
    """Return the request for a dump of all links."""
    return make_message(
        GET_LINK, REQUEST | DUMP, sequence, _LINK.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
    )
