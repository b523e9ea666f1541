-- The models of hazard that were trained here, which of them judges (the newest that was accepted, else the prior), and
-- what of each day they learned from beside the faults.
CREATE OR REPLACE VIEW ops.models AS
WITH trained AS (
    SELECT
        'trained ' || strftime(last_time, '%Y-%m-%d %H:%M:%S') || ' ' || left(sha256(model), 8) AS version,
        *, max(time) FILTER (WHERE accepted) OVER () AS newest
    FROM main.models
),
known AS (
    SELECT
        version,
        CASE WHEN NOT accepted THEN 'refused' WHEN time = newest THEN 'in use' ELSE 'replaced' END AS status,
        time AS trained, message AS why, outcome, first_time, last_time, nodes, faults, metrics['auc'] AS auc,
        metrics['recall'] AS recall, metrics['ece'] AS ece, metrics['hazard_spread'] AS hazard_spread, metrics, calibration
    FROM trained
    UNION ALL BY NAME
    SELECT
        'prior' AS version,
        CASE WHEN EXISTS (FROM trained WHERE accepted) THEN 'replaced' ELSE 'in use' END AS status,
        'rates of the public record: no model was trained here before' AS why
)
FROM known ORDER BY status != 'in use', trained DESC NULLS LAST;
COMMENT ON VIEW ops.models IS
    'which hazard model is in use (scores.hazard_model), its training data, its quality out of fold, and why others were rejected: SELECT version, status, why, faults, auc, ece FROM ops.models';
COMMENT ON COLUMN ops.models.status IS
    'in use: the newest that was accepted; if it cannot be read, which is logged at the start, the prior is used (see scores.hazard_model)';
COMMENT ON COLUMN ops.models.trained IS 'training time; never before that of the model then in use, because the clock may have been set back';
COMMENT ON COLUMN ops.models.hazard_spread IS 'factor up and down of the 90 % interval of one host''s hazard, measured; NULL: 3, assumed';

CREATE OR REPLACE MACRO ops.host_days(host_name) AS TABLE
SELECT * EXCLUDE (host) FROM main.host_days WHERE host = host_name ORDER BY day DESC;
COMMENT ON MACRO TABLE ops.host_days IS
    'measurements of a host at the beginning of each day, newest first: training data of models: SELECT day, corrected_errors, headroom_celsius FROM ops.host_days(''sim-006'')';
