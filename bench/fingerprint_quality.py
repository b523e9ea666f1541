"""How good the memory of runs is, on generated fingerprints (*simulated*): `python -m bench.fingerprint_quality [--train]`.

Trained and calibrated on seeds 1 to 5; every figure is of seeds 101 to 103, which no choice was made by.
"""

from __future__ import annotations

import argparse
import json

import numpy as np

from gangline.fingerprints.fingerprint import (  # fmt: skip
    FINGERPRINT_VERSION,
    NUMBERS,
    SCALES,
    Fingerprint,
    Floats,
    features_of,
)
from gangline.fingerprints.generated import CLASSES, GeneratedRuns, generate
from gangline.fingerprints.similarity import SAME_DISTANCE_MAX, RunIndex
from gangline.fingerprints.workload_class import (
    CONFIDENCE_MIN,
    MODEL_FILE,
    inputs_of,
    load_model,
    probabilities,
)

TRAINING_SEEDS, HELD_OUT_SEEDS = (1, 2, 3, 4, 5), (101, 102, 103)
WORKLOADS, RUNS_OF_EACH = 600, 4


def train() -> None:
    """Train the model of classes and write it as JSON."""
    from sklearn.linear_model import LogisticRegression

    several = [generate(seed, WORKLOADS, RUNS_OF_EACH) for seed in TRAINING_SEEDS]
    values = np.concatenate([one.values for one in several])
    labels = np.concatenate([one.label for one in several])
    middle = np.nanmedian(features_of(values) * SCALES, axis=0)
    model = LogisticRegression(C=1.0, max_iter=3000).fit(inputs_of(values, middle), labels)
    stored = {
        "fingerprint_version": FINGERPRINT_VERSION, "numbers": list(NUMBERS), "classes": list(CLASSES),
        "trained_on": f"generated fingerprints, seeds {TRAINING_SEEDS}: simulated",
        "weights": np.round(model.coef_, 5).tolist(), "bias": np.round(model.intercept_, 5).tolist(),
        "middle": np.round(middle, 5).tolist(),
    }  # fmt: skip
    MODEL_FILE.write_text(json.dumps(stored) + "\n")
    load_model.cache_clear()


def distances(runs: GeneratedRuns, seed: int) -> tuple[Floats, Floats]:
    """Return distances of pairs of runs of one workload, and of each run to the nearest run of another."""
    random = np.random.default_rng(seed)
    features = features_of(runs.values)
    same, other = [], []
    for at in random.choice(len(features), 600, replace=False).tolist():
        difference = features - features[at]
        squares = np.nanmean(difference**2, axis=1)
        known = np.isfinite(difference).sum(axis=1)
        squares[known < max(4, np.isfinite(features[at]).sum() / 2)] = np.inf
        mates = (runs.workload == runs.workload[at]) & (np.arange(len(features)) != at)
        same += squares[mates].tolist()
        other.append(squares[runs.workload != runs.workload[at]].min())
    same_found = np.sqrt(np.array(same))
    return same_found[np.isfinite(same_found)], np.sqrt(np.array(other))


def calibration_error(confidence: Floats, correct: Floats) -> float:
    """Return the expected calibration error in ten bins of equal size."""
    order = np.argsort(confidence)
    parts = zip(np.array_split(confidence[order], 10), np.array_split(correct[order], 10), strict=True)  # fmt: skip
    return float(sum(abs(c.mean() - k.mean()) * len(c) for c, k in parts) / len(order))


def classes_section(runs: list[GeneratedRuns]) -> list[str]:
    """Return the confusion matrix, accuracy, abstention and calibration error."""
    model = load_model()
    assert model is not None, "no model: --train"
    values = np.concatenate([one.values for one in runs])
    labels = np.concatenate([one.label for one in runs])
    found = probabilities(values, model)
    likeliest, confidence = found.argmax(axis=1), found.max(axis=1)
    answered = confidence >= CONFIDENCE_MIN
    correct = (likeliest == labels).astype(np.float64)
    head = " | ".join(CLASSES)
    lines = [f"| truth \\ answer | {head} | unknown |", "|---" * (len(CLASSES) + 2) + "|"]
    for label, name in enumerate(CLASSES):
        of = labels == label
        counts = [int((of & answered & (likeliest == k)).sum()) for k in range(len(CLASSES))]
        lines.append(f"| {name} | {' | '.join(map(str, counts))} | {int((of & ~answered).sum())} |")
    lines.append(
        f"accuracy where it answers {correct[answered].mean():.3f}, abstains {1 - answered.mean():.3f}, "
        f"accuracy of all {correct.mean():.3f}, ECE {calibration_error(confidence, correct):.3f}"
    )
    return lines


def similarity_section(runs: GeneratedRuns, seed: int) -> str:
    """Return how many runs find an earlier one of their workload, and how many of new workloads find a wrong one."""
    index = RunIndex()
    for values in runs.values:
        index.add(Fingerprint(tuple(values.tolist())))
    has_mate = wrong_first = missed = 0
    for at, values in enumerate(runs.values[:900]):
        found = index.same_workload(Fingerprint(tuple(values.tolist())), 1, without=(at,))
        has_mate += 1
        missed += not found
        wrong_first += bool(found) and runs.workload[found[0].run] != runs.workload[at]
    new = generate(seed + 1000, 300, 1)
    seen = sum(bool(index.same_workload(Fingerprint(tuple(one.tolist())), 1)) for one in new.values)
    return (
        f"seed {seed}: of {has_mate} runs {has_mate - missed} found an earlier one, {wrong_first} of another workload; "
        f"of {len(new.values)} new workloads {seen} were taken for known"
    )


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train", action="store_true")
    if parser.parse_args().train:
        train()
    for seed in TRAINING_SEEDS[:2]:
        same, other = distances(generate(seed, WORKLOADS, RUNS_OF_EACH), seed)
        print(
            f"seed {seed} (training): same workload p50 {np.median(same):.2f} p95 {np.quantile(same, 0.95):.2f}; "
            f"nearest other p1 {np.quantile(other, 0.01):.2f} p5 {np.quantile(other, 0.05):.2f} p50 {np.median(other):.2f}; "
            f"limit {SAME_DISTANCE_MAX}"
        )
    held_out = [generate(seed, WORKLOADS, RUNS_OF_EACH) for seed in HELD_OUT_SEEDS]
    print(f"\nClasses, simulated, seeds {HELD_OUT_SEEDS}:")
    print("\n".join(classes_section(held_out)))
    print("\nSimilarity, simulated:")
    for seed, runs in zip(HELD_OUT_SEEDS, held_out, strict=True):
        print(similarity_section(runs, seed))


if __name__ == "__main__":
    main()
