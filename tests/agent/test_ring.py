"""The ring of samples: nothing lost within its length, nothing grows, nothing of another GPU."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from gangline.agent.ring import Ring

COLUMNS, ROWS, LENGTH = 2, 3, 5

#: Of each cell its value, or None where it was not known.
samples = st.lists(
    st.lists(
        st.one_of(st.none(), st.floats(0, 1e9)), min_size=COLUMNS * ROWS, max_size=COLUMNS * ROWS
    ),
    max_size=20,
)


@given(samples, st.integers(0, 25))
def test_the_last_samples_are_there_as_they_were(
    taken: list[list[float | None]], since: int
) -> None:
    """A ring that overwrites one too early would lose the very second that an operator asks for."""
    ring = Ring(COLUMNS, ROWS, LENGTH)
    for at, cells in enumerate(taken, start=1):
        data = b"".join(struct.pack("<d", cell or 0.0) for cell in cells)
        ring.put(at, bytearray(data), bytearray(cell is not None for cell in cells))
    numbers = ring.since(since)
    kept = [at for at in range(1, len(taken) + 1) if at > since][-LENGTH:]
    assert [ring.time_ns(number) for number in numbers] == kept
    for column in range(COLUMNS):
        for row in range(ROWS):
            cells = [taken[at - 1][column * ROWS + row] for at in kept]
            assert ring.floats(numbers, column, row) == [c for c in cells if c is not None]


def test_a_state_comes_back_with_all_its_bits() -> None:
    ring = Ring(1, 1, LENGTH)
    ring.put(1, bytearray(struct.pack("<Q", 2**64 - 2)), bytearray(b"\1"))
    assert ring.ints(ring.since(0), 0, 0) == [2**64 - 2]
