-- Version 18: decisions about gangs as they were answered, what they were computed from, and which option was reserved.
CREATE TABLE decisions (
    decision VARCHAR, time TIMESTAMP, kind VARCHAR, caller VARCHAR, workload VARCHAR, score_version UBIGINT,
    dictionary_version UBIGINT, gangline_version VARCHAR, solve_seconds DOUBLE, degraded BOOLEAN,
    options STRUCT(
        what VARCHAR, nodes UINTEGER, price_gpu_hours DOUBLE, price_lower DOUBLE, price_upper DOUBLE, survival DOUBLE, speed DOUBLE
    )[],
    hosts VARCHAR[], blockers VARCHAR[], bytes UBIGINT, replayable BOOLEAN
);
CREATE TABLE decision_records (decision VARCHAR, time TIMESTAMP, request BLOB, answer BLOB, inputs VARCHAR[]);
CREATE TABLE decision_inputs (digest VARCHAR, time TIMESTAMP, bytes UBIGINT, data BLOB);
CREATE TABLE decision_choices (
    reservation VARCHAR, decision VARCHAR, option UINTEGER, owner VARCHAR, time TIMESTAMP, expires TIMESTAMP, nodes UINTEGER
);
COMMENT ON TABLE decisions IS
    'one row per answered plan, evaluation, resize or recovery: see ops.decisions; NULL: unknown';
COMMENT ON TABLE decision_records IS 'request and answer of each decision as messages, compressed (zlib), and the digests of its inputs';
COMMENT ON TABLE decision_inputs IS
    'node columns that were inputs of decisions, each once (zlib); time: when the last decision used it';
COMMENT ON TABLE decision_choices IS 'reservations that name a decision, and which of its options they took; option 0: not said';
