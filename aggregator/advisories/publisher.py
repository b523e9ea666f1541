"""Publisher of advice: writes and publishes in a task of its own, apart from judging."""

from __future__ import annotations

import asyncio
import logging

from ..arrays import Codes
from ..scoring.evaluate import Judgement
from .engine import AdvisoryEngine

log = logging.getLogger(__name__)

#: Maximum wait for writes at the end; the rest is recomputed after the restart.
CLOSE_SECONDS = 2.0


class Publisher:
    """Writes and publishes advice in a task of its own on the loop, apart from judging."""

    def __init__(self, engine: AdvisoryEngine) -> None:
        self._engine = engine
        self._task: asyncio.Task[None] | None = None
        self._observed = False  # since the last write began
        self._last_error = ""

    def observe(self, judgement: Judgement, gpus: Codes) -> None:
        """Run the machine on a judgement, then write and publish its decisions. Never raises."""
        try:
            self._engine.observe(judgement, gpus)
        except Exception:
            # Decisions before the failure are remembered, and so must be written.
            log.exception("advice failed; the earlier advice stays in force")
        self._observed = True
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._flush_observed())

    async def _flush_observed(self) -> None:
        """Write, and again if a judgement came meanwhile."""
        while self._observed:
            self._observed = False
            await self._flush()

    async def _flush(self) -> None:
        try:
            await self._engine.flush()
            self._last_error = ""
        except Exception as error:  # noqa: BLE001 - disk or DuckDB: the next flush retries
            if str(error) != self._last_error:
                log.warning("advice cannot be stored and is therefore not issued: %s", error)
            self._last_error = str(error)

    async def close(self) -> None:
        """Write the queue and the whole state within CLOSE_SECONDS."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=CLOSE_SECONDS / 2)
        self._engine.snapshot_state()
        await asyncio.wait([asyncio.create_task(self._flush())], timeout=CLOSE_SECONDS / 2)
