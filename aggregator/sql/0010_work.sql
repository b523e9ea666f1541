-- Version 10: what schedulers tell of their work, what outcomes have added to a score, and roll-out in steps.
CREATE TABLE gangs (
    workload VARCHAR, hosts VARCHAR[], gpus UINTEGER, checkpoint_seconds DOUBLE, until TIMESTAMP,
    reporter VARCHAR, time TIMESTAMP
);
COMMENT ON TABLE gangs IS
    'running gangs as schedulers report them, valid until then unless renewed; gpus 0: all of its hosts; checkpoint_seconds 0: not reported';
CREATE TABLE unavailable (
    host VARCHAR, who VARCHAR, why VARCHAR, since TIMESTAMP, until TIMESTAMP
);
COMMENT ON TABLE unavailable IS
    'hosts reported as taken out by others, valid until then unless renewed';
ALTER TABLE scores ADD COLUMN log_hazard_outcomes DOUBLE;
COMMENT ON COLUMN scores.log_hazard_outcomes IS
    'part of log_hazard_deltas that outcomes added: ln of the factor by which hazards had been too small; NULL: from before version 10';
ALTER TABLE declared_overrides ADD COLUMN rollout DOUBLE;
COMMENT ON COLUMN declared_overrides.rollout IS 'share of these hosts on which it applies so far';
ALTER TABLE declared_thresholds ADD COLUMN rollout DOUBLE;
COMMENT ON COLUMN declared_thresholds.rollout IS 'share of the hosts on which the value applies so far; on the others before_value applies';
ALTER TABLE declared_thresholds ADD COLUMN before_value DOUBLE;
