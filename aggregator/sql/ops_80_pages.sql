CREATE OR REPLACE MACRO ops.host(host_name) AS TABLE
SELECT about, what, message, time
FROM (
    SELECT 1 AS place, 0.0 AS weight, 'state' AS about, h.state AS what,
        concat_ws(' ', nullif(h.reason, ''), if(s.or_longer, '(or longer)', NULL)) AS message, s.since AS time
    FROM ops.hosts AS h LEFT JOIN ops.state_since AS s USING (host) WHERE host = host_name
    UNION ALL
    SELECT 1, 1, 'state', 'NOT KNOWN',
        'no host of this name has registered: SELECT host FROM ops.hosts lists them', NULL
    WHERE host_name <> '(aggregator)' AND host_name NOT IN (SELECT host FROM main.hosts)
    UNION ALL
    SELECT 2, 0, 'score', format('{:.6f}', score), format('hazard {:.3f} a day, relative speed {:.2f}',
        hazard_per_hour * 24, relative_speed), time
    FROM ops.scores_now WHERE host = host_name
    UNION ALL
    SELECT 3, 0, 'clears', '', clears_when, NULL FROM ops.scores_now WHERE host = host_name AND clears_when <> ''
    UNION ALL
    SELECT 4, 0, 'last seen', format('{:.1f} s ago', silent_seconds), concat_ws(', ', address,
        'agent ' || nullif(agent_version, ''), if(simulated, 'simulated', NULL)), last_seen
    FROM ops.hosts WHERE host = host_name
    UNION ALL
    SELECT 5, 0, 'clock', format('{:+.6f} s', offset_seconds), 'off true time by its own word'
        || if(synchronised_state = 1, '', ', NOT SYNCHRONISED'), time
    FROM latest.clock_10s WHERE host = host_name
    UNION ALL
    SELECT 5, 1, 'clock', format('{:+.3f} s', offset_seconds), 'ahead of the aggregator''s'
        || coalesce(format(', give or take {:.3f} s', error_seconds), ''), measured
    FROM main.clocks WHERE host = host_name
    UNION ALL
    SELECT 6, score_delta, 'evidence', reason, message, observed FROM ops.explain(host_name)
    UNION ALL
    SELECT 7, 0, 'advice', severity, action, observed
    FROM ops.advisories WHERE host = host_name AND action IS NOT NULL
    UNION ALL
    SELECT 8, 0, 'finding', name, message, since
    FROM main.findings WHERE host = host_name AND cleared IS NULL
    UNION ALL
    SELECT 9, 0, 'fault', name || coalesce(' ' || nullif(code, 0), ''), concat_ws(' ', left(nullif(device, 'host'), 12),
        if(count > 1, '(' || count || ' times)', NULL), message), last_time
    FROM ops.faults WHERE host = host_name AND time > ops.taken() - INTERVAL 1 DAY
    UNION ALL
    SELECT 10, 0, 'job', coalesce(job, source), format('{} processes on {} GPUs', count(*), count(DISTINCT gpu)),
        min(since)
    FROM ops.gpu_processes WHERE host = host_name AND state IN ('running', 'dead') GROUP BY job, source
    UNION ALL
    SELECT 11, 0, 'GPU', left(gpu, 12), concat_ws(', ', format('{:.0f} MHz', sm_clock_megahertz),
        format('{:.0f} W', power_watts), format('{:.0f} C', temperature_celsius),
        'limited by ' || nullif(held_down_by, ''), if(lost, 'LOST', NULL)), time
    FROM ops.gpus WHERE host = host_name
    UNION ALL
    SELECT 12, 0, 'port', port, concat_ws(', ', if(active, 'active', 'NOT ACTIVE'),
        format('{:.0f} Gbit/s', rate_gigabits_per_second)), time
    FROM ops.ports WHERE host = host_name
    UNION ALL
    SELECT 13, 0, 'devices', kind, count(*)::VARCHAR, NULL
    FROM main.devices WHERE host = host_name GROUP BY kind
)
ORDER BY place, weight, time DESC, what, message;
COMMENT ON MACRO TABLE ops.host IS
    'everything about one host on one page: state, score, clock, evidence, advice, findings, faults of the last day, jobs, GPUs, ports; findings about the aggregator itself: ops.host(''(aggregator)''): FROM ops.host(''sim-006'')';

-- The tables that evidence is mostly made of.
CREATE OR REPLACE MACRO ops.readings_of(host_name, since, until) AS TABLE
SELECT time, device, kind || name AS signal, value FROM (
FROM (UNPIVOT (
    SELECT 'gpu.' AS kind, device, time, COLUMNS(* EXCLUDE (host, device, time, boottime_ns))::DOUBLE
    FROM readings.gpu_1s WHERE host = host_name AND time BETWEEN since AND until
) ON COLUMNS(* EXCLUDE (kind, device, time)) INTO NAME name VALUE value)
UNION ALL
FROM (UNPIVOT (
    SELECT 'gpu.' AS kind, device, time, COLUMNS(* EXCLUDE (host, device, time, boottime_ns))::DOUBLE
    FROM readings.gpu_1s_changes WHERE host = host_name AND time BETWEEN since AND until
) ON COLUMNS(* EXCLUDE (kind, device, time)) INTO NAME name VALUE value)
UNION ALL
FROM (UNPIVOT (
    SELECT 'gpu.' AS kind, device, time, COLUMNS(* EXCLUDE (host, device, time, boottime_ns))::DOUBLE
    FROM readings.gpu_10s WHERE host = host_name AND time BETWEEN since AND until
) ON COLUMNS(* EXCLUDE (kind, device, time)) INTO NAME name VALUE value)
UNION ALL
FROM (UNPIVOT (
    SELECT 'gpu.' AS kind, device, time, COLUMNS(* EXCLUDE (host, device, time, boottime_ns))::DOUBLE
    FROM readings.gpu_10s_changes WHERE host = host_name AND time BETWEEN since AND until
) ON COLUMNS(* EXCLUDE (kind, device, time)) INTO NAME name VALUE value)
UNION ALL
FROM (UNPIVOT (
    SELECT 'rdma.' AS kind, device, time, COLUMNS(* EXCLUDE (host, device, time, boottime_ns))::DOUBLE
    FROM readings.rdma_1s WHERE host = host_name AND time BETWEEN since AND until
) ON COLUMNS(* EXCLUDE (kind, device, time)) INTO NAME name VALUE value)
UNION ALL
FROM (UNPIVOT (
    SELECT 'rdma.' AS kind, device, time, COLUMNS(* EXCLUDE (host, device, time, boottime_ns))::DOUBLE
    FROM readings.rdma_1s_changes WHERE host = host_name AND time BETWEEN since AND until
) ON COLUMNS(* EXCLUDE (kind, device, time)) INTO NAME name VALUE value)
UNION ALL
FROM (UNPIVOT (
    SELECT 'net.' AS kind, device, time, COLUMNS(* EXCLUDE (host, device, time, boottime_ns))::DOUBLE
    FROM readings.net_1s_changes WHERE host = host_name AND time BETWEEN since AND until
) ON COLUMNS(* EXCLUDE (kind, device, time)) INTO NAME name VALUE value)
UNION ALL
FROM (UNPIVOT (
    SELECT 'nvlink.' AS kind, device, time, COLUMNS(* EXCLUDE (host, device, time, boottime_ns))::DOUBLE
    FROM readings.nvlink_10s_changes WHERE host = host_name AND time BETWEEN since AND until
) ON COLUMNS(* EXCLUDE (kind, device, time)) INTO NAME name VALUE value)
UNION ALL
FROM (UNPIVOT (
    SELECT 'pcie.' AS kind, device, time, COLUMNS(* EXCLUDE (host, device, time, boottime_ns))::DOUBLE
    FROM readings.pcie_10s_changes WHERE host = host_name AND time BETWEEN since AND until
) ON COLUMNS(* EXCLUDE (kind, device, time)) INTO NAME name VALUE value)
UNION ALL
FROM (UNPIVOT (
    SELECT 'host.' AS kind, device, time, COLUMNS(* EXCLUDE (host, device, time, boottime_ns))::DOUBLE
    FROM readings.host_1s WHERE host = host_name AND time BETWEEN since AND until
) ON COLUMNS(* EXCLUDE (kind, device, time)) INTO NAME name VALUE value))
ORDER BY time, device, signal;
COMMENT ON MACRO TABLE ops.readings_of IS
    'readings of one host between two times, one row per value, of GPUs, ports, links and the host itself: SELECT signal, count(*) AS readings FROM ops.readings_of(''sim-006'', TIMESTAMP ''2023-11-14 22:15:00'', TIMESTAMP ''2023-11-14 22:15:30'') GROUP BY signal ORDER BY signal LIMIT 5';

CREATE OR REPLACE MACRO ops.score_at(host_name, moment, around_seconds := 30) AS TABLE
SELECT
    s.time AS judged, s.state, s.score, e.message, e.signal, e.device, e.value AS evidence_value, e.unit,
    r.time AS reading_time, r.value AS reading_value
FROM (
    FROM main.scores WHERE host = host_name AND time <= moment ORDER BY time DESC, version DESC LIMIT 1
) AS s
LEFT JOIN main.evidence AS e USING (host, time, version)
LEFT JOIN ops.readings_of(
        host_name, moment - to_seconds(around_seconds), moment + to_seconds(around_seconds)) AS r
    USING (signal, device)
ORDER BY e.score_delta, e.signal, e.device, r.time;
COMMENT ON MACRO TABLE ops.score_at IS
    'the score of a host at a time, its evidence, and the readings of those signals around that time: SELECT judged, state, signal, reading_time, reading_value FROM ops.score_at(''sim-006'', TIMESTAMP ''2023-11-14 22:16:00'', around_seconds := 2)';
