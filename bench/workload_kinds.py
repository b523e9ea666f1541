"""Generated fingerprints of kinds of jobs, for classes: simulated; all assumptions are here.

Each kind has a row of ranges. Power, utilization and the shares of time follow from the drawn
activity. Kinds without a class (solvers, rendering, burn-in tests, ...) must get no class.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gangline.fingerprints.fingerprint import NUMBERS, Floats

Range = tuple[float, float]

#: Classes, in the order of `KindRuns.label`; the last contains kinds without a class. Fine-tuning
#: is training: from outside it differs only in its duration.
CLASSES = ("training", "inference", "data preparation", "interactive", "reserved", "")
#: Share of the runs without GPM, without phases, and with any one other number unknown.
_WITHOUT_GPM, _WITHOUT_PHASES, _UNKNOWN = 0.2, 0.1, 0.04
_GPM = ("sm_ratio", "tensor_ratio", "memory_bandwidth_ratio", "pcie_bytes_per_second", "nvlink_bytes_per_second")  # fmt: skip
_PHASES = (
    "step_seconds", "compute_ratio", "wait_ratio", "host_stall_ratio", "checkpoint_ratio", "idle_ratio",
    "compute_power_ratio", "wait_power_ratio", "checkpoint_interval_seconds",
)  # fmt: skip


class JobKind(NamedTuple):
    """Ranges of a kind's jobs. `sm`, `tensor`, `memory`: activity while kernels run.

    Traffic is in bytes a second, drawn by its logarithm, and 0 in half of the jobs if the range
    begins at 0. `step_found`, `checkpoint_found`: share of the jobs in which the agents find a
    period.
    """

    label: str
    busy: Range
    sm: Range
    tensor: Range
    memory: Range
    pcie: Range
    nvlink: Range
    nic: Range
    cpu: Range
    disk: Range = (0.0, 0.05)
    wait: Range = (0.0, 0.05)
    step_found: float = 0.1
    step_seconds: Range = (0.3, 30.0)
    checkpoint_found: float = 0.02
    checkpoint_interval_seconds: Range = (10.0, 600.0)
    checkpoint: Range = (0.0, 0.03)


# fmt: off
KINDS: dict[str, JobKind] = {
    "training, many hosts": JobKind(
        "training", (0.75, 1.0), (0.5, 0.95), (0.12, 0.6), (0.15, 0.65), (5e7, 8e9), (1e9, 2e11), (4e8, 3e10), (0.02, 0.4),
        wait=(0.02, 0.4), step_found=0.85, step_seconds=(0.3, 40.0), checkpoint_found=0.7,
        checkpoint_interval_seconds=(15.0, 14400.0), checkpoint=(0.0, 0.25),
    ),
    "training, a host": JobKind(
        "training", (0.6, 1.0), (0.4, 0.95), (0.06, 0.6), (0.15, 0.75), (1e7, 8e9), (5e7, 1e11), (0.0, 1e8), (0.02, 0.5),
        wait=(0.0, 0.25), step_found=0.8, checkpoint_found=0.7, checkpoint_interval_seconds=(10.0, 7200.0),
        checkpoint=(0.0, 0.3), disk=(0.0, 0.2),
    ),
    "training, a GPU": JobKind(
        "training", (0.5, 1.0), (0.35, 0.95), (0.06, 0.6), (0.15, 0.75), (1e7, 5e9), (0.0, 0.0), (0.0, 1e8), (0.01, 0.4),
        step_found=0.7, checkpoint_found=0.7, checkpoint_interval_seconds=(10.0, 7200.0), checkpoint=(0.0, 0.3),
        disk=(0.0, 0.2),
    ),
    "training, held up by data": JobKind(
        "training", (0.25, 0.75), (0.4, 0.9), (0.08, 0.5), (0.15, 0.6), (2e8, 1e10), (0.0, 5e10), (0.0, 5e9), (0.25, 0.95),
        step_found=0.6, checkpoint_found=0.5, disk=(0.02, 0.5), checkpoint=(0.0, 0.2),
    ),
    "reinforcement learning": JobKind(
        "training", (0.3, 0.9), (0.25, 0.8), (0.04, 0.4), (0.2, 0.7), (2e7, 5e9), (0.0, 1e11), (0.0, 1e10), (0.1, 0.8),
        wait=(0.0, 0.3), step_found=0.5, step_seconds=(2.0, 60.0), checkpoint_found=0.5, checkpoint=(0.0, 0.2),
    ),
    "fine-tuning, adapters": JobKind(
        "training", (0.6, 1.0), (0.35, 0.85), (0.1, 0.5), (0.25, 0.75), (1e7, 5e9), (0.0, 3e10), (0.0, 1e8), (0.02, 0.3),
        step_found=0.75, step_seconds=(0.2, 10.0), checkpoint_found=0.7, checkpoint_interval_seconds=(20.0, 1800.0),
        checkpoint=(0.0, 0.2), disk=(0.0, 0.1),
    ),
    "fine-tuning, all weights": JobKind(
        "training", (0.6, 1.0), (0.4, 0.9), (0.15, 0.55), (0.2, 0.7), (2e7, 8e9), (1e8, 1e11), (0.0, 1e10), (0.02, 0.3),
        wait=(0.0, 0.3), step_found=0.8, step_seconds=(0.3, 20.0), checkpoint_found=0.7,
        checkpoint_interval_seconds=(30.0, 3600.0), checkpoint=(0.0, 0.3), disk=(0.0, 0.2),
    ),
    "inference, decoding": JobKind(
        "inference", (0.5, 1.0), (0.2, 0.9), (0.01, 0.2), (0.4, 0.9), (1e6, 1e9), (0.0, 3e10), (1e4, 1e8), (0.01, 0.2),
    ),
    "inference, many requests": JobKind(
        "inference", (0.4, 1.0), (0.3, 0.9), (0.08, 0.45), (0.25, 0.8), (1e6, 2e9), (0.0, 5e10), (1e4, 3e8), (0.02, 0.3),
    ),
    "inference, few requests": JobKind(
        "inference", (0.01, 0.4), (0.15, 0.8), (0.01, 0.3), (0.3, 0.85), (1e4, 3e8), (0.0, 1e10), (1e3, 3e7), (0.005, 0.15),
        step_found=0.05,
    ),
    "inference, small models": JobKind(
        "inference", (0.05, 0.8), (0.1, 0.7), (0.01, 0.3), (0.03, 0.5), (1e7, 5e9), (0.0, 0.0), (1e5, 1e9), (0.05, 0.7),
    ),
    "data preparation, CPU": JobKind(
        "data preparation", (0.005, 0.3), (0.05, 0.6), (0.0, 0.05), (0.02, 0.4), (1e7, 1e10), (0.0, 1e7), (1e6, 3e9), (0.35, 1.0),
        disk=(0.03, 0.7),
    ),
    "data preparation, GPU": JobKind(
        "data preparation", (0.15, 0.75), (0.2, 0.8), (0.0, 0.01), (0.15, 0.7), (8e8, 2e10), (0.0, 2e10), (1e6, 5e9), (0.15, 0.9),
        disk=(0.03, 0.6),
    ),
    "notebook": JobKind(
        "interactive", (0.002, 0.2), (0.1, 0.9), (0.0, 0.4), (0.05, 0.7), (1e4, 5e8), (0.0, 1e8), (0.0, 1e7), (0.002, 0.2),
        step_found=0.08,
    ),
    "reserved": JobKind(
        "reserved", (0.0, 0.002), (0.0, 0.1), (0.0, 0.0), (0.0, 0.1), (0.0, 2e6), (0.0, 1e5), (0.0, 1e7), (0.0, 0.3),
        step_found=0.0, checkpoint_found=0.0,
    ),
    "reserved, other jobs on its hosts": JobKind(
        "reserved", (0.0, 0.002), (0.0, 0.1), (0.0, 0.0), (0.0, 0.1), (0.0, 2e6), (0.0, 1e5), (1e4, 2e10), (0.02, 1.0),
        disk=(0.0, 0.6), step_found=0.0, checkpoint_found=0.0,
    ),
    "solver": JobKind(
        "", (0.5, 1.0), (0.35, 1.0), (0.0, 0.01), (0.2, 0.95), (1e6, 5e9), (0.0, 5e10), (0.0, 2e10), (0.01, 0.5),
        wait=(0.0, 0.3), step_found=0.6, step_seconds=(0.3, 20.0), checkpoint_found=0.4,
        checkpoint_interval_seconds=(30.0, 7200.0), checkpoint=(0.0, 0.25), disk=(0.0, 0.2),
    ),
    "solver, matrix products": JobKind(
        "", (0.7, 1.0), (0.4, 1.0), (0.02, 0.9), (0.1, 0.7), (1e6, 8e9), (0.0, 5e10), (0.0, 2e10), (0.01, 0.5),
        wait=(0.0, 0.3), step_found=0.5, step_seconds=(0.3, 20.0), checkpoint_found=0.4,
        checkpoint_interval_seconds=(30.0, 7200.0), checkpoint=(0.0, 0.2),
    ),
    "molecular dynamics": JobKind(
        "", (0.6, 1.0), (0.3, 0.95), (0.0, 0.005), (0.05, 0.5), (1e6, 2e9), (0.0, 1e10), (0.0, 5e9), (0.02, 0.5),
        step_found=0.3, step_seconds=(0.3, 5.0), checkpoint_found=0.4, checkpoint=(0.0, 0.05),
    ),
    "rendering": JobKind(
        "", (0.3, 1.0), (0.3, 1.0), (0.0, 0.1), (0.05, 0.6), (1e6, 2e9), (0.0, 1e8), (0.0, 1e8), (0.02, 0.6),
        step_found=0.5, step_seconds=(1.0, 40.0), disk=(0.0, 0.1),
    ),
    "graphs and tables": JobKind(
        "", (0.2, 0.9), (0.1, 0.8), (0.0, 0.01), (0.2, 0.9), (1e7, 5e9), (0.0, 5e10), (0.0, 5e9), (0.05, 0.6),
        step_found=0.3, disk=(0.0, 0.3),
    ),
    "video": JobKind(
        "", (0.1, 0.9), (0.02, 0.4), (0.0, 0.02), (0.05, 0.5), (1e8, 1e10), (0.0, 0.0), (1e5, 2e9), (0.1, 0.9), disk=(0.0, 0.3),
    ),
    "burn-in": JobKind(
        "", (0.95, 1.0), (0.7, 1.0), (0.0, 0.95), (0.02, 0.95), (0.0, 1e10), (0.0, 3e11), (0.0, 5e10), (0.0, 0.1),
        step_found=0.3, step_seconds=(0.3, 10.0),
    ),
    "hashing": JobKind("", (0.9, 1.0), (0.8, 1.0), (0.0, 0.0), (0.0, 0.9), (0.0, 1e7), (0.0, 0.0), (0.0, 1e6), (0.0, 0.1)),
}
# fmt: on


class KindRuns(NamedTuple):
    """`values`: (runs, NUMBERS); `label`, `kind`: indexes in CLASSES and KINDS."""

    values: Floats
    label: npt.NDArray[np.intp]
    kind: npt.NDArray[np.intp]


def generate_kinds(seed: int, runs_of_kind: int) -> KindRuns:
    """Return *runs_of_kind* runs of each kind: the mixture that confidences refer to."""
    random = np.random.default_rng(seed)
    values = [_draw(random, kind, runs_of_kind) for kind in KINDS.values()]
    labels = np.array([CLASSES.index(kind.label) for kind in KINDS.values()], dtype=np.intp)
    kind = np.repeat(np.arange(len(KINDS)), runs_of_kind)
    return KindRuns(np.concatenate(values), labels[kind], kind)


def _draw(random: np.random.Generator, kind: JobKind, count: int) -> Floats:
    def within(limits: Range) -> Floats:
        return random.uniform(*limits, count)

    def by_logarithm(limits: Range, floor: float = 1.0) -> Floats:
        low, high = max(limits[0], floor), max(limits[1], floor)
        drawn = np.exp(random.uniform(np.log(low), np.log(high), count))
        return np.where((limits[0] <= 0.0) & (random.random(count) < 0.5), 0.0, drawn)

    def found(limits: Range, ratio: float) -> Floats:
        return np.where(random.random(count) < ratio, by_logarithm(limits, 0.1), np.nan)

    busy = by_logarithm(kind.busy, 1e-4) if kind.busy[1] < 0.5 else within(kind.busy)
    # An agent may count the time between kernels as waiting, and short waits as work.
    #
    counted = random.beta(0.5, 5, count) * (random.random(count) < 0.7)
    wait = busy * within(kind.wait) * (random.random(count) < 0.8) + (1.0 - busy) * counted
    checkpoint = within(kind.checkpoint)
    gap = np.maximum(1.0 - busy, 0.0)
    idle_part = random.choice([0.0, 0.3, 0.7, 1.0], count, p=[0.5, 0.15, 0.15, 0.2])
    if kind.label == "reserved":
        idle_part = random.choice([0.0, 1.0], count, p=[0.4, 0.6])
    compute = np.maximum(busy * (1.0 - checkpoint) - busy * within(kind.wait), 0.0)
    shares = np.stack([compute, wait, gap * (1.0 - idle_part), checkpoint, gap * idle_part])
    shares /= shares.sum(axis=0)
    sm, tensor, memory = (busy * within(each) for each in (kind.sm, kind.tensor, kind.memory))
    tensor = np.minimum(tensor, sm)
    floor = random.uniform(0.07, 0.3, count)
    # An agent may be unable to learn the level of a GPU that never works.
    resting = np.where(random.random(count) < 0.5, floor, np.nan)
    load = np.minimum(0.2 * busy + 0.45 * sm + 0.7 * tensor + 0.45 * memory, busy)
    compute_power = floor + (1.0 - floor) * load / np.maximum(busy, 1e-9) * random.uniform(0.5, 1.1, count)  # fmt: skip
    power = floor + (1.0 - floor) * load * random.uniform(0.9, 1.05, count)
    values = {
        "step_seconds": found(kind.step_seconds, kind.step_found),
        **dict(zip(_PHASES[1:6], shares, strict=True)),
        "compute_power_ratio": np.where(busy > 0.002, np.minimum(compute_power, 1.1), resting),
        "wait_power_ratio": np.where(busy > 0.002, np.minimum(floor * random.uniform(1.0, 2.5, count), 1.0), resting),
        "power_ratio": np.minimum(power, 1.05),
        "utilization_ratio": np.minimum(busy ** random.uniform(0.6, 1.0, count), 1.0),
        "sm_ratio": sm, "tensor_ratio": tensor, "memory_bandwidth_ratio": memory,
        "pcie_bytes_per_second": by_logarithm(kind.pcie), "nvlink_bytes_per_second": by_logarithm(kind.nvlink),
        "nic_bytes_per_second": by_logarithm(kind.nic),
        "host_cpu_ratio": within(kind.cpu), "disk_pressure_ratio": within(kind.disk) * random.random(count),
        "checkpoint_interval_seconds": found(kind.checkpoint_interval_seconds, kind.checkpoint_found),
    }  # fmt: skip
    drawn = np.stack([values[name] for name in NUMBERS], axis=1)
    drawn[random.random(drawn.shape) < _UNKNOWN] = np.nan
    for names, ratio in ((_GPM, _WITHOUT_GPM), (_PHASES, _WITHOUT_PHASES)):
        lacking = random.random(count) < ratio
        for name in names:
            drawn[lacking, NUMBERS.index(name)] = np.nan
    return drawn
