"""Estimates the period of a job's step from the last minutes of one GPU's signals."""

from typing_extensions import Buffer

def estimate(signals: Buffer, seconds_per_sample: float) -> tuple[float, float]:
    """Return the period in seconds and a confidence, 0 to 1; NaN and 0 if the signals do not show a step.

    *signals*: float32, C order, [k, n]: k signals, at most 16, of n samples each, at most 4,096, oldest first, NaN where a sample
    is missing. A period needs three samples, or five if only signals that are read at every second sample repeat, and
    four repetitions. Raises ValueError for more signals or samples, or *seconds_per_sample* beyond 0.001 to 3600.
    """
