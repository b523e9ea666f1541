"""ECC counters and row remapping: median zero, a heavy tail, and the burst that ends in XID 95."""

from __future__ import annotations

import numpy as np

from . import parts
from .tables import Tables

#: Corrected errors per second on the few parts that have any at all while nothing is wrong.
BENIGN_PER_SECOND = 0.004
RECOVERY_RESET = 1
#: Memory banks of an H100 with 80 GB: the sum of nvidia-smi's histogram.
BANKS = 2560


class MemoryErrors:
    """HBM errors of all GPUs; arrays are (hosts, 8)."""

    def __init__(self, random: np.random.Generator, noise: np.random.Generator, hosts: int) -> None:
        self._noise = noise
        shape = (hosts, parts.GPUS)
        prone = random.random(shape) < 0.06
        self.corrected = np.floor(prone * np.exp(random.normal(1.5, 1.8, shape)))
        self._corrected_before = np.floor(prone * np.exp(random.normal(2.5, 2.0, shape)))
        self._benign = prone * BENIGN_PER_SECOND
        self.uncorrected = np.zeros(shape)
        # A very few have lost a row once, long ago, and were repaired by a remap.
        self._uncorrected_before = (random.random(shape) < 0.008) * 1.0
        self._remapped_correctable = (random.random(shape) < 0.015) * 1.0
        self.remap_pending = np.zeros(shape)
        self.recovery_action = np.zeros(shape)
        self._replays = np.floor(prone * random.uniform(0, 6, shape))

    def advance(self, seconds: float) -> None:
        """Let the benign ones trickle."""
        self.corrected += self._noise.poisson(self._benign * seconds)

    def burst(self, host: int, gpu: int, per_second: float, seconds: float) -> None:
        """Add corrected errors, in bursts whose mean is *per_second*."""
        strength = self._noise.uniform(0.5, 2.0) / 0.75 * (self._noise.random() < 0.6)
        self.corrected[host, gpu] += self._noise.poisson(per_second * strength * seconds)

    def fail(self, host: int, gpu: int) -> None:
        """Lose data for good: uncorrectable errors, a remap pending, and the driver asks for a reset."""
        self.uncorrected[host, gpu] += self._noise.integers(1, 5)
        self.remap_pending[host, gpu] = 1
        self.recovery_action[host, gpu] = RECOVERY_RESET

    def publish(self, tables: Tables) -> None:
        """Put the counters of this second. All errors of the model are those of DRAM."""
        lost = self.uncorrected + self._uncorrected_before
        for kind, since_load, of_life in (
            ("corrected", self.corrected, self.corrected + self._corrected_before),
            ("uncorrected", self.uncorrected, lost),
        ):
            for place in ("", "_device"):
                tables.put(f"gpu.ecc_{kind}_volatile{place}_errors", since_load)
                tables.put(f"gpu.ecc_{kind}_lifetime{place}_errors", of_life)
        tables.put("gpu.remap_pending_state", self.remap_pending)
        tables.put("gpu.recovery_action_state", self.recovery_action)

    def publish_constants(self, tables: Tables) -> None:
        """Put what a reset alone would change: rows that were replaced before."""
        replaced = self._remapped_correctable + self._uncorrected_before
        tables.put("gpu.remapped_correctable_rows", self._remapped_correctable)
        tables.put("gpu.remapped_uncorrectable_rows", self._uncorrected_before)
        tables.put("gpu.remap_banks_max_count", BANKS - replaced)  # each in a bank of its own
        tables.put("gpu.remap_banks_high_count", replaced)
        tables.put("gpu.pcie_replays_count", self._replays)
