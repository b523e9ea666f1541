"""Runs parts so that a failing one does not affect the others."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

log = logging.getLogger(__name__)

#: A failure is reported for this long after its last occurrence; some parts run only every 10 s.
FAILURE_REPORT_SECONDS = 60.0


class FaultIsolation:
    """Runs parts so that a failing one does not affect the others. Use it in one thread."""

    def __init__(self) -> None:
        self._failed: dict[str, str] = {}  # part -> message, since the last `failing`
        # Part -> message and the time until which it is reported.
        self._reported: dict[str, tuple[str, int]] = {}

    def run(self, part: str, act: Callable[..., Any], *arguments: Any) -> bool:
        """Run *act*; return whether it succeeded. Never raises."""
        try:
            act(*arguments)
        except Exception as error:
            if part not in self._reported and part not in self._failed:
                log.exception("%s failed; the other parts continue", part)
            self._failed[part] = f"{part} failed: {type(error).__name__}: {error}"
            return False
        return True

    def failing(self, now_ns: int) -> str:
        """Return a message about failures within FAILURE_REPORT_SECONDS; "" if there were none."""
        until_ns = now_ns + round(FAILURE_REPORT_SECONDS * 1e9)
        reported = {
            part: item for part, item in self._reported.items() if now_ns < item[1] <= until_ns
        }
        self._reported = reported | {part: (m, until_ns) for part, m in self._failed.items()}
        self._failed.clear()
        return "; ".join(message for message, _ in self._reported.values())
