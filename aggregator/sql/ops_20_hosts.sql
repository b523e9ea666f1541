-- While the aggregator's clock was ahead, scores were stored with later times. Once such a host is judged again, these
-- scores are left out here and below.
CREATE OR REPLACE VIEW ops.scores_now AS
SELECT s.*
FROM main.scores AS s
JOIN (
    SELECT
        host, coalesce(max(time) FILTER (time <= ops.taken()), max(time)) AS time,
        coalesce(arg_max(version, time) FILTER (time <= ops.taken()), arg_max(version, time)) AS version
    FROM main.scores GROUP BY host
) AS last USING (host, time, version);
COMMENT ON VIEW ops.scores_now IS 'the last score of each host, all columns: SELECT host, state, score, reason FROM ops.scores_now ORDER BY host';

CREATE OR REPLACE VIEW ops.last_readings AS
SELECT host, max(time) AS last_reading
FROM (SELECT host, time FROM latest.host_1s UNION ALL SELECT host, time FROM latest.collector_10s)
WHERE time <= ops.taken() GROUP BY host;
COMMENT ON VIEW ops.last_readings IS
    'time of the last reading of each host: FROM ops.last_readings ORDER BY host';

CREATE OR REPLACE VIEW ops.last_seen AS
SELECT host, greatest(s.last_seen, r.last_reading) AS last_seen, r.last_reading
FROM main.hosts AS h LEFT JOIN ops.scores_now AS s USING (host)
LEFT JOIN ops.last_readings AS r USING (host);
COMMENT ON VIEW ops.last_seen IS 'when each host last reported, by the aggregator''s clock: FROM ops.last_seen ORDER BY host';

CREATE OR REPLACE VIEW ops.hosts AS
SELECT
    h.host, coalesce(s.state, 'UNKNOWN') AS state, s.score,
    s.hazard_per_hour * 24 AS hazard_per_day, s.relative_speed,
    coalesce(s.reason_message, 'not judged yet') AS reason, s.clears_when,
    h.simulated, greatest(s.last_seen, r.last_reading) AS last_seen,
    greatest(0, date_diff('millisecond', greatest(s.last_seen, r.last_reading), ops.taken())) / 1000.0
        AS silent_seconds,
    c.offset_seconds AS clock_offset_seconds, h.agent_version, h.address, h.labels, h.registered
FROM main.hosts AS h LEFT JOIN ops.scores_now AS s USING (host)
LEFT JOIN ops.last_readings AS r USING (host) LEFT JOIN main.clocks AS c USING (host);
COMMENT ON VIEW ops.hosts IS
    'every host with its state, score, strongest reason, and how far its clock is ahead of the aggregator''s: SELECT host, state, agent_version FROM ops.hosts ORDER BY host';

CREATE OR REPLACE MACRO ops.severity(state_name) AS list_position(
    ['UNHEALTHY', 'SUSPECT', 'DEGRADED', 'STALE', 'WATCH', 'PROBATION', 'UNKNOWN', 'MAINTENANCE',
     'HEALTHY'], state_name);
COMMENT ON MACRO ops.severity IS
    'a state as a number to sort by, 1 is worst: SELECT host, state FROM ops.hosts ORDER BY ops.severity(state), host';

CREATE OR REPLACE MACRO ops.worst(n := 10) AS TABLE
SELECT
    host, state, floor(score * 1e4) / 1e4 AS score, round(hazard_per_day, 4) AS hazard_per_day,
    round(relative_speed, 2) AS relative_speed, reason, silent_seconds, simulated
FROM ops.hosts WHERE NOT (simulated AND coalesce(silent_seconds, 0) > 60)
ORDER BY ops.severity(state), ops.hosts.score NULLS LAST, host LIMIT n;
COMMENT ON MACRO TABLE ops.worst IS
    'the n worst hosts, without simulated ones that have ended: FROM ops.worst(n := 3)';

-- Reported outcomes that multiply the hazard by less than 1.05 are a part of the sum, and no reason.
CREATE OR REPLACE MACRO ops.explain(host_name) AS TABLE
SELECT
    e.message, e.score_delta, e.relative_speed_factor, e.log_hazard_delta, e.signal, e.device, e.value,
    e.unit, e.normal, e.reason, e.observed, e.sql, e.hazard_delta, e.shared_count
FROM main.evidence AS e JOIN ops.scores_now AS s USING (host, time, version)
WHERE host = host_name AND NOT (e.signal = 'hazard.outcomes' AND abs(e.log_hazard_delta) < ln(1.05))
ORDER BY e.score_delta, abs(e.log_hazard_delta) DESC, e.device, e.signal;
COMMENT ON MACRO TABLE ops.explain IS
    'evidence of a host''s score; column sql shows the readings: SELECT message, score_delta, reason FROM ops.explain(''sim-006'')';

CREATE OR REPLACE VIEW ops.freshness AS
SELECT host, last_seen, silent_seconds, state, simulated
FROM ops.hosts ORDER BY silent_seconds DESC NULLS FIRST, host;
COMMENT ON VIEW ops.freshness IS
    'how long each host has been silent, longest first: FROM ops.freshness LIMIT 5';

-- Hosts are judged every five minutes at least: a day of it, so that a year costs no more; up to the last score, which
-- may be of long ago, but not to one of a clock that was years ahead.
CREATE OR REPLACE VIEW ops.state_since AS
SELECT host, state, time AS since, state_before, state_before IS NULL AS or_longer
FROM (
    SELECT host, time, version, state, lag(state) OVER w AS state_before
    FROM main.scores WHERE time > least((SELECT max(time) FROM main.scores), ops.taken()) - INTERVAL 1 DAY
    WINDOW w AS (PARTITION BY host ORDER BY time, version)
)
WHERE state IS DISTINCT FROM state_before
QUALIFY row_number() OVER (PARTITION BY host ORDER BY time <= ops.taken() DESC, time DESC, version DESC) = 1
ORDER BY host;
COMMENT ON VIEW ops.state_since IS
    'since when each host has been in its state; or_longer: at least that long, because a day is searched, or the scores stored here: FROM ops.state_since WHERE state <> ''HEALTHY''';

CREATE OR REPLACE MACRO ops.awake(moment) AS TABLE
SELECT DISTINCT host
FROM (
    SELECT host, time FROM readings.host_1s UNION ALL SELECT host, time FROM readings.collector_10s
    UNION ALL SELECT host, time FROM latest.host_1s UNION ALL SELECT host, time FROM latest.collector_10s
)
WHERE time BETWEEN moment - INTERVAL 15 SECOND AND moment ORDER BY host;
COMMENT ON MACRO TABLE ops.awake IS
    'hosts that reported within 15 s before a time, whose devices are compared: FROM ops.awake(TIMESTAMP ''2023-11-14 22:16:00'')';
