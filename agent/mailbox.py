"""What other threads ask of the daemon's own: put in from anywhere, done between its turns."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

#: More are not taken: who asks is told so.
LETTERS_MAX = 1024

log = logging.getLogger(__name__)


class Mailbox:
    """`put` from any thread; `do` in the daemon's, whenever `descriptor` can be read."""

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._letters: deque[Callable[[], None]] = deque()
        self._lock = (
            threading.Lock()
        )  # the descriptor can be read while there are letters, and only then

    def put(self, letter: Callable[[], None]) -> bool:
        """Have *letter* called soon. False when too many wait. Never blocks, never raises."""
        with self._lock:
            if len(self._letters) >= LETTERS_MAX:
                return False
            self._letters.append(letter)
            with suppress(OSError, ValueError):  # closed: nobody reads any more
                os.eventfd_write(self.descriptor, 1)
        return True

    def do(self) -> None:
        """Call what was put in, in order. Never raises."""
        if not self._letters:
            return
        with self._lock:
            letters, self._letters = self._letters, deque()
            with suppress(OSError, ValueError):
                os.eventfd_read(self.descriptor)
        for letter in letters:
            try:
                letter()
            except Exception:
                log.exception("what was asked of the daemon failed", extra={"cause": "mailbox"})

    def close(self) -> None:
        """Nothing is put in from now on."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
