"""The evaluation of sizes: a correct estimate has no regret, a wrong estimate has a cost, and files
are read unchanged.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.quality.placement_scaling import LLM, RUNS, left_out, regret, throughputs

MEASURED = {4: 4.0, 8: 7.6, 16: 8.0}


@pytest.mark.parametrize(
    ("estimated", "free_value", "lost"),
    [
        (MEASURED, 0.0, 0.0),
        (MEASURED, 0.9, 0.0),
        ({4: 4.0, 8: 7.6, 16: 7.0}, 0.0, 1.0 - 7.6 / 8.0),  # 8 nodes are taken, 16 do more
        ({4: 4.0, 8: 7.6, 16: 16.0}, 0.5, 1.0 - 8.0 / (7.6 + 0.5 * 8)),  # 16 are taken, 8 free ones are worth more
    ],
)  # fmt: skip
def test_regret_is_the_work_lost(
    estimated: dict[int, float], free_value: float, lost: float
) -> None:
    """The figure on the page is the cost of a wrong size, by measured throughput."""
    assert regret(MEASURED, estimated, free_value) == pytest.approx(lost, abs=1e-12)


def test_a_size_is_estimated_without_itself() -> None:
    """A curve that knew the size that it is judged on would be right always."""
    straight = {2: 2.0, 4: 4.0, 8: 8.0}
    bent = {**straight, 4: 1.0}
    (_, row, _) = left_out("x", bent)
    assert (row.nodes, row.place) == (4, "between") and row.error > 1.0
    assert all(abs(estimate.error) < 0.01 for estimate in left_out("x", straight)[:2])


def test_runs_are_read_by_system(tmp_path: Path) -> None:
    """Only runs of one kind of system make a curve; a workload of two sizes makes none."""
    head = "round,submitter,system,benchmark,runs,min_minutes,median_minutes,max_minutes,global_batch,throughput_median\n"
    lines = [
        f"v1,NVIDIA,{system},{name},5,1,1,1,8,{value}\n"
        for system, name, value in [
            ("eos_ngc1", "a", 1.0), ("eos_n8_ngc1", "a", 7.0), ("eos-x_n64_ngc2", "a", 40.0), ("h200_ngc1", "a", 2.0),
            ("eos_n8_ngc1", "b", 7.0), ("eos_n16_ngc1", "b", 13.0), ("eos_n32_ngc1", "b", 0),
        ]
    ]  # fmt: skip
    path = tmp_path / "runs.csv"
    path.write_text(head + "".join(lines))
    assert throughputs(path) == {("v1", "a"): {1: 1.0, 8: 7.0, 64: 40.0}}


@pytest.mark.skipif(not RUNS.exists(), reason=f"{RUNS.name} is not here; see CONTRIBUTING.md")
def test_the_language_model_between_its_sizes() -> None:
    """The claim of the page: a size between those seen is known within 2 %, and its choice costs at most 3 %."""
    rows = [
        estimate for estimate in left_out("llm", throughputs()[LLM]) if estimate.place == "between"
    ]
    assert len(rows) == 3
    assert all(abs(row.error) <= 0.02 and row.regret <= 0.03 and row.is_within for row in rows)
