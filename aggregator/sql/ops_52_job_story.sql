-- Who is where: by processes, and by what schedulers say of hosts on which no process of it is known.
CREATE OR REPLACE VIEW ops.job_members AS
SELECT
    job, host, gpu, min(since) AS since,
    if(bool_or(state IN ('running', 'dead')), NULL, max(last_time)) AS until
FROM ops.gpu_processes WHERE job IS NOT NULL GROUP BY job, host, gpu
UNION ALL
SELECT workload, host, device, time, if(gone <= ops.taken(), gone, NULL)
FROM (SELECT workload, unnest(hosts) AS host, time, until AS gone FROM main.gangs) AS g
JOIN (SELECT DISTINCT host, device FROM main.devices WHERE kind = 'gpu') AS d USING (host)
WHERE NOT EXISTS (FROM ops.gpu_processes AS p WHERE p.host = g.host AND p.job = g.workload);
COMMENT ON VIEW ops.job_members IS
    'which GPUs each job has, or had, and from when to when (until NULL: still): SELECT job, host, count(*) AS gpus, min(since) AS since FROM ops.job_members GROUP BY ALL ORDER BY job, host LIMIT 3';

-- Without phases from the agent, utilization less idleness is what the host did not hold back; of that the share at work
-- is SM activity against the GPU's own best, or power between a third of its own highest and that (a waiting H100 draws
-- about a third of its working power). Checkpoints cannot be told from waiting so: NULL.
CREATE OR REPLACE VIEW ops.job_phases AS
WITH slow AS (
    SELECT g.host, g.device, g.time, g.utilization_ratio, g.power_watts, m.job
    FROM readings.gpu_1s AS g JOIN ops.job_members AS m ON g.host = m.host AND g.device = m.gpu
        AND g.time >= m.since AND (m.until IS NULL OR g.time <= m.until)
),
fast AS (
    SELECT
        g.host, g.device, g.time, g.sm_active_ratio, g.compute_ratio, g.wait_ratio, g.host_stall_ratio,
        g.checkpoint_ratio, g.idle_ratio, g.tensor_active_ratio, g.phase_confidence_ratio, m.job
    FROM readings.gpu_fast_1s AS g JOIN ops.job_members AS m ON g.host = m.host AND g.device = m.gpu
        AND g.time >= m.since AND (m.until IS NULL OR g.time <= m.until)
),
by_slow AS (
    SELECT
        job, host, device, time_bucket(INTERVAL 10 SECOND, time) AS time,
        avg(utilization_ratio) AS used, avg(power_watts) AS watts
    FROM slow GROUP BY ALL
),
by_fast AS (
    SELECT
        job, host, device, time_bucket(INTERVAL 10 SECOND, time) AS time,
        avg(sm_active_ratio) AS active, avg(compute_ratio) AS compute, avg(wait_ratio) AS wait,
        avg(host_stall_ratio) AS stall, avg(checkpoint_ratio) AS checkpoint, avg(idle_ratio) AS idle,
        avg(tensor_active_ratio) AS tensor, avg(phase_confidence_ratio) AS confidence
    FROM fast GROUP BY ALL
),
beside AS (
    SELECT
        *, max(watts) OVER own AS watts_most, max(active) OVER own AS active_most
    FROM by_slow FULL JOIN by_fast USING (job, host, device, time)
    WINDOW own AS (PARTITION BY job, host, device)
),
estimated AS (
    SELECT
        *, compute IS NOT NULL AS is_known, least(1, greatest(0, used)) AS resident,
        least(1, greatest(0, coalesce(active / nullif(active_most, 0),
            (watts / nullif(watts_most, 0) - 0.35) / 0.65))) AS work
    FROM beside
)
SELECT
    job, host, device AS gpu, time,
    if(is_known, compute, resident * work) AS compute_ratio,
    if(is_known, wait, resident * (1 - work)) AS wait_ratio,
    if(is_known, stall, 1 - resident) AS host_stall_ratio,
    if(is_known, checkpoint, NULL) AS checkpoint_ratio,
    if(is_known, coalesce(idle, 0), 0) AS idle_ratio,
    tensor AS tensor_active_ratio, watts AS power_watts, confidence AS confidence_ratio,
    if(is_known, 'phases', 'estimated') AS source
FROM estimated WHERE is_known OR resident IS NOT NULL AND work IS NOT NULL
ORDER BY time, host, gpu;
COMMENT ON VIEW ops.job_phases IS
    'what each GPU of a job did, in steps of 10 s: shares of compute, wait, host stall, checkpoint, idle; source estimated: from utilization, SM activity and power, of agents that send no phases: SELECT time, host, compute_ratio, wait_ratio, source FROM ops.job_phases WHERE job = ''123'' LIMIT 3';

-- By steps where the period is known for most of the time; else by the work of the GPU in the middle: tensor cores, or
-- the share of time at work. 1 is the best minute of the job itself. A change: the medians of half a minute before and
-- after differ by more than a twentieth and three times their scatter, most of all within half a minute.
CREATE OR REPLACE VIEW ops.job_pace AS
WITH worked AS (
    SELECT
        job, time, count(DISTINCT host) AS hosts_reading, median(tensor_active_ratio) AS tensor,
        median(compute_ratio) AS compute
    -- What has not ended would show as a change.
    FROM ops.job_phases WHERE time <= ops.taken() - INTERVAL 10 SECOND GROUP BY job, time
),
stepped AS (
    SELECT job, time_bucket(INTERVAL 10 SECOND, g.time) AS time, median(g.step_seconds) AS step_seconds
    FROM readings.gpu_fast_10s AS g JOIN ops.job_members AS m ON g.host = m.host AND g.device = m.gpu
        AND g.time >= m.since AND (m.until IS NULL OR g.time <= m.until)
    WHERE g.step_seconds > 0 GROUP BY ALL
),
chosen AS (
    SELECT
        job, time, hosts_reading, step_seconds,
        CASE
            WHEN count(step_seconds) OVER every >= 0.5 * count(*) OVER every THEN 'steps'
            WHEN count(tensor) OVER every >= 0.5 * count(*) OVER every
                AND max(tensor) OVER every > 0 THEN 'tensor cores'
            ELSE 'compute share'
        END AS source,
        CASE source WHEN 'steps' THEN 1 / step_seconds WHEN 'tensor cores' THEN tensor ELSE compute END AS work
    FROM worked LEFT JOIN stepped USING (job, time)
    WINDOW every AS (PARTITION BY job)
),
windows AS (
    SELECT
        *, median(work) OVER (PARTITION BY job ORDER BY time ROWS BETWEEN 5 PRECEDING AND CURRENT ROW) AS long,
        median(work) OVER before AS before, median(work) OVER after AS after,
        mad(work) OVER before AS before_scatter, mad(work) OVER after AS after_scatter,
        count(work) OVER before AS before_count, count(work) OVER after AS after_count
    FROM chosen
    WINDOW before AS (PARTITION BY job ORDER BY time ROWS BETWEEN 3 PRECEDING AND 1 PRECEDING),
        after AS (PARTITION BY job ORDER BY time ROWS BETWEEN CURRENT ROW AND 2 FOLLOWING)
),
paced AS (
    SELECT
        *, nullif(max(long) OVER (PARTITION BY job), 0) AS best,
        if(before_count = 3 AND after_count = 3
            AND abs(after - before) > greatest(0.05 * greatest(before, after),
                3 * greatest(before_scatter, after_scatter)), abs(after - before), 0) AS changed
    FROM windows
)
SELECT
    job, time, work / best AS pace, step_seconds, hosts_reading,
    changed > 0 AND changed > coalesce(max(changed) OVER earlier, 0)
        AND changed >= coalesce(max(changed) OVER later, 0) AS is_change,
    if(is_change, after / nullif(before, 0) - 1, NULL) AS change_ratio, source
FROM paced
WINDOW earlier AS (PARTITION BY job ORDER BY time ROWS BETWEEN 3 PRECEDING AND 1 PRECEDING),
    later AS (PARTITION BY job ORDER BY time ROWS BETWEEN 1 FOLLOWING AND 3 FOLLOWING)
ORDER BY job, time;
COMMENT ON VIEW ops.job_pace IS
    'the pace of each job in steps of 10 s against its own best minute, where it changed and by how much, how many hosts were read: SELECT time, pace, is_change, hosts_reading FROM ops.job_pace WHERE job = ''123'' ORDER BY time LIMIT 3';

-- Evidence stands from its score to the next score of its host. Devices of a host with one cause are one straggler, at
-- the speed of the slowest; where two stand at once each counts as if it were alone.
CREATE OR REPLACE VIEW ops.stragglers AS
WITH scored AS (
    SELECT
        host, time, version, relative_speed_lower, relative_speed_upper,
        coalesce(lead(time) OVER (PARTITION BY host ORDER BY time, version), ops.taken()) AS until
    FROM main.scores
),
said AS (
    SELECT
        host, e.signal, e.reason, s.time, s.until, min(e.relative_speed_factor) AS speed,
        arg_min(e.device, e.relative_speed_factor) AS device, arg_min(e.words, e.relative_speed_factor) AS words,
        arg_min(e.sql, e.relative_speed_factor) AS sql, any_value(relative_speed_lower) AS speed_lower,
        any_value(relative_speed_upper) AS speed_upper
    FROM main.evidence AS e JOIN scored AS s USING (host, time, version)
    WHERE e.relative_speed_factor < 1 OR starts_with(e.signal, 'gang.') OR starts_with(e.signal, 'network.')
    GROUP BY ALL
),
begun AS (
    SELECT *, time > lag(until) OVER own IS NOT false AS is_new
    FROM said WINDOW own AS (PARTITION BY host, signal, reason ORDER BY time, until)
),
numbered AS (
    SELECT *, sum(is_new::INTEGER) OVER (PARTITION BY host, signal, reason ORDER BY time, until) AS episode
    FROM begun
),
jobs AS (
    SELECT job, host, since, until, sum(gpus) OVER (PARTITION BY job) AS gpus
    FROM (
        SELECT job, host, count(DISTINCT gpu) AS gpus, min(since) AS since,
            if(bool_or(until IS NULL), NULL, max(until)) AS until
        FROM ops.job_members GROUP BY job, host
    )
),
within AS (
    SELECT
        * EXCLUDE (time, until), greatest(n.time, j.since) AS time,
        least(n.until, coalesce(j.until, n.until)) AS until
    FROM numbered AS n JOIN (SELECT job, host, since, until, gpus FROM jobs) AS j USING (host)
    WHERE n.until >= j.since AND (j.until IS NULL OR n.time < j.until)
)
SELECT
    job, host, arg_max(device, time) AS device, min(time) AS since,
    if(max(until) >= ops.taken(), NULL, max(until)) AS until,
    CASE
        WHEN signal = 'gang.unknown' THEN 'unknown'
        WHEN signal LIKE 'gang.workload%' THEN 'workload'
        WHEN signal LIKE 'gang.shared%' OR reason = 'SHARED_CAUSE' THEN 'shared service'
        WHEN signal LIKE '%link%' OR signal LIKE 'network.%' OR signal LIKE 'rdma.%' THEN 'link'
        ELSE 'node'
    END AS verdict,
    signal AS cause, reason, 1 - arg_max(speed, time) AS slowdown_ratio,
    1 - arg_max(speed_upper, time) AS slowdown_lower_ratio,
    1 - arg_max(speed_lower, time) AS slowdown_upper_ratio,
    sum((1 - speed) * gpus * epoch(until - time) / 3600) AS lost_gpu_hours,
    arg_max(words, time) AS words, arg_max(sql, time) AS evidence_sql
FROM within GROUP BY job, host, signal, reason, episode
ORDER BY lost_gpu_hours DESC, job, host;
COMMENT ON VIEW ops.stragglers IS
    'who slowed which job, from when to when (until NULL: still), why, by how much, and the GPU-hours that the whole gang lost by it: SELECT job, host, verdict, reason, slowdown_ratio, lost_gpu_hours FROM ops.stragglers LIMIT 3';
