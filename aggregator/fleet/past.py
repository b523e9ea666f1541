"""What is usual of each host in the job that it runs: a mean that stands still while something is unusual."""

from __future__ import annotations

import numpy as np

from .arrays import Codes, Flags, Floats, grown
from .counting import smoothing

#: Windows that make a past, of which the first are forgotten: a job begins slowly. And seconds after which a mean has
#: forgotten the rest.
WINDOWS_MIN, BEGINNING, PAST_SECONDS = 8, 2, 600.0
#: What is unusual for so many windows (an hour) is usual from then on.
UNUSUAL_MAX = 360


class Past:
    """Means of some values of every host, NaN where too little is known. Belongs to the fleet's thread."""

    def __init__(self, width: int, capacity: int) -> None:
        self._means: Floats = np.zeros((width, capacity))
        self._windows: Codes = np.zeros((width, capacity), dtype=np.int32)
        self._unusual: Codes = np.zeros(capacity, dtype=np.int32)

    def fit(self, capacity: int) -> None:
        """Make room for so many hosts."""
        if self._unusual.size < capacity:
            for name in ("_means", "_windows", "_unusual"):
                setattr(self, name, grown(getattr(self, name), capacity))

    def begin_anew(self, hosts: Flags) -> None:
        """Forget these: another job has another usual."""
        self._windows[:, : hosts.size] *= ~hosts
        self._unusual[: hosts.size] *= ~hosts

    def usual(self, hosts: int) -> Floats:
        """Return the means of the first *hosts*: a row for each value."""
        known = self._windows[:, :hosts] >= WINDOWS_MIN
        return np.where(known, self._means[:, :hosts], np.nan)

    def learn(self, values: Floats, counts: Flags, unusual: Flags, window_seconds: float) -> None:
        """Take in a window: *values* (a row each) of the hosts that it *counts* for, but of those that are *unusual* now."""
        hosts = counts.size
        waits = self._unusual[:hosts]
        waits[counts & unusual] += 1
        waits[counts & ~unusual] = 0
        anew = waits > UNUSUAL_MAX
        self._windows[:, :hosts][:, anew] = 0
        waits[anew] = 0
        seen, means = self._windows[:, :hosts], self._means[:, :hosts]
        taken = (counts & (~unusual | anew)) & np.isfinite(values)
        seen += taken
        least = smoothing(np.array(window_seconds), PAST_SECONDS)
        weight = np.maximum(1.0 / np.maximum(seen - BEGINNING, 1), least)
        means[taken] = (means * (1.0 - weight) + values * weight)[taken]
