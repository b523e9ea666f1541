"""Declared costs: prices of nodes, and exchange rates of a tenant's delay, money and GPUs."""

from __future__ import annotations

from math import isnan, nan

import duckdb
import numpy as np
import pytest

from gangline.aggregator.declared.diff import (
    KINDS,
    LATER_KINDS,
    Row,
    declared_rows,
    lines,
    stored_rows,
)
from gangline.aggregator.declared.limits import ENTRIES_MAX
from gangline.aggregator.declared.model import NOTHING, ExchangeRates
from gangline.aggregator.declared.rows import put_version
from gangline.aggregator.scoring.node_facts import node_costs
from gangline.aggregator.store.duckdb_file import migrations
from tests.aggregator.declared.test_reading import declared, problems
from tests.aggregator.service.test_score_process import handed_over
from tests.worlds import World

GOOD = """\
[[place]]
hosts = ["gpu-[001-008]"]
rack = "r1"

[[cost]]
hosts = ["gpu-00?"]
price_per_gpu_hour = 2.5

[[cost]]
hosts = ["gpu-[001-004]"]
price_per_gpu_hour = 9
spot = true
preemptions_per_hour = 0.01

[[cost]]
racks = ["r1"]
spot = false

[[tenant]]
name = "vision"
gpu_hours_per_delay_hour = 40
gpu_hours_per_currency_unit = 0.4
"""


def test_the_first_entry_that_says_it_counts() -> None:
    """This holds for each field; a host without an entry has no price, which differs from 0."""
    declaration = declared(a_toml=GOOD)
    assert declaration.cost("gpu-001") == (2.5, 0.01)
    assert declaration.cost("gpu-008") == (2.5, 0.0)
    price, preemptions = declaration.cost("gpu-100")
    assert isnan(price) and isnan(preemptions)
    rates = declaration.tenants["vision"]
    assert (rates.gpu_hours_per_delay_hour, rates.gpu_hours_per_currency_unit) == (40.0, 0.4)
    assert isnan(rates.gpu_hours_per_stranded_gpu_hour)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("price_per_gpu_hour = 2.5", 'price_per_gpu_hour = "2.5"', "a.toml:7: price_per_gpu_hour: '2.5': expected a number without quotes"),
        ("price_per_gpu_hour = 2.5", "price_per_gpu_hour = -1", "a.toml:7: price_per_gpu_hour: -1: expected a number from 0 to 1,000,000"),
        ("price_per_gpu_hour = 2.5", "price_per_gpu_hour = nan", "a.toml:7: price_per_gpu_hour: nan: expected a number"),
        ("price_per_gpu_hour = 2.5", "", "a.toml:5: nothing is declared: expected price_per_gpu_hour"),
        ("price_per_gpu_hour = 2.5", "price_per_gpu = 2.5", "a.toml:7: price_per_gpu: unknown here; did you mean price_per_gpu_hour?"),
        ('hosts = ["gpu-00?"]\n', "", "a.toml:5: no hosts: name them"),
        ("spot = true", "spot = 1", "a.toml:12: spot: 1: expected true or false"),
        ("spot = true", "spot = false", "a.toml:13: preemptions_per_hour: expected spot = true beside it"),
        ("preemptions_per_hour = 0.01", "", "a.toml:12: spot: expected preemptions_per_hour beside it"),
        ("preemptions_per_hour = 0.01", "preemptions_per_hour = 61", "a.toml:13: preemptions_per_hour: 61: expected a number from 0 to 60"),
        ('name = "vision"', "", "name is missing: expected the tenant that requests name"),
        ("gpu_hours_per_delay_hour = 40", "gpu_hours_per_delay_hour = 2e9", "gpu_hours_per_delay_hour: 2000000000.0: expected a number from 0 to 1,000,000,000"),
        ("gpu_hours_per_delay_hour = 40", "gpu_hours_per_delay = 40", "gpu_hours_per_delay: unknown here; did you mean gpu_hours_per_delay_hour?"),
        ("[[tenant]]", "[tenant]", "expected [[tenant]] before each, with two brackets"),
        ("[[tenant]]", '[[tenant]]\nname = "x"\n[[tenant]]', "no exchange rate: there are gpu_hours_per_delay_hour"),
        ("[[tenant]]", '[[tenant]]\nname = "vision"\ngpu_hours_per_delay_hour = 1\n[[tenant]]', "name: 'vision' is declared already, at a.toml:19"),
    ],
)  # fmt: skip
def test_each_mistake_is_told_with_what_would_be_right(old: str, new: str, told: str) -> None:
    """A price that is misread would move jobs."""
    assert old in GOOD
    errors = problems(a_toml=GOOD.replace(old, new, 1))
    assert any(told in error for error in errors), errors


def test_too_many_tenants_are_refused() -> None:
    """Each second's snapshot carries all tenants."""
    text = "".join(
        f'[[tenant]]\nname = "t{number}"\ngpu_hours_per_delay_hour = 1\n' for number in range(ENTRIES_MAX // 2 + 1)
    )  # fmt: skip
    errors = problems(a_toml=text, b_toml=text.replace('"t', '"u'))
    assert any("entries of a kind" in error for error in errors), errors


def test_a_check_says_what_would_change() -> None:
    """Before a price is in force; a store without its table is reported by the check."""
    before, after = declared(a_toml=GOOD), declared(a_toml=GOOD.replace("0.4", "0.5"))
    changed = "~ tenant: vision gpu_hours_per_currency_unit: 0.4 -> 0.5"
    assert list(lines(declared_rows(before), declared_rows(after))) == [changed]
    dearer = declared(a_toml=GOOD.replace("= 9", "= 8"))
    assert list(lines(declared_rows(before), declared_rows(dearer))) == [
        "~ cost: gpu-[001-004] price_per_gpu_hour: 9 -> 8"
    ]
    stored = {kind.name: set[Row]() for kind in KINDS if kind.name not in LATER_KINDS}
    text = list(lines(stored, declared_rows(after)))
    assert "  2 of tenant are not compared with a store: see --against" in text


def test_costs_of_a_fleet_are_columns_and_reach_the_process_that_plans() -> None:
    """The columns are rebuilt only when a declaration, a place or a node changes."""
    declaration = declared(a_toml=GOOD)
    names = ["gpu-001", "gpu-008", "other"]
    costs = node_costs(declaration, names, 1)
    np.testing.assert_array_equal(costs.price, np.array([2.5, 2.5, nan], dtype=np.float32))
    np.testing.assert_array_equal(costs.preemption, np.array([0.01, 0, 0], dtype=np.float32))
    assert node_costs(declaration, names, 1, costs) is costs
    assert node_costs(declaration, [*names, "gpu-002"], 1, costs).price.size == 4
    assert not node_costs(NOTHING, names, 1, costs).preemption.any()

    world = World(2, 2)
    text = '[[cost]]\nhosts = ["h0"]\nprice_per_gpu_hour = 3\n[[tenant]]\nname = "a"\ngpu_hours_per_delay_hour = 2\n'
    world.fleet.declared = declared(a_toml=text)
    snapshot = handed_over(world.run(8))
    np.testing.assert_array_equal(snapshot.facts.costs.price, np.array([3, nan], dtype=np.float32))
    assert snapshot.tenants["a"] == pytest.approx(snapshot.tenants["a"])
    assert snapshot.tenants["a"].gpu_hours_per_delay_hour == 2.0
    assert isinstance(snapshot.tenants["a"], ExchangeRates)


def test_costs_and_tenants_are_stored_and_compared_with_a_store() -> None:
    """`admin declared check` compared no prices, and SQL had neither table; an older store lacks both."""
    declaration = declared(a_toml=GOOD)
    with duckdb.connect() as store:
        for _, text in migrations():
            store.execute(text)
        put_version(store, declaration, [], 10**18)
        _, rows = stored_rows(store)
        for kind in ("cost", "tenant"):
            assert rows[kind] == declared_rows(declaration)[kind] and rows[kind]
        dearer = declared_rows(declared(a_toml=GOOD.replace("= 9", "= 8")))
        changed = "~ cost: gpu-[001-004] price_per_gpu_hour: 9 -> 8"
        assert [line for line in lines(rows, dearer) if "places" not in line] == [changed]
        put_version(store, NOTHING, [], 10**18)
        _, rows = stored_rows(store)
        assert (rows["cost"], rows["tenant"]) == (set(), set())
        store.execute("DROP TABLE declared_costs")
        _, rows = stored_rows(store)
        assert "cost" not in rows and rows["tenant"] == set()
