CREATE OR REPLACE MACRO ops.gpu_minutes(uuid, hours := 24) AS TABLE
SELECT
    time, host, sm_clock_hertz_mean / 1e6 AS sm_clock_mean_megahertz,
    sm_clock_hertz_min / 1e6 AS sm_clock_min_megahertz, power_watts_mean, power_watts_max,
    temperature_celsius_max, utilization_ratio_mean,
    ops.clock_reasons(clock_event_reasons_flags_any) AS held_down_by,
    violation_thermal_nanoseconds_increase / 1e9 AS held_by_heat_seconds, readings_count, device
FROM rollups.gpu_1s_1m
WHERE ops.is_part(device, uuid)
    AND time > ops.taken() - to_hours(hours)
ORDER BY time;
COMMENT ON MACRO TABLE ops.gpu_minutes IS
    'a GPU minute by minute, over the last hours (24 unless said): SELECT time, sm_clock_mean_megahertz, temperature_celsius_max, held_down_by FROM ops.gpu_minutes(''GPU-38df83f5'')';

CREATE OR REPLACE MACRO ops.gpu_hours(uuid, days := 14) AS TABLE
SELECT
    time, host, sm_clock_hertz_mean / 1e6 AS sm_clock_mean_megahertz,
    sm_clock_hertz_min / 1e6 AS sm_clock_min_megahertz, power_watts_mean, power_watts_max,
    temperature_celsius_max, utilization_ratio_mean,
    ops.clock_reasons(clock_event_reasons_flags_any) AS held_down_by,
    violation_thermal_nanoseconds_increase / 1e9 AS held_by_heat_seconds, readings_count, device
FROM rollups.gpu_1s_1h
WHERE ops.is_part(device, uuid)
    AND time > ops.taken() - to_days(days)
ORDER BY time;
COMMENT ON MACRO TABLE ops.gpu_hours IS
    'a GPU hour by hour, over the last days (14 unless said): SELECT time, sm_clock_mean_megahertz, temperature_celsius_max, held_by_heat_seconds FROM ops.gpu_hours(''GPU-38df83f5'')';
