-- The store as of version 1. No PRIMARY KEY, UNIQUE or INDEX anywhere: DuckDB 1.5.5 corrupts an ART
-- index when it replays a WAL with ALTER; nothing is doubled because `received` is written with the rows.
CREATE SCHEMA hours;     -- readings, a table per catalogue table and hour in which they were received
CREATE SCHEMA readings;  -- views over the hours
CREATE SCHEMA latest;    -- views: the last reading of each device
CREATE SCHEMA ops;       -- what operators ask

CREATE TABLE received (
    host VARCHAR, run_id BLOB, first_sequence UBIGINT, last_sequence UBIGINT
);
COMMENT ON TABLE received IS 'frames whose rows are in the store, as ranges of sequences, inclusive';

CREATE TABLE hosts (
    host VARCHAR, node_index UINTEGER, simulated BOOLEAN, run_id BLOB, boot_id BLOB,
    agent_version VARCHAR, address VARCHAR, labels MAP(VARCHAR, VARCHAR), registered TIMESTAMP
);
COMMENT ON TABLE hosts IS 'every registered host, as last registered';

CREATE TABLE devices (
    host VARCHAR, kind VARCHAR, device VARCHAR, attributes MAP(VARCHAR, VARCHAR)
);
COMMENT ON TABLE devices IS 'devices of each host, as last registered';

CREATE TABLE signals (
    signal_id UINTEGER, name VARCHAR, kind VARCHAR, width_bits UTINYINT, table_name VARCHAR,
    unit VARCHAR, tells VARCHAR, source VARCHAR, known BOOLEAN
);
COMMENT ON TABLE signals IS 'every signal; known = false: a signal of other agents only, see readings.by_name';

CREATE TABLE events (
    host VARCHAR, event_id VARCHAR, device_kind VARCHAR, device VARCHAR, name VARCHAR, code UINTEGER,
    message VARCHAR, time TIMESTAMP, boottime_ns UBIGINT, received TIMESTAMP
);
COMMENT ON TABLE events IS 'events of hosts: XIDs, changed outcomes of collectors';

CREATE TABLE scores (
    time TIMESTAMP, host VARCHAR, node_index UINTEGER, simulated BOOLEAN, version UBIGINT,
    score DOUBLE, score_lower DOUBLE, score_upper DOUBLE, state VARCHAR, hazard_per_hour DOUBLE,
    relative_speed DOUBLE, reason VARCHAR, reason_words VARCHAR, clears_when VARCHAR,
    heard TIMESTAMP, horizon_seconds DOUBLE
);
COMMENT ON TABLE scores IS 'scores of each host: on change, and every 5 minutes';

CREATE TABLE evidence (
    time TIMESTAMP, host VARCHAR, version UBIGINT, signal VARCHAR, device VARCHAR, value DOUBLE,
    unit VARCHAR, normal VARCHAR, log_hazard_delta DOUBLE, relative_speed_factor DOUBLE,
    score_delta DOUBLE, reason VARCHAR, words VARCHAR, observed TIMESTAMP, sql VARCHAR
);
COMMENT ON TABLE evidence IS 'evidence of each score, with the time, host and version of the score';

CREATE TABLE findings (
    host VARCHAR, name VARCHAR, subject VARCHAR, words VARCHAR, since TIMESTAMP, cleared TIMESTAMP
);
COMMENT ON TABLE findings IS 'active and cleared findings that are not readings; cleared is NULL while active';
