"""Random jobs that pause, a slice of docs/quality_jobs.md: the agent's steps and checkpoints against the truth."""

from __future__ import annotations

from bench.quality.paused_jobs import judge

SEEDS = range(90_000, 90_016)


def test_random_jobs_with_checkpoints_evaluations_and_stalls() -> None:
    """A checkpoint cycle, an evaluation or a stall was reported as the step, and changed it for minutes."""
    jobs = [judge(seed) for seed in SEEDS]
    resolved = [job for job in jobs if job.step_seconds >= 0.3]
    reports = sum(job.right + job.wrong + job.none for job in resolved)
    assert sum(job.cycles for job in jobs) == 0
    assert sum(job.wrong for job in resolved) < 0.1 * reports
    assert sum(job.right for job in resolved) > 0.35 * reports
    assert sum(job.jumps for job in jobs) <= 1
    without = [job for job in jobs if not job.checkpoint_seconds]
    assert sum(job.false_seconds for job in without) < 0.03 * 600 * len(without)
    known = sum(job.known_seconds for job in jobs)
    assert sum(job.known_labeled_seconds for job in jobs) > 0.25 * known > 0
