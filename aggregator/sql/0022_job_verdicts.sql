-- Version 22: the verdicts of jobs, and the reference of each job's pace.
CREATE TABLE job_verdicts (
    verdict_id VARCHAR, run_id VARCHAR, job VARCHAR, since TIMESTAMP, until TIMESTAMP, time TIMESTAMP,
    identity VARCHAR, strength UTINYINT, verdict VARCHAR, cause VARCHAR, reason VARCHAR, shared_cause VARCHAR,
    advisory VARCHAR, hosts VARCHAR[], device VARCHAR, slowdown_ratio DOUBLE, slowdown_lower_ratio DOUBLE,
    slowdown_upper_ratio DOUBLE, is_stopped BOOLEAN, lost_gpu_hours DOUBLE, words VARCHAR, evidence_sql VARCHAR
);
COMMENT ON TABLE job_verdicts IS
    'each host, link or shared cause that slowed or stopped a run, with start, end (until NULL: still) and loss: see ops.stragglers';
CREATE TABLE job_paces (
    run_id VARCHAR, job VARCHAR, source VARCHAR, time TIMESTAMP, measure VARCHAR, reference_work DOUBLE,
    reference_time TIMESTAMP, is_current BOOLEAN, pace DOUBLE
);
COMMENT ON TABLE job_paces IS
    'per running job and measure, the work per second that is a pace of 1 (reference_time NULL: of earlier runs): see ops.job_pace';
