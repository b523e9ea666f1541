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
LEFT JOIN (SELECT host, max(time) AS last_reading FROM readings.collector_1s GROUP BY host) AS r
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
FROM main.events WHERE name <> 'collector.outcome' ORDER BY received DESC;
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
