CREATE OR REPLACE VIEW ops.findings AS
SELECT host, name, subject, message, since, cleared, cleared IS NULL AS is_active, clears_when
FROM main.findings ORDER BY is_active DESC, since DESC, host, name, subject;
COMMENT ON VIEW ops.findings IS
    'findings: faults that last until cleared, such as two hosts of one name, a counter stuck, an XID: SELECT host, name, message FROM ops.findings WHERE is_active';

CREATE OR REPLACE VIEW ops.faults AS
SELECT
    time, host, device_kind, device, name, code, message, received,
    count, last_time, forms, forms_count, process_id, process_name, attributes
FROM main.events
WHERE name NOT IN ('collector.outcome', 'gpu.process', 'gpu.allocation', 'gpu.full_report')
ORDER BY received DESC, time DESC;
COMMENT ON VIEW ops.faults IS
    'faults that hosts reported, such as XIDs, newest first; a storm is one row with its count: SELECT time, host, name, code, message FROM ops.faults';

-- Not the advisories of a scheduler: nothing here was decided, priced or accepted. What is recommended is what the
-- policy has for the signal and its value, where it has one thing only; for heat and for what hangs, by name.
CREATE OR REPLACE VIEW ops.advisories AS
SELECT
    s.host, e.device, s.state, coalesce(a.severity, n.severity) AS severity,
    coalesce(a.action, n.action) AS action, e.message, e.reason, coalesce(a.scope, n.scope) AS scope,
    e.observed, s.simulated
FROM ops.scores_now AS s JOIN main.evidence AS e USING (host, time, version)
LEFT JOIN (FROM ops.actions QUALIFY count(*) OVER (PARTITION BY signal, code) = 1) AS a
    ON a.signal = e.signal AND coalesce(a.code, e.value) = e.value
LEFT JOIN ops.actions AS n ON n.name = CASE
    WHEN e.reason = 'THERMAL_THROTTLE' THEN 'gpu_thermal'
    WHEN e.signal <> 'probe.hung_seconds' THEN NULL
    WHEN e.device LIKE 'GPU-%' THEN 'gpu_hung'
    WHEN e.device LIKE 'gpu%' THEN 'driver_hung'
    ELSE 'device_hung' END
WHERE s.state <> 'HEALTHY' AND (e.log_hazard_delta > 0 OR e.relative_speed_factor < 1)
    AND NOT (e.signal = 'hazard.outcomes' AND abs(e.log_hazard_delta) < ln(1.05))
QUALIFY row_number() OVER (
    PARTITION BY s.host, e.device, e.signal, e.message ORDER BY a.code NULLS LAST) = 1
ORDER BY ops.severity(s.state), s.score, s.host, e.score_delta, e.device;
COMMENT ON VIEW ops.advisories IS
    'what the policy recommends for the active findings of each host (action NULL: no recommendation); these are not decisions, and nothing acts on them: SELECT host, state, action, message FROM ops.advisories';

CREATE OR REPLACE MACRO ops.part(device_name) AS TABLE
SELECT *
FROM (
    SELECT time, host, device, 'event' AS what, name || coalesce(' ' || nullif(code, 0), '') AS name, count, message
    FROM ops.faults WHERE ops.is_part(device, device_name)
    UNION ALL
    SELECT since, host, subject, if(cleared IS NULL, 'finding, still so', 'finding, cleared'), name, 1, message
    FROM main.findings WHERE ops.is_part(subject, device_name)
    UNION ALL
    SELECT min(time), host, device, 'evidence', reason || ' ' || signal, count(*), arg_min(message, time)
    FROM main.evidence WHERE ops.is_part(device, device_name)
    GROUP BY host, device, reason, signal
)
ORDER BY time, host, what, name;
COMMENT ON MACRO TABLE ops.part IS
    'everything reported about a device, on any host (the beginning of its name is enough): SELECT time, host, what, name, message FROM ops.part(''GPU-3d4c4be0'')';

-- Findings that overlap, or begin within ten minutes of an incident, are one (`hazard/history.py`; a test holds them equal).
-- What came later is not told: a stored query returns what was known then. Each incident is added to a copy of the list
-- of those before it: so many findings of a host, and no more.
CREATE OR REPLACE MACRO ops.incidents_at(moment) AS TABLE
SELECT
    host, incident.began AS began, nullif(incident.ended, 'infinity'::TIMESTAMP) AS ended,
    list_sort(list_distinct(incident.names)) AS names
FROM (
    SELECT host, unnest(list_reduce(
        list([{'began': since, 'ended': coalesce(cleared, 'infinity'::TIMESTAMP), 'names': [name]}] ORDER BY since),
        lambda before, next: if(
            next[1].began <= greatest(before[-1].ended, before[-1].began + INTERVAL 10 MINUTE),
            list_append(before[:-2], {
                'began': before[-1].began, 'ended': greatest(before[-1].ended, next[1].ended),
                'names': before[-1].names || next[1].names}),
            before || next))) AS incident
    FROM (
        SELECT host, name, since, if(cleared <= moment, cleared, NULL) AS cleared
        FROM (
            SELECT host, name, since, cleared FROM main.findings
            UNION SELECT host, name, since, cleared FROM main.cleared_findings
        )
        WHERE ops.is_fault(name) AND since <= moment AND since >= moment - INTERVAL 400 DAY
        QUALIFY row_number() OVER (PARTITION BY host ORDER BY since DESC) <= 5000
    ) GROUP BY host
)
ORDER BY began DESC, host;
COMMENT ON MACRO TABLE ops.incidents_at IS
    'the faults of each host as they were known at a time, of its newest 5,000 findings: SELECT host, began, ended, names FROM ops.incidents_at(TIMESTAMP ''2023-11-14 22:16:00'') LIMIT 3';

CREATE OR REPLACE VIEW ops.incidents AS
FROM ops.incidents_at(ops.taken()) ORDER BY began DESC, host;
COMMENT ON VIEW ops.incidents IS
    'faults of each host as hazard models count them, newest first: findings that are faults, related ones merged (from a host''s newest 5,000; at a past time: ops.incidents_at): SELECT host, began, ended, names FROM ops.incidents LIMIT 3';
