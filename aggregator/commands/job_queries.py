"""SQL of `gangline job`: the list of jobs, and the phases and pace of one job, now or in the past.

The last minutes come from `ops.job_phases` and `ops.job_pace`. Longer times also read the history
(`past.*`) by the same rules, with steps sized for a picture: from all readings if they are few,
else from the minute rollups.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime

#: Seconds of readings in the operators' file.
RECENT_SECONDS = 300
#: Maximum ranks that a story reads.
RANKS_MAX = 100_000
#: Maximum steps of a story, and the allowed step lengths.
STEPS_MAX = 180
STEP_SECONDS = (10, 20, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400)
#: Up to this many GPU-seconds all readings are read, beyond it the rollups.
RAW_GPU_SECONDS_MAX = 500_000.0
#: Default retention of raw readings in Parquet.
RAW_SECONDS_MAX = 72 * 3600.0

LIST_QUERY = """
SELECT m.job, count(DISTINCT host)::INTEGER AS hosts_count, count(DISTINCT (host, gpu))::INTEGER AS gpus_count,
    min(since) AS since, if(bool_or(until IS NULL), NULL, max(until)) AS until,
    any_value(pace) AS pace, any_value(straggler) AS straggler, coalesce(any_value(lost), 0.0) AS lost_gpu_hours
FROM ops.job_members AS m
LEFT JOIN (SELECT job, arg_max(pace, time) AS pace FROM ops.job_pace GROUP BY job) AS p ON p.job = m.job
LEFT JOIN (
    SELECT job, arg_max(host, slowdown_ratio) FILTER (until IS NULL) AS straggler, sum(lost_gpu_hours) AS lost
    FROM ops.stragglers GROUP BY job
) AS s ON s.job = m.job
GROUP BY m.job ORDER BY bool_or(m.until IS NULL) DESC, lost_gpu_hours DESC, m.job
"""


@dataclass(frozen=True, slots=True)
class TimeRange:
    """A range of Unix times; `last_seconds` counts back from the newest reading."""

    begin: float = -math.inf
    end: float = math.inf
    last_seconds: float = math.inf

    def condition(self) -> str:
        """Return the range as an SQL condition on the column `time`."""
        parts = []
        if math.isfinite(self.last_seconds):
            parts.append(f"time >= ops.taken() - to_seconds({int(self.last_seconds)})")
        if math.isfinite(self.begin):
            parts.append(f"time >= {timestamp(self.begin)}")
        if math.isfinite(self.end):
            parts.append(f"time <= {timestamp(self.end)}")
        return " AND ".join(parts) or "true"

    def within(self, since: float, until: float) -> TimeRange:
        """Return the part from *since* to *until*. An open start means the last minutes."""
        begin = self.begin
        if math.isfinite(self.last_seconds):
            begin = max(begin, until - self.last_seconds)
        end = min(self.end, until)
        if not math.isfinite(begin):
            begin = (end if math.isfinite(self.end) else until) - RECENT_SECONDS
        return TimeRange(max(begin, since), end)


def timestamp(seconds: float) -> str:
    """Return a Unix time as SQL."""
    return f"make_timestamp({round(seconds * 1e6)})"


def quoted(text: str) -> str:
    """Return *text* as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def phases_query(job: str, time_range: TimeRange) -> str:
    """Return the query for the recent phases by host."""
    return (
        "SELECT time, host, avg(compute_ratio) AS compute_ratio, avg(wait_ratio) AS wait_ratio, "
        "avg(host_stall_ratio) AS host_stall_ratio, avg(checkpoint_ratio) AS checkpoint_ratio, "
        "avg(idle_ratio) AS idle_ratio, min(source) AS source FROM ops.job_phases "
        f"WHERE job = {quoted(job)} AND {time_range.condition()} GROUP BY time, host ORDER BY time, host"
    )


def pace_query(job: str, time_range: TimeRange) -> str:
    """Return the query for the recent pace."""
    return f"FROM ops.job_pace WHERE job = {quoted(job)} AND {time_range.condition()} ORDER BY time"


def ranks_query(job: str) -> str:
    """Return the query for each rank's last step report, within the last minutes."""
    return (
        "SELECT rank, host, arg_max(step_seconds, time) FILTER (step_seconds IS NOT NULL) AS step_seconds, "
        "arg_max(spread_seconds, time) FILTER (spread_seconds IS NOT NULL) AS spread_seconds, "
        "arg_max(since_seconds, time) AS since_seconds, max(steps_count)::BIGINT AS steps_count, max(time) AS time "
        f"FROM ops.job_steps WHERE job = {quoted(job)} GROUP BY rank, host, process_id ORDER BY rank, host LIMIT {RANKS_MAX}"
    )


def members_query(job: str) -> str:
    """Return the query for a job's hosts, GPU counts and times (until NULL: still running)."""
    return (
        "SELECT host, count(DISTINCT gpu)::INTEGER AS gpus_count, min(since) AS since, "
        "if(bool_or(until IS NULL), NULL, max(until)) AS until FROM ops.job_members "
        f"WHERE job = {quoted(job)} GROUP BY host ORDER BY host"
    )


def stragglers_query(job: str, rows_max: int) -> str:
    """Return the query for stragglers of a job, costliest first; each row has the total cost."""
    return (
        "SELECT host, device, verdict, cause, reason, slowdown_ratio, lost_gpu_hours, since, until, message, "
        "sum(lost_gpu_hours) OVER () AS all_lost_gpu_hours "
        f"FROM ops.stragglers WHERE job = {quoted(job)} ORDER BY lost_gpu_hours DESC, slowdown_ratio DESC, host LIMIT {rows_max}"
    )


def run_query(job: str) -> str:
    """Return the query for the newest run of a job."""
    return (
        "SELECT workload_class, class_confidence, earlier_runs, pace_ratio, pace_ratio_lower, pace_ratio_upper, "
        "slower_than_before, verdict, slow_hosts, run_id::VARCHAR AS run_id, o.message AS memory_message "
        "FROM ops.runs LEFT JOIN (SELECT run_id, message FROM ops.oversized_runs) AS o USING (run_id) "
        f"WHERE job = {quoted(job)} ORDER BY begun DESC LIMIT 1"
    )


def step_seconds_for(span_seconds: float) -> int:
    """Return the step length, in seconds, for a story of *span_seconds*."""
    return next((s for s in STEP_SECONDS if s * STEPS_MAX >= span_seconds), STEP_SECONDS[-1])


@dataclass(frozen=True, slots=True)
class PastStory:
    """A job in a time before, or longer than, the last minutes. `now`: time of newest readings."""

    job: str
    gpus_count: int
    time_range: TimeRange
    now: datetime

    def phases_query(self) -> str:
        """Return the query for phases by host, with the columns of the function `phases_query`."""
        return f"""{self._readings()}
SELECT time, host, avg(compute) AS compute_ratio, avg(wait) AS wait_ratio, avg(stall) AS host_stall_ratio,
    avg(checkpoint) AS checkpoint_ratio, avg(idle) AS idle_ratio, min(source) AS source
FROM phases GROUP BY time, host ORDER BY time, host"""

    def pace_query(self) -> str:
        """Return the query for the pace, with the columns of `ops.job_pace` that a story uses."""
        return f"""{self._readings()},
worked AS (
    SELECT time, median(step) AS step_seconds, median(tensor) AS tensor, median(compute) AS compute,
        count(DISTINCT host) AS hosts_reading
    FROM phases GROUP BY time
),
chosen AS (
    SELECT *,
        CASE
            WHEN count(step_seconds) OVER () >= 0.5 * count(*) OVER () THEN 'steps'
            WHEN count(tensor) OVER () >= 0.5 * count(*) OVER () AND max(tensor) OVER () > 0 THEN 'tensor cores'
            ELSE 'compute share'
        END AS source,
        CASE source WHEN 'steps' THEN 1 / step_seconds WHEN 'tensor cores' THEN tensor ELSE compute END AS work
    FROM worked
),
windows AS (
    SELECT *, median(work) OVER (ORDER BY time ROWS BETWEEN 5 PRECEDING AND CURRENT ROW) AS long,
        median(work) OVER before AS before, median(work) OVER after AS after, mad(work) OVER before AS before_scatter,
        mad(work) OVER after AS after_scatter, count(work) OVER before AS before_count,
        count(work) OVER after AS after_count
    FROM chosen WINDOW before AS (ORDER BY time ROWS BETWEEN 3 PRECEDING AND 1 PRECEDING),
        after AS (ORDER BY time ROWS BETWEEN CURRENT ROW AND 2 FOLLOWING)
),
paced AS (
    SELECT *, nullif(max(long) OVER (), 0) AS best,
        if(before_count = 3 AND after_count = 3 AND abs(after - before) > greatest(0.05 * greatest(before, after),
            3 * greatest(before_scatter, after_scatter)), abs(after - before), 0) AS changed
    FROM windows
)
SELECT time, if(best IS NULL, 0 * work, work / best) AS pace, step_seconds, hosts_reading,
    changed > 0 AND changed > coalesce(max(changed) OVER earlier, 0)
        AND changed >= coalesce(max(changed) OVER later, 0) AS is_change,
    if(is_change, after / nullif(before, 0) - 1, NULL) AS change_ratio, source
FROM paced WINDOW earlier AS (ORDER BY time ROWS BETWEEN 3 PRECEDING AND 1 PRECEDING),
    later AS (ORDER BY time ROWS BETWEEN 1 FOLLOWING AND 3 FOLLOWING)
ORDER BY time"""

    @property
    def span_seconds(self) -> float:
        """Length of the story in seconds."""
        return self.time_range.end - self.time_range.begin

    @property
    def step_seconds(self) -> int:
        """Length of a step in seconds."""
        step = step_seconds_for(self.span_seconds)
        return step if self._is_raw() else max(step, 60)

    def _is_raw(self) -> bool:
        """Return whether to read all readings: they are few and still stored."""
        age_seconds = self.now.timestamp() - self.time_range.begin
        is_small = self.gpus_count * self.span_seconds <= RAW_GPU_SECONDS_MAX
        return is_small and age_seconds < RAW_SECONDS_MAX

    def _source(self, table: str, columns: dict[str, str]) -> str:
        """Return a FROM clause with *columns* (name -> table column), past and current readings."""
        begin, end = timestamp(self.time_range.begin), timestamp(self.time_range.end)
        names = {name: f"{column} AS {name}" for name, column in columns.items()}
        rolled = {name: f"{column}_mean AS {name}" for name, column in columns.items()}
        past, past_columns = (
            (f"past.{table}", names) if self._is_raw() else (f"past.{table}_1m", rolled)
        )
        # A reading that is in both counts twice in a mean, which does not change the mean.
        return (
            f"(SELECT host, device, time, {', '.join(past_columns.values())} FROM {past} WHERE time BETWEEN {begin} AND {end} "
            f"UNION ALL SELECT host, device, time, {', '.join(names.values())} FROM readings.{table} "
            f"WHERE time BETWEEN {begin} AND {end})"
        )

    def _means(self, table: str, columns: dict[str, str]) -> str:
        means = ", ".join(f"avg({name}) AS {name}" for name in columns)
        bucket = f"time_bucket(INTERVAL {self.step_seconds} SECOND, r.time)"
        return (
            f"SELECT r.host, r.device, {bucket} AS time, {means} FROM {self._source(table, columns)} AS r "
            "JOIN members AS m ON r.host = m.host AND r.device = m.gpu AND r.time >= m.since "
            "AND (m.until IS NULL OR r.time <= m.until) GROUP BY ALL"
        )

    def _readings(self) -> str:
        """Return the start of a query, with `phases` by the rules of `ops.job_phases`."""
        shares = {
            "compute": "compute_ratio",
            "wait": "wait_ratio",
            "stall": "host_stall_ratio",
            "checkpoint": "checkpoint_ratio",
            "idle": "idle_ratio",
            "active": "sm_active_ratio",
            "tensor": "tensor_active_ratio",
        }
        return f"""
WITH members AS (
    SELECT host, gpu, min(since) AS since, if(bool_or(until IS NULL), NULL, max(until)) AS until
    FROM ops.job_members WHERE job = {quoted(self.job)} GROUP BY host, gpu
),
fast AS ({self._means("gpu_fast_1s", shares)}),
slow AS ({self._means("gpu_1s", {"used": "utilization_ratio", "watts": "power_watts"})}),
steps AS ({self._means("gpu_fast_10s", {"step": "step_seconds"})}),
beside AS (
    SELECT *, max(watts) OVER own AS watts_most, max(active) OVER own AS active_most, compute IS NOT NULL AS is_known
    FROM slow FULL JOIN fast USING (host, device, time) LEFT JOIN steps USING (host, device, time)
    WINDOW own AS (PARTITION BY host, device)
),
estimated AS (
    SELECT *, least(1, greatest(0, used)) AS resident,
        least(1, greatest(0, coalesce(active / nullif(active_most, 0), (watts / nullif(watts_most, 0) - 0.35) / 0.65)))
            AS busy
    FROM beside
),
phases AS (
    SELECT host, device, time, if(is_known, compute, resident * busy) AS compute,
        if(is_known, wait, resident * (1 - busy)) AS wait, if(is_known, stall, 1 - resident) AS stall,
        if(is_known, checkpoint, NULL) AS checkpoint, if(is_known, coalesce(idle, 0), 0) AS idle, tensor, step,
        if(is_known, 'phases', 'estimated') AS source
    FROM estimated WHERE is_known OR resident IS NOT NULL AND busy IS NOT NULL
)"""
