"""The counter algebra of `ops.sql` equals the one of `fingerprints.counters`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gangline.aggregator.config import AggregatorConfig
from gangline.aggregator.store.store import Store
from gangline.fingerprints.counters import Nature, classify, counted
from tests.processes import GUARD_SECONDS

EDGES = [0, 15, 255, 65535, 65536, 2**32 - 1, 2**32, 2**63 - 14, 2**63 - 13, 2**64 - 2, 2**64 - 1]
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
    nature = Nature(width, sticks)
    rows = [
        operators.execute(
            "SELECT ops.counter_step(o, n, $3, $4), ops.counter_value(n, $3, $4) "
            "FROM (SELECT $1::UBIGINT AS o, $2::UBIGINT AS n)",
            [older, newer, width, sticks],
        ).fetchone()
        for older, newer in pairs
    ]
    assert rows == [
        (counted(older, newer, nature), newer if classify(newer, nature) is None else None)
        for older, newer in pairs
    ]


def test_all_there_is_to_ask_says_what_it_is(operators: Any) -> None:
    """At 3 a.m. `gangline sql` lists what there is; a view without a word is one nobody asks."""
    made = operators.execute(
        "SELECT view_name, comment FROM duckdb_views() WHERE schema_name = 'ops' UNION "
        "SELECT function_name, comment FROM duckdb_functions() WHERE schema_name = 'ops' UNION "
        "SELECT table_name, comment FROM duckdb_tables() WHERE table_name <> 'gangline_store'"
    ).fetchall()
    assert len(made) > 20
    assert [name for name, comment in made if not comment] == []
