"""Baseline of each host in its job: a running mean of its windows, without unusual windows."""

from __future__ import annotations

import numpy as np

from ..arrays import Codes, Flags, Floats
from ..counter_deltas import grown, smoothing

#: Windows before a baseline is valid, of which the first are ignored because a job begins slowly;
#: time constant of the mean.
WINDOWS_MIN, WARMUP_WINDOWS, BASELINE_SECONDS = 8, 2, 600.0
#: After this many unusual windows (an hour) the baseline restarts.
UNUSUAL_MAX = 360


class HostBaseline:
    """Mean values of every host in its job; NaN: too little data. Owned by the fleet's thread.

    The mean is not updated while the host is unusual.
    """

    def __init__(self, width: int, capacity: int) -> None:
        self._means: Floats = np.zeros((width, capacity))
        self._windows: Codes = np.zeros((width, capacity), dtype=np.int32)
        self._unusual: Codes = np.zeros(capacity, dtype=np.int32)

    def fit(self, capacity: int) -> None:
        """Grow the arrays to *capacity* hosts."""
        if self._unusual.size < capacity:
            for name in ("_means", "_windows", "_unusual"):
                setattr(self, name, grown(getattr(self, name), capacity))

    def reset(self, hosts: Flags) -> None:
        """Restart the baselines of *hosts*, whose job changed."""
        self._windows[:, : hosts.size] *= ~hosts
        self._unusual[: hosts.size] *= ~hosts

    def mean(self, hosts: int) -> Floats:
        """Return the means of the first *hosts* hosts: a row per value."""
        known = self._windows[:, :hosts] >= WINDOWS_MIN
        return np.where(known, self._means[:, :hosts], np.nan)

    def update(self, values: Floats, counts: Flags, unusual: Flags, window_seconds: float) -> None:
        """Add a window of *values* (row per value) for hosts in *counts*, unless *unusual*."""
        hosts = counts.size
        unusual_windows = self._unusual[:hosts]
        unusual_windows[counts & unusual] += 1
        unusual_windows[counts & ~unusual] = 0
        restarts = unusual_windows > UNUSUAL_MAX
        self._windows[:, :hosts][:, restarts] = 0
        unusual_windows[restarts] = 0
        windows, means = self._windows[:, :hosts], self._means[:, :hosts]
        updated = (counts & (~unusual | restarts)) & np.isfinite(values)
        windows += updated
        weight_min = smoothing(np.array(window_seconds), BASELINE_SECONDS)
        weight = np.maximum(1.0 / np.maximum(windows - WARMUP_WINDOWS, 1), weight_min)
        means[updated] = (means * (1.0 - weight) + values * weight)[updated]
