"""A token bucket: a rate per second and a burst. The caller passes the time, in seconds of any monotonic clock."""

from __future__ import annotations


class TokenBucket:
    """Begins full and fills with time. What is taken beyond its level is a debt, which time pays first."""

    __slots__ = ("_burst", "_level", "_rate", "_seconds")

    def __init__(self, rate_per_second: float, burst: float, now: float) -> None:
        self._rate, self._burst = rate_per_second, burst
        self._level, self._seconds = burst, now

    @property
    def paid_at(self) -> float:
        """When all debt is paid; without debt, a time that has passed."""
        return self._seconds + max(0.0, -self._level) / self._rate

    def level(self, now: float) -> float:
        """Return what may be taken now; below zero, what is owed. A clock that went back gives nothing away."""
        return min(self._burst, self._level + max(0.0, now - self._seconds) * self._rate)

    def take(self, amount: float, now: float) -> float:
        """Take *amount*, also if it is not there; return after how many seconds the debt is paid, 0: there is none."""
        self._level = self.level(now) - amount
        self._seconds = max(self._seconds, now)
        return max(0.0, -self._level / self._rate)

    def try_take(self, now: float) -> float:
        """Take one if there is one, and return 0; else take none, and return after how many seconds there will be."""
        wait = self.take(1.0, now)
        if wait:
            self._level += 1.0
        return wait
