CREATE OR REPLACE MACRO ops.clock_reasons(flags) AS array_to_string([
    CASE WHEN flags & 1 <> 0 THEN 'idle' END,
    CASE WHEN flags & 2 <> 0 THEN 'clocks set by somebody' END,
    CASE WHEN flags & 4 <> 0 THEN 'power cap' END,
    CASE WHEN flags & 8 <> 0 THEN 'hardware slowdown' END,
    CASE WHEN flags & 16 <> 0 THEN 'sync boost' END,
    CASE WHEN flags & 32 <> 0 THEN 'heat (software)' END,
    CASE WHEN flags & 64 <> 0 THEN 'heat (hardware)' END,
    CASE WHEN flags & 128 <> 0 THEN 'power brake' END,
    CASE WHEN flags & 256 <> 0 THEN 'display' END], ', ');
COMMENT ON MACRO ops.clock_reasons IS
    'why a clock is not higher, as words for the bits of clock_event_reasons_flags (nvml.h): SELECT ops.clock_reasons(96::UBIGINT) AS why';

CREATE OR REPLACE VIEW ops.gpus AS
SELECT
    d.host, d.device AS gpu, d.attributes['name'] AS model,
    g.sm_clock_hertz / 1e6 AS sm_clock_megahertz, g.power_watts, g.temperature_celsius,
    g.utilization_ratio, ops.clock_reasons(g.clock_event_reasons_flags) AS held_down_by,
    g.processes_count, g.memory_used_bytes / 1e9 AS memory_used_gigabytes,
    g.lost_state = 1 AS lost, d.attributes['pci_address'] AS pci_address,
    coalesce(d.attributes['driver'], h.labels['nvidia_driver_version']) AS driver,
    d.attributes['vbios'] AS vbios, d.attributes['serial'] AS serial, g.time, h.simulated
FROM main.devices AS d JOIN main.hosts AS h USING (host)
LEFT JOIN latest.gpu_1s AS g USING (host, device)
WHERE d.kind = 'gpu' ORDER BY d.host, pci_address, gpu;
COMMENT ON VIEW ops.gpus IS
    'every GPU as it was last read, and what it is: SELECT host, left(gpu, 12) AS gpu, sm_clock_megahertz, power_watts, temperature_celsius FROM ops.gpus LIMIT 3';

CREATE OR REPLACE VIEW ops.throttled AS
SELECT
    host, gpu, sm_clock_megahertz, fastest_megahertz, held_down_by,
    temperature_celsius, power_watts, time, simulated
FROM (
    SELECT *, max(sm_clock_megahertz) OVER (PARTITION BY model, simulated) AS fastest_megahertz
    FROM ops.gpus
)
WHERE held_down_by SIMILAR TO '.*(heat|hardware slowdown|power brake|power cap).*'
ORDER BY sm_clock_megahertz, host, gpu;
COMMENT ON VIEW ops.throttled IS
    'GPUs that heat, a power cap or a brake holds down, slowest first (a power cap at full load is normal: look at the clock): SELECT host, left(gpu, 12) AS gpu, sm_clock_megahertz, held_down_by FROM ops.throttled';

CREATE OR REPLACE VIEW ops.remaps AS
SELECT
    host, device AS gpu, remap_failed_state = 1 AS failed, remap_pending_state = 1 AS pending,
    remapped_uncorrectable_rows, remapped_correctable_rows,
    remap_banks_none_count AS banks_without_spares_count, time
FROM latest.gpu_10s_changes
WHERE remap_pending_state = 1 OR remap_failed_state = 1
    OR remapped_uncorrectable_rows > 0 OR remapped_correctable_rows > 0
ORDER BY failed DESC, pending DESC, remapped_uncorrectable_rows DESC, host, gpu;
COMMENT ON VIEW ops.remaps IS
    'GPUs with replaced memory rows, those that failed or wait for a reset first: FROM ops.remaps';

CREATE OR REPLACE MACRO ops.gpu_history(uuid) AS TABLE
SELECT
    time, host, sm_clock_hertz / 1e6 AS sm_clock_megahertz, power_watts, temperature_celsius,
    memory_temperature_celsius, utilization_ratio, clock_event_reasons_flags,
    violation_thermal_nanoseconds, violation_power_nanoseconds, lost_state, device
FROM readings.gpu_1s WHERE ops.is_part(device, uuid) ORDER BY time;
COMMENT ON MACRO TABLE ops.gpu_history IS
    'a GPU second by second (the beginning of its UUID is enough; minutes: ops.gpu_minutes, hours: ops.gpu_hours): SELECT time, sm_clock_megahertz, power_watts FROM ops.gpu_history(''GPU-9708d874'') LIMIT 3';

CREATE OR REPLACE MACRO ops.window(minutes := 5) AS TABLE
SELECT
    count(*) AS readings_count, avg(sm_clock_hertz) / 1e6 AS sm_clock_mean_megahertz,
    min(sm_clock_hertz) / 1e6 AS sm_clock_min_megahertz, avg(power_watts) AS power_mean_watts,
    max(temperature_celsius) AS temperature_max_celsius, avg(utilization_ratio) AS utilization_mean_ratio
FROM readings.gpu_1s
WHERE time > ops.taken() - to_minutes(minutes);
COMMENT ON MACRO TABLE ops.window IS
    'all GPUs together over the last minutes: FROM ops.window(minutes := 2)';
