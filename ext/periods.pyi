"""Detects the period of a job's step by a vote of its signals."""

from typing_extensions import Buffer

def estimate(signals: Buffer, seconds_per_sample: float) -> tuple[float, float]:
    """Return the period in seconds and its confidence, 0 to 1; NaN and 0 if the signals show none.

    *signals*: float32, C order, [k, n]: k signals, at most 16, of n samples each, at most 4,096, oldest first, NaN where a sample is
    missing. A period of less than three samples, or one that occurs less than four times, is not found: of a signal that is read
    every second time, three of its own samples. Neither is the cycle of a job's pauses. Raises ValueError for more signals or
    samples, or *seconds_per_sample* beyond 0.001 to 3600.
    """

def repeats(
    signals: Buffer, seconds_per_sample: float, seconds: float, skipped_seconds: float = 0.0
) -> tuple[float, float]:
    """Return the period near *seconds* at which the last signals still repeat, and how well, 0 to 1; NaN and 0: they do not.

    The last eight periods are looked at, and 20 s at least, but for the last *skipped_seconds*. The other arguments and the
    exceptions are those of `estimate`.
    """
