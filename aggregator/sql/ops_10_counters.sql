-- What operators ask: the same views over the live file and over the operators' file. All ages are
-- counted back from `snapshot.taken`, so that a file read later still tells what was so then. Files
-- `ops_NN_subject.sql` are run in their order; each comment ends in an example that a test runs.

-- The operators' file has its own with the moment itself in it: a comparison with a constant reads the rows of
-- those minutes only, one with a query reads all.
CREATE OR REPLACE MACRO ops.taken() AS (SELECT taken FROM main.snapshot);
COMMENT ON MACRO ops.taken IS 'time of this snapshot: SELECT ops.taken() AS taken';

CREATE OR REPLACE MACRO ops.is_part(device, part) AS CASE
    WHEN length(part) >= 40 THEN device = part
    ELSE device >= part AND device < part || '~' END;
COMMENT ON MACRO ops.is_part IS
    'whether a device has this name, or a name that begins with it: SELECT host FROM devices WHERE ops.is_part(device, ''GPU-38df83f5'')';

-- Counter algebra as in contract/counters.py (a test holds them equal): a counter that started over
-- counts nothing, a sentinel is no value, and one at its ceiling shows nothing.
CREATE OR REPLACE MACRO ops.counter_value(value, width_bits, sticks) AS CASE
    WHEN typeof(value) IN ('DOUBLE', 'FLOAT') THEN CASE WHEN value < 140737488355328.0 THEN value END
    WHEN value IN (4294967295, 18446744073709551615) THEN NULL
    WHEN value BETWEEN 9223372036854775792 AND 9223372036854775807 THEN NULL
    WHEN value BETWEEN 2147483632 AND 2147483647 THEN NULL
    WHEN sticks AND width_bits < 64 AND value = pow(2, width_bits)::HUGEINT - 1 THEN NULL
    ELSE value END;
COMMENT ON MACRO ops.counter_value IS
    'a counter''s value; NULL for a sentinel, and at the maximum of a counter that saturates: SELECT ops.counter_value(65534, 16, true) AS value';

CREATE OR REPLACE MACRO ops.counter_step(older, newer, width_bits, sticks) AS CASE
    WHEN ops.counter_value(older, width_bits, sticks) IS NULL
        OR ops.counter_value(newer, width_bits, sticks) IS NULL THEN NULL
    WHEN newer >= older THEN newer::HUGEINT - older::HUGEINT
    WHEN width_bits < 64 AND NOT sticks AND older < pow(2, width_bits)::HUGEINT
        AND newer::HUGEINT - older::HUGEINT + pow(2, width_bits)::HUGEINT
            <= pow(2, width_bits)::HUGEINT // 8
        THEN newer::HUGEINT - older::HUGEINT + pow(2, width_bits)::HUGEINT
    ELSE NULL END;
COMMENT ON MACRO ops.counter_step IS
    'increase of a counter between two readings of one boot, NULL when it restarted (older, newer, width_bits, sticks): SELECT ops.counter_step(4294967290, 10, 32, false) AS step';

CREATE OR REPLACE MACRO ops.counted(value, boottime_ns, device, read, width_bits, sticks) AS CASE
    WHEN boottime_ns > lag(boottime_ns) OVER (PARTITION BY device ORDER BY read) THEN coalesce(ops.counter_step(
        lag(ops.counter_value(value, width_bits, sticks) IGNORE NULLS) OVER (PARTITION BY device ORDER BY read),
        value, width_bits, sticks), 0)
    ELSE 0 END;
COMMENT ON MACRO ops.counted IS
    'increase of a counter since the previous reading of the device, 0 if the counter or its host restarted: SELECT sum(new) AS times_count FROM (SELECT ops.counted(link_downed_events, boottime_ns, (host, device), time, 8, true) AS new FROM readings.rdma_1s_changes)';

-- As `fleet/tables.py` has it: what counted between two readings may have at any time between them.
CREATE OR REPLACE MACRO ops.faded(new, read, moment, period_seconds, seconds) AS
    new * (1 - exp(-period_seconds / seconds)) * seconds / period_seconds
        * exp(-floor(greatest(epoch(moment - read), 0) / period_seconds) * period_seconds / seconds);
COMMENT ON MACRO ops.faded IS
    'weight of `new` events at a later time, decaying by 1/e in the given seconds, for readings of the given period: SELECT ops.faded(20, TIMESTAMP ''2023-11-14 22:16:00'', TIMESTAMP ''2023-11-14 22:26:00'', 1, 600) AS faded';
