-- Only in the live file: `snapshot`, which the operators' file has as a table.
CREATE OR REPLACE VIEW snapshot AS
SELECT
    make_timestamp(epoch_us(now())) AS taken, TIMESTAMP '1970-01-01' AS readings_since,
    []::VARCHAR[] AS left_out;
COMMENT ON VIEW snapshot IS
    'as of when everything here is, since when there are readings, and what had no room';
