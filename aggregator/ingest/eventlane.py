"""The way of events to the disk: receipted once their fsync is over, many calls by one."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor, wait

from ..store.journal import StoredEvent
from ..store.store import Store
from ..store.storefile import THREADS

#: At the end events that are being written are waited for so long: nobody has a receipt for them.
CLOSE_SECONDS = 2.0


class EventLane:
    """Events of many calls to the journal with one fsync: what comes during one waits for the next."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=THREADS + "events")
        self._writing: Future[None] | None = None
        self._waiting: list[tuple[list[StoredEvent], asyncio.Future[None]]] = []
        self._running: asyncio.Task[None] | None = None

    async def append(self, events: list[StoredEvent]) -> None:
        """Return once *events* are on disk. Raises what `Store.append_events` raises."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((events, done))
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run())
        await done

    async def _run(self) -> None:
        while self._waiting:
            group, self._waiting = self._waiting, []
            events = [event for several, _ in group for event in several]
            error: Exception | None = None
            try:
                self._writing = self._thread.submit(self._store.append_events, events)
                await asyncio.wrap_future(self._writing)
            except Exception as reason:  # noqa: BLE001 - told to those who wait
                error = reason
            for _, done in group:
                if done.done():
                    continue  # its caller has gone
                if error is None:
                    done.set_result(None)
                else:
                    done.set_exception(error)

    def close(self) -> None:
        """Wait for what is being written, for CLOSE_SECONDS at the most, and end the thread."""
        writing = [self._writing] if self._writing else []
        hangs = bool(wait(writing, CLOSE_SECONDS).not_done)
        self._thread.shutdown(wait=not hangs)
