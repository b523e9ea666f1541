-- Who runs: `gpu.process` and `gpu.allocation` are reported again every 30 minutes (agent/collectors/change_events.py),
-- their ids begin with the boot. After a restart, all is reported again: `gpu.full_report` marks the start.
CREATE OR REPLACE VIEW ops.boot_reports AS
SELECT
    e.*, coalesce(e.attributes['gpu_instance'], '') AS instance,
    CASE
        WHEN split_part(e.event_id, '/', 1) NOT IN ('', lower(hex(h.boot_id))) THEN 'ended'
        WHEN e.last_time < t.taken - INTERVAL 65 MINUTE
            AND e.attributes['state'] NOT IN ('ended', 'released') THEN 'no longer reported'
        WHEN e.last_boottime_ns < a.boottime_ns THEN 'ended'
        ELSE e.attributes['state']
    END AS state
FROM main.events AS e JOIN main.hosts AS h USING (host) CROSS JOIN main.snapshot AS t
LEFT JOIN main.events AS a ON a.name = 'gpu.full_report' AND a.host = e.host
    AND a.event_id = split_part(e.event_id, '/', 1) || '/anew/' || e.name || '/'
        || CASE e.name WHEN 'gpu.process' THEN left(e.device, 48) ELSE 'host' END
WHERE e.name IN ('gpu.process', 'gpu.allocation');
COMMENT ON VIEW ops.boot_reports IS
    'processes and allocations that hosts reported, with their current state; see ops.gpu_processes, ops.gpu_allocations: SELECT host, name, state, count(*) AS reports FROM ops.boot_reports GROUP BY ALL ORDER BY host, name, state LIMIT 5';

CREATE OR REPLACE VIEW ops.gpu_processes AS
SELECT
    e.host, e.device AS gpu, e.attributes['source'] AS source,
    CASE e.attributes['source']
        WHEN 'slurm' THEN e.attributes['job_id']
        WHEN 'kubernetes' THEN coalesce(
            e.attributes['namespace'] || '/' || e.attributes['pod'], e.attributes['pod_uid'],
            e.attributes['container_id'])
        WHEN 'container' THEN e.attributes['container_id']
        WHEN 'systemd' THEN coalesce(e.attributes['user_unit'], e.attributes['unit'])
    END AS job,
    e.attributes['step'] AS step, e.state,
    try_cast(e.attributes['rank'] AS UINTEGER) AS rank,
    try_cast(e.attributes['world_size'] AS UINTEGER) AS world_size,
    e.process_id, e.process_name, try_cast(e.attributes['user_id'] AS UINTEGER) AS user_id,
    try_cast(e.attributes['gpu_instance'] AS UINTEGER) AS gpu_instance,
    try_cast(e.attributes['compute_instance'] AS UINTEGER) AS compute_instance,
    e.attributes['unknown'] AS unknown,
    e.time - to_microseconds(greatest(0, e.boottime_ns::BIGINT
        - coalesce(try_cast(e.attributes['start_nanoseconds'] AS BIGINT), e.boottime_ns::BIGINT))
        // 1000) AS since,
    e.last_time, e.attributes
FROM ops.boot_reports AS e WHERE e.name = 'gpu.process'
ORDER BY e.host, e.device, e.process_id;
COMMENT ON VIEW ops.gpu_processes IS
    'each process on each GPU with its owner and start; state running, dead (a process that has ended still uses the GPU), ended: SELECT host, left(gpu, 12) AS gpu, job, rank, state FROM ops.gpu_processes';

CREATE OR REPLACE VIEW ops.jobs AS
SELECT
    source, job, list_sort(list(DISTINCT host)) AS hosts,
    count(DISTINCT (host, gpu, coalesce(gpu_instance, -1))) AS gpus_count,
    count(*) AS processes_count,
    list_sort(list(DISTINCT rank) FILTER (rank IS NOT NULL)) AS ranks,
    max(world_size) AS world_size, min(since) AS since,
    count(*) FILTER (state = 'dead') AS dead_count, max(last_time) AS last_time
FROM ops.gpu_processes WHERE state IN ('running', 'dead')
GROUP BY source, job, CASE WHEN source IN ('slurm', 'kubernetes') THEN '' ELSE host END
ORDER BY since;
COMMENT ON VIEW ops.jobs IS
    'jobs running on GPUs now: Slurm jobs, pods, containers, units, with hosts, GPUs, ranks and start: SELECT job, hosts, gpus_count, ranks FROM ops.jobs';

CREATE OR REPLACE MACRO ops.job(job_name) AS TABLE
SELECT
    host, gpu, gpu_instance, step, rank, world_size, process_id, process_name, user_id, state,
    since, last_time, source, attributes
FROM ops.gpu_processes WHERE job = job_name::VARCHAR ORDER BY rank, host, gpu, process_id;
COMMENT ON MACRO TABLE ops.job IS
    'the processes of a job on GPUs, also those that have ended (pods as NAMESPACE/NAME): SELECT host, left(gpu, 12) AS gpu, rank, state FROM ops.job(123)';

CREATE OR REPLACE VIEW ops.gpu_allocations AS
SELECT
    a.host, a.device AS gpu, a.attributes['namespace'] AS namespace, a.attributes['pod'] AS pod,
    a.attributes['container'] AS container, a.attributes['resource'] AS resource,
    a.attributes['replica'] AS replica, a.time AS since,
    CASE WHEN a.device LIKE 'GPU-%' THEN coalesce(p.own, 0) END AS processes_count,
    CASE WHEN a.device LIKE 'GPU-%' THEN coalesce(p.others, 0) END AS other_processes_count,
    a.last_time
FROM ops.boot_reports AS a
LEFT JOIN LATERAL (
    SELECT
        count(*) FILTER (job IS NOT DISTINCT FROM a.attributes['namespace'] || '/' || a.attributes['pod'])
            AS own,
        count(*) FILTER (job IS DISTINCT FROM a.attributes['namespace'] || '/' || a.attributes['pod'])
            AS others
    FROM ops.gpu_processes
    WHERE host = a.host AND gpu = a.device AND state IN ('running', 'dead')
) AS p ON true
WHERE a.name = 'gpu.allocation' AND a.state = 'held'
ORDER BY a.host, a.device;
COMMENT ON VIEW ops.gpu_allocations IS
    'which pod has which GPU according to kubelet, with the processes there: its own, and those of others: SELECT host, pod, left(gpu, 12) AS gpu, processes_count FROM ops.gpu_allocations';

CREATE OR REPLACE MACRO ops.job_hosts(job_name) AS TABLE
SELECT
    j.host, j.ranks, j.gpus_count, h.state, s.since AS state_since, h.relative_speed, h.score,
    coalesce(c.slowed_by, h.reason) AS reason, coalesce(c.message, h.reason_message) AS message
FROM (
    SELECT
        host, count(DISTINCT gpu) AS gpus_count,
        list_sort(list(DISTINCT rank) FILTER (rank IS NOT NULL)) AS ranks
    FROM ops.gpu_processes WHERE job = job_name::VARCHAR AND state IN ('running', 'dead') GROUP BY host
) AS j
LEFT JOIN ops.scores_now AS h USING (host) LEFT JOIN ops.state_since AS s USING (host)
LEFT JOIN (
    SELECT e.host, arg_min(e.reason, e.relative_speed_factor) AS slowed_by,
        arg_min(e.message, e.relative_speed_factor) AS message
    FROM main.evidence AS e JOIN ops.scores_now USING (host, time, version)
    WHERE e.relative_speed_factor < 1 GROUP BY e.host
) AS c USING (host)
ORDER BY h.relative_speed NULLS LAST, ops.severity(h.state), j.host;
COMMENT ON MACRO TABLE ops.job_hosts IS
    'the hosts of a job, slowest first, each with the evidence that costs it the most speed, or else its main reason: SELECT host, ranks, state, state_since, relative_speed, reason FROM ops.job_hosts(123)';

CREATE OR REPLACE MACRO ops.gpu_users(uuid) AS TABLE
SELECT since, last_time, state, job, source, process_id, process_name, user_id, rank, host, gpu
FROM ops.gpu_processes WHERE ops.is_part(gpu, uuid) ORDER BY since, process_id;
COMMENT ON MACRO TABLE ops.gpu_users IS
    'processes that used a GPU, in order of time, including ended ones: SELECT since, state, job, process_name FROM ops.gpu_users(''GPU-38df83f5'')';
