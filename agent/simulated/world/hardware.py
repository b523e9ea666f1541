"""The hardware of the whole world: what differs from part to part, drawn once."""

from __future__ import annotations

import numpy as np

from ..parts import GPUS, Machine, build
from .incidents import named_random
from .noise import Floats
from .settings import Spread


class Hardware:
    """All hosts' parts; arrays are (hosts, 8)."""

    def __init__(self, spread: Spread, seed: int, hosts: int) -> None:
        self.machines: list[Machine] = build(hosts, named_random(seed, "machines"))
        random = named_random(seed, "parts")
        shape = hosts, GPUS
        self.clock: Floats = _clocks(spread, random, shape)
        bound = np.clip(random.standard_normal(shape), -3, 3)
        self.memory_bound: Floats = 1 + spread.memory_bound_sigma * bound
        self.idle_watts: Floats = random.normal(75.0, 2.0, shape)
        self.dynamic_watts: Floats = random.normal(475.0, 9.0, shape)
        self.ambient_celsius: Floats = random.uniform(25.0, 31.0, (hosts, 1)) + random.uniform(
            0, 3, shape
        )
        self.resistance: Floats = random.uniform(0.058, 0.072, shape)
        prone = random.random(shape) < 0.06
        #: Corrected errors that mean nothing: median none, heavy tail.
        self.corrected: Floats = np.floor(
            np.where(prone, np.exp(random.normal(2.5, 2.0, shape)), 0.0)
        )
        self.trickle: Floats = np.where(
            prone, np.exp(random.normal(-7.5, 1.0, shape)), 0.0
        )  # a second
        self.resent: Floats = np.where(
            random.random(shape) < 0.15, 0.02, 0.0
        )  # a second, on good ports
        self.user: Floats = random.uniform(0.08, 0.16, hosts)
        self.pressure: Floats = random.uniform(0.001, 0.008, hosts)
        self.uptime_seconds: Floats = random.uniform(1.0, 60.0, hosts) * 86400.0


def _clocks(spread: Spread, random: np.random.Generator, shape: tuple[int, int]) -> Floats:
    within = spread.clock_limit
    ratios = 1 + np.clip(random.normal(0, spread.clock_sigma, shape), -within, within)
    outlier = random.random(shape) < spread.outlier_ratio
    sign = np.where(random.random(shape) < 0.5, -1.0, 1.0)
    off = sign * random.uniform(spread.outlier_low, spread.outlier_high, shape)
    return np.where(outlier, 1 + off, ratios)
