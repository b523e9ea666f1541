-- Version 7: advice. `advice_events` and `advice_memory` are what the machine goes on from after a restart;
-- the others say what it said, and what came of it.
CREATE TABLE advice_events (number UBIGINT, time TIMESTAMP, kind VARCHAR, body VARCHAR);
COMMENT ON TABLE advice_events IS
    'input events of the advice state machine, in order, without those that changed nothing; body is JSON: replayed, it gives the same advice';

CREATE TABLE advice_memory (number UBIGINT, time TIMESTAMP, body VARCHAR);
COMMENT ON TABLE advice_memory IS 'what the advice machine remembered after event number, as JSON: the last one';

CREATE TABLE advice_decisions (
    number UBIGINT, time TIMESTAMP, kind VARCHAR, advisory VARCHAR, host VARCHAR, words VARCHAR,
    body VARCHAR, shadow BOOLEAN
);
COMMENT ON TABLE advice_decisions IS
    'decisions of the advice state machine, with reasons; number is the event that caused it; shadow: not issued';

CREATE TABLE advisories (
    advisory VARCHAR, revision UBIGINT, time TIMESTAMP, subject VARCHAR, hosts VARCHAR[],
    action VARCHAR, then_action VARCHAR, scope VARCHAR, basis VARCHAR, reason VARCHAR, words VARCHAR,
    state VARCHAR, state_words VARCHAR, proposed TIMESTAMP, expires TIMESTAMP, act_by TIMESTAMP,
    waiting_gpu_hours DOUBLE, acting_gpu_hours DOUBLE, arithmetic VARCHAR, confidence DOUBLE,
    hazard_per_hour DOUBLE, devices VARCHAR[], job VARCHAR, count UBIGINT, owner VARCHAR,
    shadow BOOLEAN
);
COMMENT ON TABLE advisories IS 'every state of every advisory; the highest revision is the current one';

CREATE TABLE outcomes (
    time TIMESTAMP, outcome VARCHAR, advisory VARCHAR, reporter VARCHAR, job VARCHAR, hosts VARCHAR[],
    started TIMESTAMP, ended TIMESTAMP, interrupted BOOLEAN, blamed_host VARCHAR, end_reason VARCHAR,
    followed BOOLEAN, lost_gpu_hours DOUBLE, host_hours DOUBLE, expected_interruptions DOUBLE,
    reason VARCHAR
);
COMMENT ON TABLE outcomes IS
    'outcomes that schedulers reported: whether advice was followed, and its cost; expected_interruptions follows from the scores of that time';
