"""Detects the period of a job's step by a vote of its signals."""

from typing_extensions import Buffer

def estimate(signals: Buffer, seconds_per_sample: float) -> tuple[float, float]:
    """Return the period in seconds and how sure it is, 0 to 1; NaN and 0 where the signals do not say.

    *signals*: float32, C order, [k, n]: k signals, at most 16, of n samples each, at most 4,096, oldest first, NaN where one is
    missing. What repeats within three samples, or less often than four times in all, is no period. Raises ValueError for
    more signals or samples, or *seconds_per_sample* beyond 0.001 to 3600.
    """
