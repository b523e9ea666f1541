"""A Parquet file with a damaged footer."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gangline.aggregator.store.parquet import segment_files
from gangline.aggregator.store.parquet.segment_files import RAW, ParquetSegment


def written(folder: Path) -> tuple[ParquetSegment, bytes]:
    """Return a recorded file of three rows, and its bytes."""
    path = folder / "one.parquet"
    pq.write_table(pa.table({"host": ["a", "b", "c"], "power_watts": [1.0, 2.0, 3.0]}), path)
    data = path.read_bytes()
    return ParquetSegment(RAW, "gpu_1s", "202611210425", path.name, 0, 0, 3, len(data), 0, ""), data


def test_a_name_that_is_no_text_is_a_damaged_file(tmp_path: Path) -> None:
    """A byte of a column's name had changed: UnicodeDecodeError stopped the aggregator's start."""
    segment, data = written(tmp_path)
    assert segment_files.fault(tmp_path, segment) == ""
    (tmp_path / segment.path).write_bytes(data.replace(b"power_watts", b"power\x86watts"))
    assert segment_files.fault(tmp_path, segment).startswith("cannot be read: ")
    assert segment_files.readable(tmp_path, [segment]) == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.floats(0, 1), st.integers(1, 255))
@example(1.0, 255)
def test_no_turned_byte_raises(tmp_path: Path, place: float, turned: int) -> None:
    """At any damage, only this file is set aside."""
    segment, data = written(tmp_path)
    offset = int(place * (len(data) - 1))
    harmed = data[:offset] + bytes([data[offset] ^ turned]) + data[offset + 1 :]
    (tmp_path / segment.path).write_bytes(harmed)
    assert isinstance(segment_files.fault(tmp_path, segment), str)
