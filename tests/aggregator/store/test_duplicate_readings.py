"""Duplicate readings are searched in spans that cover each reading once, with a bounded size."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.aggregator.store.maintenance import duplicate_readings
from gangline.aggregator.store.maintenance.duplicate_readings import (
    Duplicates,
    ReadingSource,
    spans,
)

HOUR_US = 3_600_000_000
SOURCES = st.lists(
    st.builds(
        lambda at, first, length, rows: ReadingSource(f"s{at}", False, first, first + length, rows),
        st.integers(0, 1000), st.integers(0, 500), st.integers(0, 100), st.integers(1, 2_000_000),
    ),
    max_size=30,
)  # fmt: skip


@given(SOURCES)
def test_spans_hold_everything_once(sources: list[ReadingSource]) -> None:
    """Each moment of each file is in exactly one span, which names the file."""
    found_spans = list(spans(sources))
    assert all(earlier.end_us <= later.begin_us for earlier, later in pairwise(found_spans))
    for earlier in sources:
        within = [
            s for s in found_spans if s.begin_us <= earlier.last_us and s.end_us > earlier.first_us
        ]
        assert all(earlier in span.sources for span in within)
        covered = [
            moment
            for span in within
            for moment in range(
                max(span.begin_us, earlier.first_us), min(span.end_us, earlier.last_us + 1)
            )
        ]
        assert covered == list(range(earlier.first_us, earlier.last_us + 1))


def test_a_year_is_looked_at_in_pieces_of_a_size() -> None:
    """`verify` queried a year of hours and a late file over all of it at once, in 384 MB."""
    hours = [
        ReadingSource(f"h{n}", True, n * HOUR_US, (n + 1) * HOUR_US - 1, 40_000)
        for n in range(8760)
    ]
    late = ReadingSource("late", True, 0, 8760 * HOUR_US - 1, 100_000)
    found_spans = list(spans([*hours, late]))
    assert (
        max(len(span.sources) for span in found_spans) <= 1 + duplicate_readings.SPAN_ROWS // 40_000
    )
    assert len(found_spans) < 8760 / 20


def test_a_double_in_a_late_file_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A frame received again days later is in another file than its first copy."""
    monkeypatch.setattr(duplicate_readings, "SPAN_ROWS", 10)
    sources = []
    with duckdb.connect() as base:
        for number, begin in enumerate(
            (0, 10, 20, 5)
        ):  # seconds; the last file repeats readings of two others
            path = tmp_path / f"{number}'.parquet"
            base.execute(
                f"COPY (SELECT 'a' AS host, 'G' AS device, make_timestamp((n + {begin}) * 1000000) AS time, "
                f"n + {begin} AS boottime_ns FROM range(10) AS r(n)) TO '{tmp_path}/{number}''.parquet'"
            )
            sources.append(
                ReadingSource(str(path), True, begin * 1_000_000, (begin + 9) * 1_000_000, 10)
            )
        results = list(duplicate_readings.find_duplicates(base, "gpu_1s", sources, lambda *_: None))
    assert len(results) > 2
    assert sum(result.rows for result in results if isinstance(result, Duplicates)) == 10
    assert {h for result in results if isinstance(result, Duplicates) for h in result.hosts} == {
        "a"
    }


def test_one_large_file_is_looked_at_by_its_hosts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An hour of a fleet, one file of 288 million readings, spilled 20 GB to the store's disk."""
    monkeypatch.setattr(duplicate_readings, "SPAN_ROWS", 10)
    path = tmp_path / "hour.parquet"
    with duckdb.connect() as base:
        base.execute(
            "COPY (SELECT 'h' || n // 6 AS host, 'G' AS device, make_timestamp(n % 6 // 2) AS time, 1 AS boottime_ns "
            f"FROM range(30) AS r(n) ORDER BY ALL) TO '{path}'"
        )
        source = ReadingSource(str(path), True, 0, 2, 30)
        results = list(
            duplicate_readings.find_duplicates(base, "gpu_1s", [source], lambda *_: None)
        )
    duplicates = [result for result in results if isinstance(result, Duplicates)]
    assert len(duplicates) == len(results) > 2
    assert sum(result.rows for result in duplicates) == 15
    assert sorted(h for result in duplicates for h in result.hosts) == [
        "h0",
        "h1",
        "h2",
        "h3",
        "h4",
    ]
