-- Version 21: what judging remembers, so that a restart goes on from there.
CREATE TABLE judge_memory (host VARCHAR, time TIMESTAMP, body VARCHAR);
COMMENT ON TABLE judge_memory IS
    'state of judging for each host with symptoms, as JSON: written with its scores, and every minute';
