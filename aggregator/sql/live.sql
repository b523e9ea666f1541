-- Only in the live file: `snapshot`, which the operators' file has as a table.
CREATE OR REPLACE VIEW snapshot AS
SELECT
    make_timestamp(epoch_us(now())) AS taken, TIMESTAMP '1970-01-01' AS readings_since,
    []::VARCHAR[] AS left_out;
COMMENT ON VIEW snapshot IS
    'the time of this snapshot, its first readings, and what was left out for lack of space';

-- What a model of hazard is told comes from all that was ever found of a host: the operators' file has it as a table.
CREATE OR REPLACE VIEW cleared_findings AS
SELECT host, name, since, cleared, message FROM findings WHERE cleared IS NOT NULL
UNION ALL BY NAME SELECT host, name, since, cleared FROM past_findings;
COMMENT ON VIEW cleared_findings IS
    'cleared findings, for 400 days; those older than history_days have no message';
