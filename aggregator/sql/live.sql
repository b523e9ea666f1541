-- Only in the live file: `snapshot`, which the operators' file has as a table.
CREATE OR REPLACE VIEW snapshot AS
SELECT
    make_timestamp(epoch_us(now())) AS taken, TIMESTAMP '1970-01-01' AS readings_since,
    []::VARCHAR[] AS left_out;
COMMENT ON VIEW snapshot IS
    'as of when everything here is, since when there are readings, and what had no room';

-- Until there are rollups: what the macros over them need in order to be made.
CREATE SCHEMA IF NOT EXISTS rollups;
CREATE VIEW IF NOT EXISTS rollups.gpu_1s_1m AS SELECT
    NULL::VARCHAR AS host, NULL::VARCHAR AS device, NULL::TIMESTAMP AS time,
    NULL::UBIGINT AS readings_count, NULL::DOUBLE AS sm_clock_hertz_mean,
    NULL::DOUBLE AS sm_clock_hertz_min, NULL::DOUBLE AS power_watts_mean,
    NULL::DOUBLE AS power_watts_max, NULL::DOUBLE AS temperature_celsius_max,
    NULL::DOUBLE AS utilization_ratio_mean, NULL::UBIGINT AS clock_event_reasons_flags_any,
    NULL::UBIGINT AS violation_thermal_nanoseconds_increase
WHERE false;
CREATE VIEW IF NOT EXISTS rollups.gpu_1s_1h AS FROM rollups.gpu_1s_1m;
