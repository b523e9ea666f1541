"""The agent's signals about itself: turns of its collectors, unsent data, and its own CPU and memory."""

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
    from .transport.client import Client  # megabytes, which samplers do without

log = logging.getLogger(__name__)

_STATM = OpenFile(Path("/proc/self/statm"))
_PAGE_BYTES = os.sysconf("SC_PAGESIZE")
#: A lost connection is logged at most this often, so that the log's limit lets it through.
DISCONNECT_LOG_SECONDS_MIN = 60.0
#: Both tables are sent this often, and sooner when an outcome has changed.
SELF_METRICS_SECONDS = PERIOD_SECONDS[TABLES["agent_10s"][0].pace]
_COLLECTOR_SIGNALS = (
    "collector.turn_seconds",
    "collector.outcome_state",
    "collector.skipped_events",
)


def cpu_seconds() -> float:
    """Return user and system time of this process since its start."""
    return time.process_time()


def rss_bytes() -> float | None:
    """Return resident memory: the second number of statm, in pages. None where it is not shown."""
    try:
        return float(int(_STATM.read().split()[1]) * _PAGE_BYTES)
    except (ValueError, IndexError):
        return None


def pss_bytes() -> float | None:
    """Return this process's share of memory (PSS): what it shares with its forks counts in parts.

    Of /proc/self/smaps_rollup (Linux 4.14), which costs about a millisecond; resident memory where there is none.
    """
    try:
        with open("/proc/self/smaps_rollup", "rb") as file:
            shares = [line for line in file if line.startswith(b"Pss:")]
        return float(shares[0].split()[1]) * 1024
    except (OSError, IndexError, ValueError):
        return rss_bytes()


class MemoryUsage:
    """What all processes of the agent cost in memory; looking at it is not free, so not each time."""

    CALLS = 300 // SELF_METRICS_SECONDS

    def __init__(self, others: Callable[[], int]) -> None:
        """*others*: bytes of the other processes."""
        self._others, self._calls, self._own_bytes = others, 0, pss_bytes()

    def bytes(self) -> float | None:
        """Return it as of five minutes ago, or sooner; None where it is not shown."""
        self._calls += 1
        if self._calls % self.CALLS == 0 or self._own_bytes is None:
            self._own_bytes = pss_bytes()
        return None if self._own_bytes is None else self._own_bytes + self._others()


class SelfMetrics:
    """Fills `collector_10s`, a row per collector, and `agent_10s`. A collector that has had no turn
    yet has no valid cell."""

    def __init__(
        self,
        collectors: Sequence[str],
        counts: Callable[[], Mapping[str, float | None]],
        urgent: Callable[[], object] = lambda: None,
    ) -> None:
        """*counts* returns the value of every signal of `agent_10s`, always in the same order. ValueError for less.
        *urgent*: of these, what is reported at once when it has changed."""
        names = counts().keys()
        missing = {signal.name for signal in TABLES["agent_10s"]} ^ names
        if missing:
            raise ValueError(
                f"agent_10s: no value, or no such signal: {', '.join(sorted(missing))}"
            )
        self._counts, self._urgent = counts, urgent
        self._rows = {name: row for row, name in enumerate(collectors)}
        self._last: dict[
            str, tuple[CollectResult, int]
        ] = {}  # of each collector, and its turns left out
        self._results: list[CollectResult] = []  # as `last_results` returned them; empty: not now
        self._outcome_changed = False  # an outcome, since `blocks`
        self._published: object = None  # of what is urgent
        self._collector_block = Block("collector_10s", collectors)
        self._collector_cells = row_writer(self._collector_block, _COLLECTOR_SIGNALS)
        self._agent_block = Block("agent_10s", ["agent"])
        self._agent_cells = row_writer(self._agent_block, names)

    def record(self, result: CollectResult, skipped: int) -> None:
        """Note how a turn went. *skipped*: the collector's turns left out since the start."""
        before = self._last.get(result.collector)
        if before is None or result.outcome is not before[0].outcome:
            self._outcome_changed, self._results = True, []
        elif result.message != before[0].message:
            self._results = []
        self._last[result.collector] = result, skipped

    def last_results(self) -> list[CollectResult]:
        """Return a turn of each collector that had one, with the outcome and message of its last: the same list until one
        of these changes."""
        self._results = self._results or [result for result, _ in self._last.values()]
        return self._results

    @property
    def has_changes(self) -> bool:
        """Whether an outcome has changed since `blocks`, or what is urgent."""
        return self._outcome_changed or self._urgent() != self._published

    def blocks(self) -> list[Block]:
        """Return both blocks as of now."""
        self._outcome_changed, self._published = False, self._urgent()
        for name, (result, skipped) in self._last.items():
            self._collector_cells.put(self._rows[name], (result.seconds, result.outcome, skipped))
        self._agent_cells.put(0, tuple(self._counts().values()))
        return [self._collector_block, self._agent_block]


class ConnectionLog:
    """Says in the log what changed between the agent, its aggregator and its disk."""

    def __init__(
        self,
        connection: Client,
        losses: Mapping[str, Callable[[], str]],
        counts: Callable[[], tuple[int, ...]],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """*losses*: what is lost, as text -> the words of the last; *counts* of them so far, in this order."""
        self._monotonic = monotonic
        self._disconnect_logged_at = -DISCONNECT_LOG_SECONDS_MIN
        self._connection, self._losses, self._counts = connection, losses, counts
        self._loss_counts: tuple[int, ...] = (0,) * len(losses)
        self._logged: tuple[bool, str] = (False, "")

    def update(self) -> None:
        """Log what changed since the last look."""
        self._log_connection()
        before, self._loss_counts = self._loss_counts, self._counts()
        if self._loss_counts != before:
            self._log_losses(before)

    def _log_connection(self) -> None:
        """The last log line shows the current state: at once after a recovery, else within a minute."""
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
