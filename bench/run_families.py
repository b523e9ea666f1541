"""Generated runs of a second kind, for evaluation only; nothing is fitted to them (*simulated*).

They share no assumption with `bench/generated_fingerprints.py`. A family is a model in training:
arithmetic, bytes and a reading time per sample give the step time, and every share, rate and power
follows from that. A variant has another batch or another number of GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gangline.fingerprints.fingerprint import NUMBERS, Floats

_AT = {name: index for index, name in enumerate(NUMBERS)}
#: Peak arithmetic, HBM, NVLink and NIC share, rounded figures.
_GPUS = {
    "H100": (990e12, 3.3e12, 4.5e11, 5e10, 0.85),
    "A100": (312e12, 2.0e12, 3.0e11, 2.5e10, 0.7),
}
WITHOUT_GPM, SLOW_FOR_ONE, SLOW_ALL = 0.3, 0.1, 0.05
FAMILIES_OF_USER = 15


@dataclass(frozen=True, slots=True)
class FamilyRuns:
    """`values`: (runs, NUMBERS); `family`, `variant`: (runs), numbers; `slowdown`: (runs), share of
    pace lost.

    `users`, `gpu_models`: (runs). Each family belongs to one user; a user has several families.
    """

    values: Floats
    users: list[str]
    gpu_models: list[str]
    family: np.ndarray[tuple[int], np.dtype[np.intp]]
    variant: np.ndarray[tuple[int], np.dtype[np.intp]]
    slowdown: Floats


@dataclass(frozen=True, slots=True)
class _Variant:
    gpu: str
    arithmetic: float  # operations for each GPU and step
    hbm_bytes: float
    nvlink_bytes: float
    nic_bytes: float
    overlap: float
    read_seconds: float
    host_seconds: float
    steps_between_checkpoints: int
    checkpoint_seconds: float
    efficiency: float


def generate_families(seed: int, families: int, variants: int, runs_of_each: int) -> FamilyRuns:
    """Return *runs_of_each* runs of *variants* variants of each family."""
    random = np.random.default_rng(seed)
    values, family_of, variant_of, slowdown = [], [], [], []
    users, gpu_models = list[str](), list[str]()
    for family in range(families):
        first = _family(random)
        user = f"user-{int(random.integers(max(1, families // FAMILIES_OF_USER)))}"
        for variant in range(variants):
            variant_model = first if variant == 0 else _other_batch(random, first)
            for _ in range(runs_of_each):
                draw, loss = random.random(), 0.0
                if draw < SLOW_FOR_ONE + SLOW_ALL:
                    loss = random.uniform(0.05, 0.3)
                values.append(_run(random, variant_model, loss, for_one=draw < SLOW_FOR_ONE))
                users.append(user)
                gpu_models.append(variant_model.gpu)
                family_of.append(family)
                variant_of.append(family * variants + variant)
                slowdown.append(loss)
    return FamilyRuns(np.array(values), users, gpu_models, np.array(family_of), np.array(variant_of), np.array(slowdown))  # fmt: skip


def _family(random: np.random.Generator) -> _Variant:
    gpu = "H100" if random.random() < 0.6 else "A100"
    peak, hbm, nvlink, nic, _ = _GPUS[gpu]
    seconds = float(np.exp(random.uniform(np.log(0.3), np.log(20.0))))
    bound = random.uniform(0.2, 0.95)
    return _Variant(
        gpu, peak * seconds * random.uniform(0.25, 0.6), hbm * seconds * bound * 0.8,
        nvlink * seconds * random.choice([0.0, random.uniform(0.02, 0.5)]),
        nic * seconds * random.choice([0.0, random.uniform(0.02, 0.6)]), random.uniform(0.2, 0.9),
        seconds * random.choice([0.01, random.uniform(0.02, 0.3)]), random.uniform(0.01, 0.15),
        int(np.exp(random.uniform(np.log(100), np.log(5000)))), random.uniform(5.0, 90.0), random.uniform(0.5, 0.8),
    )  # fmt: skip


def _other_batch(random: np.random.Generator, first: _Variant) -> _Variant:
    batch = float(random.choice([0.5, 0.75, 1.5, 2.0, 4.0]))
    return _Variant(
        first.gpu, first.arithmetic * batch, first.hbm_bytes * (0.3 + 0.7 * batch), first.nvlink_bytes * batch,
        first.nic_bytes, first.overlap, first.read_seconds * batch, first.host_seconds,
        first.steps_between_checkpoints, first.checkpoint_seconds, first.efficiency,
    )  # fmt: skip


def _run(random: np.random.Generator, of: _Variant, loss: float, *, for_one: bool) -> Floats:
    peak, hbm, nvlink, nic, hot = _GPUS[of.gpu]
    clock = random.normal(1.0, 0.008) * (1.0 if for_one else 1.0 - loss)
    compute = max(of.arithmetic / (peak * of.efficiency * clock), of.hbm_bytes / hbm)
    network = of.nvlink_bytes / (0.7 * nvlink) + of.nic_bytes / (0.8 * nic)
    reading = of.read_seconds * np.exp(random.normal(0.0, 0.25))
    wait = max(0.0, network - of.overlap * compute) + 0.01 * compute
    stall = max(0.0, reading - 0.9 * compute) + of.host_seconds * 0.2
    step = compute + wait + stall
    if for_one and loss:
        wait += step * loss / (1.0 - loss)
        step = step / (1.0 - loss)
    checkpoint = of.checkpoint_seconds * np.exp(random.normal(0.0, 0.2))
    interval = of.steps_between_checkpoints * step + checkpoint
    working = 1.0 - checkpoint / interval
    tensor = of.arithmetic / (peak * step) * working
    meter = random.normal(1.0, 0.02)  # common to the GPUs of these hosts
    active_power = meter * min(1.0, hot * (0.5 + 0.5 * min(1.0, compute * peak * of.efficiency / max(of.arithmetic, 1.0))) * clock)  # fmt: skip
    wait_power = meter * 0.3
    shares = np.array([compute / step * working, wait / step * working, stall / step * working, checkpoint / interval, 0.0])  # fmt: skip
    shares = np.clip(shares + random.normal(0.0, 0.012, 5) * (shares > 0.005), 0.0, 1.0)
    shares = np.round(shares / shares.sum(), 2)
    power = shares[0] * active_power + (1.0 - shares[0]) * wait_power
    result = {
        "step_seconds": step * np.exp(random.normal(0.0, 0.004)) if random.random() > 0.12 else np.nan,
        **dict(zip(("compute_ratio", "wait_ratio", "host_stall_ratio", "checkpoint_ratio", "idle_ratio"), shares.tolist(), strict=True)),
        "compute_power_ratio": active_power, "wait_power_ratio": wait_power, "power_ratio": power,
        "utilization_ratio": min(1.0, shares[0] + shares[1] + 0.02),
        "sm_ratio": min(0.95, 0.85 * shares[0]), "tensor_ratio": tensor,
        "memory_bandwidth_ratio": of.hbm_bytes / (hbm * step) * working,
        "pcie_bytes_per_second": 2e8 * np.exp(random.normal(0.0, 0.1)) + of.nic_bytes / step * working,
        "nvlink_bytes_per_second": of.nvlink_bytes / step * working, "nic_bytes_per_second": of.nic_bytes / step * working,
        "host_cpu_ratio": min(0.9, 0.02 + 0.6 * reading / step) * np.exp(random.normal(0.0, 0.1)),
        "disk_pressure_ratio": min(0.6, 0.3 * shares[2] + 0.5 * shares[3]) * np.exp(random.normal(0.0, 0.4)),
        "checkpoint_interval_seconds": interval if random.random() > 0.3 else np.nan,
    }  # fmt: skip
    values = np.full(len(NUMBERS), np.nan)
    for name, value in result.items():
        values[_AT[name]] = value
    if of.gpu == "A100" or random.random() < WITHOUT_GPM:
        for name in ("sm_ratio", "tensor_ratio", "memory_bandwidth_ratio", "pcie_bytes_per_second", "nvlink_bytes_per_second"):  # fmt: skip
            values[_AT[name]] = np.nan
    return values
