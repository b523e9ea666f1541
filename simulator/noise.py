"""Noise as a pure function of (seed, signal, device, time): any reading can be computed without earlier ones."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
RandomBits = npt.NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_LOW = np.uint64(0xFFFF)
_MASK = (1 << 64) - 1


def _mix(bits: RandomBits) -> RandomBits:
    """Return *bits* through SplitMix64's finalizer (Steele, Lea, Flood 2014)."""
    bits = bits + _GOLDEN
    bits = (bits ^ (bits >> np.uint64(30))) * _FIRST
    bits = (bits ^ (bits >> np.uint64(27))) * _SECOND
    return bits ^ (bits >> np.uint64(31))


class Noise:
    """Uniform and approximately normal numbers for parts, by the tick (an integer) and a channel's number."""

    def __init__(self, seed: int, parts: npt.NDArray[np.int64]) -> None:
        """*parts*: a unique number for each part, in any shape; results have that shape."""
        # The seed is mixed first: a small raw seed would only exchange the numbers of parts.
        mixed_seed = _mix(np.array([seed & _MASK], np.uint64))[0]
        self._parts = _mix(parts.astype(np.uint64) ^ mixed_seed)

    def random_bits(self, tick: int, channel: int) -> RandomBits:
        return _mix(self._parts ^ np.uint64((tick * 0x9E3779B1 + channel * 0x85EBCA77) & _MASK))

    def uniform(self, tick: int, channel: int) -> Floats:
        return np.asarray((self.random_bits(tick, channel) >> np.uint64(11)) * 2.0**-53, np.float64)

    def normal(self, tick: int, channel: int) -> Floats:
        """Return numbers of mean 0 and deviation 1: sums of four uniform numbers, so the absolute limit is 3.5."""
        bits = self.random_bits(tick, channel)
        total: Floats = np.zeros(bits.shape)
        for shift in (0, 16, 32, 48):
            total += (bits >> np.uint64(shift)) & _LOW
        return np.asarray((total - 2 * 65535.0) / (65536.0 * np.sqrt(4 / 12)), np.float64)
