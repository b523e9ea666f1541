-- Version 6: models of hazard that were trained here, with what they were made from and how good they were then; and
-- what findings leave behind when their days are over, for a hazard is learned from a year.
CREATE TABLE models (
    time TIMESTAMP, outcome VARCHAR, accepted BOOLEAN, words VARCHAR, first_time TIMESTAMP, last_time TIMESTAMP,
    nodes UBIGINT, faults UBIGINT, metrics MAP(VARCHAR, DOUBLE),
    calibration STRUCT(told DOUBLE, observed DOUBLE)[], model VARCHAR
);
COMMENT ON TABLE models IS
    'hazard models of `gangline admin train`; the newest accepted one is in use; without one, a prior from published rates';

CREATE TABLE past_findings (host VARCHAR, name VARCHAR, since TIMESTAMP, cleared TIMESTAMP);
COMMENT ON TABLE past_findings IS
    'cleared findings older than history_days, without their words, for 400 days: training data of models';
