"""A reading that is stored twice is found in spans of time: every reading falls into one, and no span holds a year."""

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
    """Whatever files there are: each moment of each is in one span, which names the file."""
    found = list(spans(sources))
    assert all(one.end_us <= two.begin_us for one, two in pairwise(found))
    for one in sources:
        within = [s for s in found if s.begin_us <= one.last_us and s.end_us > one.first_us]
        assert all(one in span.sources for span in within)
        covered = [
            moment
            for span in within
            for moment in range(max(span.begin_us, one.first_us), min(span.end_us, one.last_us + 1))
        ]
        assert covered == list(range(one.first_us, one.last_us + 1))


def test_a_year_is_looked_at_in_pieces_of_a_size() -> None:
    """A year of closed hours, and a late file over all of it: verify asked for them in one query, in 384 MB."""
    hours = [
        ReadingSource(f"h{n}", True, n * HOUR_US, (n + 1) * HOUR_US - 1, 40_000)
        for n in range(8760)
    ]
    late = ReadingSource("late", True, 0, 8760 * HOUR_US - 1, 100_000)
    found = list(spans([*hours, late]))
    assert max(len(span.sources) for span in found) <= 1 + duplicate_readings.SPAN_ROWS // 40_000
    assert len(found) < 8760 / 20


def test_a_double_in_a_late_file_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A frame that came in again days later lies in another file than the first time."""
    monkeypatch.setattr(duplicate_readings, "SPAN_ROWS", 10)
    sources = []
    with duckdb.connect() as base:
        for number, begin in enumerate(
            (0, 10, 20, 5)
        ):  # seconds; the last again what two others hold
            path = tmp_path / f"{number}'.parquet"
            base.execute(
                f"COPY (SELECT 'a' AS host, 'G' AS device, make_timestamp((n + {begin}) * 1000000) AS time, "
                f"n + {begin} AS boottime_ns FROM range(10) AS r(n)) TO '{tmp_path}/{number}''.parquet'"
            )
            sources.append(
                ReadingSource(str(path), True, begin * 1_000_000, (begin + 9) * 1_000_000, 10)
            )
        found = list(duplicate_readings.find_duplicates(base, "gpu_1s", sources, lambda *_: None))
    assert len(found) > 2
    assert sum(one.rows for one in found if isinstance(one, Duplicates)) == 10
    assert {h for one in found if isinstance(one, Duplicates) for h in one.hosts} == {"a"}


def test_one_large_file_is_looked_at_by_its_hosts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An hour of a fleet is one file of 288 million readings: at once they were 20 GB of spill on the store's disk."""
    monkeypatch.setattr(duplicate_readings, "SPAN_ROWS", 10)
    path = tmp_path / "hour.parquet"
    with duckdb.connect() as base:
        base.execute(
            "COPY (SELECT 'h' || n // 6 AS host, 'G' AS device, make_timestamp(n % 6 // 2) AS time, 1 AS boottime_ns "
            f"FROM range(30) AS r(n) ORDER BY ALL) TO '{path}'"
        )
        source = ReadingSource(str(path), True, 0, 2, 30)
        found = list(duplicate_readings.find_duplicates(base, "gpu_1s", [source], lambda *_: None))
    spans_of_rows = [one for one in found if isinstance(one, Duplicates)]
    assert len(spans_of_rows) == len(found) > 2
    assert sum(one.rows for one in spans_of_rows) == 15
    assert sorted(h for one in spans_of_rows for h in one.hosts) == ["h0", "h1", "h2", "h3", "h4"]
