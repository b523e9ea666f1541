"""The agent about itself: how its collectors' turns went, what waits, and what it costs the host."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from ..contract.block import Block
from ..contract.signal import PERIOD_SECONDS
from ..contract.signals import TABLES
from .collector import Turn
from .collectors.block_writer import places_of
from .hardware.files import KeptFile

log = logging.getLogger(__name__)

_STATM = KeptFile(Path("/proc/self/statm"))
_PAGE_BYTES = os.sysconf("SC_PAGESIZE")
#: That there is no connection is told no more often, so that the log lets it through.
AWAY_SECONDS_MIN = 60.0
#: Both tables are told so often, and sooner when an outcome has changed.
OWN_SECONDS = PERIOD_SECONDS[TABLES["agent_10s"][0].pace]
_OF_A_TURN = ("collector.turn_seconds", "collector.outcome_state", "collector.skipped_events")


def cpu_seconds() -> float:
    """Return user and system time of this process since its start."""
    return time.process_time()


def memory_bytes() -> float | None:
    """Return resident memory: the second number of statm, in pages. None where it is not shown."""
    try:
        return float(int(_STATM.read().split()[1]) * _PAGE_BYTES)
    except (ValueError, IndexError):
        return None


def share_bytes() -> float | None:
    """Return this process's share of memory (PSS): what it shares with its forks counts in parts.

    Of /proc/self/smaps_rollup (Linux 4.14), which costs about a millisecond; resident memory where there is none.
    """
    try:
        with open("/proc/self/smaps_rollup", "rb") as file:
            shares = [line for line in file if line.startswith(b"Pss:")]
        return float(shares[0].split()[1]) * 1024
    except (OSError, IndexError, ValueError):
        return memory_bytes()


class Memory:
    """What all processes of the agent cost in memory; looking at it is not free, so not each time."""

    CALLS = 300 // OWN_SECONDS

    def __init__(self, others: Callable[[], int]) -> None:
        """*others*: bytes of the other processes."""
        self._others, self._calls, self._own = others, 0, share_bytes()

    def bytes(self) -> float | None:
        """Return it as of five minutes ago, or sooner; None where it is not shown."""
        self._calls += 1
        if self._calls % self.CALLS == 0 or self._own is None:
            self._own = share_bytes()
        return None if self._own is None else self._own + self._others()


class Own:
    """Fills `collector_10s`, a row per collector, and `agent_10s`. A collector that has had no turn
    yet has no valid cell."""

    def __init__(
        self,
        collectors: Sequence[str],
        counts: Callable[[], Mapping[str, float | None]],
        urgent: Callable[[], object] = lambda: None,
    ) -> None:
        """*counts* returns the value of every signal of `agent_10s`, always in the same order. ValueError for less.
        *urgent*: of these, what is told at once when it has changed."""
        names = counts().keys()
        missing = {signal.name for signal in TABLES["agent_10s"]} ^ names
        if missing:
            raise ValueError(
                f"agent_10s: no value, or no such signal: {', '.join(sorted(missing))}"
            )
        self._counts, self._urgent = counts, urgent
        self._rows = {name: row for row, name in enumerate(collectors)}
        self._last: dict[str, tuple[Turn, int]] = {}  # of each collector, and its turns left out
        self._changed = False  # an outcome, since `blocks`
        self._told: object = None  # of what is urgent
        self._turns = Block("collector_10s", collectors)
        self._turns_places = places_of(self._turns, _OF_A_TURN)
        self._agent = Block("agent_10s", ["agent"])
        self._agent_places = places_of(self._agent, names)

    def record(self, turn: Turn, skipped: int) -> None:
        """Note how a turn went. *skipped*: the collector's turns left out since the start."""
        before = self._last.get(turn.collector)
        if before is None or turn.outcome is not before[0].outcome:
            self._changed = True
        self._last[turn.collector] = turn, skipped

    def turns(self) -> list[Turn]:
        """Return the last turn of each collector that had one."""
        return [turn for turn, _ in self._last.values()]

    @property
    def has_news(self) -> bool:
        """Whether an outcome has changed since `blocks`, or what is urgent."""
        return self._changed or self._urgent() != self._told

    def blocks(self) -> list[Block]:
        """Return both blocks as of now."""
        self._changed, self._told = False, self._urgent()
        for name, (turn, skipped) in self._last.items():
            self._turns_places.put(self._rows[name], (turn.seconds, turn.outcome, skipped))
        self._agent_places.put(0, tuple(self._counts().values()))
        return [self._turns, self._agent]


class Connection(Protocol):
    """How it stands with the aggregator."""

    @property
    def connected(self) -> bool: ...
    @property
    def last_error(self) -> str: ...


class Troubles:
    """Says in the log what changed between the agent, its aggregator and its disk."""

    def __init__(
        self,
        connection: Connection,
        losses: Mapping[str, Callable[[], str]],
        counts: Callable[[], tuple[int, ...]],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """*losses*: what is lost, in words -> the words of the last; *counts* of them so far, in this order."""
        self._monotonic = monotonic
        self._away_at = -AWAY_SECONDS_MIN
        self._connection, self._losses, self._counts = connection, losses, counts
        self._lost: tuple[int, ...] = (0,) * len(losses)
        self._told: tuple[bool, str] = (False, "")

    def look(self) -> None:
        """Log what changed since the last look."""
        self._look_at_connection()
        before, self._lost = self._lost, self._counts()
        if self._lost != before:
            self._tell(before)

    def _look_at_connection(self) -> None:
        """What the log says last is how it stands: at once when it is well again, else within a minute."""
        connected, error = now = self._connection.connected, self._connection.last_error
        if now == self._told:
            return
        if connected:
            extra = {"cause": "aggregator.connected", "topic": "aggregator", "well": True}
            log.info("connected", extra=extra)
        elif self._monotonic() - self._away_at >= AWAY_SECONDS_MIN:
            self._away_at = self._monotonic()
            extra = {"cause": "aggregator.away", "topic": "aggregator", "well": False}
            log.warning("not connected: %s", error, extra=extra)
        else:
            return
        self._told = now

    def _tell(self, before: tuple[int, ...]) -> None:
        for (what, why), count, known in zip(self._losses.items(), self._lost, before, strict=True):
            if count != known:
                extra = {"cause": what.replace(" ", ".")}
                log.warning("%d %s so far; %s", count, what, why(), extra=extra)
