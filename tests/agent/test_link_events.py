"""Link changes: every change is reported or counted, and none too often."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from gangline.agent.collectors.link_events import as_health_event
from gangline.agent.collectors.link_flaps import (
    BURST_EVENTS_MAX,
    EVENT_SECONDS,
    HISTORY_MAX,
    LinkEvent,
    LinkEventCode,
    LinkFlapFilter,
    transitions,
)
from gangline.agent.hardware.netlink import LinkInfo, LinkRemoved

SECOND = 1_000_000_000

STEPS = st.lists(
    st.tuples(
        st.integers(1, 3), st.sampled_from(["up", "down", "gone", "settle"]), st.integers(0, 5)
    ),
    max_size=80,
)


def a_watch(*links: LinkInfo) -> LinkFlapFilter:
    watch = LinkFlapFilter(lambda link: link.kind != "veth")
    for link in links:
        assert watch.observe(link, 0) == []
    assert watch.resync({link.index for link in links}, 0) == []
    return watch


def test_what_is_there_at_the_start_is_no_news() -> None:
    """A new agent reported eight links that had come up a month ago."""
    watch = a_watch(LinkInfo(2, "eth0", True), LinkInfo(3, "eth1", False))
    assert (watch.count, watch.transitions) == (2, 0)
    assert watch.observe(LinkInfo(2, "eth0", True), SECOND) == []


def test_a_link_that_goes_and_comes_says_for_how_long() -> None:
    """The previous state and its duration distinguish a flap from maintenance."""
    watch = a_watch(LinkInfo(2, "eth0", True, ups=1, downs=0))
    (down,) = watch.observe(LinkInfo(2, "eth0", False, ups=1, downs=1), 10 * SECOND)
    assert (down.interface, down.code, down.count, down.first_ns) == ("eth0", 0, 1, 10 * SECOND)
    assert down.attributes["previous_state"] == "up"
    assert down.attributes["previous_seconds"] == "10.000"
    (up,) = watch.observe(LinkInfo(2, "eth0", True, ups=2, downs=1), 12 * SECOND)
    assert (up.code, up.attributes["previous_seconds"]) == (LinkEventCode.UP, "2.000")
    assert up.attributes["history"] == "down 2.000 s ago"


def test_a_flap_that_the_kernel_put_into_one_message() -> None:
    """The link was down for 80 ms: the message has `up` as before, only the counts have risen."""
    watch = a_watch(LinkInfo(2, "eth0", True, ups=1, downs=0))
    events = watch.observe(LinkInfo(2, "eth0", True, ups=4, downs=3), SECOND)
    assert [(e.code, e.count) for e in events] == [(LinkEventCode.DOWN, 3), (LinkEventCode.UP, 3)]
    events = watch.observe(LinkInfo(2, "eth0", False, ups=4, downs=4), 2 * SECOND)
    assert [(e.code, e.count) for e in events] == [(LinkEventCode.DOWN, 1)]


def test_an_old_kernel_counts_changes_only() -> None:
    """Before Linux 4.16 there was one count: half of the changes were downs."""
    up, down = LinkInfo(2, "eth0", True, changes=2), LinkInfo(2, "eth0", False, changes=3)
    assert transitions(up, down) == (1, 1 - 1)
    assert transitions(up, LinkInfo(2, "eth0", True, changes=8)) == (3, 3)
    assert transitions(LinkInfo(2, "eth0", True), LinkInfo(2, "eth0", True)) == (0, 0)


@given(st.booleans(), st.booleans(), *[st.integers(0, 2**32 - 1) for _ in range(4)])
def test_counts_never_tell_what_cannot_be(
    was: bool, is_: bool, ups: int, downs: int, more_ups: int, more_downs: int
) -> None:
    """A count of 32 bits that wrapped, or fell, made four billion flaps."""
    before = LinkInfo(2, "eth0", was, ups=ups, downs=downs)
    after = LinkInfo(2, "eth0", is_, ups=more_ups, downs=more_downs)
    went, came = transitions(before, after)
    for count, old, new in ((went, downs, more_downs), (came, ups, more_ups)):
        wrapped = new - old + 2**32
        assert count in (0, 1, max(new - old, 0)) or (new < old and count == wrapped < 2**31)
    assert went or came or was == is_


def test_another_interface_under_the_same_name() -> None:
    """A card was replaced during the run: removed and added; never a flap of one link."""
    watch = a_watch(LinkInfo(2, "eth0", True, ups=9, downs=8))
    assert [e.code for e in watch.observe(LinkRemoved(2), SECOND)] == [LinkEventCode.REMOVED]
    assert [e.code for e in watch.observe(LinkInfo(5, "eth0", True, ups=1, downs=0), SECOND)] == [
        LinkEventCode.APPEARED
    ]
    assert watch.observe(LinkRemoved(2), SECOND) == []
    events = watch.observe(LinkInfo(5, "ens1", True, ups=1, downs=0), SECOND)
    assert [(e.interface, e.code) for e in events] == [("eth0", 2), ("ens1", 3)]


def test_pods_that_come_and_go_are_not_watched() -> None:
    """A Kubernetes host creates and deletes a veth pair with every pod."""
    watch = a_watch()
    for index in range(10, 500):
        assert watch.observe(LinkInfo(index, f"veth{index}", True, kind="veth"), SECOND) == []
        assert watch.observe(LinkRemoved(index), SECOND) == []
    assert (watch.count, watch.transitions) == (0, 0)


def test_what_went_while_messages_were_lost() -> None:
    """After an overrun all links are requested: missing links were removed."""
    watch = a_watch(LinkInfo(2, "eth0", True), LinkInfo(3, "eth1", True))
    watch.observe(LinkInfo(2, "eth0", True), SECOND)
    assert [(e.interface, e.code) for e in watch.resync({2}, SECOND)] == [
        ("eth1", LinkEventCode.REMOVED)
    ]


def test_a_thousand_flaps_a_second_are_few_events_that_count_them_all() -> None:
    """A bad module flapped for an hour: 3.6 million events would have hidden everything else."""
    watch = a_watch(LinkInfo(2, "eth0", True, ups=0, downs=0))
    reported: list[LinkEvent] = []
    now = 0
    for flap in range(1, 20_001):
        now += SECOND // 1000
        up = flap % 2 == 0
        reported += watch.observe(
            LinkInfo(2, "eth0", up, ups=flap // 2, downs=(flap + 1) // 2), now
        )
        if flap % 1000 == 0:
            reported += watch.release_due(now)
    for _ in range(60):
        now += SECOND
        reported += watch.release_due(now)
    assert len(reported) <= BURST_EVENTS_MAX + 20 / EVENT_SECONDS + 4
    totals = Counter[LinkEventCode]()
    for event in reported:
        totals[event.code] += event.count
    assert totals == {LinkEventCode.DOWN: 10_000, LinkEventCode.UP: 10_000}
    assert watch.transitions == 20_000
    assert all(event.first_ns <= event.last_ns for event in reported)
    assert len(reported[-1].attributes["history"].split(",")) <= HISTORY_MAX


@given(STEPS)
def test_every_change_is_told_once_and_in_bounds(steps: list[tuple[int, str, int]]) -> None:
    """Any order of changes: the reported counts eventually equal the changes."""
    watch = LinkFlapFilter(lambda _: True)
    watch.resync(set(), 0)
    reported: list[LinkEvent] = []
    now, state = 0, dict[int, bool]()
    happened = 0
    for index, what, wait in steps:
        now += wait * SECOND
        name = f"eth{index}"
        if what == "settle":
            reported += watch.release_due(now)
        elif what == "gone":
            happened += state.pop(index, None) is not None
            reported += watch.observe(LinkRemoved(index), now)
        else:
            happened += state.get(index) != (what == "up")
            state[index] = what == "up"
            reported += watch.observe(LinkInfo(index, name, what == "up"), now)
    for _ in range(100):
        now += SECOND
        reported += watch.release_due(now)
    assert sum(event.count for event in reported) == watch.transitions == happened
    for name in {event.interface for event in reported}:
        mine = [event for event in reported if event.interface == name]
        assert len(mine) <= BURST_EVENTS_MAX + now / SECOND / EVENT_SECONDS + 1
    assert watch.count == len(state)


def test_the_event_that_travels() -> None:
    """An interface named in Latin-1 made an event that could not be encoded, and was lost."""
    event = LinkEvent("b\udce4d", LinkEventCode.DOWN, 500, SECOND, 5 * SECOND, {"state": "down"})
    message = as_health_event(event, 77)
    assert message.SerializeToString()
    assert (message.name, message.device_kind, message.code) == ("net.link", "net", 0)
    assert (message.count, message.boottime_ns, message.last_boottime_ns) == (
        500,
        SECOND,
        5 * SECOND,
    )
    assert message.device.startswith("b\N{REPLACEMENT CHARACTER}d~")
    assert message.message.endswith("link down 500 times in 4.0 s")
