-- What the hosts' inventories tell. Leaf switches and racks are not in it: no agent speaks LLDP, and a rack
-- is known only where the GPUs' platform tells chassis and slot.
CREATE OR REPLACE VIEW ops.topology AS
SELECT
    g.host, g.device AS gpu, g.attributes['name'] AS model, g.attributes['pci_address'] AS pci_address,
    coalesce(p.attributes['numa_node'], g.attributes['numa_node']) AS numa_node,
    p.attributes['cpus'] AS cpus, p.attributes['nearest_rdma'] AS rails,
    p.attributes['nearest_rdma_at'] AS rails_at, p.attributes['nearest_nics'] AS nics,
    p.attributes['parents'] AS bridges, n.links_count, n.peers AS nvlink_peers,
    g.attributes['fabric_cluster'] AS nvlink_cluster, g.attributes['fabric_clique'] AS nvlink_clique,
    coalesce(g.attributes['chassis_serial'], g.attributes['rack_guid']) AS chassis,
    g.attributes['slot'] AS slot, g.attributes['tray'] AS tray
FROM main.devices AS g
LEFT JOIN main.devices AS p
    ON p.kind = 'pcie' AND p.host = g.host AND p.device = g.attributes['pci_address']
LEFT JOIN (
    SELECT
        host, attributes['gpu'] AS gpu, count(*) AS links_count,
        list_sort(list(DISTINCT trim(coalesce(attributes['remote_kind'], '') || ' '
            || coalesce(attributes['remote_pci_address'], '')))
            FILTER (attributes['remote_pci_address'] IS NOT NULL)) AS peers
    FROM main.devices WHERE kind = 'nvlink' GROUP BY ALL
) AS n ON n.host = g.host AND n.gpu = g.device
WHERE g.kind = 'gpu' ORDER BY g.host, pci_address, gpu;
COMMENT ON VIEW ops.topology IS
    'location of each GPU: NUMA node, PCIe bridges, the RDMA ports nearest to it (its rails), NVLink peers, NVLink domain, chassis; leaf switches are unknown: SELECT host, left(gpu, 12) AS gpu, pci_address, numa_node, rails, links_count FROM ops.topology LIMIT 3';

CREATE OR REPLACE VIEW ops.ports AS
SELECT
    host, d.device AS port, d.attributes['link_layer'] AS link_layer,
    r.port_state = 4 AS active, r.rate_bytes_per_second * 8 / 1e9 AS rate_gigabits_per_second,
    c.link_downed_events, c.symbol_errors, d.attributes['pci_address'] AS pci_address,
    d.attributes['numa_node'] AS numa_node, d.attributes['interfaces'] AS interfaces,
    d.attributes['lid'] AS lid, d.attributes['sm_lid'] AS subnet_manager_lid,
    d.attributes['firmware'] AS firmware, r.time
FROM main.devices AS d LEFT JOIN latest.rdma_1s AS r USING (host, device)
LEFT JOIN latest.rdma_1s_changes AS c USING (host, device)
WHERE d.kind = 'rdma' ORDER BY host, port;
COMMENT ON VIEW ops.ports IS
    'every RDMA port: whether it is up, its rate, its counters, firmware, subnet manager: SELECT host, port, active, rate_gigabits_per_second FROM ops.ports LIMIT 3';

-- On change and every minute: what counted within the hour that these tables are kept for.
CREATE OR REPLACE VIEW ops.flapping AS
SELECT host, device, what, sum(new) AS times_count, max(time) FILTER (new > 0) AS last_time
FROM (
    SELECT host, device, time, 'interface lost its carrier' AS what, ops.counter_step(
        lag(carrier_down_events) OVER (PARTITION BY host, device ORDER BY time), carrier_down_events,
        32, false) AS new
    FROM readings.net_1s_changes
    UNION ALL
    SELECT host, device, time, 'RDMA port went down', ops.counter_step(
        lag(link_downed_events) OVER (PARTITION BY host, device ORDER BY time), link_downed_events,
        8, true)
    FROM readings.rdma_1s_changes
    UNION ALL
    SELECT host, device, time, 'NVLink recovered', ops.counter_step(
        lag(link_recovery_events) OVER (PARTITION BY host, device ORDER BY time), link_recovery_events,
        64, false)
    FROM readings.nvlink_10s_changes
)
GROUP BY ALL HAVING times_count > 0 ORDER BY times_count DESC, host, device, what;
COMMENT ON VIEW ops.flapping IS
    'links that went down within the hour, and how often: interfaces, RDMA ports, NVLinks: FROM ops.flapping';
