"""Who watches advice: what changed, in order, each with a token from which a broken watch goes on."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from itertools import islice
from typing import NamedTuple

from .advisory import Advisory

#: Changes that are remembered; whoever comes back for older ones gets all that is open instead.
CHANGES_MAX = 10_000
#: Watchers at once.
WATCHERS_MAX = 256
#: A watcher that nothing is told for so long gets a bookmark.
BOOKMARK_SECONDS = 15.0


class Change(NamedTuple):
    """One advisory as it became; `number` is the token. `advisory` None: a bookmark.

    `number` None: it is one of all that is open, and nobody can go on from it: the rest of them would be missing.
    """

    number: int | None
    advisory: Advisory | None


class Feed:
    """Of one loop. `begun_ms` tells the feed of one start from that of another."""

    def __init__(
        self,
        begun_ms: int,
        changes_max: int = CHANGES_MAX,
        standing: Callable[[], list[Advisory]] = list,
    ) -> None:
        """*standing*: returns what has ended, and of which something is still set on a host."""
        self.begun_ms, self._standing = begun_ms, standing
        self.last = 0
        #: Who watches now.
        self.watchers = 0
        self._changes: deque[Change] = deque(maxlen=changes_max)
        self._open: dict[str, Advisory] = {}
        self._news = asyncio.Event()

    def publish(self, advisory: Advisory) -> None:
        """Tell all that watch."""
        self.last += 1
        self._changes.append(Change(self.last, advisory))
        if advisory.is_open:
            self._open[advisory.name] = advisory
        else:
            self._open.pop(advisory.name, None)
        news, self._news = self._news, asyncio.Event()
        news.set()

    def begin(self, advisories: list[Advisory]) -> None:
        """Begin with these, after a restart."""
        self._open = {one.name: one for one in advisories}

    @property
    def open(self) -> list[Advisory]:
        """What is open, oldest first."""
        return list(self._open.values())

    def after(self, number: int) -> list[Change] | None:
        """Return what came after *number*; None when that is forgotten or was never."""
        forgotten = self.last - len(self._changes)  # up to this one
        if not forgotten <= number <= self.last:
            return None
        return list(islice(self._changes, number - forgotten, None))

    async def watch(
        self, number: int | None, bookmark_seconds: float = BOOKMARK_SECONDS
    ) -> AsyncIterator[Change]:
        """Yield what came after *number*, then what comes; for None, or what is forgotten, first all that stands."""
        at = number
        while True:
            news = self._news
            fresh = None if at is None else self.after(at)
            if fresh is None:  # it begins, or came back or read so late that changes are forgotten
                fresh = self._all()
            at = self.last
            for change in fresh:
                yield change
            if self.last != at:
                continue
            try:
                await asyncio.wait_for(news.wait(), bookmark_seconds)
            except TimeoutError:
                yield Change(at, None)

    def _all(self) -> list[Change]:
        """Return what is set still by what has ended and all that is open, with the bookmark that ends it."""
        told = [*self._standing(), *self.open]
        return [*(Change(None, one) for one in told), Change(self.last, None)]
