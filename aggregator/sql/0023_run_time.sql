-- Version 23: how long the aggregator has run, and what the wall clock showed meanwhile: retention goes by it. A store of
-- before counts as run from its first measurement of itself, a host or a score to its last.
CREATE TABLE run_time (run_us BIGINT, wall TIMESTAMP);
COMMENT ON TABLE run_time IS
    'microseconds that the aggregator had run when its wall clock showed wall: at its start, after each jump of that clock, and last';
INSERT INTO run_time
WITH measured AS (
    SELECT min(time) AS first, max(time) AS last
    FROM (SELECT time FROM own_health UNION ALL SELECT time FROM host_days UNION ALL SELECT time FROM scores)
)
SELECT 0, first FROM measured WHERE first IS NOT NULL
UNION ALL
SELECT epoch_us(last) - epoch_us(first), last FROM measured WHERE last > first;
