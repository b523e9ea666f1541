"""Fills `host_days`: each host's first score of a day, kept for training."""

from __future__ import annotations

from typing import Any

from ..hazard.features import OBSERVED_NAMES

DAY_US, HOUR_US = 86_400_000_000, 3_600_000_000
#: Retention of `host_days`, and lookback in scores.
HOST_DAYS_RETAINED = 400
#: Days of scores since the newest day with rows, inclusive: scores that waited for a full disk may
#: be of that day. Days after $end come from a wall clock that was ahead, and are ignored.
_DAYS_OF_SCORES = f"""
SELECT DISTINCT epoch_us(time) // {DAY_US} AS day FROM scores
WHERE time >= (
    SELECT greatest(coalesce(max(day)::TIMESTAMP, make_timestamp(0)), make_timestamp($end - {HOST_DAYS_RETAINED * DAY_US}))
    FROM host_days WHERE day < make_timestamp($end)::DATE
) AND time < make_timestamp($end)
ORDER BY day
"""
#: Inserts each host's first score of a day. Hosts with a row are excluded before features are read.
_FILL_HOST_DAYS = f"""
INSERT INTO host_days BY NAME
WITH lacking AS (
    SELECT host, min(time) AS time FROM scores
    WHERE time >= make_timestamp($begin) AND time < make_timestamp($end) AND hazard_model IS NOT NULL
        AND host NOT IN (SELECT host FROM host_days WHERE day = make_timestamp($begin)::DATE)
    GROUP BY host
)
SELECT
    host, time::DATE AS day, time,
    {", ".join(f"any_value(features['{name}']) AS {name}" for name in OBSERVED_NAMES)}
FROM scores JOIN lacking USING (host, time)
WHERE time >= make_timestamp($begin) AND time < make_timestamp($end)
GROUP BY host, time
"""


def fill_host_days(connection: Any, now_us: int) -> None:
    """Add missing rows of `host_days` for days whose first hour is over. Raises duckdb.Error."""
    end_us = ((now_us - HOUR_US) // DAY_US + 1) * DAY_US
    for (day,) in connection.execute(_DAYS_OF_SCORES, {"end": end_us}).fetchall():
        span = {"begin": day * DAY_US, "end": day * DAY_US + HOUR_US}
        connection.execute(_FILL_HOST_DAYS, span)
