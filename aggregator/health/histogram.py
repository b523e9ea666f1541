"""A histogram of seconds: what Prometheus calls one, and quantiles of it for ourselves."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


class Histogram:
    """Written by one thread, read by any: a reader may see an observation in one of its numbers only."""

    def __init__(self, bounds: Sequence[float]) -> None:
        """*bounds*: the upper ends of the buckets, rising; what is longer goes in one more."""
        self.bounds = tuple(bounds)
        #: Observations by bucket.
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0
        self.max = 0.0

    @property
    def count(self) -> int:
        """How many were observed."""
        return sum(self.counts)

    def observe(self, value: float) -> None:
        """Count *value*."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value
        self.max = max(self.max, value)

    def quantile(self, share: float, before: Sequence[int] = ()) -> float | None:
        """Return the upper end of the bucket that *share* of the observations lie in or below.

        *before*: an earlier `counts`, what came until then is left out. None when nothing came; of the
        last bucket, which has no end, the longest ever observed.
        """
        earlier = before or [0] * len(self.counts)
        came = [now - then for now, then in zip(self.counts, earlier, strict=True)]
        wanted, seen = share * sum(came), 0
        for at, count in enumerate(came):
            seen += count
            if count and seen >= wanted:
                return self.bounds[at] if at < len(self.bounds) else self.max
        return None
