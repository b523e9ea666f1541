-- What reports of schedulers say of the factors that placements and recoveries are priced by (`aggregator/decisions/calibration.py`).
CREATE OR REPLACE VIEW ops.calibration AS
SELECT factor, value, lower, upper, unit, source, reports, assumed, workload, nodes, time
FROM main.calibration ORDER BY source <> 'reported', factor, workload, nodes;
COMMENT ON VIEW ops.calibration IS
    'each factor of the price of placements and recoveries, with its 90 % interval: as estimated from reports, or assumed; and the reported throughput by size of each workload: SELECT factor, value, lower, upper, unit, source, reports FROM ops.calibration';
COMMENT ON COLUMN ops.calibration.source IS 'reported: estimated from reports and the assumption; assumed: there are no reports';
COMMENT ON COLUMN ops.calibration.reports IS 'number of reports it is estimated from, of at most 400 days';

CREATE OR REPLACE VIEW ops.recoveries AS
SELECT
    time, incident,
    -- By the numbers of RecoveryKind (`contract/wire/recovery.proto`), from 1.
    ['in_process', 'hot_spare', 'free_node', 'borrow', 'shrink', 'wait_for_repair', 'restart_elsewhere'][kind] AS kind,
    success, lost_gpu_hours, epoch(detected - fault) AS detect_seconds, epoch(decided - detected) AS decide_seconds,
    epoch(acted - decided) AS act_seconds, epoch(resumed - acted) AS resume_seconds, epoch(resumed - fault) AS stopped_seconds,
    restarted, restored_from_peer, workload, decision, reporter, note, fault, resumed
FROM main.recoveries ORDER BY time DESC, incident;
COMMENT ON VIEW ops.recoveries IS
    'recoveries that schedulers reported: SELECT incident, kind, success, stopped_seconds, lost_gpu_hours FROM ops.recoveries';
