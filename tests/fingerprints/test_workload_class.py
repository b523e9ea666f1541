"""Classes of jobs: no class outside the data, no class that is certain, and a confidence that is correct."""

from __future__ import annotations

from math import isnan, nan

import numpy as np
import pytest

from bench.quality.class_jobs import JOBS, fingerprint_values
from bench.workload_kinds import CLASSES, generate_kinds
from gangline.fingerprints.fingerprint import NUMBERS, Fingerprint
from gangline.fingerprints.workload_class import (
    CONFIDENCE_MAX,
    CONFIDENCE_MIN,
    UNKNOWN,
    answers,
    classify,
    load_model,
)

MODEL = load_model()
#: From the readings of an H200 that trains a model from scratch (two of its minutes).
H200_TRAINING = {
    "compute_ratio": 0.628, "wait_ratio": 0.041, "host_stall_ratio": 0.303, "checkpoint_ratio": 0.028, "idle_ratio": 0.0,
    "compute_power_ratio": 1.07, "wait_power_ratio": 0.176, "power_ratio": 0.765, "utilization_ratio": 0.657, "sm_ratio": 0.609,
    "tensor_ratio": 0.303, "memory_bandwidth_ratio": 0.267, "pcie_bytes_per_second": 9e7, "nvlink_bytes_per_second": 0.0,
    "step_seconds": 0.556, "checkpoint_interval_seconds": 15.4, "host_cpu_ratio": 0.1,
}  # fmt: skip
IDLE = {
    "compute_ratio": 0.0, "wait_ratio": 0.0, "host_stall_ratio": 1.0, "checkpoint_ratio": 0.0, "idle_ratio": 0.0,
    "power_ratio": 0.17, "utilization_ratio": 0.0, "sm_ratio": 0.0, "tensor_ratio": 0.0, "memory_bandwidth_ratio": 0.0,
    "pcie_bytes_per_second": 0.0, "nvlink_bytes_per_second": 0.0, "nic_bytes_per_second": 1e4, "host_cpu_ratio": 0.02,
    "disk_pressure_ratio": 0.0,
}  # fmt: skip
SOLVER = {
    **IDLE, "compute_ratio": 0.85, "wait_ratio": 0.1, "host_stall_ratio": 0.05, "compute_power_ratio": 0.7,
    "wait_power_ratio": 0.3, "power_ratio": 0.65, "utilization_ratio": 0.99, "sm_ratio": 0.8, "memory_bandwidth_ratio": 0.75,
    "step_seconds": 1.2,
}  # fmt: skip
RENDERING = {
    **SOLVER, "wait_ratio": 0.0, "host_stall_ratio": 0.15, "memory_bandwidth_ratio": 0.25, "sm_ratio": 0.85, "step_seconds": 8.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("numbers", "allowed"),
    [
        (H200_TRAINING, {"training"}),
        (IDLE, {"reserved"}),
        ({**IDLE, "host_stall_ratio": 0.0, "idle_ratio": 1.0, "power_ratio": 0.11}, {"reserved"}),
        ({**IDLE, "host_cpu_ratio": 0.7, "nic_bytes_per_second": 3e9}, {"reserved", UNKNOWN}),
        (SOLVER, {UNKNOWN}),
        ({**SOLVER, "step_seconds": nan}, {UNKNOWN}),
        (RENDERING, {UNKNOWN}),
        # Without GPM a solver looks like a training job.
        ({**SOLVER, "sm_ratio": nan, "tensor_ratio": nan, "memory_bandwidth_ratio": nan}, {UNKNOWN}),
        ({"utilization_ratio": 1.0, "power_ratio": 5.0, "host_cpu_ratio": 0.1, "sm_ratio": 0.9}, {UNKNOWN}),
    ],
)  # fmt: skip
def test_a_run_gets_its_class_or_none(numbers: dict[str, float], allowed: set[str]) -> None:
    """A solver and an idle reserved GPU were "inference", training from scratch was "fine-tuning (100 % sure)"."""
    run = Fingerprint(tuple(numbers.get(name, nan) for name in NUMBERS))
    estimate = classify(run)
    assert estimate.name in allowed
    assert isnan(estimate.confidence) == (estimate.name == UNKNOWN)


def test_confidences_are_correct_on_generated_jobs() -> None:
    """A stated confidence of 85 to 90 % is right at least that often, less 5 points; none is above 98 %."""
    assert MODEL is not None
    runs = generate_kinds(8, 60)
    answer = answers(runs.values, MODEL)
    is_right = answer.likeliest == runs.label
    assert answer.confidence.max() <= CONFIDENCE_MAX < 1.0
    for low, high in ((CONFIDENCE_MIN, 0.9), (0.9, 0.95), (0.95, 1.0)):
        given = answer.is_answer & (answer.confidence >= low) & (answer.confidence < high)
        assert given.sum() > 20
        assert is_right[given].mean() >= answer.confidence[given].mean() - 0.05


@pytest.mark.parametrize("name", JOBS)
def test_jobs_of_another_generator_get_no_wrong_class(name: str) -> None:
    """A kind of job outside the model's fit should be unknown, not wrongly classified."""
    assert MODEL is not None
    truth, draw = JOBS[name]
    random = np.random.default_rng(8)
    values = np.array([fingerprint_values(random, draw(random)) for _ in range(60)])
    answer = answers(values, MODEL)
    wanted = CLASSES.index("training" if truth == "fine-tuning" else truth or "")
    assert (answer.is_answer & (answer.likeliest != wanted)).mean() <= 0.1
