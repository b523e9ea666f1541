CREATE OR REPLACE VIEW ops.fleet AS
SELECT
    g.model, h.simulated, count(DISTINCT g.host) AS hosts_count, count(*) AS gpus_count,
    list_sort(list(DISTINCT g.driver) FILTER (g.driver IS NOT NULL)) AS drivers,
    median(g.sm_clock_megahertz) AS sm_clock_median_megahertz,
    median(g.power_watts) AS power_median_watts,
    count(DISTINCT g.host) FILTER (h.state = 'HEALTHY') / count(DISTINCT g.host) AS healthy_ratio,
    any_value(s.states) AS states
FROM ops.gpus AS g JOIN ops.hosts AS h USING (host)
LEFT JOIN (
    SELECT model, simulated, map_from_entries(list((state, hosts) ORDER BY ops.severity(state))) AS states
    FROM (
        SELECT g.model, h.simulated, h.state, count(DISTINCT host) AS hosts
        FROM ops.gpus AS g JOIN ops.hosts AS h USING (host) GROUP BY ALL
    ) GROUP BY ALL
) AS s ON s.model IS NOT DISTINCT FROM g.model AND s.simulated = h.simulated
GROUP BY g.model, h.simulated ORDER BY gpus_count DESC, g.model;
COMMENT ON VIEW ops.fleet IS
    'the fleet by GPU model: hosts, GPUs, drivers, median clock and power, how many hosts in each state: FROM ops.fleet';

CREATE OR REPLACE VIEW ops.versions AS
SELECT
    coalesce(h.labels['nvidia_driver_version'], g.driver) AS driver, g.vbios, h.agent_version,
    h.labels['kernel'] AS kernel, count(*) AS hosts_count, sum(g.gpus) AS gpus_count,
    list_sort(list(h.host))[:5] AS hosts_such_as, max(h.registered) AS last_registered
FROM main.hosts AS h
LEFT JOIN (
    SELECT host, max(attributes['driver']) AS driver, max(attributes['vbios']) AS vbios, count(*) AS gpus
    FROM main.devices WHERE kind = 'gpu' GROUP BY host
) AS g USING (host)
GROUP BY ALL ORDER BY hosts_count DESC, driver, g.vbios;
COMMENT ON VIEW ops.versions IS
    'number of hosts by driver, VBIOS, kernel and agent version: SELECT driver, agent_version, hosts_count, hosts_such_as FROM ops.versions';

-- Of the day before that hour only the last state of each host: a year costs no more. The oldest score of a host is no
-- change where those before it may be gone: each host has one in five minutes, so that of one that is new others are older.
CREATE OR REPLACE VIEW ops.changed_last_hour AS
SELECT time, host, state_before, state, score, reason_message, simulated
FROM (
    SELECT
        s.*,
        coalesce(lag(state) OVER (PARTITION BY host ORDER BY time, version), state_until) AS state_before
    FROM main.scores AS s
    LEFT JOIN (
        SELECT host, arg_max(state, (time, version)) AS state_until FROM main.scores
        WHERE time > ops.taken() - INTERVAL 25 HOUR AND time <= ops.taken() - INTERVAL 1 HOUR
        GROUP BY host
    ) AS b USING (host)
    WHERE time > ops.taken() - INTERVAL 1 HOUR AND time <= ops.taken()
)
WHERE state IS DISTINCT FROM state_before AND (
    state_before IS NOT NULL
    OR time > (SELECT min(time) FROM main.scores) + INTERVAL 10 MINUTE
    OR (SELECT min(time) FROM main.scores) > ops.taken() - INTERVAL 1 HOUR)
ORDER BY time DESC, host;
COMMENT ON VIEW ops.changed_last_hour IS
    'hosts whose state changed within the last hour, newest first; all changes: ops.changes: SELECT time, host, state_before, state FROM ops.changed_last_hour WHERE state_before IS NOT NULL';

CREATE OR REPLACE VIEW ops.changes AS
SELECT c.*
FROM (
    SELECT time, host, 'state' AS what, '' AS device,
        concat_ws(': ', coalesce(state_before || ' -> ', 'first judged ') || state, nullif(reason_message, '')) AS message
    FROM ops.changed_last_hour
    UNION ALL
    SELECT since, host, 'finding', subject, name || ': ' || message FROM main.findings
    UNION ALL
    SELECT cleared, host, 'finding cleared', subject, name || ': ' || clears_when
    FROM main.findings WHERE cleared IS NOT NULL
    UNION ALL
    SELECT time, host, 'event', device,
        name || coalesce(' ' || nullif(code, 0), '') || if(count > 1, ', ' || count || ' times: ', ': ') || message
    FROM ops.faults
    UNION ALL
    SELECT registered, host, 'registered', '', concat_ws(', ', 'agent ' || nullif(agent_version, ''),
        'driver ' || labels['nvidia_driver_version'], 'kernel ' || labels['kernel'])
    FROM main.hosts
    UNION ALL
    SELECT last_seen, host, 'fell silent', '', 'not heard since, for ' || round(silent_seconds)::INTEGER || ' s'
    FROM ops.hosts WHERE silent_seconds > 60
    UNION ALL
    SELECT since, host, 'process began', gpu, concat_ws(' ', source, job, process_name)
    FROM ops.gpu_processes
) AS c
WHERE c.time > ops.taken() - INTERVAL 1 HOUR ORDER BY c.time DESC, c.host, c.what, c.device;
COMMENT ON VIEW ops.changes IS
    'all changes within the last hour, newest first: states, findings, events, processes, hosts that appeared or fell silent: SELECT time, host, what, message FROM ops.changes LIMIT 5';
