"""Delay before the next connection: exponential, with full jitter, within the time that the aggregator gives the fleet."""

from __future__ import annotations

import random

BACKOFF_SECONDS_MIN = 0.5
BACKOFF_SECONDS_MAX = 30.0
#: Delay after a refusal that an early retry cannot change: once to twice this.
BACKOFF_REFUSED_SECONDS = 30.0
#: Upper limit of the time in which an aggregator lets its fleet reconnect.
FLEET_SECONDS_MAX = 120.0


class Backoff:
    """Delay before the next attempt: exponential, with full jitter.

    A thousand agents that lost an aggregator together must not reconnect together. If the
    aggregator gave a time for the whole fleet, the second attempt comes at this host's own moment
    within this time, and later attempts a whole time apart. The first is early: the loss may be
    local.
    """

    def __init__(self, random_source: random.Random) -> None:
        self._random = random_source
        self._failures = 0
        self._fleet_seconds = self._host_seconds = 0.0

    def spread(self, host: str, fleet_seconds: float) -> None:
        """Set the fleet's time to reconnect; the host's name selects its moment."""
        self._fleet_seconds = min(fleet_seconds, FLEET_SECONDS_MAX)
        self._host_seconds = self._fleet_seconds * random.Random(host).random()

    def reset(self) -> None:
        """Count the next failure as the first."""
        self._failures = 0

    def next_delay(self, *, refused: bool, retry_seconds: float | None = None) -> float:
        """Return the delay. *refused*: identity rejected. *retry_seconds*: the server's request."""
        if refused:
            return self._random.uniform(BACKOFF_REFUSED_SECONDS, 2 * BACKOFF_REFUSED_SECONDS)
        if retry_seconds is not None:
            return retry_seconds
        self._failures += 1
        doubled = BACKOFF_SECONDS_MIN * 2.0 ** min(self._failures, 16)
        wait = self._random.uniform(BACKOFF_SECONDS_MIN, min(doubled, BACKOFF_SECONDS_MAX))
        if self._failures > 1 and self._fleet_seconds:
            return max(wait, self._host_seconds if self._failures == 2 else self._fleet_seconds)
        return wait
