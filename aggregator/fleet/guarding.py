"""What is done in parts, so that one that fails costs the others nothing: it is told of for a while, and logged once."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

log = logging.getLogger(__name__)

#: A part that failed is told of for so long after it failed last: some are due every ten seconds only.
TOLD_SECONDS = 60.0


class Guard:
    """Belongs to one thread."""

    def __init__(self) -> None:
        self._failed: dict[str, str] = {}  # part -> words, since `failing` was asked last
        self._told: dict[str, tuple[str, int]] = {}  # part -> words, until when they are told

    def do(self, part: str, act: Callable[..., Any], *arguments: Any) -> bool:
        """Do it, and say whether that went well. Never raises."""
        try:
            act(*arguments)
        except Exception as error:
            if part not in self._told and part not in self._failed:
                log.exception("%s failed; the other parts go on", part)
            self._failed[part] = f"{part} failed: {type(error).__name__}: {error}"
            return False
        return True

    def failing(self, now_ns: int) -> str:
        """Return words on the parts that failed within TOLD_SECONDS; "" for none."""
        until_ns = now_ns + round(TOLD_SECONDS * 1e9)
        told = {part: one for part, one in self._told.items() if now_ns < one[1] <= until_ns}
        self._told = told | {part: (words, until_ns) for part, words in self._failed.items()}
        self._failed.clear()
        return "; ".join(words for words, _ in self._told.values())
