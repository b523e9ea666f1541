"""What was measured of each host at the beginning of each day, kept when the scores that bear it are let go."""

from __future__ import annotations

from typing import Any

from ..judgement.features import OBSERVED

DAY_US, HOUR_US = 86_400_000_000, 3_600_000_000
#: Rows are kept, and looked for among scores, for so long.
DAYS_KEPT = 400

#: Of the oldest score and of the newest day that has rows: scores that waited for a full disk may be of that one.
_SPAN = """
SELECT epoch_us(min(time)), (SELECT coalesce(epoch_us(max(day)), 0) FROM host_days) FROM scores
"""
#: One day's, each host's first of the day. Who has its row is left out before any score's features are read.
_FILL = f"""
INSERT INTO host_days BY NAME
WITH lacking AS (
    SELECT host, min(time) AS time FROM scores
    WHERE time >= make_timestamp($begin) AND time < make_timestamp($end) AND hazard_model IS NOT NULL
        AND host NOT IN (SELECT host FROM host_days WHERE day = make_timestamp($begin)::DATE)
    GROUP BY host
)
SELECT
    host, time::DATE AS day, time,
    {", ".join(f"any_value(features['{name}']) AS {name}" for name in OBSERVED)}
FROM scores JOIN lacking USING (host, time)
WHERE time >= make_timestamp($begin) AND time < make_timestamp($end)
GROUP BY host, time
"""


def fill(connection: Any, now_us: int) -> None:
    """Add the rows of `host_days` that scores have and it lacks, of days whose first hour is over. Again, it adds nothing.

    Raises duckdb.Error.
    """
    ((oldest_us, newest_us),) = connection.execute(_SPAN).fetchall()
    if oldest_us is None:
        return
    first = max(oldest_us // DAY_US, newest_us // DAY_US, now_us // DAY_US - DAYS_KEPT)
    for day in range(first, (now_us - HOUR_US) // DAY_US + 1):
        span = {"begin": day * DAY_US, "end": day * DAY_US + HOUR_US}
        connection.execute(_FILL, span)
