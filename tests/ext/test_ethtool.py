"""The ethtool ioctl on real interfaces: a veth pair, and the loopback without statistics."""

from __future__ import annotations

import errno
import os
import threading
from array import array

import pytest

from gangline.ext.ethtool import STATISTICS_MAX, DriverStatistics
from tests import veth


def test_the_statistics_of_a_driver_are_read_by_their_place() -> None:
    """veth's first statistic is the ifindex of its far end, which another file also has."""
    statistics = DriverStatistics()
    with veth.pair("gli") as (name, peer):
        names = statistics.names(name)
        assert names[0] == b"peer_ifindex" and len(names) == len(set(names)) > 3
        assert statistics.driver(name)[0] == b"veth"
        picks, values = array("i", [0, 1]), array("Q", [7, 7])
        assert statistics.read(name, picks, values, len(names)) == len(names)
        assert values[0] == veth.index_of(peer)
    with pytest.raises(OSError) as gone:
        statistics.read(name, picks, values, len(names))
    assert gone.value.errno == errno.ENODEV


def test_statistics_that_are_others_by_now_are_not_taken() -> None:
    """A ring was added and every value moved by one position: PFC pauses were read as bytes."""
    statistics = DriverStatistics()
    with veth.pair("glj") as (name, _):
        count = len(statistics.names(name))
        picks, values = array("i", [0]), array("Q", [7])
        assert statistics.read(name, picks, values, count + 1) != count + 1
        assert values[0] == 7


@pytest.mark.parametrize("name", ["nope0", "", "a" * 16, "a\0b", "b\udce4d if", "../../x"])
def test_interfaces_that_there_are_not(name: str) -> None:
    """A removed interface, or an impossible name: an error, never another interface."""
    statistics = DriverStatistics()
    for ask in (statistics.names, statistics.driver):
        with pytest.raises(OSError) as error:
            ask(name)
        assert error.value.errno == errno.ENODEV


def test_a_driver_without_statistics_says_so() -> None:
    """The loopback has no statistics: an error, not zeroes."""
    with pytest.raises(OSError) as error:
        DriverStatistics().names("lo")
    assert error.value.errno == errno.EOPNOTSUPP


def test_what_cannot_be_right_is_said() -> None:
    """A pick outside the answer would read other memory."""
    statistics = DriverStatistics()
    values = array("Q", [0])
    for place, expected in ((5, 5), (-1, 5), (0, 0)):
        with pytest.raises(ValueError, match="is none of"):
            statistics.read("lo", array("i", [place]), values, expected)
    with pytest.raises(ValueError, match="as many values"):
        statistics.read("lo", array("i", [0, 1]), values, 5)
    with pytest.raises(ValueError, match="expected"):
        statistics.read("lo", array("i"), array("Q"), STATISTICS_MAX + 1)
    statistics.close()
    statistics.close()
    with pytest.raises(ValueError, match="closed"):
        statistics.names("lo")


def test_descriptors_go_with_the_object() -> None:
    """A leaked socket per turn would end the agent within hours."""
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        DriverStatistics()
    assert len(os.listdir("/proc/self/fd")) == before


def test_two_threads_do_not_share_the_room() -> None:
    """A cancelled turn returned while the next one read into the same memory."""
    statistics = DriverStatistics()
    refused: list[str] = []
    with veth.pair("glk") as (name, _):
        whole = statistics.names(name)

        def ask() -> None:
            for _ in range(300):
                try:
                    assert statistics.names(name) == whole
                except RuntimeError as error:
                    refused.append(str(error))

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all("under way" in words for words in refused)
        assert statistics.names(name) == whole
