"""Ranges of sequences against a plain set."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.aggregator.store import ledger
from gangline.aggregator.store.ledger import Ledger, RangeSet, ranges_of

SPANS = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 20)), max_size=60)


@given(SPANS)
def test_ranges_hold_what_a_set_holds(spans: list[tuple[int, int]]) -> None:
    """Whatever order frames come in, the ranges are the same numbers: sorted, apart, not touching."""
    ranges, plain = RangeSet(), set[int]()
    for first, length in spans:
        ranges.add(first, first + length)
        plain |= set(range(first, first + length + 1))
    assert {n for first, last in ranges for n in range(first, last + 1)} == plain
    assert all(n in ranges for n in plain)
    assert not any(n in ranges for n in range(-2, 230) if n not in plain)
    rows = list(ranges)
    assert all(before[1] + 1 < after[0] for before, after in itertools.pairwise(rows))


def test_a_host_that_skips_on_purpose_costs_bounded_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every second sequence, for ever: the narrowest gap is closed once there are too many."""
    monkeypatch.setattr(ledger, "RANGES_MAX", 3)
    ranges = RangeSet()
    for number in (10, 20, 22, 30, 40):
        ranges.add(number, number)
    assert list(ranges) == [(10, 10), (20, 30), (40, 40)]


def test_a_range_that_ends_before_it_begins() -> None:
    """A damaged row must not be taken as everything."""
    with pytest.raises(ValueError, match=r"5\.\.4"):
        RangeSet().add(5, 4)


def test_runs_are_apart() -> None:
    """The same sequence of another run, or of another host's clone, is another frame."""
    rows = ranges_of([("a", b"1", 1), ("a", b"1", 2), ("a", b"2", 1), ("b", b"1", 9)])
    assert rows == [("a", b"1", 1, 2), ("a", b"2", 1, 1), ("b", b"1", 9, 9)]
    whole = Ledger(rows)
    assert whole.holds("a", b"1", 2)
    assert not whole.holds("a", b"2", 2)
    assert not whole.holds("b", b"2", 9)
    assert sorted(whole.rows()) == sorted(rows)
