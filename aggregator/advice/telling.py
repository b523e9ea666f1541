"""Advice beside judging: the book is given each judgement, and writes and tells in a task of its own."""

from __future__ import annotations

import asyncio
import logging

from ..fleet.arrays import Codes
from ..judgement.judge import Judgement
from .book import Book

log = logging.getLogger(__name__)

#: At the end what is being written is waited for so long; what is not written by then is worked out anew.
END_SECONDS = 2.0


class Telling:
    """Belongs to the loop, as *book* does."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._task: asyncio.Task[None] | None = None
        self._trouble = ""

    def observe(self, judged: Judgement, gpus: Codes) -> None:
        """Tell the book of a judgement. What it decides is written, then told. Never raises."""
        try:
            self._book.observe(judged, gpus)
        except Exception:
            # What was decided before it failed is remembered, and so is to be written.
            log.exception("advice failed; what was advised before stands")
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._flush())

    async def _flush(self) -> None:
        try:
            await self._book.flush()
            self._trouble = ""
        except Exception as error:  # noqa: BLE001 - the disk's, DuckDB's: it is tried again
            if str(error) != self._trouble:
                log.warning("advice cannot be stored, and so is not given: %s", error)
            self._trouble = str(error)

    async def end(self) -> None:
        """Write what waits, and all that is remembered, within END_SECONDS."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=END_SECONDS / 2)
        self._book.remember()
        await asyncio.wait([asyncio.create_task(self._flush())], timeout=END_SECONDS / 2)
