-- Demand of runs on shared resources, as `aggregator/runs/demand.py` writes it with each run.
CREATE OR REPLACE VIEW ops.run_demand AS
SELECT
    d.job, d.run_id, r.workload_class, d.resource, d.unit, d.p50, d.p95, d.p99, d.high, d.readings, r.gpus, r.hosts, r.gpu_model,
    d.time, r.ended IS NULL AS runs_now, coalesce(r.simulated, false) AS simulated
FROM main.run_demand AS d LEFT JOIN main.runs AS r USING (run_id)
ORDER BY d.job, d.run_id, d.resource;
COMMENT ON VIEW ops.run_demand IS
    'demand of each run per GPU (sm, hbm_bandwidth, pcie, nvlink, tensor, hbm_bytes) and per host (nic, nic_waits, cores, memory_bandwidth, page_cache_bytes, disk, network_fs): quantiles over its seconds alone there, and the highest; cores, disk and page_cache_bytes also beside other jobs; no row: not read, or never alone: SELECT job, resource, p50, p95, p99, high, unit FROM ops.run_demand WHERE runs_now';
COMMENT ON COLUMN ops.run_demand.p95 IS 'its demand is below this in 95 of 100 seconds';
COMMENT ON COLUMN ops.run_demand.high IS 'the highest reading: of hbm_bytes the high-water mark';
COMMENT ON COLUMN ops.run_demand.readings IS 'seconds of a GPU, or of a host, that were counted';

-- Supply of each host, from its latest readings. A link counts with its present lanes and the speed that both of its ends
-- support, because an idle link trains to a lower speed, but not to fewer lanes. Encoding: 8 of 10 bits up to 5 GT/s, then 128
-- of 130 (PCI Express Base Specification, 4.2).
CREATE OR REPLACE MACRO ops.pcie_bytes_per_second(transfers_per_second, lanes) AS
    transfers_per_second * lanes / 8 * if(transfers_per_second > 5e9, 128 / 130, 0.8);
COMMENT ON MACRO ops.pcie_bytes_per_second IS
    'capacity of a PCIe link in one direction: SELECT ops.pcie_bytes_per_second(32e9, 16) AS bytes_per_second';

CREATE OR REPLACE VIEW ops.host_supply AS
WITH functions AS (
    SELECT
        host, device AS address, time, link_width_lanes AS lanes, link_width_max_lanes AS lanes_max,
        link_speed_max_transfers_per_second AS speed_max
    FROM latest.pcie_10s
),
owners AS (
    SELECT
        d.host, d.device, d.kind, d.attributes['pci_address'] AS address,
        string_split(nullif(f.attributes['parents'], ''), ' ') AS parents
    FROM main.devices AS d
    JOIN main.devices AS f ON f.kind = 'pcie' AND f.host = d.host AND f.device = d.attributes['pci_address']
    WHERE d.kind IN ('gpu', 'rdma', 'nvme')
),
-- The links of a device up to the root: a function and the port above it are the ends of each.
links AS (
    SELECT o.host, o.device, ends.lower_end, ends.upper_end
    FROM (
        SELECT host, device, [address] || coalesce(parents, []) AS chain FROM owners
    ) AS o,
    LATERAL (
        SELECT o.chain[i] AS lower_end, o.chain[i + 1] AS upper_end
        FROM (SELECT unnest(range(1, len(o.chain), 2)) AS i)
    ) AS ends
),
whole_paths AS (
    SELECT
        l.host, l.device, max(a.time) AS time,
        min(ops.pcie_bytes_per_second(least(a.speed_max, b.speed_max), a.lanes)) AS supply,
        min(ops.pcie_bytes_per_second(least(a.speed_max, b.speed_max), least(a.lanes_max, b.lanes_max))) AS full_supply,
        arg_min(l.lower_end, ops.pcie_bytes_per_second(least(a.speed_max, b.speed_max), a.lanes)) AS narrowest
    FROM links AS l
    JOIN functions AS a ON a.host = l.host AND a.address = l.lower_end
    JOIN functions AS b ON b.host = l.host AND b.address = l.upper_end
    GROUP BY ALL
),
paths AS (
    FROM whole_paths
    UNION ALL BY NAME
    -- A GPU whose path is unknown: its own link, by its driver.
    SELECT
        host, device, time, ops.pcie_bytes_per_second(speed, pcie_width_lanes) AS supply,
        ops.pcie_bytes_per_second(speed, pcie_width_max_lanes) AS full_supply, left(device, 12) AS narrowest
    FROM (
        SELECT *, [2.5e9, 5e9, 8e9, 16e9, 32e9, 64e9][pcie_generation_max_number::INTEGER] AS speed FROM latest.gpu_10s
    ) ANTI JOIN whole_paths USING (host, device)
    WHERE speed IS NOT NULL AND pcie_width_lanes IS NOT NULL
),
-- The upstream port of the first switch above a device is shared by everything below that switch.
neighbors AS (
    SELECT o.host, o.device, list(n.device ORDER BY n.kind, n.device) AS shared_with
    FROM owners AS o JOIN owners AS n ON n.host = o.host AND n.device <> o.device AND list_contains(n.parents, o.parents[2])
    GROUP BY ALL
),
fast AS (
    SELECT host, device, pcie_received_bytes_per_second + pcie_transmitted_bytes_per_second AS bytes_per_second FROM latest.gpu_fast_1s
),
supplies AS (
    SELECT
        g.host, 'hbm_bytes' AS resource, g.device, 'bytes' AS unit, g.time,
        if(s.state = 'UNHEALTHY', 0, g.memory_total_bytes - u.memory_used_bytes) AS supply, g.memory_total_bytes AS full_supply,
        u.memory_used_bytes AS in_use, NULL AS shared_with,
        if(s.state = 'UNHEALTHY', 'the GPU is UNHEALTHY: ' || s.reason, NULL) AS message
    FROM latest.gpu_10s AS g JOIN latest.gpu_1s AS u
    ON u.host = g.host AND u.device = g.device
    LEFT JOIN ops.gpu_scores AS s ON s.host = g.host AND s.gpu = g.device
    UNION ALL BY NAME
    SELECT
        p.host, 'pcie' AS resource, p.device, 'bytes_per_second' AS unit, p.time, p.supply, p.full_supply,
        f.bytes_per_second AS in_use, n.shared_with,
        if(p.supply < p.full_supply, 'the link of ' || p.narrowest || ' has fewer lanes than both of its ends support', NULL) AS message
    FROM paths AS p LEFT JOIN neighbors AS n ON n.host = p.host AND n.device = p.device
    LEFT JOIN fast AS f ON f.host = p.host AND f.device = p.device
    UNION ALL BY NAME
    SELECT
        p.host, 'nic' AS resource, p.port AS device, 'bytes_per_second' AS unit, p.time,
        if(active, rate_gigabits_per_second * 1e9 / 8, 0) AS supply, rate_gigabits_per_second * 1e9 / 8 AS full_supply,
        n.shared_with, if(active, NULL, 'the port is down') AS message
    FROM ops.ports AS p LEFT JOIN neighbors AS n ON n.host = p.host AND n.device = p.port
    UNION ALL BY NAME
    SELECT
        c.host, 'cores' AS resource, 'host' AS device, 'cores' AS unit, c.time, c.cores_count AS supply, c.cores_count AS full_supply,
        (u.cpu_user_ratio + u.cpu_system_ratio) * c.cores_count AS in_use
    FROM latest.host_60s AS c LEFT JOIN latest.host_1s AS u ON u.host = c.host
    UNION ALL BY NAME
    SELECT
        host, 'memory_bytes' AS resource, device, 'bytes' AS unit, time, memory_free_bytes AS supply, memory_total_bytes AS full_supply,
        memory_total_bytes - memory_free_bytes AS in_use
    FROM latest.numa_10s
    UNION ALL BY NAME
    SELECT
        host, resource, 'host' AS device, 'bytes_per_second' AS unit, time, value AS supply,
        'the most that was seen; the host may supply more' AS message
    FROM main.measured_supply
    UNION ALL BY NAME
    SELECT
        host, 'gpu_direct_storage' AS resource, 'host' AS device, 'state' AS unit, time, gpu_direct_storage_state AS supply
    FROM latest.settings_60s WHERE gpu_direct_storage_state IS NOT NULL
)
SELECT host, resource, device, supply, full_supply, in_use, unit, shared_with, message, time FROM supplies ORDER BY ALL;
COMMENT ON VIEW ops.host_supply IS
    'present supply of each host, by resource and device, with degraded parts in their present state: free HBM, the narrowest PCIe link up to the root with the devices behind the same switch, ports, cores, free memory by NUMA node: SELECT resource, device, supply, full_supply, unit, message FROM ops.host_supply WHERE supply < full_supply';
COMMENT ON COLUMN ops.host_supply.full_supply IS 'the supply with every part healthy and free';
COMMENT ON COLUMN ops.host_supply.shared_with IS 'devices behind the same PCIe switch, which share its link';

CREATE OR REPLACE VIEW ops.colocations AS
SELECT
    job, neighbor, since, until, hosts, effect, slowdown_ratio, slowdown_lower_ratio, slowdown_upper_ratio, resource,
    windows_alone, windows_beside, message, run_id, neighbor_run_id, time, simulated
FROM main.colocations ORDER BY until IS NOT NULL, slowdown_ratio DESC, since DESC;
COMMENT ON VIEW ops.colocations IS
    'each job beside another on a host: its pace beside the neighbor against its own pace alone, worst first (until NULL: still); effect says whether the neighbor slowed it: SELECT count(*) AS pairs, count(*) FILTER (effect = ''slower'') AS slower FROM ops.colocations';
COMMENT ON COLUMN ops.colocations.slowdown_ratio IS 'the share of its speed that the job lost, with a 90 % interval';
COMMENT ON COLUMN ops.colocations.resource IS 'the resource that both need more of than the host has; NULL: none is known';

-- Jobs that hold far more HBM than their workload ever uses. The high-water mark is the maximum over all phases and GPUs of all
-- runs of the workload in 14 days, never a mean. No advice without enough evidence: 3 runs of an hour or more, a day of readings
-- per GPU in all, and no run whose memory is unknown. The operators' file has the newest demands only: fewer days then count.
CREATE OR REPLACE VIEW ops.oversized_runs AS
WITH counted AS (
    SELECT greatest(ops.taken() - INTERVAL 14 DAY, min(time)) AS since FROM main.run_demand
),
uses AS (
    SELECT r.workload_id, r.gpu_model, r.begun, d.high, d.readings / greatest(r.gpus, 1) AS seconds
    FROM main.runs AS r LEFT JOIN main.run_demand AS d ON d.run_id = r.run_id AND d.resource = 'hbm_bytes'
    WHERE r.time >= (SELECT since FROM counted)
),
workloads AS (
    SELECT
        workload_id, gpu_model, max(high) AS high_bytes, count(*) AS runs, sum(seconds) / 3600 AS observed_hours,
        greatest(min(begun), (SELECT since FROM counted)) AS since
    FROM uses GROUP BY workload_id, gpu_model
    HAVING count(*) FILTER (high IS NULL) = 0 AND count(*) FILTER (seconds >= 3600) >= 3 AND observed_hours >= 24
),
hosts AS (SELECT host, min(memory_total_bytes) AS gpu_bytes FROM latest.gpu_10s GROUP BY host),
held AS (
    SELECT r.run_id, min(h.gpu_bytes) AS gpu_bytes
    FROM (SELECT run_id, unnest(host_names) AS host FROM main.runs WHERE ended IS NULL) AS r JOIN hosts AS h USING (host)
    GROUP BY r.run_id
)
SELECT
    r.job, r.run_id, r.gpus, r.gpu_model, h.gpu_bytes, w.high_bytes, w.runs, w.observed_hours, w.since,
    'holds ' || r.gpus || ' x ' || round(h.gpu_bytes / 1e9)::BIGINT || ' GB and never used more than '
        || ceil(w.high_bytes / 1e9)::BIGINT || ' GB of a GPU in ' || ceil(epoch(ops.taken() - w.since) / 86400)::BIGINT || ' days ('
        || w.runs || ' runs, ' || floor(w.observed_hours)::BIGINT || ' h of readings)' AS message,
    coalesce(r.simulated, false) AS simulated
FROM main.runs AS r JOIN workloads AS w USING (workload_id, gpu_model) JOIN held AS h ON h.run_id = r.run_id
WHERE r.ended IS NULL AND w.high_bytes <= 0.5 * h.gpu_bytes
ORDER BY r.gpus * (h.gpu_bytes - w.high_bytes) DESC, r.job;
COMMENT ON VIEW ops.oversized_runs IS
    'jobs that run now and whose workload never used more than half of the HBM of a GPU in 14 days, in any phase of at least 3 runs and a day of readings: a smaller GPU, a MIG instance or a larger batch would do: SELECT count(*) AS jobs, sum(gpus * (gpu_bytes - high_bytes)) AS unused_bytes FROM ops.oversized_runs';
COMMENT ON COLUMN ops.oversized_runs.high_bytes IS 'the high-water mark of HBM over all GPUs and runs of the workload';
COMMENT ON COLUMN ops.oversized_runs.gpu_bytes IS 'HBM of the smallest GPU of its hosts';

CREATE OR REPLACE VIEW ops.interference_models AS
SELECT
    time AS trained, sharing,
    CASE
        WHEN row_number() OVER (PARTITION BY sharing ORDER BY time DESC) > 1 THEN 'replaced'
        WHEN accepted THEN 'in use' ELSE 'refused: physics alone is used'
    END AS status,
    pairs, workloads, error_ratio, physics_error_ratio, message
FROM main.interference_models ORDER BY trained DESC;
COMMENT ON VIEW ops.interference_models IS
    'models of how much jobs slow each other that gangline admin train --interference made: their error of the throughput on held-out pairs, and that of physics alone: SELECT count(*) AS models, count(*) FILTER (status = ''in use'') AS in_use FROM ops.interference_models';
