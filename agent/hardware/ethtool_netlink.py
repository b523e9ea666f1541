"""Ethtool over generic netlink: link, modes, FEC and pause of an interface."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import struct
from dataclasses import dataclass

from . import netlink

#: The kernel normally answers before `send` returns; this is the timeout if it does not.
ANSWER_SECONDS_MAX = 2.0
#: Datagrams read until the answer: answers of earlier requests may come first.
DATAGRAMS_MAX = 16
_GENERIC = 16  # NETLINK_GENERIC, which the module `socket` lacks
_CONTROL = 0x10  # GENL_ID_CTRL
_GET_FAMILY, _FAMILY_ID, _FAMILY_NAME = 3, 1, 2
_ETHTOOL_HEADER, _DEVICE_INDEX, _FLAGS, _WITH_STATISTICS = 1, 1, 3, 1 << 2
LINKMODES_GET, LINKSTATE_GET, PAUSE_GET, FEC_GET = 4, 6, 21, 29  # ETHTOOL_MSG_*
#: Speeds above 100 Tbit/s are SPEED_UNKNOWN.
SPEED_MEGABITS_MAX = 100_000_000
_UNKNOWN_U8 = 0xFF  # DUPLEX_UNKNOWN
_U64 = struct.Struct("=Q")
#: Name of a link mode: speed in Mb/s, `base`, medium with its number of lanes, duplex
#: (link_mode_names in net/ethtool/common.c). Other names of that list are not speeds: `Autoneg`,
#: `FIBRE`, `Pause`.
_MODE = re.compile(
    r"([1-9][0-9]{0,8})base[A-Z]++([1-9][0-9]?)?(?![0-9])[A-Z0-9_]{0,16}(/(Full|Half))?", re.ASCII
)


@dataclass(frozen=True, slots=True)
class LinkState:
    """LINKSTATE_GET. `reason` and `detail`: why there is no link (enum ethtool_link_ext_state)."""

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
    """A supported mode with the kernel's name: `400000baseSR8/Full`."""

    name: str
    speed_megabits: int
    lanes: int


@dataclass(frozen=True, slots=True)
class Fec:
    """FEC_GET. `active` is the bit of a link mode; the counts cover all lanes together."""

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
    """Return the link state from the attributes of a reply to LINKSTATE_GET."""
    fields = netlink.attributes(reply)
    return LinkState(*(netlink.number(fields.get(kind)) for kind in (2, 3, 4, 5, 6, 7)))


def parse_link_modes(reply: bytes) -> LinkModes:
    """Return the modes from a reply to LINKMODES_GET; an unknown speed or duplex is None."""
    fields = netlink.attributes(reply)
    autonegotiation, speed, duplex, lanes = (
        netlink.number(fields.get(kind)) for kind in (2, 5, 6, 9)
    )
    return LinkModes(
        autonegotiation,
        speed if speed is not None and speed <= SPEED_MEGABITS_MAX else None,
        duplex if duplex != _UNKNOWN_U8 else None,
        lanes or None,
    )


def parse_supported_modes(reply: bytes) -> list[SupportedMode]:
    """Return the speeds of a reply to LINKMODES_GET in the kernel's order, each once.

    Its list `ours` has every supported mode, with a flag for the advertised ones (bit-by-bit form).
    """
    bits = netlink.attributes(netlink.attributes(reply).get(3, b"")).get(3, b"")
    names = [
        netlink.text(netlink.attributes(bit).get(2))
        for kind, bit in netlink.each_attribute(bits)
        if kind == 1
    ]
    return [mode for name in dict.fromkeys(names) if (mode := parse_mode(name)) is not None]


def parse_mode(name: str) -> SupportedMode | None:
    """Return the mode with the kernel's name *name*; None if the name is not a speed."""
    match = _MODE.fullmatch(name)
    if match is None or int(match[1]) > SPEED_MEGABITS_MAX:
        return None
    return SupportedMode(name, int(match[1]), int(match[2] or 1))


def parse_fec(reply: bytes) -> Fec:
    """Return the FEC state from a reply to FEC_GET."""
    fields = netlink.attributes(reply)
    counts = netlink.attributes(fields.get(5, b""))
    return Fec(
        netlink.number(fields.get(3)),
        netlink.number(fields.get(4)),
        *(total(counts.get(kind)) for kind in (2, 3, 4)),
    )


def parse_pause(reply: bytes) -> Pause:
    """Return the pause state from a reply to PAUSE_GET."""
    fields = netlink.attributes(reply)
    counts = netlink.attributes(fields.get(5, b""))
    autonegotiation, receive, transmit = (netlink.number(fields.get(kind)) for kind in (2, 3, 4))
    sent, received = netlink.number(counts.get(2)), netlink.number(counts.get(3))
    return Pause(autonegotiation, receive, transmit, received, sent)


def total(data: bytes | None) -> int | None:
    """Return the first of an array of 64-bit counts, the total, before those of the lanes.

    Return None without counts, or for ETHTOOL_STAT_NOT_SET.
    """
    if not data or len(data) % _U64.size:
        return None
    value: int = _U64.unpack_from(data)[0]
    return value if value != (1 << 64) - 1 else None


def parse_family(reply: bytes) -> int | None:
    """Return the family's number from a reply to CTRL_CMD_GETFAMILY."""
    return netlink.number(netlink.attributes(reply).get(_FAMILY_ID))


def reply_of(data: bytes, family: int, sequence: int) -> bytes | int | None:
    """Return the attributes of the reply to request *sequence* in a datagram.

    An errno (or 0) if it was refused or acknowledged; None if the datagram answers another request.
    """
    for message in netlink.messages(data):
        if message.sequence != sequence:
            continue
        if message.type == netlink.MESSAGE_ERROR:
            return netlink.parse_error(message.payload)
        if message.type == family and len(message.payload) >= 4:
            return message.payload[4:]  # after command, version and two unused bytes
    return None


def request_message(family: int, command: int, sequence: int, body: bytes) -> bytes:
    return netlink.make_message(family, netlink.REQUEST, sequence, bytes([command, 1, 0, 0]) + body)


def header_of(index: int, *, with_statistics: bool) -> bytes:
    """Return the header that names the interface."""
    header = netlink.make_attribute(_DEVICE_INDEX, struct.pack("=I", index))
    if with_statistics:
        header += netlink.make_attribute(_FLAGS, struct.pack("=I", _WITH_STATISTICS))
    return netlink.make_attribute(_ETHTOOL_HEADER, header, nested=True)


class EthtoolNetlink:
    """Sends ethtool requests (link, modes, FEC, pause of an interface), for one thread.

    The kernel holds its network lock during a request, and the driver may query its firmware.
    """

    def __init__(self) -> None:
        """Open and look up the family.

        Raises OSError, with ENOENT if the kernel has no ethtool netlink.
        """
        self._sequence = 0
        self._socket = socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _GENERIC
        )
        try:
            self._socket.settimeout(ANSWER_SECONDS_MAX)
            self._socket.bind((0, 0))
            name = netlink.make_attribute(_FAMILY_NAME, b"ethtool\0")
            family = parse_family(self._request(_CONTROL, _GET_FAMILY, name))
            if family is None:
                raise OSError(errno.ENOENT, "the kernel has no ethtool netlink")
        except BaseException:
            self._socket.close()
            raise
        self._family = family

    def request(self, command: int, index: int, *, with_statistics: bool = False) -> bytes:
        """Return the attributes of the reply about interface *index*.

        Raises OSError: EOPNOTSUPP if its driver does not support the request, ENODEV without the
        interface, TimeoutError without an answer. A kernel too old for the counts (pause before
        5.10, FEC before 5.13) answers without them.
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
            data, address = self._socket.recvfrom(netlink.DATAGRAM_BYTES_MAX)
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
