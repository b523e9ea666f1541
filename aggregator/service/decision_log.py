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


class DecisionLog:
    """Passes batches of decisions to the store; responses never wait. Belongs to the event loop."""

    def __init__(self, store: Store, wall_ns: Callable[[], int]) -> None:
        self._store, self._wall_ns = store, wall_ns
        self.recorder = DecisionRecorder(self.add, wall_ns)
        self._batches: deque[tuple[bytes | mmap, int]] = deque()
        self._bytes = 0
        #: The score process announced a batch that has not arrived yet.
        self.expects_batch = False
        self._known: OrderedDict[str, None] = OrderedDict()
        self._changed = asyncio.Event()
        self._lock = asyncio.Lock()

    def add(self, encoded: bytes | mmap, count: int) -> bool:
        """Queue a batch of *count* decisions. False: the queue is full; the batch is dropped."""
        size = memoryview(encoded).nbytes
        if len(self._batches) >= BATCHES_WAITING_MAX or self._bytes + size > BATCHES_BYTES_MAX:
            self.count_dropped(count)
            return False
        self._batches.append((encoded, count))
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

    @property
    def is_pending(self) -> bool:
        """Whether an answered decision may be missing in the store after `settle` and a commit."""
        return self.expects_batch or bool(self._batches) or not self.recorder.is_empty

    async def settle(self) -> None:
        """Return once all recorded and received decisions are with the store."""
        await self.recorder.flush()
        await self._hand_over()

    async def _hand_over(self) -> None:
        async with self._lock:
            self._changed.clear()
            self.count_dropped(self.recorder.take_dropped())
            while self._batches:
                encoded, count = self._batches.popleft()
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
