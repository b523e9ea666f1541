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
    'every GPU with its last readings and its model: SELECT host, left(gpu, 12) AS gpu, sm_clock_megahertz, power_watts, temperature_celsius FROM ops.gpus LIMIT 3';

-- Of the last minute, not of the last sample: a driver's flag goes out for a sample now and then. 236 are the bits of
-- a power cap, a slowdown, heat and the brake. Counters of nanoseconds tell of what a sample missed. Of a GPU that was
-- not read in that minute the last reading tells.
CREATE OR REPLACE VIEW ops.throttled AS
SELECT
    host, gpu, sm_clock_megahertz, fastest_megahertz, concat_ws(', ',
        nullif(ops.clock_reasons(flags), ''), if(thermal_ratio >= 0.05 AND flags & 96 = 0, 'heat', NULL),
        if(power_ratio >= 0.05 AND flags & 132 = 0, 'power cap', NULL)) AS held_down_by,
    temperature_celsius, power_watts, time, simulated, round(held_down_ratio, 2) AS held_down_ratio,
    round(thermal_ratio, 2) AS thermal_ratio, round(power_ratio, 2) AS power_ratio,
    round(mean_megahertz) AS mean_megahertz
FROM (
    SELECT *, max(sm_clock_megahertz) OVER (PARTITION BY model, simulated) AS fastest_megahertz
    FROM ops.gpus
) AS g JOIN (
    SELECT
        host, device AS gpu, coalesce(bit_or(clock_event_reasons_flags & 236), 0) AS flags,
        coalesce(avg((clock_event_reasons_flags & 236 <> 0)::INTEGER), 0) AS held_down_ratio,
        sum(thermal_nanoseconds) / nullif(max(boottime_ns) - min(boottime_ns), 0) AS thermal_ratio,
        sum(power_nanoseconds) / nullif(max(boottime_ns) - min(boottime_ns), 0) AS power_ratio,
        avg(sm_clock_hertz) / 1e6 AS mean_megahertz
    FROM (
        SELECT
            host, device, boottime_ns, clock_event_reasons_flags, sm_clock_hertz,
            ops.counted(violation_thermal_nanoseconds, boottime_ns, (host, device), time, 64, false)
                AS thermal_nanoseconds,
            ops.counted(violation_power_nanoseconds, boottime_ns, (host, device), time, 64, false)
                AS power_nanoseconds
        FROM (
            SELECT
                host, device, time, boottime_ns, clock_event_reasons_flags, sm_clock_hertz,
                violation_thermal_nanoseconds, violation_power_nanoseconds
            FROM readings.gpu_1s WHERE time > ops.taken() - INTERVAL 1 MINUTE AND time <= ops.taken()
            UNION
            SELECT
                host, device, time, boottime_ns, clock_event_reasons_flags, sm_clock_hertz,
                violation_thermal_nanoseconds, violation_power_nanoseconds
            FROM latest.gpu_1s
        )
    ) GROUP BY ALL
) AS w USING (host, gpu)
WHERE held_down_ratio >= 0.05 OR thermal_ratio >= 0.05 OR power_ratio >= 0.05
ORDER BY sm_clock_megahertz, host, gpu;
COMMENT ON VIEW ops.throttled IS
    'GPUs limited by heat, a power cap or a power brake in the last minute, slowest first, with the share of samples (held_down_ratio) and of time by the driver''s counters (a power cap at full load is normal: check the clock): SELECT host, left(gpu, 12) AS gpu, sm_clock_megahertz, held_down_by, held_down_ratio FROM ops.throttled';

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
    'GPUs with remapped memory rows; failed remaps and those that wait for a reset come first: FROM ops.remaps';

CREATE OR REPLACE MACRO ops.gpu_history(uuid) AS TABLE
SELECT
    time, host, sm_clock_hertz / 1e6 AS sm_clock_megahertz, power_watts, temperature_celsius,
    memory_temperature_celsius, utilization_ratio, clock_event_reasons_flags,
    violation_thermal_nanoseconds, violation_power_nanoseconds, lost_state, device
FROM readings.gpu_1s WHERE ops.is_part(device, uuid) ORDER BY time;
COMMENT ON MACRO TABLE ops.gpu_history IS
    'a GPU second by second (the beginning of its UUID is enough; minutes: ops.gpu_minutes, hours: ops.gpu_hours): SELECT time, sm_clock_megahertz, power_watts FROM ops.gpu_history(''GPU-38df83f5'') LIMIT 3';

CREATE OR REPLACE MACRO ops.window(minutes := 5) AS TABLE
SELECT
    count(*) AS readings_count, avg(sm_clock_hertz) / 1e6 AS sm_clock_mean_megahertz,
    min(sm_clock_hertz) / 1e6 AS sm_clock_min_megahertz, avg(power_watts) AS power_mean_watts,
    max(temperature_celsius) AS temperature_max_celsius, avg(utilization_ratio) AS utilization_mean_ratio
FROM readings.gpu_1s
WHERE time > ops.taken() - to_minutes(minutes);
COMMENT ON MACRO TABLE ops.window IS
    'all GPUs together over the last minutes: FROM ops.window(minutes := 2)';

-- Clocks as judging compares them (`fleet/activity.py`, `fleet/peers.py`; a test holds them equal): each GPU's mean while
-- it computed, fading over four seconds, and the median of those alike, from all that decides a clock (width 0) to the
-- model alone (3). The last reading stands in for the last minute of a host where that had no room. No window is over
-- readings: a minute of a large fleet is five million, and what sorts them has no room in memory.
CREATE OR REPLACE MACRO ops.clocks(moment) AS TABLE
WITH read AS (
    SELECT
        host, device, time, sm_clock_hertz, utilization_ratio, power_watts, temperature_celsius,
        clock_event_reasons_flags AS flags
    FROM (
        FROM readings.gpu_1s WHERE time BETWEEN moment - INTERVAL 60 SECOND AND moment
        UNION ALL BY NAME
        FROM latest.gpu_1s ANTI JOIN (
            SELECT DISTINCT host FROM readings.gpu_1s WHERE time BETWEEN moment - INTERVAL 60 SECOND AND moment
        ) AS reported USING (host)
        WHERE time BETWEEN moment - INTERVAL 60 SECOND AND moment
    ) SEMI JOIN ops.awake(moment) USING (host)
),
computing AS (
    SELECT
        host, device, max(time) AS time,
        sum(sm_clock_hertz * exp(epoch(time - moment) / 4)) / sum(exp(epoch(time - moment) / 4)) AS sm_clock_hertz,
        arg_max(temperature_celsius, time) AS temperature_celsius, arg_max(power_watts, time) AS power_watts,
        ops.clock_reasons(arg_max(flags, time)) AS held_down_by,
        sum(exp(epoch(time - moment) / 4)) FILTER (
            coalesce(flags, 0) & 232 = 0 AND (power_watts >= 0.95 * power_limit_watts
                OR coalesce(flags, 0) & 4 <> 0 AND power_watts >= 0.75 * power_limit_watts)
        ) >= 0.25 * sum(exp(epoch(time - moment) / 4)) AS is_limited
    FROM read
    LEFT JOIN (SELECT host, device, power_limit_watts FROM latest.gpu_10s) AS ten USING (host, device)
    LEFT JOIN (SELECT host, device, power_limit_default_watts FROM latest.gpu_60s) AS sixty USING (host, device)
    WHERE utilization_ratio >= 0.5 AND sm_clock_hertz IS NOT NULL AND (
        power_watts >= greatest(0.35 * power_limit_watts, 0.25 * power_limit_default_watts) OR flags & 232 <> 0)
    GROUP BY host, device
),
-- Idle ones too: who shares a power limit with hosts enough is measured under that limit or not at all.
known AS (
    SELECT
        every.host, every.device, computing.* EXCLUDE (host, device), simulated, attributes, mig_mode_state AS mig,
        power_limit_watts AS limit_watts, sm_clock_max_hertz AS max_hertz, sm_application_clock_hertz AS set_hertz
    FROM (
        SELECT host, device FROM latest.gpu_10s UNION SELECT host, device FROM computing
    ) AS every LEFT JOIN computing USING (host, device)
    JOIN main.hosts USING (host)
    LEFT JOIN (FROM main.devices WHERE kind = 'gpu') AS made USING (host, device)
    LEFT JOIN (SELECT host, device, power_limit_watts, sm_clock_max_hertz FROM latest.gpu_10s) AS ten USING (host, device)
    LEFT JOIN (SELECT host, device, sm_application_clock_hertz FROM latest.gpu_60s) AS sixty USING (host, device)
    LEFT JOIN (SELECT host, device, mig_mode_state FROM latest.gpu_10s_changes) AS mode USING (host, device)
),
alike AS (
    SELECT
        *, [simulated::VARCHAR, coalesce(attributes['name'], ''),
            if(coalesce(attributes['name'], '') = '', round(max_hertz / 1e6), 0)::VARCHAR] AS alike3,
        alike3 || [coalesce(attributes['ecc_mode'], ''), coalesce(round(limit_watts / 5), 0)::VARCHAR,
            coalesce(round(set_hertz / 15e6), 0)::VARCHAR, coalesce(1 + (mig = 1)::INTEGER, 0)::VARCHAR] AS alike2,
        alike2 || [coalesce(attributes['driver'], '')] AS alike1,
        alike1 || [coalesce(attributes['board_part_number'], ''), coalesce(attributes['vbios'], '')] AS alike0
    FROM known
),
-- Of those at a power limit no lower than is usual where they are compared only others at it are peers.
held AS (
    SELECT
        *, if(sm_clock_hertz IS NULL, NULL, host) AS worker, coalesce(is_limited, false) AS at2,
        at2 AND limit_watts >= median(if(worker IS NULL, NULL, limit_watts)) OVER (PARTITION BY alike3) - 5 AS at3
    FROM alike
),
counted AS (
    SELECT
        *,
        CASE
            WHEN at2 AND count(worker) OVER l0 >= 4 AND count(DISTINCT worker) OVER l0 >= 3 THEN 0
            WHEN NOT at2 AND count(worker) OVER w0 >= 4 AND count(DISTINCT worker) OVER w0 >= 3 THEN 0
            WHEN at2 AND count(worker) OVER l1 >= 4 AND count(DISTINCT worker) OVER l1 >= 3 THEN 1
            WHEN NOT at2 AND count(worker) OVER w1 >= 4 AND count(DISTINCT worker) OVER w1 >= 3 THEN 1
            WHEN at2 AND count(worker) OVER l2 >= 4 AND count(DISTINCT worker) OVER l2 >= 3 THEN 2
            WHEN NOT at2 AND count(worker) OVER w2 >= 4 AND count(DISTINCT worker) OVER w2 >= 3 THEN 2
            WHEN count(*) OVER w2 BETWEEN 4 AND count(*) OVER w3 - 1 AND count(DISTINCT host) OVER w2 >= 3 THEN NULL
            WHEN at3 AND count(worker) OVER l3 >= 4 THEN 3
            WHEN NOT at3 AND count(worker) OVER w3 >= 4 THEN 3
        END AS width,
        if(width = 3, at3, at2) AS at_limit,
        if(at_limit, [median(sm_clock_hertz) OVER l0, median(sm_clock_hertz) OVER l1,
            median(sm_clock_hertz) OVER l2, median(sm_clock_hertz) OVER l3],
            [median(sm_clock_hertz) OVER w0, median(sm_clock_hertz) OVER w1,
            median(sm_clock_hertz) OVER w2, median(sm_clock_hertz) OVER w3]) AS medians
    FROM held
    WINDOW w0 AS (PARTITION BY alike0), w1 AS (PARTITION BY alike1), w2 AS (PARTITION BY alike2),
        w3 AS (PARTITION BY alike3), l0 AS (PARTITION BY alike0, at2), l1 AS (PARTITION BY alike1, at2),
        l2 AS (PARTITION BY alike2, at2), l3 AS (PARTITION BY alike3, at3)
)
SELECT
    host, device, sm_clock_hertz, medians[width + 1] AS median_hertz, sm_clock_hertz / median_hertz AS ratio,
    temperature_celsius, power_watts, held_down_by, time, width, at_limit,
    [alike0, alike1, alike2, alike3] AS alike
FROM counted WHERE sm_clock_hertz IS NOT NULL ORDER BY ratio, host, device;
COMMENT ON MACRO TABLE ops.clocks IS
    'the clock of each GPU that computed in the minute before a time, as judged, beside the median of its peers: SELECT host, left(device, 12) AS gpu, sm_clock_hertz, ratio, held_down_by FROM ops.clocks(TIMESTAMP ''2023-11-14 22:16:00'') LIMIT 3';

-- Of one at its power limit the peers are its gang, if given by its hosts, and GPUs where it shares a host: those at their
-- limit of three hosts or more, or else all.
CREATE OR REPLACE MACRO ops.peers(host_name, moment, gpu := '', gang := []) AS TABLE
WITH clocks AS MATERIALIZED (FROM ops.clocks(moment)),
it AS (
    SELECT * EXCLUDE (alike), alike[coalesce(width, 0) + 1] AS of FROM clocks
    WHERE host = host_name AND gpu IN ('', device) ORDER BY ratio, device LIMIT 1
),
beside AS (
    SELECT c.*
    FROM clocks AS c, it
    WHERE c.alike[coalesce(it.width, 0) + 1] = it.of
        AND (len(gang) > 0 AND list_has_any(gang::VARCHAR[], [c.host, c.device]) OR len(gang) = 0 AND (NOT it.at_limit OR c.at_limit))
),
measured AS (
    SELECT
        * EXCLUDE (median_hertz),
        if(len(gang) = 0, (SELECT median_hertz FROM it), median(sm_clock_hertz) OVER ()) AS median_hertz
    FROM beside
    WHERE len(gang) = 0 OR at_limit OR (SELECT count(*) < 4 OR count(DISTINCT host) < 3 FROM beside WHERE at_limit)
)
SELECT
    c.host, c.device, c.sm_clock_hertz, c.median_hertz, c.sm_clock_hertz / c.median_hertz AS ratio,
    c.temperature_celsius, c.power_watts, c.held_down_by, c.time
FROM measured AS c, it
ORDER BY (c.host, c.device) = (it.host, it.device) DESC, abs(c.sm_clock_hertz - c.median_hertz), c.host, c.device;
COMMENT ON MACRO TABLE ops.peers IS
    'a GPU of a host (the slowest, or gpu := ...) and the peers that its clock was compared with at a time, those nearest to their median first: SELECT host, left(device, 12) AS gpu, sm_clock_hertz, median_hertz, ratio FROM ops.peers(''sim-006'', TIMESTAMP ''2023-11-14 22:16:00'') LIMIT 3';
