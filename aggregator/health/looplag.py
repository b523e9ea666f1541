"""How late the loop is: what holds it up holds up every agent and every answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

#: Cheap enough to be always on: two wake-ups a second.
LOOK_SECONDS = 0.5
#: The worst of the last one to two spans of this length is told.
SPAN_SECONDS = 15.0


class LoopLag:
    """Started on the loop that it watches; `seconds` is for any thread."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None
        self._span, self._worst, self._before = -1, 0.0, 0.0
        self._due = 0.0
        self._now: Callable[[], float] = float

    def start(self) -> None:
        """Begin; call it within the loop."""
        loop = asyncio.get_running_loop()
        self._now, self._due = loop.time, loop.time() + LOOK_SECONDS
        self._task = loop.create_task(self._watch())

    async def _watch(self) -> None:
        while True:
            self._due = self._now() + LOOK_SECONDS
            await asyncio.sleep(LOOK_SECONDS)
            self.note(self._now(), self._now() - self._due)

    def note(self, now: float, late_seconds: float) -> None:
        """Take a lateness over; *now* by any clock that does not jump."""
        span = int(now // SPAN_SECONDS)
        if span != self._span:
            self._before = self._worst if span == self._span + 1 else 0.0
            self._span, self._worst = span, 0.0
        self._worst = max(self._worst, late_seconds)

    @property
    def seconds(self) -> float:
        """The worst lateness of the last 15 to 30 s, that of now among them: a loop that stands still counts."""
        if self._task is None:
            return 0.0
        return max(0.0, self._worst, self._before, self._now() - self._due)

    def stop(self) -> None:
        """End the watch."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
