"""The counter algebra of `ops.sql` equals the one of `contract.counters`."""

from __future__ import annotations

from math import inf, nan
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gangline.aggregator.config import AggregatorConfig
from gangline.aggregator.counter_deltas import Shape, unusable
from gangline.aggregator.store.store import Store
from gangline.contract.counters import CounterSpec, StepOutcome, classify, counter_delta
from gangline.ext.counterfiles import Meter
from tests.processes import GUARD_SECONDS

pytestmark = pytest.mark.usefixtures("operators_files")

#: Both sides of every blank. dcgm_structs.h: DCGM_INT32_BLANK 0x7ffffff0, DCGM_INT64_BLANK 0x7ffffffffffffff0,
#: each with "not found", "not supported" and "not permissioned" behind it.
BLANKS = {
    *range(0x7FFFFFF0, 0x80000000),
    *range(0x7FFFFFFFFFFFFFF0, 0x8000000000000000),
    2**32 - 1,
    2**64 - 1,
}
EDGES = sorted({0, 15, 255, 65535, 65536, *(b + by for b in BLANKS for by in (-1, 0, 1))} - {2**64})
values = st.none() | st.sampled_from(EDGES) | st.integers(0, 2**64 - 1)


@pytest.fixture(scope="module")
def operators(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """An operators' file as the aggregator writes it."""
    folder: Path = tmp_path_factory.mktemp("data")
    store = Store.open(folder, AggregatorConfig(data=folder, ops_seconds=3600.0))
    store.close(GUARD_SECONDS)
    with duckdb.connect(str(folder / "operators.duckdb"), read_only=True) as connection:
        yield connection


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(values, values), min_size=1, max_size=20),
    st.sampled_from([4, 8, 16, 32, 64]),
    st.booleans(),
)
def test_sql_and_python_agree(
    operators: Any, pairs: list[tuple[int | None, int | None]], width: int, sticks: bool
) -> None:
    """An explanation's query once showed 2**64 errors where the judge had seen a reboot."""
    nature = CounterSpec(width, sticks)
    rows = [
        operators.execute(
            "SELECT ops.counter_step(o, n, $3, $4), ops.counter_value(n, $3, $4) "
            "FROM (SELECT $1::UBIGINT AS o, $2::UBIGINT AS n)",
            [older, newer, width, sticks],
        ).fetchone()
        for older, newer in pairs
    ]
    assert rows == [
        (counter_delta(older, newer, nature), newer if classify(newer, nature) is None else None)
        for older, newer in pairs
    ]


def test_every_implementation_knows_the_same_blanks(operators: Any) -> None:
    """DCGM's three most frequent blanks once counted as a step of 9.2e18 ECC errors."""
    python = [classify(value) is not None for value in EDGES]
    assert python == [value in BLANKS for value in EDGES]
    assert [Meter().add(value) is None for value in EDGES] == python
    column = np.array([EDGES], dtype=np.uint64)
    standing = unusable(column, np.ones(column.shape, dtype=bool), Shape.of([CounterSpec()]))
    assert (standing[0] == StepOutcome.BLANK).tolist() == python
    rows = operators.execute(
        "SELECT ops.counter_value(v::UBIGINT, 64, false) IS NULL "
        "FROM (SELECT unnest($1::UBIGINT[]) AS v)",
        [EDGES],
    ).fetchall()
    assert [blank for (blank,) in rows] == python
    doubles = [0.0, 2.0**31, 140737488355327.9, 140737488355328.0, 140737488355331.0, nan, inf]
    rows = operators.execute(
        "SELECT ops.counter_value(v, 64, false) IS NULL FROM (SELECT unnest($1::DOUBLE[]) AS v)",
        [doubles],
    ).fetchall()
    expected = [False, False, False, True, True, True, True]
    assert [blank for (blank,) in rows] == expected
    assert [classify(value) is not None for value in doubles] == expected


def test_all_there_is_to_ask_says_what_it_is(operators: Any) -> None:
    """`gangline sql` lists all views; a view without a comment would remain unknown."""
    comments = operators.execute(
        "SELECT view_name, comment FROM duckdb_views() WHERE schema_name = 'ops' UNION "
        "SELECT function_name, comment FROM duckdb_functions() WHERE schema_name = 'ops' UNION "
        "SELECT table_name, comment FROM duckdb_tables() WHERE table_name <> 'gangline_store'"
    ).fetchall()
    assert len(comments) > 20
    assert [name for name, comment in comments if not comment] == []
