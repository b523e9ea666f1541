"""Splits a job's step into data loading, forward, backward and optimizer, with their shares, or abstains."""

from typing import Final

from typing_extensions import Buffer

PARTS: Final[tuple[str, ...]]

def split(
    signals: Buffer, seconds_per_sample: float, step_seconds: float
) -> tuple[float, float, float, float, float, float]:
    """Return the shares of PARTS in the step, NaN if not separated, and a confidence, 0 to 1.

    Forward and backward are NaN, and their sum is set, if only the NVLink traffic separates them.

    *signals*: float32, C order, [7, n], oldest first, NaN if missing: power, utilization, busy SMs,
    tensor cores, memory bandwidth, bytes of PCIe and of NVLink. *step_seconds*: below 5 s, or NaN,
    nothing is separated: GPM is read five times a second, and parts of shorter steps are mixtures.
    Raises ValueError for another number of signals, or *seconds_per_sample* beyond 0.001 to 3600.
    """
