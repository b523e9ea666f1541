"""Builds and parses netlink messages by hand, because importing pyroute2 costs 19 MB (PSS).

Layouts: include/uapi/linux/netlink.h, rtnetlink.h, if_link.h. All numbers are in the host's byte order.
Parsers take bytes and never raise: what is cut off or malformed ends the reading there.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import select
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
class LinkInfo:
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
class LinkRemoved:
    """What RTM_DELLINK says."""

    index: int


@dataclass(frozen=True, slots=True)
class DumpEnd:
    """No more answers: 0, or the errno with which the kernel refused."""

    failed: int = 0


@dataclass(frozen=True, slots=True)
class MalformedMessage:
    """A message about a link that could not be read."""


@dataclass(frozen=True, slots=True)
class LinkMessage:
    """One thing that a datagram said, in its order; `answer`: it answers the dump asked for."""

    content: LinkInfo | LinkRemoved | DumpEnd | MalformedMessage
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


def parse_link(payload: bytes) -> LinkInfo | None:
    """Return what the payload of RTM_NEWLINK says; None when it names no interface."""
    if len(payload) < _LINK.size:
        return None
    _, _, index, flags, _ = _LINK.unpack_from(payload)
    found = attributes(payload[_LINK.size :])
    name, carrier = text(found.get(_NAME)), number(found.get(_CARRIER))
    if index <= 0 or not name:
        return None
    has_carrier = bool(flags & _RUNNING) if carrier is None else bool(carrier)
    return LinkInfo(
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


def parse_link_messages(data: bytes, sequence: int) -> list[LinkMessage]:
    """Return what a datagram of NETLINK_ROUTE says of links, and of the dump asked for as *sequence*.

    Messages of another family than AF_UNSPEC are about ports of a bridge, not about links.
    """
    found: list[LinkMessage] = []
    for message in messages(data):
        answer = message.sequence == sequence
        content = _link_content(message, answer)
        if content is not None:
            found.append(LinkMessage(content, answer, bool(message.flags & DUMP_INTERRUPTED)))
    return found


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


# ----------------------------------------------------------------------
# The socket on which the kernel tells what happens to links (NETLINK_ROUTE, RTMGRP_LINK).

#: What the kernel may keep for us; at about 1.5 KiB a message, some 1,300 of them. Then ENOBUFS.
RECEIVE_BUFFER_BYTES = 2 << 20

_SO_RCVBUFFORCE = 33


class Overrun(Exception):
    """Messages were lost: what is known of links may be out of date until they are asked for again."""


class LinkSocket:
    """Reads messages; `wake` ends a wait from another thread. One reader at a time."""

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
        """Beyond the host's limit (net.core.rmem_max) only with CAP_NET_ADMIN; else what it allows."""
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, size)
        except PermissionError:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)

    def request_all(self, sequence: int) -> None:
        """Ask for a dump of all links. Raises OSError (EBUSY while the last one is not read out)."""
        self._socket.sendto(all_links(sequence), (0, 0))

    def receive(self) -> bytes | None:
        """Return a datagram, or None when none is there. Raises Overrun, OSError.

        What another process sent is not the kernel's word, and is passed over as empty.
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
        """Wait for a datagram, `wake` or *seconds*; return False when woken."""
        poll = (
            select.poll()
        )  # select() knows no descriptor above 1,023, and counter files keep thousands
        poll.register(self._socket, select.POLLIN)
        poll.register(self._wake_receiver, select.POLLIN)
        return self._wake_receiver.fileno() not in {
            number for number, _ in poll.poll(seconds * 1000)
        }

    def wake(self) -> None:
        """End the wait, now and for ever. From any thread; never raises."""
        with contextlib.suppress(OSError):
            self._wake_sender.send(b"\0")

    def close(self) -> None:
        """Close. For the reader's thread."""
        for each in (self._socket, self._wake_receiver, self._wake_sender):
            each.close()


# ----------------------------------------------------------------------
# What ethtool says over generic netlink: link, modes, FEC and pause of an interface.
#
# Layouts: include/uapi/linux/ethtool_netlink.h, genetlink.h;
# Documentation/networking/ethtool-netlink.rst. Parsers take the attributes of a reply and never
# raise; what a driver does not say is None.

#: The kernel answers before `send` returns; this is for one that does not.
ANSWER_SECONDS_MAX = 2.0
#: Datagrams read in search of an answer: those of an earlier question, left behind, come first.
DATAGRAMS_MAX = 16

_GENERIC = 16  # NETLINK_GENERIC, which the module `socket` lacks
_CONTROL = 0x10  # GENL_ID_CTRL
_GET_FAMILY, _FAMILY_ID, _FAMILY_NAME = 3, 1, 2
_ETHTOOL_HEADER, _DEVICE_INDEX, _FLAGS, _WITH_STATISTICS = 1, 1, 3, 1 << 2
LINKMODES_GET, LINKSTATE_GET, PAUSE_GET, FEC_GET = 4, 6, 21, 29  # ETHTOOL_MSG_*

#: Larger speeds than 100 Tbit/s are SPEED_UNKNOWN.
SPEED_MEGABITS_MAX = 100_000_000
_UNKNOWN_U8 = 0xFF  # DUPLEX_UNKNOWN
_U64 = struct.Struct("=Q")
#: A link mode's name: speed in Mb/s, `base`, medium with the number of its lanes, duplex (`link_mode_names` in
#: net/ethtool/common.c). Others of the same list are no speeds: `Autoneg`, `FIBRE`, `Pause`.
_MODE = re.compile(
    r"([1-9][0-9]{0,8})base[A-Z]++([1-9][0-9]?)?(?![0-9])[A-Z0-9_]{0,16}(/(Full|Half))?", re.ASCII
)


@dataclass(frozen=True, slots=True)
class LinkState:
    """LINKSTATE_GET. `reason` and `detail` are why there is no link (enum ethtool_link_ext_state)."""

    detected: int | None = None
    quality: int | None = None
    quality_max: int | None = None
    reason: int | None = None
    detail: int | None = None
    external_downs: int | None = None


@dataclass(frozen=True, slots=True)
class LinkModes:
    """LINKMODES_GET."""

    autonegotiation: int | None = None
    speed_megabits: int | None = None
    duplex: int | None = None
    lanes: int | None = None


@dataclass(frozen=True, slots=True)
class SupportedMode:
    """A mode that the interface could run in, as the kernel names it: `400000baseSR8/Full`."""

    name: str
    speed_megabits: int
    lanes: int


@dataclass(frozen=True, slots=True)
class Fec:
    """FEC_GET. `active` is the bit of a link mode; the counts are of all lanes together."""

    automatic: int | None = None
    active: int | None = None
    corrected: int | None = None
    uncorrectable: int | None = None
    corrected_bits: int | None = None


@dataclass(frozen=True, slots=True)
class Pause:
    """PAUSE_GET."""

    autonegotiation: int | None = None
    receive: int | None = None
    transmit: int | None = None
    received_frames: int | None = None
    transmitted_frames: int | None = None


def parse_link_state(reply: bytes) -> LinkState:
    """Return what a reply to LINKSTATE_GET says, given its attributes."""
    found = attributes(reply)
    return LinkState(*(number(found.get(kind)) for kind in (2, 3, 4, 5, 6, 7)))


def parse_link_modes(reply: bytes) -> LinkModes:
    """Return what a reply to LINKMODES_GET says; an unknown speed or duplex is None."""
    found = attributes(reply)
    autonegotiation, speed, duplex, lanes = (number(found.get(kind)) for kind in (2, 5, 6, 9))
    return LinkModes(
        autonegotiation,
        speed if speed is not None and speed <= SPEED_MEGABITS_MAX else None,
        duplex if duplex != _UNKNOWN_U8 else None,
        lanes or None,
    )


def parse_supported_modes(reply: bytes) -> list[SupportedMode]:
    """Return the speeds of a reply to LINKMODES_GET in the kernel's order, each once.

    Its list of `ours` names each mode that is supported, and flags the advertised ones (bit-by-bit form).
    """
    bits = attributes(attributes(reply).get(3, b"")).get(3, b"")
    names = [text(attributes(bit).get(2)) for kind, bit in each_attribute(bits) if kind == 1]
    return [mode for name in dict.fromkeys(names) if (mode := parse_mode(name)) is not None]


def parse_mode(name: str) -> SupportedMode | None:
    """Return what the kernel's name of a link mode says; None for one that is no speed."""
    found = _MODE.fullmatch(name)
    if found is None or int(found[1]) > SPEED_MEGABITS_MAX:
        return None
    return SupportedMode(name, int(found[1]), int(found[2] or 1))


def parse_fec(reply: bytes) -> Fec:
    """Return what a reply to FEC_GET says."""
    found = attributes(reply)
    counts = attributes(found.get(5, b""))
    return Fec(
        number(found.get(3)), number(found.get(4)), *(total(counts.get(kind)) for kind in (2, 3, 4))
    )


def parse_pause(reply: bytes) -> Pause:
    """Return what a reply to PAUSE_GET says."""
    found = attributes(reply)
    counts = attributes(found.get(5, b""))
    autonegotiation, receive, transmit = (number(found.get(kind)) for kind in (2, 3, 4))
    sent, received = number(counts.get(2)), number(counts.get(3))
    return Pause(autonegotiation, receive, transmit, received, sent)


def total(data: bytes | None) -> int | None:
    """Return the first of an array of 64-bit counts, the total (those of the lanes follow); None when
    there is none, or it is ETHTOOL_STAT_NOT_SET."""
    if not data or len(data) % _U64.size:
        return None
    value: int = _U64.unpack_from(data)[0]
    return value if value != (1 << 64) - 1 else None


def parse_family(reply: bytes) -> int | None:
    """Return the number of the family, of a reply to CTRL_CMD_GETFAMILY."""
    return number(attributes(reply).get(_FAMILY_ID))


def reply_of(data: bytes, family: int, sequence: int) -> bytes | int | None:
    """Return the attributes of the reply to question *sequence* in a datagram; an errno (0 too) when it
    was refused or acknowledged; None when the datagram is of another question."""
    for message in messages(data):
        if message.sequence != sequence:
            continue
        if message.type == MESSAGE_ERROR:
            return parse_error(message.payload)
        if message.type == family and len(message.payload) >= 4:
            return message.payload[4:]  # behind command, version and two spare bytes
    return None


def request_message(family: int, command: int, sequence: int, body: bytes) -> bytes:
    """Return a request of generic netlink as bytes."""
    return make_message(family, REQUEST, sequence, bytes([command, 1, 0, 0]) + body)


def header_of(index: int, *, with_statistics: bool) -> bytes:
    """Return the header that names the interface."""
    header = make_attribute(_DEVICE_INDEX, struct.pack("=I", index))
    if with_statistics:
        header += make_attribute(_FLAGS, struct.pack("=I", _WITH_STATISTICS))
    return make_attribute(_ETHTOOL_HEADER, header, nested=True)


class EthtoolNetlink:
    """Asks one question at a time. For one thread. The kernel holds its network lock meanwhile, and the
    driver may ask firmware."""

    def __init__(self) -> None:
        """Open and look the family up. Raises OSError: ENOENT where the kernel has no ethtool netlink."""
        self._sequence = 0
        self._socket = socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _GENERIC
        )
        try:
            self._socket.settimeout(ANSWER_SECONDS_MAX)
            self._socket.bind((0, 0))
            name = make_attribute(_FAMILY_NAME, b"ethtool\0")
            family = parse_family(self._request(_CONTROL, _GET_FAMILY, name))
            if family is None:
                raise OSError(errno.ENOENT, "the kernel has no ethtool netlink")
        except BaseException:
            self._socket.close()
            raise
        self._family = family

    def request(self, command: int, index: int, *, with_statistics: bool = False) -> bytes:
        """Return the attributes of the reply about interface *index*. Raises OSError: EOPNOTSUPP when
        its driver cannot say, ENODEV without it, TimeoutError without an answer.

        A kernel too old for the counts (pause before 5.10, FEC before 5.13) answers without them.
        """
        try:
            header = header_of(index, with_statistics=with_statistics)
            return self._request(self._family, command, header)
        except OSError as error:
            if not with_statistics or error.errno != errno.EINVAL:
                raise
            return self._request(self._family, command, header_of(index, with_statistics=False))

    def _request(self, family: int, command: int, body: bytes) -> bytes:
        self._sequence = self._sequence % 0xFFFFFFFF + 1
        self._socket.sendto(request_message(family, command, self._sequence, body), (0, 0))
        for _ in range(DATAGRAMS_MAX):
            data, address = self._socket.recvfrom(DATAGRAM_BYTES_MAX)
            reply = reply_of(data, family, self._sequence) if address[0] == 0 else None
            if isinstance(reply, int):
                raise OSError(reply or errno.EPROTO, os.strerror(reply or errno.EPROTO))
            if reply is not None:
                return reply
        raise TimeoutError(f"no answer among {DATAGRAMS_MAX} datagrams")

    def close(self) -> None:
        """Close the socket. Never raises."""
        with contextlib.suppress(OSError):
            self._socket.close()

    def __del__(self) -> None:
        self.close()
