-- What `aggregator/scoring/results.py` says of each GPU, from what is stored of its host: its share of the hazard that the
-- host has before any symptom (2.2e-5 of 2.2e-5 for each GPU and 5e-6 for the host, `base_hazard.py`), and all that its own
-- faults add, of which no other device has a part. Before version 13 they were factors. A GPU is not read that was not in the
-- 15 s before its host's last reading. Of a host the 48 strongest pieces of evidence are stored (`scoring.EVIDENCE_MAX`): with
-- so many, others may be wrong of a GPU of which none says anything.
CREATE OR REPLACE MACRO ops.gpu_scores_at(moment, hours := 8) AS TABLE
WITH judged AS (
    SELECT
        host, time, version, simulated, hazard_per_hour, hazard_spread, log_hazard_base, measured_speed, speed_error
    FROM main.scores JOIN (
        SELECT
            host, coalesce(max(time) FILTER (time <= ops.taken()), max(time)) AS time,
            coalesce(arg_max(version, time) FILTER (time <= ops.taken()), arg_max(version, time)) AS version
        FROM main.scores WHERE time <= moment GROUP BY host
    ) USING (host, time, version)
),
shown AS (
    SELECT
        host, signal, device, log_hazard_delta, relative_speed_factor, score_delta, ops.severity(gpu_state) AS severity,
        hazard_delta, shared_count = 1 AS is_own,
        {'state': gpu_state, 'reason': reason, 'message': message} AS verdict
    FROM main.evidence SEMI JOIN judged USING (host, time, version)
),
gpus AS (
    SELECT host, device AS gpu, has, read
    FROM (SELECT host, device, true AS has FROM main.devices WHERE kind = 'gpu')
    FULL JOIN (SELECT host, device, time AS read FROM latest.gpu_1s) USING (host, device)
),
alone AS (
    SELECT
        j.*, exp(log_hazard_base + coalesce(added, 0)) AS own, 2.2e-5 / (2.2e-5 * gpus_count + 5e-6) AS share, shown_count,
        least(moment, ops.taken(), greatest(last_of_host, last_of_gpus)) - INTERVAL 15 SECOND AS since
    FROM judged AS j
    JOIN (
        SELECT host, greatest(count(has), count(read)) AS gpus_count, max(read) AS last_of_gpus FROM gpus GROUP BY host
    ) USING (host)
    LEFT JOIN (SELECT host, max(time) AS last_of_host FROM latest.host_1s GROUP BY host) USING (host)
    LEFT JOIN (
        SELECT host, sum(log_hazard_delta) AS added FROM shown WHERE starts_with(signal, 'hazard.') GROUP BY host
    ) USING (host)
    LEFT JOIN (
        SELECT host, count(*) AS shown_count FROM shown WHERE NOT starts_with(signal, 'hazard.') GROUP BY host
    ) USING (host)
),
symptoms AS (
    SELECT
        host, split_part(device, '/', 1) AS gpu, count(*) AS evidence_count,
        exp(sum(log_hazard_delta) FILTER (hazard_delta IS NULL)) AS factor, sum(hazard_delta) FILTER (is_own) AS added,
        min(relative_speed_factor) FILTER (relative_speed_factor < 1) AS speed, min(severity) AS severity,
        arg_min(verdict, (severity, score_delta)) AS worst
    FROM shown GROUP BY ALL
),
scored AS (
    SELECT
        host, gpu, coalesce(evidence_count, 0) AS evidence_count, read, a.time AS judged, simulated,
        CASE WHEN own IS NOT NULL THEN least(own * (share + coalesce(factor, 1) - 1) + coalesce(added, 0), hazard_per_hour) END AS hazard,
        hazard_spread AS spread,
        speed, 1.645 * coalesce(speed_error, 0.02) AS reach,
        hazard_spread >= 100 OR measured_speed IS NULL AS unmeasured,
        CASE WHEN hazard_spread >= 100 THEN 'STALE' WHEN read >= since THEN 'HEALTHY' ELSE 'UNKNOWN' END AS calm,
        CASE
            WHEN evidence_count > 0 AND severity IS NULL AND read IS NOT NULL THEN NULL
            WHEN severity < ops.severity(calm) THEN worst
            WHEN shown_count >= 48 AND read IS NOT NULL THEN NULL
            ELSE {'state': calm, 'reason': 'NONE', 'message': ''}
        END AS verdict
    FROM alone AS a JOIN gpus USING (host) LEFT JOIN symptoms USING (host, gpu)
)
SELECT
    host, gpu, verdict.state AS state, exp(-hazard * hours) AS score, exp(-hazard * spread * hours) AS score_lower,
    exp(-hazard / spread * hours) AS score_upper, hazard AS hazard_per_hour, hazard / spread AS hazard_lower,
    hazard * spread AS hazard_upper, speed AS relative_speed,
    CASE WHEN speed < 1 THEN greatest(speed - reach, 0.05) WHEN unmeasured THEN 0.05 END AS relative_speed_lower,
    CASE WHEN speed < 1 THEN speed + reach WHEN unmeasured THEN 1.1 END AS relative_speed_upper,
    verdict.reason AS reason, verdict.message AS message, evidence_count, read, judged, simulated
FROM scored ORDER BY ops.severity(verdict.state), hazard DESC, host, gpu;
COMMENT ON MACRO TABLE ops.gpu_scores_at IS
    'ops.gpu_scores of a time, over the given hours, by the scores and evidence of that time; the list of GPUs, and which have readings, is current: SELECT host, left(gpu, 12) AS gpu, state, score FROM ops.gpu_scores_at(TIMESTAMP ''2023-11-14 22:16:00'', hours := 24) LIMIT 3';

CREATE OR REPLACE VIEW ops.gpu_scores AS FROM ops.gpu_scores_at('infinity'::TIMESTAMP);
COMMENT ON VIEW ops.gpu_scores IS
    'each GPU with state, score over 8 hours, hazard and strongest evidence, from its host''s last score, worst first: SELECT host, left(gpu, 12) AS gpu, state, score, relative_speed, reason FROM ops.gpu_scores LIMIT 3';
COMMENT ON COLUMN ops.gpu_scores.state IS
    'NULL: unknown; its evidence was stored before version 12, or may have been left out (the 48 strongest pieces of a host are stored)';
COMMENT ON COLUMN ops.gpu_scores.hazard_per_hour IS 'NULL: its host''s score was stored before version 9, without its inputs';
COMMENT ON COLUMN ops.gpu_scores.relative_speed IS
    'by its evidence; NULL without evidence: for a healthy GPU it is not stored (ScoreNodes has it), only that of its host''s slowest GPU (ops.hosts)';
