-- Who is where: by processes, and by what schedulers say of hosts on which no process of it is known.
-- A process names its job without the login that `qualified_name` (aggregator/advisories/workloads.py) appends.
CREATE OR REPLACE VIEW ops.job_members AS
SELECT
    job, host, gpu, min(since) AS since,
    if(bool_or(state IN ('running', 'dead')), NULL, max(last_time)) AS until
FROM ops.gpu_processes WHERE job IS NOT NULL GROUP BY job, host, gpu
UNION ALL
SELECT workload, host, device, time, if(gone <= ops.taken(), gone, NULL)
FROM (SELECT workload, unnest(hosts) AS host, time, until AS gone FROM main.gangs) AS g
JOIN (SELECT DISTINCT host, device FROM main.devices WHERE kind = 'gpu') AS d USING (host)
WHERE NOT EXISTS (FROM ops.gpu_processes AS p WHERE p.host = g.host AND p.job = regexp_replace(g.workload, ' \(((scheduler|operator|admin|agent) [^()]*|no login)\)$', ''));
COMMENT ON VIEW ops.job_members IS
    'which GPUs each job has or had, with start and end (until NULL: still): SELECT job, host, count(*) AS gpus, min(since) AS since FROM ops.job_members GROUP BY ALL ORDER BY job, host LIMIT 3';

-- The device is JOB/RANK, or JOB/pPID of a rank that is not known.
CREATE OR REPLACE VIEW ops.job_steps AS
SELECT
    regexp_extract(device, '^(.*)/[^/]*$', 1) AS job, host, rank_number::UINTEGER AS rank, time, step_seconds,
    spread_seconds, since_seconds, steps_count, world_count::UINTEGER AS world_size,
    process_number::UINTEGER AS process_id, user_number::UINTEGER AS user_id
FROM readings.step_1s ORDER BY time, job, rank, host;
COMMENT ON VIEW ops.job_steps IS
    'the steps that ranks of training jobs report themselves (import gangline.steps): their time, its standard deviation, how long ago the last ended: SELECT job, rank, host, round(arg_max(step_seconds, time), 3) AS step_seconds FROM ops.job_steps GROUP BY ALL ORDER BY job, rank';

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
    'what each GPU of a job did, in steps of 10 s: shares of compute, wait, host stall, checkpoint, idle; source estimated: from utilization, SM activity and power, for agents that send no phases: SELECT time, host, compute_ratio, wait_ratio, source FROM ops.job_phases WHERE job = ''123'' LIMIT 3';

-- By steps if the period is known for most of the time; else by the work of the median GPU: tensor cores, or the share of
-- time at work. 1 is the reference of the run (job_paces); without a reference, the best minute of the last five. A change:
-- the medians of half a minute before and after differ by more than a twentieth and three times their scatter, most of all
-- within half a minute.
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
-- What the job's own ranks report is the truth.
reported AS (
    SELECT job, time_bucket(INTERVAL 10 SECOND, time) AS time, median(step_seconds) AS reported_seconds
    FROM ops.job_steps WHERE step_seconds > 0 GROUP BY ALL
),
chosen AS (
    SELECT
        job, time, hosts_reading, if(is_reported, reported_seconds, inferred_seconds) AS step_seconds,
        CASE
            WHEN count(step_seconds) OVER every >= 0.5 * count(*) OVER every THEN 'steps'
            WHEN count(tensor) OVER every >= 0.5 * count(*) OVER every
                AND max(tensor) OVER every > 0 THEN 'tensor cores'
            ELSE 'compute share'
        END AS source,
        CASE source WHEN 'steps' THEN 1 / step_seconds WHEN 'tensor cores' THEN tensor ELSE compute END AS work
    FROM (
        SELECT
            job, time, hosts_reading, tensor, compute, step_seconds AS inferred_seconds, reported_seconds,
            count(reported_seconds) OVER (PARTITION BY job) >= 0.5 * count(*) OVER (PARTITION BY job) AS is_reported
        FROM worked LEFT JOIN stepped USING (job, time) LEFT JOIN reported USING (job, time)
    )
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
        w.*, r.reference_time, r.reference_work IS NOT NULL AS is_referenced,
        nullif(coalesce(r.reference_work, max(long) OVER (PARTITION BY w.job)), 0) AS best,
        if(before_count = 3 AND after_count = 3
            AND abs(after - before) > greatest(0.05 * greatest(before, after),
                3 * greatest(before_scatter, after_scatter)), abs(after - before), 0) AS changed
    FROM windows AS w LEFT JOIN (
        SELECT job, measure, max(reference_work) AS reference_work, max(reference_time) AS reference_time
        FROM main.job_paces WHERE is_current GROUP BY job, measure
    ) AS r ON r.job = w.job AND r.measure = w.source
)
SELECT
    job, time, if(best IS NULL, 0 * work, work / best) AS pace, step_seconds, hosts_reading,
    changed > 0 AND changed > coalesce(max(changed) OVER earlier, 0)
        AND changed >= coalesce(max(changed) OVER later, 0) AS is_change,
    if(is_change, after / nullif(before, 0) - 1, NULL) AS change_ratio, source,
    CASE
        WHEN NOT is_referenced THEN 'best of the last five minutes'
        WHEN reference_time IS NULL THEN 'earlier runs of this workload'
        ELSE 'best minute of this run'
    END AS reference, reference_time
FROM paced
WINDOW earlier AS (PARTITION BY job ORDER BY time ROWS BETWEEN 3 PRECEDING AND 1 PRECEDING),
    later AS (PARTITION BY job ORDER BY time ROWS BETWEEN 1 FOLLOWING AND 3 FOLLOWING)
ORDER BY job, time;
COMMENT ON VIEW ops.job_pace IS
    'the pace of each job in steps of 10 s, relative to the best minute of its run or to earlier runs of its workload (reference), where it changed and by how much, how many hosts were read: SELECT time, pace, reference, is_change, hosts_reading FROM ops.job_pace WHERE job = ''123'' ORDER BY time LIMIT 3';

-- The verdicts that the aggregator reaches each second (aggregator/runs/verdicts.py): the same as in `gangline job`.
CREATE OR REPLACE VIEW ops.stragglers AS
SELECT
    job, hosts[1] AS host, device, since, until, verdict, cause, reason, slowdown_ratio,
    if(is_stopped, NULL, slowdown_lower_ratio) AS slowdown_lower_ratio,
    if(is_stopped, NULL, slowdown_upper_ratio) AS slowdown_upper_ratio, lost_gpu_hours, message, evidence_sql, hosts,
    shared_cause, advisory, run_id
FROM main.job_verdicts
ORDER BY until IS NOT NULL, slowdown_ratio DESC, lost_gpu_hours DESC, job, host;
COMMENT ON VIEW ops.stragglers IS
    'each verdict on a job: the host, link or shared cause (with all its hosts) that slowed or stopped the job, with start and end (until NULL: still), slowdown, and the GPU-hours that the whole gang lost while this slowed it most; host NULL: no host is at fault: SELECT job, host, verdict, reason, slowdown_ratio, lost_gpu_hours FROM ops.stragglers LIMIT 3';
