"""Histogram of latencies in milliseconds, with constant memory."""

from __future__ import annotations

from array import array

#: Longer latencies count as this long.
MILLISECONDS_MAX = 120_000


class Latencies:
    """Counts by whole milliseconds."""

    def __init__(self) -> None:
        self._counts = array("L", bytes(8 * (MILLISECONDS_MAX + 1)))
        self.count, self.max = 0, 0.0

    def add(self, seconds: float) -> None:
        self._counts[min(MILLISECONDS_MAX, max(0, int(seconds * 1000)))] += 1
        self.count += 1
        self.max = max(self.max, seconds)

    def share(self, share: float) -> float:
        """Return the latency in seconds at *share* of the sorted counts; NaN without counts."""
        wanted, cumulative = share * self.count, 0
        for index, count in enumerate(self._counts):
            cumulative += count
            if count and cumulative >= wanted:
                return (index + 1) / 1000
        return float("nan")

    def summary(self) -> dict[str, float]:
        """Return count, p50, p99 and max."""
        if not self.count:
            return {"count": 0}
        return {
            "count": self.count,
            "p50": self.share(0.5),
            "p99": self.share(0.99),
            "max": round(self.max, 3),
        }
