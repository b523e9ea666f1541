"""Which events are known, so that an agent that sends one again is told so, and the fleet hears of each revision once."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

#: Events remembered, the half of them that was heard of last at the least; the store looks at all.
EVENTS_MAX = 100_000


class Known(NamedTuple):
    """Up to which revision an event was told to the fleet, and is on disk; -1: not at all."""

    told: int = -1
    durable: int = -1


#: Nearly all are of revision 0 or 1: one object for all that are alike.
_known = lru_cache(maxsize=1024)(Known)


class KnownEvents:
    """By host and event id; a hash stands for both (Python's own, whose secret is the process's), for ids are long."""

    def __init__(self, events_max: int = EVENTS_MAX) -> None:
        self._half = max(1, events_max // 2)
        self._newer = dict[int, Known]()
        self._older = dict[int, Known]()

    def __len__(self) -> int:
        return len(self._newer) + len(self._older)

    def of(self, host: str, event_id: str) -> Known:
        """Return how far an event is known."""
        key = hash((host, event_id))
        return self._newer.get(key) or self._older.get(key) or _known()

    def tell(self, host: str, event_id: str, revision: int) -> bool:
        """Note that the fleet is told of *revision*. False: it was already, or of a later one."""
        known = self.of(host, event_id)
        if revision <= known.told:
            return False
        self._put(host, event_id, _known(revision, known.durable))
        return True

    def store(self, host: str, event_id: str, revision: int) -> None:
        """Note that *revision* is on disk."""
        known = self.of(host, event_id)
        self._put(host, event_id, _known(known.told, max(known.durable, revision)))

    def _put(self, host: str, event_id: str, known: Known) -> None:
        key = hash((host, event_id))
        self._older.pop(key, None)
        self._newer[key] = known
        if len(self._newer) >= self._half:
            self._newer, self._older = {}, self._newer
