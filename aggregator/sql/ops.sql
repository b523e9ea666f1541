-- What operators ask: the same views over the live file and over the operators' file. All ages are
-- counted back from `snapshot.taken`, so that a file read later still tells what was so then.

-- Counter algebra as in fingerprints/counters.py (a test holds them equal): a counter that started over
-- counts nothing, a sentinel is no value, and one that stands at its ceiling sees nothing.
CREATE OR REPLACE MACRO ops.counter_value(value, width_bits, sticks) AS CASE
    WHEN value IN (4294967295, 18446744073709551615) THEN NULL
    WHEN value BETWEEN 9223372036854775795 AND 9223372036854775807 THEN NULL
    WHEN sticks AND width_bits < 64 AND value = pow(2, width_bits)::HUGEINT - 1 THEN NULL
    ELSE value END;
COMMENT ON MACRO ops.counter_value IS
    'a counter''s value; NULL for a sentinel and at the ceiling: ops.counter_value(n, 16, true)';

CREATE OR REPLACE MACRO ops.counter_step(older, newer, width_bits, sticks) AS CASE
    WHEN ops.counter_value(older, width_bits, sticks) IS NULL
        OR ops.counter_value(newer, width_bits, sticks) IS NULL THEN NULL
    WHEN newer >= older THEN newer::HUGEINT - older::HUGEINT
    WHEN width_bits < 64 AND NOT sticks AND older < pow(2, width_bits)::HUGEINT
        AND newer::HUGEINT - older::HUGEINT + pow(2, width_bits)::HUGEINT
            <= pow(2, width_bits)::HUGEINT // 8
        THEN newer::HUGEINT - older::HUGEINT + pow(2, width_bits)::HUGEINT
    ELSE NULL END;
COMMENT ON MACRO ops.counter_step IS
    'what a counter counted between two readings of one boot; NULL when it started over: ops.counter_step(older, newer, 64, false)';

CREATE OR REPLACE VIEW ops.scores_now AS
FROM main.scores QUALIFY row_number() OVER (PARTITION BY host ORDER BY time DESC, version DESC) = 1;
COMMENT ON VIEW ops.scores_now IS 'the last score of each host';

CREATE OR REPLACE VIEW ops.heard AS
SELECT host, greatest(s.heard, r.last_reading) AS heard, r.last_reading
FROM main.hosts AS h LEFT JOIN ops.scores_now AS s USING (host)
LEFT JOIN (
    SELECT host, max(time) AS last_reading
    FROM (
        SELECT host, time FROM readings.host_1s UNION ALL SELECT host, time FROM readings.collector_10s
    ) GROUP BY host
) AS r
    USING (host);
COMMENT ON VIEW ops.heard IS 'when each host was last heard, by the aggregator''s clock';

CREATE OR REPLACE VIEW ops.hosts AS
SELECT
    h.host, coalesce(s.state, 'UNKNOWN') AS state, s.score,
    s.hazard_per_hour * 24 AS hazard_per_day, s.relative_speed,
    coalesce(s.reason_words, 'not judged yet') AS reason, s.clears_when,
    h.simulated, r.heard,
    greatest(0, date_diff('millisecond', r.heard, t.taken)) / 1000.0 AS silent_seconds,
    h.agent_version, h.address, h.labels, h.registered
FROM main.hosts AS h CROSS JOIN main.snapshot AS t LEFT JOIN ops.scores_now AS s USING (host)
LEFT JOIN ops.heard AS r USING (host)
ORDER BY h.host;
COMMENT ON VIEW ops.hosts IS 'every host with its state, score, and strongest reason';

CREATE OR REPLACE MACRO ops.severity(state_name) AS list_position(
    ['UNHEALTHY', 'SUSPECT', 'DEGRADED', 'STALE', 'WATCH', 'PROBATION', 'UNKNOWN', 'MAINTENANCE',
     'HEALTHY'], state_name);
COMMENT ON MACRO ops.severity IS 'a state as a number to sort by, 1 is worst: ops.severity(state)';

CREATE OR REPLACE MACRO ops.worst(n := 10) AS TABLE
SELECT host, state, score, hazard_per_day, relative_speed, reason, silent_seconds, simulated
FROM ops.hosts WHERE NOT (simulated AND coalesce(silent_seconds, 0) > 60)
ORDER BY ops.severity(state), score NULLS LAST, host LIMIT n;
COMMENT ON MACRO TABLE ops.worst IS
    'the n hosts that stand worst, without simulated ones that have ended: FROM ops.worst(n := 5)';

CREATE OR REPLACE MACRO ops.explain(host_name) AS TABLE
SELECT
    e.signal, e.device, e.value, e.unit, e.normal, e.score_delta, e.log_hazard_delta,
    e.relative_speed_factor, e.reason, e.words, e.observed, e.sql
FROM main.evidence AS e JOIN ops.scores_now AS s USING (host, time, version)
WHERE host = host_name ORDER BY e.score_delta, abs(e.log_hazard_delta) DESC;
COMMENT ON MACRO TABLE ops.explain IS 'what a host''s score is made of: FROM ops.explain(''host-17'')';

CREATE OR REPLACE VIEW ops.freshness AS
SELECT host, heard, silent_seconds, state, simulated
FROM ops.hosts ORDER BY silent_seconds DESC NULLS FIRST, host;
COMMENT ON VIEW ops.freshness IS 'how long each host has been silent, longest first';

CREATE OR REPLACE VIEW ops.findings AS
SELECT host, name, subject, words, since, cleared, cleared IS NULL AS still_so, clears_when
FROM main.findings ORDER BY still_so DESC, since DESC;
COMMENT ON VIEW ops.findings IS
    'what is wrong and stands until it is gone: two hosts of one name, a counter stuck, an XID';

CREATE OR REPLACE VIEW ops.faults AS
SELECT
    time, host, device_kind, device, name, code, message, received,
    count, last_time, forms, forms_count, process_id, process_name, attributes
FROM main.events
WHERE name NOT IN ('collector.outcome', 'gpu.process', 'gpu.allocation', 'gpu.told_anew')
ORDER BY received DESC;
COMMENT ON VIEW ops.faults IS
    'faults that hosts reported, such as XIDs, newest first; a storm is one row with its count';

CREATE OR REPLACE MACRO ops.gpu_history(uuid) AS TABLE
SELECT
    time, host, sm_clock_hertz / 1e6 AS sm_clock_megahertz, power_watts, temperature_celsius,
    memory_temperature_celsius, utilization_ratio, clock_event_reasons_flags,
    violation_thermal_nanoseconds, violation_power_nanoseconds, lost_state
FROM readings.gpu_1s WHERE device = uuid ORDER BY time;
COMMENT ON MACRO TABLE ops.gpu_history IS 'a GPU second by second: FROM ops.gpu_history(''GPU-..'')';

CREATE OR REPLACE VIEW ops.changed_last_hour AS
SELECT time, host, state_before, state, score, reason_words, simulated
FROM (
    SELECT *, lag(state) OVER (PARTITION BY host ORDER BY time, version) AS state_before
    FROM main.scores
) CROSS JOIN main.snapshot AS t
WHERE state IS DISTINCT FROM state_before AND time > t.taken - INTERVAL 1 HOUR
ORDER BY time DESC;
COMMENT ON VIEW ops.changed_last_hour IS 'hosts whose state changed within the last hour, newest first';

-- Who runs: `gpu.process` and `gpu.allocation` are told again every 30 minutes (agent/collectors/telling.py),
-- their ids begin with the boot they are of. After a restart all is told anew, and `gpu.told_anew` says from when on.
CREATE OR REPLACE VIEW ops.told_by_boot AS
SELECT
    e.*, coalesce(e.attributes['gpu_instance'], '') AS instance,
    CASE
        WHEN split_part(e.event_id, '/', 1) NOT IN ('', lower(hex(h.boot_id))) THEN 'ended'
        WHEN e.last_time < t.taken - INTERVAL 65 MINUTE
            AND e.attributes['state'] NOT IN ('ended', 'released') THEN 'not told any more'
        WHEN e.last_boottime_ns < a.boottime_ns THEN 'ended'
        ELSE e.attributes['state']
    END AS state
FROM main.events AS e JOIN main.hosts AS h USING (host) CROSS JOIN main.snapshot AS t
LEFT JOIN main.events AS a ON a.name = 'gpu.told_anew' AND a.host = e.host
    AND a.event_id = split_part(e.event_id, '/', 1) || '/anew/' || e.name || '/'
        || CASE e.name WHEN 'gpu.process' THEN left(e.device, 48) ELSE 'host' END
WHERE e.name IN ('gpu.process', 'gpu.allocation');
COMMENT ON VIEW ops.told_by_boot IS
    'what hosts told of processes and allocations, with its state as of now; see ops.gpu_processes, ops.gpu_allocations';

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
FROM ops.told_by_boot AS e WHERE e.name = 'gpu.process'
ORDER BY e.host, e.device, e.process_id;
COMMENT ON VIEW ops.gpu_processes IS
    'each process on each GPU: whose it is, since when; state running, dead (the GPU is held by one that has ended), ended';

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
    'what runs on GPUs now: Slurm jobs, pods, containers, units, with hosts, GPUs, ranks, since when';

CREATE OR REPLACE MACRO ops.job(job_name) AS TABLE
SELECT
    host, gpu, gpu_instance, step, rank, world_size, process_id, process_name, user_id, state,
    since, last_time, source, attributes
FROM ops.gpu_processes WHERE job = job_name::VARCHAR ORDER BY rank, host, gpu, process_id;
COMMENT ON MACRO TABLE ops.job IS
    'the processes of a job on GPUs, also those that have ended: FROM ops.job(123), FROM ops.job(''ml/trainer-0'')';

CREATE OR REPLACE VIEW ops.gpu_allocations AS
SELECT
    a.host, a.device AS gpu, a.attributes['namespace'] AS namespace, a.attributes['pod'] AS pod,
    a.attributes['container'] AS container, a.attributes['resource'] AS resource,
    a.attributes['replica'] AS replica, a.time AS since,
    CASE WHEN a.device LIKE 'GPU-%' THEN coalesce(p.own, 0) END AS processes_count,
    CASE WHEN a.device LIKE 'GPU-%' THEN coalesce(p.others, 0) END AS other_processes_count,
    a.last_time
FROM ops.told_by_boot AS a
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
    'which pod holds which GPU by kubelet''s word, beside the processes there: its own, and those of others';
