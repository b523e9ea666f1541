"""How fast somebody may go: buckets that fill with time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable

#: Seconds' worth that may come at once: what waited while the way was cut.
BURST_SECONDS = 20.0
#: Buckets kept; those used longest ago go first, by when they are full again.
BUCKETS_MAX = 100_000


class Bucket:
    """So much a second, and `BURST_SECONDS` of it at once. Never forgives less than it was taken."""

    __slots__ = ("_level", "_rate", "_seconds")

    def __init__(self, rate_per_second: float, now: float) -> None:
        self._rate = rate_per_second
        self._level = rate_per_second * BURST_SECONDS
        self._seconds = now

    def take(self, amount: float, now: float) -> float:
        """Take *amount*, also if it is not there; return after how many seconds the next may be taken, 0 for now."""
        passed = max(0.0, now - self._seconds)
        self._level = min(self._rate * BURST_SECONDS, self._level + passed * self._rate) - amount
        self._seconds = max(self._seconds, now)
        return max(0.0, -self._level / self._rate)

    def ask(self, now: float) -> float:
        """Take one if there is one, and return 0; else take none, and return after how many seconds there will be."""
        wait = self.take(1.0, now)
        if wait:
            self._level += 1.0
        return wait


class Buckets:
    """One for each key. Owned by the loop's thread."""

    def __init__(self, rate_per_second: float, seconds: Callable[[], float]) -> None:
        """*seconds*: a steady clock."""
        self._rate, self._seconds = rate_per_second, seconds
        self._of: OrderedDict[Hashable, Bucket] = OrderedDict()

    def ask(self, key: Hashable) -> float:
        """As `Bucket.ask`, of *key*."""
        now = self._seconds()
        bucket = self._of.get(key)
        if bucket is None:
            bucket = self._of[key] = Bucket(self._rate, now)
            while len(self._of) > BUCKETS_MAX:
                self._of.popitem(last=False)
        self._of.move_to_end(key)
        return bucket.ask(now)
