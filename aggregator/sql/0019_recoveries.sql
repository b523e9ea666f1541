-- Version 19: what came of placements and recoveries, and the factors of a price that follow from it.
CREATE TABLE recoveries (
    time TIMESTAMP, incident VARCHAR, reporter VARCHAR, decision VARCHAR, kind UTINYINT, workload VARCHAR,
    fault TIMESTAMP, detected TIMESTAMP, decided TIMESTAMP, acted TIMESTAMP, resumed TIMESTAMP, success BOOLEAN,
    restarted BOOLEAN, restored_from_peer BOOLEAN, lost_gpu_hours DOUBLE, note VARCHAR
);
COMMENT ON TABLE recoveries IS
    'recoveries that schedulers report, one row per incident; kind: number of RecoveryKind, 0: none of these; NULL times: not reported';
CREATE TABLE calibration (
    time TIMESTAMP, factor VARCHAR, workload VARCHAR, nodes UINTEGER, unit VARCHAR, value DOUBLE, lower DOUBLE,
    upper DOUBLE, source VARCHAR, reports UINTEGER, assumed DOUBLE
);
COMMENT ON TABLE calibration IS
    'factors of the price of placements and recoveries, as plans use them from then on; workload and nodes: for a throughput only';
ALTER TABLE outcomes ADD COLUMN decision VARCHAR;
COMMENT ON COLUMN outcomes.decision IS 'the plan that was followed (decision_id); NULL: from before version 19';
ALTER TABLE outcomes ADD COLUMN plan_option UTINYINT;
COMMENT ON COLUMN outcomes.plan_option IS 'which option of the plan, from 1; 0: none';
ALTER TABLE outcomes ADD COLUMN throughput DOUBLE;
COMMENT ON COLUMN outcomes.throughput IS 'throughput of the whole gang, in the reporter''s unit; NULL: not reported';
ALTER TABLE outcomes ADD COLUMN queue_seconds DOUBLE;
COMMENT ON COLUMN outcomes.queue_seconds IS 'how long the job waited for its start; NULL: not reported';
ALTER TABLE outcomes ADD COLUMN domains_spanned MAP(VARCHAR, DOUBLE);
COMMENT ON COLUMN outcomes.domains_spanned IS
    'number of domains of each tier that its nodes spanned when it was reported; a tier is missing if the domain of a node is unknown';
ALTER TABLE outcomes ADD COLUMN communication_share DOUBLE;
COMMENT ON COLUMN outcomes.communication_share IS 'share of a step bound by network and NVLink, by the job''s fingerprint; NULL: unknown';
