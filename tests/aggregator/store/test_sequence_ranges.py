"""Ranges of sequences against a plain set."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.aggregator.config import AggregatorConfig
from gangline.aggregator.ingest.frame_reader import read_frame
from gangline.aggregator.store import received_ledger, writer
from gangline.aggregator.store.received_ledger import Ledger, RangeSet, ranges_of
from gangline.aggregator.store.store import Store
from gangline.contract import frame as frames
from gangline.contract.block import Block
from tests.processes import GUARD_SECONDS

SPANS = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 20)), max_size=60)

NOW_NS = 1_795_168_800 * 10**9


@given(SPANS)
def test_ranges_hold_what_a_set_holds(spans: list[tuple[int, int]]) -> None:
    """In any order of frames the ranges are the same numbers: sorted, apart, not touching."""
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
    """With every second sequence the narrowest gap is closed beyond the limit."""
    monkeypatch.setattr(received_ledger, "RANGES_MAX", 3)
    ranges = RangeSet()
    for number in (10, 20, 22, 30, 40):
        ranges.add(number, number)
    assert list(ranges) == [(10, 10), (20, 30), (40, 40)]


def test_a_range_that_ends_before_it_begins() -> None:
    """A damaged row must not match everything."""
    with pytest.raises(ValueError, match=r"5\.\.4"):
        RangeSet().add(5, 4)


def test_runs_are_apart() -> None:
    """The same sequence of another run, or of another host's clone, is another frame."""
    rows = ranges_of([("a", b"1", 1), ("a", b"1", 2), ("a", b"2", 1), ("b", b"1", 9)])
    assert rows == [("a", b"1", 1, 2), ("a", b"2", 1, 1), ("b", b"1", 9, 9)]
    ledger = Ledger(rows)
    assert ledger.contains("a", b"1", 2)
    assert not ledger.contains("a", b"2", 2)
    assert not ledger.contains("b", b"2", 9)
    assert sorted(ledger.rows()) == sorted(rows)


def send(store: Store, host: str, run: int, sequence: int) -> None:
    """Send a frame and wait for its receipt."""
    block = Block("host_1s", ["host"])
    block.put_float(0, 0, 1.0)
    stamp = frames.Stamp(
        run.to_bytes(16, "big"), b"b" * 16, sequence, run * 10**6 + sequence * 10**9, NOW_NS
    )
    done = threading.Event()
    frame = read_frame(frames.encode(stamp, [block]))
    assert store.submit_frame(host, frame, NOW_NS, lambda _: done.set())
    assert done.wait(GUARD_SECONDS)


def rows_of(folder: Path) -> tuple[int, int, int]:
    with duckdb.connect(str(folder / "gangline.duckdb"), read_only=True) as base:
        ((readings, ranges, runs),) = base.execute(
            "SELECT (SELECT count(*) FROM readings.host_1s), count(*), count(DISTINCT run_id) FROM received"
        ).fetchall()
        return readings, ranges, runs


@pytest.mark.slow
def test_a_run_that_was_long_gone_comes_back(tmp_path: Path) -> None:
    """The frames of an old run are known again, also after a restart.

    Hosts that boot from the network have a new run each time: a year of runs was in memory.
    """
    config = AggregatorConfig(data=tmp_path, commit_seconds=0.001, ops_seconds=3600.0)
    for _ in range(2):
        store = Store.open(tmp_path, config, lambda: NOW_NS)
        for run in range(5):
            for sequence in (1, 2):
                send(store, "a", run, sequence)
        assert len(store._writer._ledger.runs()) <= received_ledger.RUNS_IN_MEMORY
        send(store, "a", 0, 2)
        assert store.close() == ""
        assert rows_of(tmp_path)[0] == 10
    store = Store.open(tmp_path, config, lambda: NOW_NS)
    assert store._writer._ledger.runs() == []  # no host is registered, and each run is one row
    store.close()
    assert rows_of(tmp_path) == (10, 5, 5)


@pytest.mark.slow
def test_a_host_of_endless_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with a new run per frame: the ledger keeps its last ones, and all of other hosts."""
    monkeypatch.setattr(writer, "RUNS_PER_HOST_MAX", 3)
    monkeypatch.setattr(writer, "RECEIVED_GROWN_MAX", 8)
    config = AggregatorConfig(data=tmp_path, commit_seconds=0.001, ops_seconds=3600.0)
    store = Store.open(tmp_path, config, lambda: NOW_NS)
    rewritten = list[int]()
    honest = writer.Writer._compact_received

    def compacted(self: writer.Writer) -> None:
        rewritten.append(1)
        honest(self)

    monkeypatch.setattr(writer.Writer, "_compact_received", compacted)
    send(store, "b", 1, 1)
    for run in range(30):
        send(store, "a", run, 1)
    send(store, "a", 29, 1)
    send(store, "b", 1, 1)
    store.close()
    readings, ranges, runs = rows_of(tmp_path)
    assert readings == 31 and ranges == runs <= 3 + 8 + 2
    assert 2 <= len(rewritten) <= 4
