-- Version 10: what schedulers tell of their work, what outcomes have added to a score, and roll-out in steps.
CREATE TABLE gangs (
    workload VARCHAR, hosts VARCHAR[], gpus UINTEGER, checkpoint_seconds DOUBLE, until TIMESTAMP,
    reporter VARCHAR, time TIMESTAMP
);
COMMENT ON TABLE gangs IS
    'what schedulers say runs where, until then unless they say it again; gpus 0: all of its hosts; checkpoint_seconds 0: not told';
CREATE TABLE unavailable (
    host VARCHAR, who VARCHAR, why VARCHAR, since TIMESTAMP, until TIMESTAMP
);
COMMENT ON TABLE unavailable IS
    'hosts that somebody took out himself and told us of, until then unless he says it again';
ALTER TABLE scores ADD COLUMN log_hazard_outcomes DOUBLE;
COMMENT ON COLUMN scores.log_hazard_outcomes IS
    'how much of log_hazard_deltas outcomes added: ln of how many times hazards had been too small; NULL: of before version 10';
ALTER TABLE declared_overrides ADD COLUMN rollout DOUBLE;
COMMENT ON COLUMN declared_overrides.rollout IS 'on which share of these hosts it counts so far';
ALTER TABLE declared_thresholds ADD COLUMN rollout DOUBLE;
COMMENT ON COLUMN declared_thresholds.rollout IS 'on which share of the hosts the value counts so far; on the others before_value does';
ALTER TABLE declared_thresholds ADD COLUMN before_value DOUBLE;
