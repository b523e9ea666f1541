"""Feed of changed advisories to watchers; a watch can continue after a token."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from itertools import islice
from typing import NamedTuple

from .advisory import Advisory

#: Changes remembered; a watcher that continues from an older one gets all open advisories.
CHANGES_MAX = 10_000
#: Maximum watchers at once.
WATCHERS_MAX = 256
#: A watcher without a message for this long gets a bookmark.
BOOKMARK_SECONDS = 15.0


class AdvisoryChange(NamedTuple):
    """A new state of an advisory; `number` is the token. `advisory` None: a bookmark.

    `number` None: part of a list of all open advisories. A watch cannot continue from there, since
    the rest would be missing.
    """

    number: int | None
    advisory: Advisory | None


class WatchFeed:
    """Ordered changes of advisories, for watchers on one loop.

    `started_ms`: time of the start; it distinguishes the tokens of this feed from those of earlier
    feeds.
    """

    def __init__(
        self,
        started_ms: int,
        changes_max: int = CHANGES_MAX,
        ended_with_holds: Callable[[], list[Advisory]] = list,
    ) -> None:
        """*ended_with_holds*: returns the ended advisories that still have an effect on a host."""
        self.started_ms, self._ended_with_holds = started_ms, ended_with_holds
        self.last = 0
        self.watchers = 0
        self._changes: deque[AdvisoryChange] = deque(maxlen=changes_max)
        self._open: dict[str, Advisory] = {}
        self._changed = asyncio.Event()

    def publish(self, advisory: Advisory) -> None:
        """Send *advisory* to all watchers."""
        self.last += 1
        self._changes.append(AdvisoryChange(self.last, advisory))
        if advisory.is_open:
            self._open[advisory.name] = advisory
        else:
            self._open.pop(advisory.name, None)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def restore(self, advisories: list[Advisory]) -> None:
        """Start with these open advisories, after a restart."""
        self._open = {advisory.name: advisory for advisory in advisories}

    @property
    def open(self) -> list[Advisory]:
        """The open advisories, oldest first."""
        return list(self._open.values())

    def after(self, number: int) -> list[AdvisoryChange] | None:
        """Return the changes after *number*; None if they are forgotten or not from this feed."""
        dropped = self.last - len(self._changes)  # number of the last dropped change
        if not dropped <= number <= self.last:
            return None
        return list(islice(self._changes, number - dropped, None))

    async def watch(
        self, number: int | None, bookmark_seconds: float = BOOKMARK_SECONDS
    ) -> AsyncIterator[AdvisoryChange]:
        """Yield all changes after *number*; first open advisories if it is None or forgotten."""
        position = number
        while True:
            changed = self._changed
            fresh = None if position is None else self.after(position)
            if fresh is None:  # the watch begins, or fell behind the remembered changes
                fresh = self._snapshot()
            position = self.last
            for change in fresh:
                yield change
            if self.last != position:
                continue
            try:
                await asyncio.wait_for(changed.wait(), bookmark_seconds)
            except TimeoutError:
                yield AdvisoryChange(position, None)

    def _snapshot(self) -> list[AdvisoryChange]:
        """Return ended advisories with effects and all open ones, then the bookmark."""
        advisories = [*self._ended_with_holds(), *self.open]
        return [
            *(AdvisoryChange(None, advisory) for advisory in advisories),
            AdvisoryChange(self.last, None),
        ]
