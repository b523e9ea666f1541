"""The catalogue's promises: permanent ids, names that end in their unit, tables that add up."""

from __future__ import annotations

from pathlib import Path

import pytest

from gangline.contract import signals as catalogue
from gangline.contract.signal import Kind, Pace, Signal
from gangline.contract.signals import BY_ID, BY_NAME, SIGNALS, TABLES

LEDGER = Path(__file__).parent / "signal_ids.txt"


def test_ids_and_names_are_unique() -> None:
    """The store would mix two signals with one id."""
    assert len(BY_ID) == len(BY_NAME) == len(SIGNALS)


def test_an_id_is_given_once_and_never_again() -> None:
    """signal_ids.txt is only appended to: an older agent's 1004 has the same meaning."""
    ledger = dict(line.split() for line in LEDGER.read_text().splitlines())
    now = {str(s.signal_id): s.name for s in SIGNALS}
    assert now == ledger


def test_tables_hold_every_signal_but_events() -> None:
    """A signal outside all tables would be sampled but never sent."""
    in_tables = [s for rows in TABLES.values() for s in rows]
    assert sorted(s.signal_id for s in in_tables) == sorted(
        s.signal_id for s in SIGNALS if s.kind is not Kind.EVENT
    )
    for name, rows in TABLES.items():
        assert {(s.device_kind, s.pace, s.on_change) for s in rows} == {
            (rows[0].device_kind, rows[0].pace, rows[0].on_change)
        }, name


def test_every_signal_has_a_unit_a_source_and_a_meaning() -> None:
    """At 3 a.m. a number without a unit is a guess."""
    for signal in SIGNALS:
        assert signal.source and signal.description, signal.name
        assert signal.unit or signal.kind is Kind.EVENT, signal.name


def test_index_of_is_the_column() -> None:
    """Collectors and scoring find their column by name."""
    for signal in SIGNALS:
        if signal.kind is not Kind.EVENT:
            assert TABLES[signal.table][catalogue.index_of(signal.name)] is signal


def test_a_name_without_a_unit_is_refused() -> None:
    """The rule is enforced where the row is written."""
    with pytest.raises(ValueError, match="ends in its unit"):
        Signal(9999, "gpu.sm_clock", Kind.GAUGE, Pace.SECOND, "somewhere", "something")
    with pytest.raises(ValueError, match="16 bits"):
        Signal(70000, "gpu.sm_clock_hertz", Kind.GAUGE, Pace.SECOND, "somewhere", "something")


def test_the_signals_page_is_of_this_catalogue() -> None:
    """An operator who looks a column up must find the agent's real signal."""
    from tests.contract.signals_page import page

    docs = Path(__file__).parents[2] / "docs" / "signals.md"
    assert docs.read_text() == page(), "run `make docs`"
