"""The aggregator's decision log: passes batches of all processes to the store; responses never wait for it."""

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

#: Batches that wait to be handed to the store, and their bytes; further ones are dropped.
BATCHES_WAITING_MAX, BATCHES_BYTES_MAX = 64, 128 << 20
#: Digests of inputs that are in the store, or on their way to it.
DIGESTS_KNOWN_MAX = 10_000


class DecisionLog:
    """The aggregator's: hands batches of all processes to the store. Belongs to the loop."""

    def __init__(self, store: Store, wall_ns: Callable[[], int]) -> None:
        self._store, self._wall_ns = store, wall_ns
        self.recorder = DecisionRecorder(self.add, wall_ns)
        self._batches: deque[tuple[bytes | mmap, int]] = deque()
        self._bytes = 0
        #: The score process announced a batch that has not arrived.
        self.expects_batch = False
        self._known: OrderedDict[str, None] = OrderedDict()
        self._changed = asyncio.Event()
        self._lock = asyncio.Lock()

    def add(self, encoded: bytes | mmap, count: int) -> bool:
        """Take a batch of *count* decisions. Never raises. False: there is no room, and they are counted as dropped."""
        size = memoryview(encoded).nbytes
        if len(self._batches) >= BATCHES_WAITING_MAX or self._bytes + size > BATCHES_BYTES_MAX:
            self.count_dropped(count)
            return False
        self._batches.append((encoded, count))
        self._bytes += size
        self._changed.set()
        return True

    def count_dropped(self, count: int) -> None:
        """Count decisions that were dropped elsewhere."""
        if count:
            self._store.count_dropped_decisions(count)

    def choose(self, one: ChoiceRecord) -> None:
        """Note that a reservation took an option of a decision. Never raises, never waits."""
        self._store.submit_decisions(DecisionCommit(choices=[one]))

    async def run(self) -> None:
        """Hand over what comes, until this is cancelled."""
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
        """Return once what was decided here, or came from the score process, is with the store."""
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
        """Compress what the store lacks, and queue all for it."""
        while self._store.missing_inputs:
            self._known.pop(self._store.missing_inputs.popleft(), None)
        decisions, parts = decoded_batch(encoded)
        new = {
            digest: compressed(part) for digest, part in parts.items() if digest not in self._known
        }
        records = [
            one._replace(request=compressed(one.request), answer=compressed(one.answer))
            for one in decisions
        ]
        if self._store.submit_decisions(DecisionCommit(records, new)):
            self._known.update(dict.fromkeys(new))
            while len(self._known) > DIGESTS_KNOWN_MAX:
                self._known.popitem(last=False)
