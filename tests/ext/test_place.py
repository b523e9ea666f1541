"""The call slot: memory in which a process writes its current call, and receives notifications."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gangline.ext import place


@pytest.fixture
def memory() -> Iterator[bytearray]:
    """Yield the memory in which this process publishes its calls during the test."""
    mine = bytearray(place.SIZE_BYTES)
    place.use(mine)
    yield mine
    place.use(bytearray(place.SIZE_BYTES))


def test_who_is_called_hears_it_once(memory: bytearray) -> None:
    """A command between two checks was received twice, or never."""
    assert not place.called()
    place.call(memory)
    place.call(memory)
    assert (place.called(), place.called()) == (True, False)


def test_a_call_disturbs_nothing_that_is_told(memory: bytearray) -> None:
    """A GPU that hung while a command came was not named."""
    place.collector(b"gpu_1s")
    place.enter(b"0000:1a:00.0", b"nvmlDeviceGetMemoryInfo")
    before = place.read(memory)
    place.call(memory)
    assert place.read(memory) == before
    assert (before.device, before.call) == ("0000:1a:00.0", "nvmlDeviceGetMemoryInfo")


def test_the_next_turn_begins_in_no_call(memory: bytearray) -> None:
    """A collector that raised in the middle of a call seemed to hang in it forever."""
    place.collector(b"rdma_1s")
    place.enter(b"mlx5_0", b"read")
    place.collector(b"net_1s")
    seen = place.read(memory)
    assert (seen.collector, seen.entered_ns) == ("net_1s", 0)


@pytest.mark.parametrize("size", [0, place.SIZE_BYTES - 1, place.SIZE_BYTES + 1])
def test_memory_of_another_size_is_no_place(size: int) -> None:
    """A slot of another agent version would be written beyond its end."""
    with pytest.raises(ValueError, match=f"a place has {place.SIZE_BYTES} bytes, got {size}"):
        place.call(bytearray(size))
