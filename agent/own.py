"""The agent about itself: how its collectors' turns went, what waits, and what it costs the host."""

from __future__ import annotations

import logging
import os
import resource
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from ..fingerprints.block import Block, is_float
from ..fingerprints.catalogue import BY_NAME, TABLES, index_of
from .hardware.files import KeptFile
from .turn import Turn

log = logging.getLogger(__name__)

_STATM = KeptFile(Path("/proc/self/statm"))
_PAGE_BYTES = os.sysconf("SC_PAGESIZE")
_SECONDS = index_of("collector.turn_seconds")
_OUTCOME = index_of("collector.outcome_state")
_SKIPPED = index_of("collector.skipped_events")


def cpu_seconds() -> float:
    """Return user and system time of this process since its start."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def memory_bytes() -> float | None:
    """Return resident memory: the second number of statm, in pages. None where it is not shown."""
    try:
        return float(int(_STATM.read().split()[1]) * _PAGE_BYTES)
    except (ValueError, IndexError):
        return None


class Own:
    """Fills `collector_1s`, a row per collector, and `agent_1s`. A collector that has had no turn
    yet has no valid cell."""

    def __init__(
        self, collectors: Sequence[str], counts: Mapping[str, Callable[[], float | None]]
    ) -> None:
        """*counts*: every signal of `agent_1s` -> where its value comes from. ValueError for less."""
        missing = {signal.name for signal in TABLES["agent_1s"]} ^ counts.keys()
        if missing:
            raise ValueError(f"agent_1s: no value, or no such signal: {', '.join(sorted(missing))}")
        self._counts = [(index_of(name), is_float(BY_NAME[name].signal_id), value)
                        for name, value in counts.items()]  # fmt: skip
        self._rows = {name: row for row, name in enumerate(collectors)}
        self._turns = Block("collector_1s", collectors)
        self._agent = Block("agent_1s", ["agent"])

    def record(self, turn: Turn, skipped: int) -> None:
        """Note how a turn went. *skipped*: the collector's turns left out since the start."""
        row = self._rows[turn.collector]
        self._turns.put_float(_SECONDS, row, turn.seconds)
        self._turns.put_int(_OUTCOME, row, int(turn.outcome))
        self._turns.put_int(_SKIPPED, row, skipped)

    def blocks(self) -> list[Block]:
        """Return both blocks as of now."""
        for column, gauge, value_of in self._counts:
            value = value_of()
            if gauge or value is None:
                self._agent.put_float(column, 0, value)
            else:
                self._agent.put_int(column, 0, int(value))
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
        losses: Mapping[str, tuple[Callable[[], int], Callable[[], str]]],
    ) -> None:
        """*losses*: what is lost, in words -> how many so far, and the words of the last."""
        self._connection = connection
        self._losses = dict(losses)
        self._lost = dict.fromkeys(losses, 0)
        self._told: tuple[bool, str] = (False, "")

    def look(self) -> None:
        """Log what changed since the last look."""
        connected, error = now = self._connection.connected, self._connection.last_error
        if now != self._told:
            self._told = now
            if connected:
                log.info("connected", extra={"cause": "aggregator.connected"})
            else:
                log.warning("not connected: %s", error, extra={"cause": "aggregator.away"})
        for what, (count_of, why) in self._losses.items():
            count = count_of()
            if count != self._lost[what]:
                self._lost[what] = count
                log.warning(
                    "%d %s so far; %s", count, what, why(), extra={"cause": what.replace(" ", ".")}
                )
