"""How far something long has come, on stderr: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from typing import TextIO

from ..store.upkeep.copying import words_of_bytes

BAR_CHARACTERS = 30
#: A bar is drawn at most so often; elsewhere a line is printed at most so often.
BAR_SECONDS, LINE_SECONDS = 0.1, 10.0


class Progress:
    """`begin` a part, tell it what was `seen`, `end` it. Draws nothing when *quiet*."""

    def __init__(
        self,
        *,
        quiet: bool = False,
        out: TextIO | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        said: Callable[[int], str] = words_of_bytes,
    ) -> None:
        self._out = out or sys.stderr
        self._quiet, self._monotonic, self._said = quiet, monotonic, said
        self._is_terminal = self._out.isatty()
        self._what, self._total, self._done = "", 0, 0
        self._drawn = 0.0

    def begin(self, what: str, total: int) -> None:
        """Another part begins, of so many bytes (or what *said* makes words of)."""
        self.end()
        self._what, self._total, self._done = what, total, 0
        self._drawn = self._monotonic()
        if not self._quiet and not self._is_terminal:
            self._line(f"{what}: {self._said(total)}" if total else f"{what} ...")

    def seen(self, size_bytes: int) -> None:
        """So much more is done."""
        self.at(self._done + size_bytes, self._total)

    def at(self, done: int, total: int) -> None:
        """So much is done, of so much."""
        self._done, self._total = done, total
        now, rest = self._monotonic(), BAR_SECONDS if self._is_terminal else LINE_SECONDS
        if now - self._drawn >= rest:
            self._drawn = now
            self._draw()

    def end(self) -> None:
        """The part is over; what follows begins on a line of its own."""
        if self._what and self._is_terminal and not self._quiet:
            self._draw()
            self._line("")
        self._what = ""

    def _draw(self) -> None:
        if self._quiet:
            return
        words = (
            f"{self._what}: {self._said(self._done)} of {self._said(max(self._total, self._done))}"
        )
        if not self._is_terminal:
            self._line(words)
            return
        share = min(1.0, self._done / self._total) if self._total else 1.0
        filled = int(BAR_CHARACTERS * share)
        bar = f"[{'#' * filled}{'.' * (BAR_CHARACTERS - filled)}] {words}"
        width = shutil.get_terminal_size().columns - 1
        print(f"\r\x1b[K{bar[:width]}", end="", file=self._out, flush=True)

    def _line(self, words: str) -> None:
        print(words, file=self._out, flush=True)
