"""The aggregator's decision log: passes batches of all processes to the store."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from mmap import mmap

from ..decisions.inputs import compressed
from ..store.decision_records import ChoiceRecord, DecisionCommit
from ..store.store import Store
from .decision_recorder import DecisionRecorder, decoded_batch

log = logging.getLogger(__name__)

#: Maximum batches waiting for the store, and their bytes; further batches are dropped.
BATCHES_WAITING_MAX, BATCHES_BYTES_MAX = 64, 128 << 20
#: Maximum remembered digests of inputs that are stored or on their way.
DIGESTS_KNOWN_MAX = 10_000


class ExpectedBatches:
    """Batches of the score process that have begun and may not have arrived. Belongs to the event loop."""

    def __init__(self) -> None:
        # Numbers of a process begin with 1; `_base` makes them rise over all processes.
        self._base = self._begun = self._received = 0
        self._changed = asyncio.Event()

    def begin(self, number: int) -> None:
        """Note that the process has begun batch *number*."""
        self._begun = self._base + number

    def receive(self, number: int) -> None:
        """Note that batch *number* and all before it have arrived, or never will."""
        self._received = self._base + number
        self._notify()

    def give_up(self) -> None:
        """Note that the process has ended."""
        self._base = self._received = self._begun
        self._notify()

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def arrive(self, seconds_max: float) -> None:
        """Return once the batches that have begun by now have arrived, after *seconds_max* at the latest."""
        begun = self._begun
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds_max):
                while self._received < begun:
                    await self._changed.wait()


class DecisionLog:
    """Passes batches of decisions to the store; responses never wait. Belongs to the event loop."""

    def __init__(self, store: Store, wall_ns: Callable[[], int]) -> None:
        self._store, self._wall_ns = store, wall_ns
        self.recorder = DecisionRecorder(self.add, wall_ns)
        self._queued: deque[tuple[bytes | mmap, int]] = deque()
        self._bytes = 0
        self.batches = ExpectedBatches()
        self._known: OrderedDict[str, None] = OrderedDict()
        self._changed = asyncio.Event()
        self._lock = asyncio.Lock()

    def add(self, encoded: bytes | mmap, count: int) -> bool:
        """Queue a batch of *count* decisions. False: the queue is full; the batch is dropped."""
        size = memoryview(encoded).nbytes
        if len(self._queued) >= BATCHES_WAITING_MAX or self._bytes + size > BATCHES_BYTES_MAX:
            self.count_dropped(count)
            return False
        self._queued.append((encoded, count))
        self._bytes += size
        self._changed.set()
        return True

    def count_dropped(self, count: int) -> None:
        """Count decisions that another process dropped."""
        if count:
            self._store.count_dropped_decisions(count)

    def choose(self, one: ChoiceRecord) -> None:
        """Store that a reservation chose an option of a decision. Never raises or waits."""
        self._store.submit_decisions(DecisionCommit(choices=[one]))

    async def run(self) -> None:
        """Pass batches to the store until cancelled."""
        recording = asyncio.create_task(self.recorder.run())
        try:
            while True:
                await self._changed.wait()
                await self._hand_over()
        finally:
            recording.cancel()
            with suppress(asyncio.CancelledError):
                await recording

    async def settle(self, seconds_max: float = 0.0) -> None:
        """Return once all decisions that were answered are with the store.

        Wait at most *seconds_max* for batches that the score process has begun.
        """
        if seconds_max:
            await self.batches.arrive(seconds_max)
        await self.recorder.flush()
        await self._hand_over()

    async def _hand_over(self) -> None:
        async with self._lock:
            self._changed.clear()
            self.count_dropped(self.recorder.take_dropped())
            while self._queued:
                encoded, count = self._queued.popleft()
                self._bytes -= memoryview(encoded).nbytes
                try:
                    await asyncio.to_thread(self._store_batch, encoded)
                except Exception:
                    log.exception("%d decisions cannot be read", count)
                    self.count_dropped(count)

    def _store_batch(self, encoded: bytes | mmap) -> None:
        """Compress new inputs, and submit the batch to the store."""
        while self._store.missing_inputs:
            self._known.pop(self._store.missing_inputs.popleft(), None)
        decisions, parts = decoded_batch(encoded)
        new = {
            digest: compressed(part) for digest, part in parts.items() if digest not in self._known
        }
        records = [
            d._replace(request=compressed(d.request), answer=compressed(d.answer))
            for d in decisions
        ]
        if self._store.submit_decisions(DecisionCommit(records, new)):
            self._known.update(dict.fromkeys(new))
            while len(self._known) > DIGESTS_KNOWN_MAX:
                self._known.popitem(last=False)
