"""Tables that the snapshot file copies from the live file, with age and row limits."""

from __future__ import annotations

from dataclasses import dataclass

#: Maximum age of scores, their evidence, and cleared findings in the file.
SCORES_SECONDS = 3600
#: Scores go back this much further: every host has a score within that time (`score_rows.py`), so
#: its score before its first change of the hour is included.
BEFORE_SECONDS = 600
EVENTS_SECONDS = 86_400
#: The aggregator's own metrics cover a night: in the morning operators look at its beginning.
OWN_HEALTH_SECONDS = 6 * 3600
#: Decisions about advice are reviewed by the month.
ADVICE_DAYS = 30
#: Outcomes affect every hazard, so the file has them for as long as it has the times of faults. It
#: also has the advisories that belong to them; a finished advisory keeps its host out of service
#: while its fault lasts.
OUTCOMES_DAYS = 400
#: Daily measurements of hosts.
DAYS_SECONDS = 30 * 86_400
#: Decisions about gangs, kept as long as advice.
DECISIONS_SECONDS = 30 * 86_400
#: Runs of jobs are compared over weeks.
RUNS_SECONDS = 30 * 86_400

#: Every host reports running processes again and again; a separate limit keeps space for faults.
REPEATED_EVENTS = "name IN ('gpu.process', 'gpu.allocation', 'gpu.full_report')"
#: Tables that are only in the base file.
BASE_TABLES: tuple[str, ...] = ("devices", "signals", "parts")


@dataclass(frozen=True, slots=True)
class TableCopy:
    """Rows copied from a table of the live file: the newest *rows_max* of the last *seconds*."""

    table: str
    rows_max: int = 0  # 0: all
    age_column: str = ""  # the time by which a row ages
    seconds: int = 0  # 0: any age
    condition: str = "true"  # a further condition

    def where(self, now_us: int) -> str:
        """Return the SQL condition at the time *now_us*."""
        since = f"{self.age_column} > make_timestamp({now_us - self.seconds * 1_000_000})"
        return f"({since if self.seconds else 'true'}) AND {self.condition}"


#: Views and tables of the live file that are also in the base file.
CLEARED_FINDINGS = TableCopy("cleared_findings", 100_000, "cleared")
HOST_DAYS = TableCopy("host_days", 100_000, "time", DAYS_SECONDS)
COPIES: tuple[TableCopy, ...] = (
    TableCopy("hosts"),
    TableCopy("clocks"),
    TableCopy("declared_versions"),
    TableCopy("declared_places"),
    TableCopy("declared_windows"),
    TableCopy("declared_overrides"),
    TableCopy("declared_expected"),
    TableCopy("declared_thresholds"),
    TableCopy("declared_costs"),
    TableCopy("declared_tenants"),
    TableCopy("scores", 1_000_000, "time", SCORES_SECONDS + BEFORE_SECONDS),
    TableCopy("evidence", 1_000_000, "time", SCORES_SECONDS),
    TableCopy("findings", 100_000, "coalesce(cleared, 'infinity'::TIMESTAMP)", SCORES_SECONDS),
    TableCopy("events", 100_000, "received", EVENTS_SECONDS, f"NOT {REPEATED_EVENTS}"),
    TableCopy("events", 500_000, "received", EVENTS_SECONDS, REPEATED_EVENTS),
    TableCopy("own_health", 200_000, "time", OWN_HEALTH_SECONDS),
    TableCopy("models", 1_000, "time"),
    TableCopy("advisories", 100_000, "time", OUTCOMES_DAYS * 86_400),
    TableCopy("advice_decisions", 100_000, "time", ADVICE_DAYS * 86_400),
    TableCopy("outcomes", 100_000, "time", OUTCOMES_DAYS * 86_400),
    TableCopy("hazard_calibration"),
    TableCopy("recoveries", 100_000, "time", OUTCOMES_DAYS * 86_400),
    TableCopy("calibration"),
    TableCopy("unavailable"),
    TableCopy("gangs"),
    TableCopy("job_forecasts"),
    TableCopy("run_demand", 20_000, "time", RUNS_SECONDS),
    TableCopy("measured_supply"),
    TableCopy("colocations", 20_000, "time", RUNS_SECONDS),
    TableCopy("interference_models", 20, "time"),
    TableCopy("job_paces"),
    TableCopy("job_verdicts", 100_000, "time", RUNS_SECONDS),
    TableCopy("runs", 20_000, "time", RUNS_SECONDS),
    TableCopy("decisions", 10_000, "time", DECISIONS_SECONDS),
    TableCopy("decision_choices", 10_000, "time", DECISIONS_SECONDS),
)
