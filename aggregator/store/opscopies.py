"""What the operators' file takes of each table of the live file: how much, and of what age."""

from __future__ import annotations

from dataclasses import dataclass

#: Scores, their evidence, and cleared findings this old are left out.
SCORES_SECONDS = 3600
EVENTS_SECONDS = 86_400
#: So are the aggregator's readings of itself: what a night began with is asked in the morning.
OWN_SECONDS = 6 * 3600
#: Decisions about advice are looked back at by the month.
ADVICE_DAYS = 30
#: Outcomes move every hazard: they are kept as long as the times of faults, and here. So are advisories, which outcomes are
#: set beside, and of which one that is done holds its host out for as long as its fault stands.
OUTCOMES_DAYS = 400
#: So is what was measured of a host each day.
DAYS_SECONDS = 30 * 86_400


@dataclass(frozen=True, slots=True)
class Copy:
    """What is taken of a table of the live file: the newest *rows_max* of those of the last *seconds*."""

    table: str
    rows_max: int = 0  # 0: all
    column: str = ""  # what tells how old a row is
    seconds: int = 0  # 0: any age
    also: str = "true"  # a further condition

    def where(self, now_us: int) -> str:
        """Return the condition as of *now_us*."""
        since = f"{self.column} > make_timestamp({now_us - self.seconds * 1_000_000})"
        return f"({since if self.seconds else 'true'}) AND {self.also}"


#: Who runs is told again and again by every host: it must not leave a fleet's faults without room.
TOLD = "name IN ('gpu.process', 'gpu.allocation', 'gpu.told_anew')"
#: A view and a table of the live file that the base holds, too.
CLEARED = Copy("cleared_findings", 100_000, "cleared")
DAYS = Copy("host_days", 100_000, "time", DAYS_SECONDS)
#: What the base holds.
STANDING: tuple[str, ...] = ("devices", "signals", "parts")
COPIES: tuple[Copy, ...] = (
    Copy("hosts"),
    Copy("clocks"),
    Copy("declared_versions"),
    Copy("declared_places"),
    Copy("declared_windows"),
    Copy("declared_overrides"),
    Copy("declared_expected"),
    Copy("declared_thresholds"),
    Copy("scores", 1_000_000, "time", SCORES_SECONDS),
    Copy("evidence", 1_000_000, "time", SCORES_SECONDS),
    Copy("findings", 100_000, "coalesce(cleared, 'infinity'::TIMESTAMP)", SCORES_SECONDS),
    Copy("events", 100_000, "received", EVENTS_SECONDS, f"NOT {TOLD}"),
    Copy("events", 500_000, "received", EVENTS_SECONDS, TOLD),
    Copy("own_health", 200_000, "time", OWN_SECONDS),
    Copy("models", 1_000, "time"),
    Copy("advisories", 100_000, "time", OUTCOMES_DAYS * 86_400),
    Copy("advice_decisions", 100_000, "time", ADVICE_DAYS * 86_400),
    Copy("outcomes", 100_000, "time", OUTCOMES_DAYS * 86_400),
    Copy("unavailable"),
    Copy("gangs"),
)
