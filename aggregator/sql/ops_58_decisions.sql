-- What schedulers were advised about gangs (`aggregator/decisions/`), and what they reserved of it.
CREATE OR REPLACE VIEW ops.decisions AS
WITH chosen AS (
    FROM main.decision_choices QUALIFY row_number() OVER (PARTITION BY decision ORDER BY time DESC, reservation DESC) = 1
)
SELECT
    d.decision, d.time, d.kind, d.caller, d.workload, len(d.options) AS options_count,
    d.options[1].nodes AS nodes, d.options[1].price_gpu_hours AS price_gpu_hours, d.options[1].survival AS survival,
    d.options[1].speed AS speed, nullif(c.option, 0) AS chosen_option, c.owner AS chosen_by, c.reservation,
    c.time AS chosen, d.blockers, d.options, d.hosts, d.score_version, d.solve_seconds, d.degraded, d.replayable,
    d.gangline_version
FROM main.decisions AS d LEFT JOIN chosen AS c USING (decision)
ORDER BY d.time DESC, d.decision;
COMMENT ON VIEW ops.decisions IS
    'each answered plan, evaluation, resize and recovery, newest first: its first option, what prevented a plan (blockers), and which option was reserved by whom; gangline explain decision shows all of one: SELECT decision, time, kind, nodes, price_gpu_hours, survival, speed, chosen_option, chosen_by FROM ops.decisions';
COMMENT ON COLUMN ops.decisions.hosts IS 'of the first option, in rank order; the first 64';
COMMENT ON COLUMN ops.decisions.replayable IS
    'its inputs are still stored: gangline explain decision ID --replay computes it again';
