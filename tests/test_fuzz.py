"""A short slice of `make fuzz`, the same cases every time."""

from __future__ import annotations

import pytest

from tests import fuzz


@pytest.mark.parametrize("target", fuzz.TARGETS)
def test_a_slice_of_the_fuzzing(target: str) -> None:
    """300 damaged inputs: each answered or refused in words; both kinds occur, or nothing was tried."""
    seen = {fuzz.run_case(target, f"slice-{case}") for case in range(300)}
    assert seen == {"refused", "accepted"}
