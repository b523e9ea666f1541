"""The agent's signals about itself (turns, unsent data, CPU, memory), and its connection log."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..contract.block import Block
from ..contract.signal import PERIOD_SECONDS
from ..contract.signals import TABLES
from .collector import CollectResult
from .collectors.block_writer import row_writer
from .hardware.files import OpenFile

if TYPE_CHECKING:
    from .transport.client import Client  # takes megabytes, which samplers save

log = logging.getLogger(__name__)

_STATM = OpenFile(Path("/proc/self/statm"))
_PAGE_BYTES = os.sysconf("SC_PAGESIZE")
#: Minimum time between logged disconnections, so that the log's rate limit passes them.
DISCONNECT_LOG_SECONDS_MIN = 60.0
#: Period of both tables; they are sent earlier after a change.
SELF_METRICS_SECONDS = PERIOD_SECONDS[TABLES["agent_10s"][0].pace]
_COLLECTOR_SIGNALS = (
    "collector.turn_seconds",
    "collector.outcome_state",
    "collector.skipped_events",
)


def cpu_seconds() -> float:
    """Return user and system time of this process."""
    return time.process_time()


def rss_bytes() -> float | None:
    """Return resident memory: the second number of statm, in pages. None if unreadable."""
    try:
        return float(int(_STATM.read().split()[1]) * _PAGE_BYTES)
    except (ValueError, IndexError):
        return None


def pss_bytes() -> float | None:
    """Return this process's share of memory (PSS), in which shared pages count in parts.

    From /proc/self/smaps_rollup (Linux 4.14), which costs about a millisecond; else the RSS.
    """
    try:
        with open("/proc/self/smaps_rollup", "rb") as file:
            shares = [line for line in file if line.startswith(b"Pss:")]
        return float(shares[0].split()[1]) * 1024
    except (OSError, IndexError, ValueError):
        return rss_bytes()


class MemoryUsage:
    """Memory of all agent processes, measured every CALLS calls: measuring costs CPU time."""

    CALLS = 300 // SELF_METRICS_SECONDS

    def __init__(self, others: Callable[[], int]) -> None:
        """*others* returns bytes of the other processes."""
        self._others, self._calls, self._own_bytes = others, 0, pss_bytes()

    def bytes(self) -> float | None:
        """Return the bytes as of at most five minutes ago; None if unreadable."""
        self._calls += 1
        if self._calls % self.CALLS == 0 or self._own_bytes is None:
            self._own_bytes = pss_bytes()
        return None if self._own_bytes is None else self._own_bytes + self._others()


class SelfMetrics:
    """Fills `collector_10s`, a row per collector, empty before its first turn, and `agent_10s`."""

    def __init__(
        self,
        collectors: Sequence[str],
        counts: Callable[[], Mapping[str, float | None]],
        urgent: Callable[[], object] = lambda: None,
    ) -> None:
        """*counts* returns all signals of `agent_10s` in constant order; else ValueError.

        *urgent* returns the values whose change is reported at once.
        """
        names = counts().keys()
        missing = {signal.name for signal in TABLES["agent_10s"]} ^ names
        if missing:
            raise ValueError(
                f"agent_10s: no value, or no such signal: {', '.join(sorted(missing))}"
            )
        self._counts, self._urgent = counts, urgent
        self._rows = {name: row for row, name in enumerate(collectors)}
        self._last: dict[str, tuple[CollectResult, int]] = {}  # collector -> result, skipped turns
        self._results: list[CollectResult] = []  # cache of `last_results`; empty: outdated
        self._outcome_changed = False  # since `blocks`
        self._published: object = None  # urgent values at the last `blocks`
        self._collector_block = Block("collector_10s", collectors)
        self._collector_cells = row_writer(self._collector_block, _COLLECTOR_SIGNALS)
        self._agent_block = Block("agent_10s", ["agent"])
        self._agent_cells = row_writer(self._agent_block, names)

    def record(self, result: CollectResult, skipped: int) -> None:
        """Record a turn. *skipped*: the collector's skipped turns since the start."""
        before = self._last.get(result.collector)
        if before is None or result.outcome is not before[0].outcome:
            self._outcome_changed, self._results = True, []
        elif result.message != before[0].message:
            self._results = []
        self._last[result.collector] = result, skipped

    def last_results(self) -> list[CollectResult]:
        """Return each collector's last outcome and message; the same list until one changes."""
        self._results = self._results or [result for result, _ in self._last.values()]
        return self._results

    @property
    def has_changes(self) -> bool:
        """Whether an outcome or an urgent value changed since `blocks`."""
        return self._outcome_changed or self._urgent() != self._published

    def blocks(self) -> list[Block]:
        """Return both blocks with the present values."""
        self._outcome_changed, self._published = False, self._urgent()
        for name, (result, skipped) in self._last.items():
            self._collector_cells.put(self._rows[name], (result.seconds, result.outcome, skipped))
        self._agent_cells.put(0, tuple(self._counts().values()))
        return [self._collector_block, self._agent_block]


class ConnectionLog:
    """Logs changes of the connection to the aggregator, and losses of frames and events."""

    def __init__(
        self,
        connection: Client,
        losses: Mapping[str, Callable[[], str]],
        counts: Callable[[], tuple[int, ...]],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """*losses*: kind -> function for its last message; *counts* has the same order."""
        self._monotonic = monotonic
        self._disconnect_logged_at = -DISCONNECT_LOG_SECONDS_MIN
        self._connection, self._losses, self._counts = connection, losses, counts
        self._loss_counts: tuple[int, ...] = (0,) * len(losses)
        self._logged: tuple[bool, str] = (False, "")

    def update(self) -> None:
        """Log the changes since the last update."""
        self._log_connection()
        before, self._loss_counts = self._loss_counts, self._counts()
        if self._loss_counts != before:
            self._log_losses(before)

    def _log_connection(self) -> None:
        """Log the connection's state: a recovery at once, a failure within a minute."""
        connected, error = now = self._connection.connected, self._connection.last_error
        if now == self._logged:
            return
        if connected:
            extra = {"cause": "aggregator.connected", "topic": "aggregator", "well": True}
            log.info("connected", extra=extra)
        elif self._monotonic() - self._disconnect_logged_at >= DISCONNECT_LOG_SECONDS_MIN:
            self._disconnect_logged_at = self._monotonic()
            extra = {"cause": "aggregator.away", "topic": "aggregator", "well": False}
            log.warning("not connected: %s", error, extra=extra)
        else:
            return
        self._logged = now

    def _log_losses(self, before: tuple[int, ...]) -> None:
        for (loss, reason), count, known in zip(
            self._losses.items(), self._loss_counts, before, strict=True
        ):
            if count != known:
                extra = {"cause": loss.replace(" ", ".")}
                log.warning("%d %s so far; %s", count, loss, reason(), extra=extra)
