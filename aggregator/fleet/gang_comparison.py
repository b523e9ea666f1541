"""Result of comparing the hosts of each gang, as arrays over hosts and GPU rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...fingerprints.stragglers import Change
from ..arrays import Codes, Flags, Floats, Indexes


class GangComparison(NamedTuple):
    """Each host compared with its gang over the last windows in which the gang worked.

    Ratios are relative to the median of the others; NaN: unknown. `gang`: index in
    `GangMonitor.jobs`, -1: none.
    """

    gang: Indexes
    gpu_gang: Indexes  # gang for which each GPU row computes
    shared: Flags  # some of its GPUs are not its gang's
    divided: Flags  # its GPUs compute for several jobs
    windows: Codes
    busy: Floats  # how much longer its SMs were busy, at its clock
    # Share of windows in which it led by half of that, except over the few longest.
    busy_often: Floats
    work: Floats  # how much more its tensor cores did
    gap_often: Floats
    # Consecutive windows with a gap until now: twelve windows cannot show the culprit of two hosts.
    gap_run: Codes
    gap: Floats  # share of time without work on its GPUs beyond that of the others
    gap_median: Floats  # median of that share in its gang
    cpu: Floats  # pressure beyond that of the others
    io: Floats
    io_median: Floats  # median pressure of its gang
    steal: Floats
    # Compared with its own past in this job:
    slowed: Floats  # share by which its ports' traffic fell
    slowed_often: Floats
    waits: Floats  # increase of network waits, by the counter that rose most
    gap_more: Floats  # share of time
    gap_more_often: Floats
    cpu_more: Floats
    io_more: Floats
    # Current changes of a host's busy time and gaps, and of each GPU's busy time:
    busy_change: Change
    gap_change: Change
    gpu_change: Change
    by_power: Flags  # per gang: busy time is estimated from power, as SM cycles are not counted
    # Per GPU row: its power limit in watts when it joined its gang.
    gpu_limit_before: Floats

    def of_gpus(self, hosts: Codes) -> Indexes:
        """Return the gang of each GPU row, -1: none.

        *hosts*: host of each row, including hosts that are newer than this comparison.
        """
        gang = np.full(hosts.shape, -1, dtype=np.intp)
        known = hosts < self.gang.size
        gang[known] = self.gang[hosts[known]]
        gang[: self.gpu_gang.size] = self.gpu_gang
        return gang
