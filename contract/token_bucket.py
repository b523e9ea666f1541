"""A token bucket: a rate per second and a burst. The caller passes the time, in seconds of any monotonic clock."""

from __future__ import annotations


class TokenBucket:
    """Begins full and fills with time. An amount beyond the level becomes a debt, which later time pays first."""

    __slots__ = ("_burst", "_level", "_rate", "_seconds")

    def __init__(self, rate_per_second: float, burst: float, now: float) -> None:
        self._rate, self._burst = rate_per_second, burst
        self._level, self._seconds = burst, now

    @property
    def paid_at(self) -> float:
        """When all debt is paid; a past time if there is no debt."""
        return self._seconds + max(0.0, -self._level) / self._rate

    def level(self, now: float) -> float:
        """Return the tokens available at *now*; a negative number is a debt. A clock that went back adds no tokens."""
        return min(self._burst, self._level + max(0.0, now - self._seconds) * self._rate)

    def take(self, amount: float, now: float) -> float:
        """Take *amount*, even beyond the level; return the seconds until the debt is paid, 0 without debt."""
        self._level = self.level(now) - amount
        self._seconds = max(self._seconds, now)
        return max(0.0, -self._level / self._rate)

    def try_take(self, now: float) -> float:
        """Take a token and return 0; if none is available, take nothing and return the seconds until the next."""
        wait = self.take(1.0, now)
        if wait:
            self._level += 1.0
        return wait
