"""Netlink messages: the kernel's messages are read, and anything else is survived."""

from __future__ import annotations

import errno
import socket
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.agent.hardware import ethtool_netlink, netlink
from gangline.agent.hardware.netlink import (
    DumpEnd,
    LinkInfo,
    LinkMessage,
    LinkRemoved,
    LinkSocket,
    MalformedMessage,
    Overrun,
)
from tests.processes import GUARD_SECONDS

NAMES = st.binary(min_size=1, max_size=15).filter(lambda name: b"\0" not in name)
U32 = st.integers(0, 2**32 - 1)


def attribute(kind: int, value: bytes) -> bytes:
    """Encode with code independent of the agent."""
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def message(kind: int, payload: bytes, *, sequence: int = 0, flags: int = 0) -> bytes:
    whole = struct.pack("=IHHII", 16 + len(payload), kind, flags, sequence, 0) + payload
    return whole + bytes(-len(whole) % 4)


def link_payload(
    name: bytes, index: int = 3, flags: int = 0x41, family: int = 0, **numbers: int
) -> bytes:
    kinds = {"carrier": (33, "=B"), "operational": (16, "=B"), "changes": (35, "=I")}
    kinds |= {"ups": (47, "=I"), "downs": (48, "=I")}
    body = attribute(3, name + b"\0")
    for what, value in numbers.items():
        kind, form = kinds[what]
        body += attribute(kind, struct.pack(form, value))
    return struct.pack("=BxHiII", family, 1, index, flags, 0) + body


@given(NAMES, st.integers(1, 2**31 - 1), st.booleans(), U32, U32, st.integers(0, 6))
def test_a_link_is_read_as_it_was_written(
    name: bytes, index: int, carrier: bool, ups: int, downs: int, operational: int
) -> None:
    """Name (any bytes), index, state and counts are read as another encoder wrote them."""
    payload = link_payload(
        name, index, 0x1, carrier=carrier, ups=ups, downs=downs, operational=operational
    )
    link = netlink.parse_link(payload)
    assert link is not None
    assert link.name.encode("utf-8", "surrogateescape") == name
    assert (link.index, link.up, link.ups, link.downs) == (index, carrier, ups, downs)
    assert (link.operational, link.changes, link.switched_on) == (operational, None, True)


@pytest.mark.parametrize("form", ["=B", "=H", "=Q"])
def test_a_count_that_is_not_of_32_bits_is_not_known(form: str) -> None:
    """A damaged message of eight bytes meant quadrillions of changes of an unchanged link."""
    data = struct.pack(form, 200)
    body = attribute(3, b"ib0\0") + b"".join(attribute(kind, data) for kind in (35, 47, 48))
    link = netlink.parse_link(struct.pack("=BxHiII", 0, 1, 3, 0x41, 0) + body)
    assert link is not None
    assert (link.changes, link.ups, link.downs) == (None, None, None)


@given(NAMES, st.integers(0, 400))
def test_a_message_that_is_cut_off_invents_nothing(name: bytes, cut: int) -> None:
    """A buffer too small showed half a message: a link without a name, and a carrier of 0."""
    whole = message(16, link_payload(name, carrier=1))
    messages = netlink.parse_link_messages(whole[:cut], 0)
    assert messages == ([] if cut < len(whole) else netlink.parse_link_messages(whole, 0))


@given(st.binary(max_size=300))
def test_no_bytes_make_the_parsers_raise(data: bytes) -> None:
    """Another kernel, another family, a broken driver: nothing, or values of the bytes."""
    for message in netlink.parse_link_messages(data, 0):
        assert isinstance(message.content, LinkInfo | LinkRemoved | DumpEnd | MalformedMessage)
    link = netlink.parse_link(data)
    assert link is None or (link.index > 0 and link.name)
    for value in netlink.attributes(data).values():
        assert value in data
    assert 0 <= netlink.parse_error(data) < 4096
    parsers: tuple[Any, ...] = (
        ethtool_netlink.parse_link_state,
        ethtool_netlink.parse_link_modes,
        ethtool_netlink.parse_fec,
        ethtool_netlink.parse_pause,
    )
    for mode in ethtool_netlink.parse_supported_modes(data):
        assert mode == ethtool_netlink.parse_mode(mode.name)
    for parse in parsers:
        parsed = parse(data)
        for name in parsed.__dataclass_fields__:
            number = getattr(parsed, name)
            assert number is None or 0 <= number < 2**64
    family = ethtool_netlink.parse_family(data)
    assert family is None or family >= 0
    ethtool_netlink.reply_of(data, 30, 1)


@given(st.lists(st.binary(max_size=40), max_size=5), st.binary(max_size=20))
def test_whole_messages_before_rubbish_are_kept(payloads: list[bytes], rubbish: bytes) -> None:
    """One malformed message at the end must not affect earlier ones."""
    data = b"".join(message(99, payload) for payload in payloads)
    read = [m.payload for m in netlink.messages(data + rubbish)]
    assert read[: len(payloads)] == payloads


def test_what_a_datagram_says_in_its_order() -> None:
    """Removed and recreated under one name: in this order it is up, in the other it is missing."""
    data = (
        message(17, link_payload(b"eth2", 7))
        + message(16, link_payload(b"eth2", 9, carrier=1, ups=1, downs=0))
        + message(16, b"\0\0")
        + message(16, link_payload(b"swp1", 4, family=socket.AF_BRIDGE))
        + message(16, link_payload(b"eth3", 5), sequence=6, flags=0x12)
        + message(3, struct.pack("=i", 0), sequence=6)
        + message(2, struct.pack("=i", -errno.EBUSY), sequence=6)
        + message(2, struct.pack("=i", -errno.EBUSY), sequence=5)
        + message(3, struct.pack("=i", 0), sequence=5)
    )
    link, answer = LinkInfo(9, "eth2", True, ups=1, downs=0), LinkInfo(5, "eth3", True)
    assert netlink.parse_link_messages(data, 6) == [
        LinkMessage(LinkRemoved(7)),
        LinkMessage(link),
        LinkMessage(MalformedMessage()),
        LinkMessage(answer, answer=True, interrupted=True),
        LinkMessage(DumpEnd(), answer=True),
        LinkMessage(DumpEnd(errno.EBUSY), answer=True),
    ]


@pytest.mark.parametrize(
    ("flags", "carrier", "up"),
    [(0x1, {"carrier": 1}, True), (0x1, {"carrier": 0}, False), (0x0, {"carrier": 1}, False),
     (0x41, {}, True), (0x1, {}, False)],
)  # fmt: skip
def test_up_is_on_and_with_a_carrier(flags: int, carrier: dict[str, int], up: bool) -> None:
    """An interface that was switched off keeps its carrier in some drivers: it is not up."""
    link = netlink.parse_link(link_payload(b"eth0", flags=flags, **carrier))
    assert link is not None and link.up is up


def test_attributes_are_bounded_and_the_first_counts() -> None:
    """A message of 60,000 tiny attributes blocked the listener; a repeated one replaced the truth."""
    many = b"".join(attribute(kind % 16384, b"") for kind in range(5000))
    assert len(netlink.attributes(many)) == netlink.ATTRIBUTES_MAX
    assert netlink.attributes(attribute(3, b"a") + attribute(3 | 0x8000, b"b")) == {3: b"a"}


def fec_reply(active: int, *counts: bytes) -> bytes:
    kinds = (2, 3, 4)
    stats = b"".join(attribute(k, c) for k, c in zip(kinds, counts, strict=False))
    return (
        attribute(1 | 0x8000, attribute(1, struct.pack("=I", 4)))
        + attribute(3, b"\1")
        + attribute(4, struct.pack("=I", active))
        + attribute(5 | 0x8000, stats)
    )


def test_fec_of_a_400g_port() -> None:
    """Per-lane counts follow the total in one array; the lanes were added to their own sum."""
    lanes = struct.pack("=5Q", 1000, 400, 300, 200, 100)
    assert ethtool_netlink.parse_fec(
        fec_reply(50, lanes, struct.pack("=Q", 3))
    ) == ethtool_netlink.Fec(1, 50, 1000, 3, None)
    not_set = struct.pack("=Q", 2**64 - 1)
    assert ethtool_netlink.parse_fec(fec_reply(49, not_set, b"", b"\1\2\3")) == ethtool_netlink.Fec(
        1, 49
    )


def test_states_of_the_wire() -> None:
    """SPEED_UNKNOWN and DUPLEX_UNKNOWN are not a speed of four billion megabits."""
    reply = attribute(2, b"\0") + attribute(5, b"\xff" * 4) + attribute(6, b"\xff")
    assert ethtool_netlink.parse_link_modes(reply) == ethtool_netlink.LinkModes(autonegotiation=0)
    reply = attribute(5, struct.pack("=I", 400_000)) + attribute(9, struct.pack("=I", 4))
    assert ethtool_netlink.parse_link_modes(reply) == ethtool_netlink.LinkModes(
        speed_megabits=400_000, lanes=4
    )
    reply = attribute(2, b"\0") + attribute(5, b"\4") + attribute(7, struct.pack("=I", 12))
    assert ethtool_netlink.parse_link_state(reply) == ethtool_netlink.LinkState(
        0, reason=4, external_downs=12
    )
    counts = attribute(2, struct.pack("=Q", 7)) + attribute(3, struct.pack("=Q", 9))
    reply = attribute(2, b"\0") + attribute(3, b"\1") + attribute(4, b"\1") + attribute(5, counts)
    assert ethtool_netlink.parse_pause(reply) == ethtool_netlink.Pause(0, 1, 1, 9, 7)


def modes_reply(*names: bytes) -> bytes:
    """Return a reply to LINKMODES_GET with these supported modes; every second one is advertised."""
    bits = b""
    for index, name in enumerate(names):
        bit = attribute(1, struct.pack("=I", index)) + attribute(2, name + b"\0")
        bits += attribute(1 | 0x8000, bit + attribute(3, b"") * (index % 2))
    ours = attribute(2, struct.pack("=I", 121)) + attribute(3 | 0x8000, bits)
    return (
        attribute(2, b"\1") + attribute(3 | 0x8000, ours) + attribute(5, struct.pack("=I", 100_000))
    )


@pytest.mark.parametrize(
    ("name", "speed", "lanes"),
    [
        ("10baseT1S_P2MP/Half", 10, 1), ("1000baseT/Full", 1000, 1), ("2500baseX/Full", 2500, 1),
        ("10000baseKX4/Full", 10_000, 4), ("10000baseR_FEC", 10_000, 1), ("20000baseMLD2/Full", 20_000, 2),
        ("100000baseLR4_ER4/Full", 100_000, 4), ("50000baseLR_ER_FR/Full", 50_000, 1),
        ("400000baseSR8/Full", 400_000, 8), ("200000baseDR_2/Full", 200_000, 1),
        ("800000baseDR8_2/Full", 800_000, 8), ("1600000baseCR8/Full", 1_600_000, 8),
    ],
)  # fmt: skip
def test_a_mode_is_read_from_its_name(name: str, speed: int, lanes: int) -> None:
    """Each kernel knows more modes than the previous: a fixed table would lack the fastest NIC's."""
    assert ethtool_netlink.parse_mode(name) == ethtool_netlink.SupportedMode(name, speed, lanes)


@pytest.mark.parametrize(
    "name",
    ["Autoneg", "FIBRE", "RS", "", "baseT/Full", "0baseT/Full", "999999999baseT/Full", "100baseSR100/Full",
     "10baseT/None", "10baseT/Full\n", "\u0661\u0662baseT/Full", "1000baset/Full", "-10baseT/Full"],
)  # fmt: skip
def test_what_is_no_speed_is_no_mode(name: str) -> None:
    """`Pause` and `FIBRE` are in the same list; an absurd speed would make every link look slow."""
    assert ethtool_netlink.parse_mode(name) is None


def test_all_modes_of_a_400g_card_are_read() -> None:
    """Only the first attribute of the list was read: a 400G card looked like 1G."""
    names = [b"Autoneg", b"1000baseKX/Full", b"FIBRE", b"100000baseCR4/Full", b"400000baseSR8/Full"]
    result = ethtool_netlink.parse_supported_modes(
        modes_reply(*names, b"100000baseCR4/Full", b"\xff\xfe")
    )
    assert [mode.name for mode in result] == [
        "1000baseKX/Full",
        "100000baseCR4/Full",
        "400000baseSR8/Full",
    ]
    assert ethtool_netlink.parse_link_modes(modes_reply(*names)).speed_megabits == 100_000
    assert ethtool_netlink.parse_supported_modes(modes_reply()) == []  # virtio: an empty list


@given(st.integers(0, 300))
def test_a_list_of_modes_that_is_cut_off_invents_none(cut: int) -> None:
    """Half a name was read as the name: `400000base` had become `40baseT`."""
    names = [f"{speed}baseSR4/Full" for speed in (40_000, 100_000, 200_000, 400_000, 800_000)]
    whole = modes_reply(*(name.encode() for name in names))
    result = [mode.name for mode in ethtool_netlink.parse_supported_modes(whole[:cut])]
    assert result == ([] if cut < len(whole) - 8 else names)


def test_replies_are_told_from_refusals_and_strangers() -> None:
    """A late answer to the previous question was taken for this one's."""
    late = message(30, b"\1\1\0\0late", sequence=4)
    assert ethtool_netlink.reply_of(late, 30, 5) is None
    assert (
        ethtool_netlink.reply_of(late + message(30, b"\1\1\0\0mine", sequence=5), 30, 5) == b"mine"
    )
    refused = message(2, struct.pack("=i", -errno.EOPNOTSUPP), sequence=5)
    assert ethtool_netlink.reply_of(refused, 30, 5) == errno.EOPNOTSUPP


def test_a_socket_that_is_too_slow_says_so_once() -> None:
    """ENOBUFS: messages were lost. A dump larger than the buffer represents a storm of events."""
    source = LinkSocket(receive_buffer_bytes=1)
    try:
        overruns, answers = 0, 0
        for sequence in range(
            1, 40
        ):  # several dumps requested, none read: some are refused as busy
            source.request_all(sequence)
        while source.wait(0.2):
            try:
                data = source.receive()
            except Overrun:
                overruns += 1
                continue
            if data is None:
                break
            answers += len(list(netlink.messages(data)))
        assert answers > 0
        assert overruns >= 1
    finally:
        source.close()


def test_the_kernel_of_this_machine_is_understood() -> None:
    """Every machine has a loopback interface; the real dump contains it, and ends."""
    source = LinkSocket()
    try:
        source.request_all(1)
        messages: list[LinkMessage] = []
        while not any(isinstance(t.content, DumpEnd) for t in messages):
            assert source.wait(GUARD_SECONDS)
            messages += netlink.parse_link_messages(source.receive() or b"", 1)
        loopback = [
            t.content
            for t in messages
            if isinstance(t.content, LinkInfo) and t.content.name == "lo"
        ]
        assert loopback[0].index == 1 and loopback[0].changes is not None
        assert not any(isinstance(t.content, MalformedMessage) for t in messages)
        source.wake()
        assert source.wait(GUARD_SECONDS) is False
    finally:
        source.close()
