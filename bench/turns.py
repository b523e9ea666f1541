"""Alternates turns of one load with and without an addition in one run, so that noise of the
machine affects both.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .measure import Result, percentile

PAIRS = 3
TURN_SECONDS = 6.0
#: Seconds after each change that belong to no turn: old work ends, new work begins.
SETTLE_SECONDS = 1.5
SHARES = (0.5, 0.99)

#: Starts the background load; returns the function that ends it.
Start = Callable[[], Callable[[], None]]
#: (time of the sample by the monotonic clock; seconds)
Sample = tuple[float, float]


@dataclass(frozen=True)
class MeasuredTurn:
    """From *begin* to *end* by the monotonic clock. *idle_share*: of all processors' time."""

    begin: float
    end: float
    is_loaded: bool
    idle_share: float

    def of(self, samples: Sequence[Sample]) -> list[float]:
        """Return the seconds of the samples within the turn."""
        return [seconds for moment, seconds in samples if self.begin <= moment < self.end]


@dataclass
class MeasuredTurns:
    """Alternates turns without and with the load; calls *each* at each turn's begin and end."""

    start: Start
    each: Callable[[], None] = lambda: None
    pairs: int = PAIRS
    seconds: float = TURN_SECONDS
    settle_seconds: float = SETTLE_SECONDS
    done: list[MeasuredTurn] = field(default_factory=list[MeasuredTurn])

    @property
    def whole_seconds(self) -> float:
        """Return the seconds of all turns, without starting and ending the load."""
        return 2 * self.pairs * (self.seconds + self.settle_seconds)

    def run(self) -> None:
        for _ in range(self.pairs):
            self._turn(is_loaded=False)
            end = self.start()
            self._turn(is_loaded=True)
            end()

    def _turn(self, *, is_loaded: bool) -> None:
        time.sleep(self.settle_seconds)
        self.each()
        begin, before = time.monotonic(), _processors()
        time.sleep(self.seconds)
        end, after = time.monotonic(), _processors()
        self.each()
        idle, whole = (two - earlier for earlier, two in zip(before, after, strict=True))
        self.done.append(MeasuredTurn(begin, end, is_loaded, idle / whole))

    def idle_share(self, *, is_loaded: bool) -> float:
        """Return the idle share of all processors."""
        result = [turn.idle_share for turn in self.done if turn.is_loaded == is_loaded]
        return sum(result) / len(result)


def _processors() -> tuple[float, float]:
    """Return (idle, all) ticks of all processors since the machine started."""
    ticks = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)


def results(
    name: str,
    turns: MeasuredTurns,
    by_turn: Sequence[Sequence[float]],
    notes: str = "",
    shares: Sequence[float] = SHARES,
) -> list[Result]:
    """Return a result for each of *shares*, of all turns together; *by_turn*: the seconds in each
    turn.

    The notes show the range of the ratio by pair, and how idle the machine was.
    """
    without, loaded = [list(by_turn[offset::2]) for offset in (0, 1)]
    summary = (
        f"{len(without)} pairs; machine {turns.idle_share(is_loaded=False):.0%} idle without, "
        f"{turns.idle_share(is_loaded=True):.0%} with, load average {os.getloadavg()[0]:.1f}"
    )
    result = []
    for share in shares:
        pooled = [
            percentile([v for side_values in side for v in side_values], share)
            for side in (loaded, without)
        ]
        pairs = sorted(
            percentile(list(w), share) / percentile(list(o), share)
            for o, w in zip(without, loaded, strict=True)
        )
        spread = f"by pair {pairs[0]:.2f} to {pairs[-1]:.2f}, {sum(map(len, without))} and {sum(map(len, loaded))}"
        text = "; ".join(filter(None, (spread, summary, notes))) if share == shares[0] else spread
        result.append(
            Result(f"{name}, p{share * 100:.0f}", 1e3 * pooled[0], "ms", "the same without",
                   1e3 * pooled[1], text)
        )  # fmt: skip
    return result
