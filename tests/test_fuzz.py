"""A short slice of `make fuzz`, the same cases every time."""

from __future__ import annotations

import pytest

from tests import fuzz

CASES = 150
#: Targets whose case takes longer, and how many are enough to see both kinds.
FEWER = {"fleet": 40, "local-session": 40, "placement-blockers": 15}


@pytest.mark.parametrize("target", fuzz.TARGETS)
def test_a_slice_of_the_fuzzing(target: str) -> None:
    """Damaged inputs: each is accepted or refused with an error; both kinds occur, or the test proved nothing."""
    cases = range(FEWER.get(target, CASES))
    seen = {fuzz.run_case(target, f"slice-{case}") for case in cases}
    assert seen == {"refused", "accepted"}


def test_a_case_runs_again_alike() -> None:
    """A failure of the night could not be repeated in the morning."""
    for target in fuzz.TARGETS:
        assert fuzz.run_case(target, "1-7") == fuzz.run_case(target, "1-7")


def test_a_failure_names_its_case(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an hour `make fuzz` reported a failure without its case."""

    def broken(source: object) -> str:
        raise KeyError("x")

    monkeypatch.setattr(fuzz, "TARGETS", {"broken": broken})
    with pytest.raises(AssertionError, match="broken: case 5-0: KeyError"):
        fuzz.run(1.0, 5, print)


def test_the_bar_and_the_table_count_all() -> None:
    """Two of the counts were of the run before."""
    seen = fuzz.run(0.01, 3, print)
    assert f"{seen.total()} cases of {len(fuzz.TARGETS)} targets" in fuzz.bar(1.0, seen)
    assert len(fuzz.table(seen).splitlines()) == len(fuzz.TARGETS)
