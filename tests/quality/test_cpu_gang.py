"""A gang of real processes under real agents (`bench/quality/cpu_gang.py`), and the arithmetic of its truth."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench.quality.cpu_gang import Blame, CpuGangResult, CpuGangRun, missing, page, slowdowns
from bench.quality.injected_hosts import MEMORY, folder
from bench.quality.progress import Bar


def test_a_rank_is_held_against_the_others_and_against_itself_before() -> None:
    """A machine that became slow for all ranks, or a rank that was always slower, is not a slowdown of a rank."""
    past = np.array([1.0, 1.0, 1.0, 1.2])
    result = slowdowns(np.array([2.0, 3.0, 2.0, 2.4]), past)
    assert result[1] == pytest.approx(0.5)
    assert max(result[0], result[2], result[3]) == pytest.approx(0.0)


def test_a_run_on_a_busy_machine_is_no_evidence_and_says_so() -> None:
    """A rank that was neither slow nor named is neither a miss nor a pass."""
    blame = Blame(95.0, "gang.slow_host", "DEGRADED", 0.5, "")
    result = CpuGangResult(2, 0.04, 0.3, {"plain-0": blame}, {"gang-2": blame, "gang-1": blame})
    assert not result.is_valid and not result.is_control_valid
    assert result.named("gang") == blame and result.named("plain") is None
    assert result.wrong("gang") == ["gang-1"] and result.blamed("plain") == ["plain-0"]
    assert page(result, result).count("not valid") == 4


@pytest.mark.slow
def test_the_slow_process_of_a_real_gang_is_named_and_nobody_before_it_is_slow(
    tmp_path: Path,
) -> None:
    """All other tests of stragglers are simulated; here work, waiting and CPU contention are the kernel's."""
    if reason := missing():
        pytest.skip(reason)
    with folder(MEMORY) as memory:
        result = CpuGangRun(tmp_path, memory, 1).run(Bar(), ["gang"])
    # On a loaded machine another rank may be slow and blamed rightly, and the slowed one not.
    if not result.is_valid or not result.is_control_valid:
        pytest.skip(
            f"not valid: the rank became slower by {100 * result.slowdown:.0f} %, the others drifted by {100 * result.drift:.0f} %"
        )
    assert not result.before
    assert result.named("gang") is not None, result.windows
    assert not result.wrong("gang")
