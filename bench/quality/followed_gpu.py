"""One GPU's samples, followed like in the agent: its phases, its step and its checkpoints."""

from __future__ import annotations

from math import nan

import numpy as np
from numpy.typing import NDArray

from gangline.agent.collectors.gpu_fast import PERIOD_SIGNALS, PERIOD_TURNS, StepPeriods
from gangline.ext.phases import HISTORY_SIGNALS, SIGNALS, PhaseTracker, SampleHistory

#: Readings of the sampler that the history adds up.
SUMS = {
    "pcie_bytes_per_second": ("pcie_transmitted_bytes_per_second", "pcie_received_bytes_per_second"),
    "nvlink_bytes_per_second": ("nvlink_transmitted_bytes_per_second", "nvlink_received_bytes_per_second"),
}  # fmt: skip


class FollowedGpu:
    """The agent's tracker and step estimator of one GPU, whose job begins with the first sample."""

    def __init__(self) -> None:
        self._history, self.tracker = SampleHistory(1), PhaseTracker(1)
        self._periods = StepPeriods(self._history, self.tracker)
        self._seconds = 0
        self.tracker.begin_job(0)

    def push_second(self, times_ns: NDArray[np.int64], samples: NDArray[np.float32]) -> None:
        """Take the samples of a second, [samples, SIGNALS]; estimate the step when it is due."""
        columns = [
            (HISTORY_SIGNALS.index(name), np.asarray(sum(samples[:, SIGNALS.index(part)] for part in SUMS.get(name, (name,)))))
            for name in PERIOD_SIGNALS
        ]  # fmt: skip
        for index, time_ns in enumerate(times_ns):
            self._history.begin(int(time_ns))
            for number, column in columns:
                self._history.put(0, number, float(column[index]))
        if times_ns.size:
            self.tracker.push_samples(
                0, np.ascontiguousarray(times_ns).data, np.ascontiguousarray(samples).data
            )
        self._seconds += 1
        if self._seconds % PERIOD_TURNS == 0:
            self._periods.estimate_next()
            self.tracker.set_step(0, self.step_seconds)

    @property
    def step_seconds(self) -> float:
        """Return the current step of the agent's report; NaN: not known."""
        step = self._periods.step(0)
        return step[0] if step else nan
