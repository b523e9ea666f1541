"""Messages of netlink: links that come and go, and what ethtool answers."""

from __future__ import annotations

import random
import struct

from gangline.agent.collectors.link_flaps import LinkFlapFilter
from gangline.agent.hardware import ethtool_netlink, netlink
from gangline.agent.hardware.netlink import (
    LinkInfo,
    LinkRemoved,
    MalformedMessage,
    make_attribute,
    make_message,
)
from gangline.agent.hardware.nic_statistics import SIGNALS_OF, select_statistics
from tests.fuzzing.damage import ACCEPTED, ODD_WORDS, REFUSED, check, flipped, outcome

U32 = struct.Struct("=I")

_NESTED_COUNTS = b"".join(make_attribute(kind, struct.pack("=QQ", 5, 5)) for kind in (2, 3, 4))
REPLY = (
    make_attribute(2, b"\x01")
    + make_attribute(3, b"\x00")
    + make_attribute(4, b"\x01")
    + make_attribute(5, U32.pack(400_000))
    + make_attribute(6, b"\x01")
    + make_attribute(9, U32.pack(4))
)
MODES = (b"Autoneg", b"100000baseCR4/Full", b"400000baseSR8/Full", b"FIBRE", b"10000baseR_FEC")


def _link(index: int, name: bytes, downs: int) -> bytes:
    body = struct.pack("=BxHiII", 0, 1, index, 0x41, 0)
    body += (
        make_attribute(3, name + b"\0") + make_attribute(16, b"\x06") + make_attribute(33, b"\x01")
    )
    for kind, count in ((35, 2 * downs + 1), (47, downs + 1), (48, downs)):
        body += make_attribute(kind, U32.pack(count % 2**32))
    return body + make_attribute(18, make_attribute(1, b"veth\0"), nested=True)


def fuzz_links(source: random.Random) -> str:
    """Datagrams about links, damaged: no false count, and few events at any rate of flaps."""
    watch = LinkFlapFilter(lambda link: True)
    watch.resync((), 0)
    seen, events = 0, 0
    for step in range(6):
        data = b"".join(
            make_message(
                source.choice((16, 16, 17, 3, 2)),
                0,
                7,
                _link(i, b"ib%d" % i, source.getrandbits(32)),
            )
            for i in range(1, 4)
        )
        for message in netlink.parse_link_messages(flipped(data, source) if step else data, 7):
            seen += not isinstance(message.content, MalformedMessage)
            check(
                message.content
                if isinstance(message.content, LinkInfo) and message.content.index >= 0
                else None
            )
            if isinstance(message.content, LinkInfo | LinkRemoved):
                parsed = watch.observe(message.content, step)
                events += len(parsed)
                assert all(0 < event.count < 1 << 32 for event in parsed)
    assert events < 200
    return ACCEPTED if seen > 12 else REFUSED


def _bitset(names: tuple[bytes, ...]) -> bytes:
    bits = b"".join(
        make_attribute(
            1, make_attribute(1, U32.pack(index)) + make_attribute(2, name + b"\0"), nested=True
        )
        for index, name in enumerate(names)
    )
    return make_attribute(3, make_attribute(3, bits, nested=True), nested=True)


def fuzz_modes(source: random.Random) -> str:
    """Names of link modes, damaged: no excessive speed, each once, and only valid names."""
    names = tuple(source.choice((*MODES, *ODD_WORDS)) for _ in range(source.randrange(1, 40)))
    reply = _bitset(names)
    parsed = ethtool_netlink.parse_supported_modes(flipped(reply, source))
    for mode in parsed:
        check(mode)
        assert (
            0 < mode.speed_megabits <= ethtool_netlink.SPEED_MEGABITS_MAX and 0 < mode.lanes < 100
        )
        assert len(mode.name) < 64 and mode.name.isascii() and " " not in mode.name
    assert len({mode.name for mode in parsed}) == len(parsed)
    return outcome(parsed)


def fuzz_ethtool(source: random.Random) -> str:
    """Replies of generic netlink in pieces: numbers of at most 64 bits, existing errno values."""
    body = REPLY + make_attribute(5, _NESTED_COUNTS, nested=True)
    reply = flipped(body, source)
    for parse in (
        ethtool_netlink.parse_link_state,
        ethtool_netlink.parse_link_modes,
        ethtool_netlink.parse_fec,
        ethtool_netlink.parse_pause,
    ):
        check(parse(reply))
    modes = ethtool_netlink.parse_link_modes(reply)
    assert (
        modes.speed_megabits is None or modes.speed_megabits <= ethtool_netlink.SPEED_MEGABITS_MAX
    )
    check(ethtool_netlink.parse_family(reply))
    datagram = make_message(
        source.choice((20, 20, 2, 3)), 0, source.choice((9, 9, 8)), b"\x05\x01\0\0" + body
    )
    answer = ethtool_netlink.reply_of(flipped(datagram, source), 20, 9)
    if isinstance(answer, int):
        assert 0 <= answer <= 4095
    return ACCEPTED if isinstance(answer, bytes) else REFUSED


def fuzz_statistics(source: random.Random) -> str:
    """Names of a driver's statistics: any bytes, also twice. A signal stands for one place, or none."""
    driver = source.choice((*SIGNALS_OF, b"mlx5_core", b"", b"unknown", b"\xff"))
    known = list(SIGNALS_OF.get(driver, {b"x": ""}))
    names = [
        source.choice((*known, *ODD_WORDS[:4], b"rx_packets")) for _ in range(source.randrange(60))
    ]
    parsed = select_statistics(driver, names)
    assert all(names.count(names[place]) == 1 for place in parsed.values())
    return outcome(parsed)


TARGETS = {
    "links": fuzz_links,
    "ethtool": fuzz_ethtool,
    "modes": fuzz_modes,
    "statistics": fuzz_statistics,
}
