"""Outcomes of jobs and the calibration of hazards as rows of the store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import expm1
from typing import Any, NamedTuple

import duckdb

from ..scoring.calibration import KNOTS_PER_HOUR, Calibration, ReportedOutcomes
from ..scoring.score import HAZARD_PER_HOUR_MAX
from ..store.rows import table, time_us

Connection = duckdb.DuckDBPyConnection
OUTCOME_COLUMNS = (
    "time:time outcome:str advisory:str reporter:str job:str hosts:texts started:time ended:time "
    "interrupted:bool blamed_host:str end_reason:str followed:bool lost_gpu_hours:float "
    "host_hours:float expected_interruptions:float reason:str expected_by_hazard:floats "
    "interruptions_by_hazard:floats decision:str plan_option:int throughput:float queue_seconds:float "
    "domains_spanned:figures communication_share:float"
)
CALIBRATION_COLUMNS = (
    "time:time hazard_per_hour:float outcomes:float host_hours:float interruptions:float expected:float "
    "interruptions_counted:float expected_counted:float factor:float"
)
_KNOTS = range(1, len(KNOTS_PER_HOUR) + 1)
#: A score counts until the next score, which is stored after five minutes, but at most for this
#: long: only scored time counts.
SCORE_SECONDS_MAX = 600


class ExpectedOutcome(NamedTuple):
    """The scores' prediction for an outcome: P(an interruption), the rest by KNOTS_PER_HOUR."""

    interruptions: float
    by_hazard: tuple[float, ...]
    #: Probabilities of the interruption's hazard; their sum is less for hosts without a score.
    shares: tuple[float, ...]


class OutcomeRecord(NamedTuple):
    """An outcome with its row, and the expectation from scores (None: unknown)."""

    outcome: str
    reporter: str
    interrupted: bool
    expected: ExpectedOutcome | None
    row: tuple[Any, ...]
    host_hours: float
    hosts: int

    def add_to(self, reported: ReportedOutcomes, now_ns: int) -> None:
        """Add the outcome to *reported*, if it has an expectation."""
        if self.expected is None:
            return
        chance, by_hazard, shares = self.expected
        interruptions = [self.interrupted * share for share in shares]
        reported.add(
            self.reporter, now_ns, ([(1.0 - chance) * value for value in interruptions], by_hazard),
            (
                [float(value > 0.0) for value in by_hazard],
                [self.host_hours * value / chance for value in by_hazard], interruptions, by_hazard,
            ),
        )  # fmt: skip


def _by_knot(sum_: str) -> str:
    return f"[{', '.join(sum_.format(k=k) for k in _KNOTS)}]"


#: Arguments of `ReportedOutcomes.add` by reporter, the largest first, as of the newest outcome.
_REPORTED = f"""
WITH known AS (
    SELECT *, 0.5 ** ((epoch_us(max(time) OVER ()) - epoch_us(time)) / 86400e6 / $1) AS weight
    FROM outcomes WHERE expected_by_hazard IS NOT NULL
)
SELECT
    reporter, epoch_us(max(max(time)) OVER ()) * 1000,
    {_by_knot("sum(weight * (1 - expected_interruptions) * interruptions_by_hazard[{k}])")},
    {_by_knot("sum(weight * expected_by_hazard[{k}])")},
    {_by_knot("sum((expected_by_hazard[{k}] > 0)::INTEGER)")},
    {_by_knot("sum(host_hours * expected_by_hazard[{k}] / expected_interruptions)")},
    {_by_knot("sum(interruptions_by_hazard[{k}])")},
    {_by_knot("sum(expected_by_hazard[{k}])")}
FROM known GROUP BY reporter ORDER BY sum(weight) DESC, reporter
"""


def read_outcome_stats(connection: Connection, half_life_days: float) -> ReportedOutcomes:
    """Return the reported outcomes; each halves in *half_life_days*."""
    result = ReportedOutcomes(half_life_days)
    for reporter, time_ns, interruptions, expected, *totals in connection.execute(
        _REPORTED, [half_life_days]
    ).fetchall():
        result.add(reporter, time_ns, (interruptions, expected), totals)
    return result


def calibration_rows(
    now_ns: int, reported: ReportedOutcomes, calibration: Calibration
) -> list[tuple[Any, ...]]:
    """Return the rows of `hazard_calibration` for *reported* at *now_ns*."""
    columns = zip(
        KNOTS_PER_HOUR, *reported.totals.tolist(), calibration.interruptions, calibration.expected, calibration.factors,
        strict=True,
    )  # fmt: skip
    return [(time_us(now_ns), *values) for values in columns]


class OutcomeHost(NamedTuple):
    """A host of an outcome, by number. `is_suspect`: it may have caused an interruption."""

    number: int
    host: str
    begin_ns: int
    end_ns: int
    is_interrupted: bool = False
    is_suspect: bool = True


#: Hosts of outcomes with their time and the scores stored in it. Hazards exclude the addition by
#: outcomes, which would otherwise feed back, and are limited like a single fault's. A host counts
#: until it is UNHEALTHY or in maintenance, when its interruption is certain or intended; the
#: hosts of an interrupted job count only until a suspect host is.
_EXPECTED = f"""
WITH stood AS (
    SELECT
        o.*, s.state IN ('UNHEALTHY', 'MAINTENANCE') AS is_out,
        least(s.hazard_per_hour * exp(-coalesce(s.log_hazard_outcomes, 0)), {HAZARD_PER_HOUR_MAX}) AS hazard,
        greatest(s.time, o.started) AS since,
        least(
            coalesce(lead(s.time) OVER (PARTITION BY o.number, o.host ORDER BY s.time, s.version), o.ended),
            s.time + INTERVAL {SCORE_SECONDS_MAX} SECOND, o.ended
        ) AS until
    FROM told AS o JOIN scores AS s ON s.host = o.host
        AND s.time BETWEEN o.started - INTERVAL {SCORE_SECONDS_MAX} SECOND AND o.ended
),
counted AS (
    SELECT
        number, host, is_suspect, hazard, since, stop, least(until, stop, host_stop) AS until,
        [greatest(0, 1 - abs(least(greatest(log10(hazard / {KNOTS_PER_HOUR[0]}), 0), {len(KNOTS_PER_HOUR) - 1}) - k))
            FOR k IN range({len(KNOTS_PER_HOUR)})] AS near
    FROM (
        SELECT
            *, coalesce(min(since) FILTER (is_out AND is_interrupted AND is_suspect) OVER (PARTITION BY number), ended) AS stop,
            coalesce(min(since) FILTER (is_out) OVER (PARTITION BY number, host), ended) AS host_stop
        FROM stood WHERE until > since
    )
    WHERE least(until, stop, host_stop) > since
),
hosts AS (
    SELECT
        number, host, {_by_knot("sum(hazard * near[{k}] * epoch_us(until - since)) / 3600e6")} AS hazards,
        CASE WHEN any_value(is_suspect) AND max(until) >= any_value(stop) THEN max_by(hazard, until) END AS last,
        max_by(near, until) AS near
    FROM counted GROUP BY number, host
)
SELECT
    number, {_by_knot("sum(hazards[{k}])")}, {_by_knot("coalesce(sum(last * near[{k}]) / sum(last), 0)")}, count(last)
FROM hosts GROUP BY number
"""


def expected_outcomes(
    connection: Connection, outcome_hosts: Sequence[OutcomeHost]
) -> dict[int, ExpectedOutcome]:
    """Return the scores' expectation by outcome number; absent for outcomes without scores."""
    hosts = table(
        "number:int host:str started:time ended:time is_interrupted:bool is_suspect:bool",
        [
            (*host[:2], time_us(host.begin_ns), time_us(host.end_ns), *host[4:])
            for host in outcome_hosts
        ],
    )
    suspects = Counter(host.number for host in outcome_hosts if host.is_suspect)
    connection.register("told", hosts)
    try:
        expected = connection.execute(_EXPECTED).fetchall()
    finally:
        connection.unregister("told")
    return {
        number: _expected_outcome(hazards, [share * scored / suspects[number] for share in shares])
        for number, hazards, shares, scored in expected
        if sum(hazards) > 0.0
    }


def _expected_outcome(hazards: Sequence[float], shares: Sequence[float]) -> ExpectedOutcome:
    """Return the expectation for *hazards*, summed over hosts and time by KNOTS_PER_HOUR."""
    chance = -expm1(-sum(hazards))
    by_hazard = tuple(chance * hazard / sum(hazards) for hazard in hazards)
    return ExpectedOutcome(chance, by_hazard, tuple(shares))


def outcome_names(connection: Connection, count: int) -> list[tuple[str, str]]:
    """Return reporter and id of the newest *count* outcomes, oldest first."""
    rows = connection.execute(
        "SELECT reporter, outcome FROM outcomes WHERE outcome <> '' ORDER BY time DESC LIMIT ?",
        [count],
    ).fetchall()
    return [(reporter, name) for reporter, name in reversed(rows)]
