-- What people declared: where hosts stand, what they must have, maintenance, noise, thresholds.
CREATE OR REPLACE VIEW ops.declared AS
SELECT number = max(number) OVER () AS in_force, number, taken, files, hash, notes
FROM main.declared_versions ORDER BY number DESC;
COMMENT ON VIEW ops.declared IS
    'versions of the declarations, the one in force first; why a newer one was rejected is a finding of (aggregator): SELECT number, taken, files FROM ops.declared WHERE in_force';

CREATE OR REPLACE VIEW ops.maintenance AS
SELECT
    CASE WHEN ops.taken() < begins THEN 'coming' WHEN ops.taken() < ends THEN 'now' ELSE 'over' END AS state,
    hosts, begins, ends, who, why, declared_in
FROM main.declared_windows ORDER BY begins, hosts;
COMMENT ON VIEW ops.maintenance IS
    'maintenance windows: their hosts are MAINTENANCE from begins to ends: FROM ops.maintenance WHERE state <> ''over''';

CREATE OR REPLACE VIEW ops.overrides AS
SELECT
    CASE WHEN ops.taken() >= until THEN 'over' WHEN ops.taken() < since THEN 'coming' ELSE 'now' END AS state,
    what, hosts, coalesce(rollout, 1) AS rollout, since, until, who, why, declared_in
FROM main.declared_overrides ORDER BY until, what;
COMMENT ON VIEW ops.overrides IS
    'declared noise: it stays in the evidence without weight: SELECT what, hosts, until, why FROM ops.overrides';

CREATE OR REPLACE VIEW ops.thresholds AS
SELECT
    name, value, default_value, value <> default_value AS is_declared, coalesce(rollout, 1) AS rollout,
    before_value, low, high, unit, description
FROM main.declared_thresholds ORDER BY name;
COMMENT ON VIEW ops.thresholds IS
    'thresholds of rules, and the range in which they may be declared: SELECT name, value, low, high FROM ops.thresholds';

CREATE OR REPLACE VIEW ops.costs AS
SELECT hosts, price_per_gpu_hour, preemptions_per_hour > 0 AS is_spot, preemptions_per_hour, declared_in
FROM main.declared_costs ORDER BY declared_in, hosts;
COMMENT ON VIEW ops.costs IS
    'the cost of a GPU-hour of hosts, and which hosts are spot; NULL: not in this entry: SELECT hosts, price_per_gpu_hour, is_spot, preemptions_per_hour FROM ops.costs';

CREATE OR REPLACE VIEW ops.tenants AS
SELECT tenant, gpu_hours_per_delay_hour, gpu_hours_per_currency_unit, gpu_hours_per_stranded_gpu_hour
FROM main.declared_tenants ORDER BY tenant;
COMMENT ON VIEW ops.tenants IS
    'exchange rates of tenants, by which plans convert their delay, money and stranded GPUs to GPU-hours; NULL: not declared: FROM ops.tenants';

CREATE OR REPLACE VIEW ops.expected AS
SELECT name, model, hosts, item, value, description, declared_in FROM main.declared_expected ORDER BY declared_in, name, item;
COMMENT ON VIEW ops.expected IS
    'what hosts must have, by the model of their GPUs or by name: SELECT name, item, value FROM ops.expected';

CREATE OR REPLACE VIEW ops.unexpected AS
SELECT host, subject[15:] AS item, message, since, clears_when
FROM main.findings
WHERE cleared IS NULL AND name = 'hardware.unexpected' ORDER BY host, item;
COMMENT ON VIEW ops.unexpected IS
    'hosts that differ from what was declared for them, and how: FROM ops.unexpected';

CREATE OR REPLACE VIEW ops.places AS
SELECT
    host,
    max(value) FILTER (field = 'rack') AS rack,
    max(value) FILTER (field = 'power_domain') AS power_domain,
    max(value) FILTER (field = 'cooling_domain') AS cooling_domain,
    max(value) FILTER (field = 'leaf') AS leaf,
    max(value) FILTER (field = 'spine') AS spine,
    max(value) FILTER (field = 'core') AS core,
    max(value) FILTER (field = 'nvlink_domain') AS nvlink_domain,
    max(value) FILTER (field = 'nvlink_subdomain') AS nvlink_subdomain,
    string_split(max(value) FILTER (field = 'rails'), ' ') AS rails
FROM main.declared_places WHERE counts GROUP BY host ORDER BY host;
COMMENT ON VIEW ops.places IS
    'location of each host, as far as known: SELECT host, rack, power_domain, leaf, spine FROM ops.places LIMIT 3';

CREATE OR REPLACE VIEW ops.place_sources AS
SELECT host, field, value, source, declared_in, counts,
    count(DISTINCT value) OVER (PARTITION BY host, field) > 1 AS disputed
FROM main.declared_places ORDER BY host, field, counts DESC;
COMMENT ON VIEW ops.place_sources IS
    'sources of a host''s location (a file, Topograph, its labels, its hardware), which one is used, and where they disagree: FROM ops.place_sources WHERE disputed';

CREATE OR REPLACE VIEW ops.unregistered AS
SELECT host, list_sort(list(DISTINCT declared_in)) AS declared_in
FROM main.declared_places
WHERE source IN ('file', 'topograph') AND host NOT IN (SELECT host FROM main.hosts)
GROUP BY host ORDER BY host;
COMMENT ON VIEW ops.unregistered IS
    'hosts with a location in a file that no agent has registered as: mistyped, renamed, or without an agent: FROM ops.unregistered';

CREATE OR REPLACE VIEW ops.rollout AS
SELECT e.host, e.signal, e.device, e.message, e.time
FROM main.evidence AS e JOIN ops.scores_now USING (host, time, version)
WHERE contains(e.message, 'not rolled out to this host yet') ORDER BY e.host, e.signal, e.device;
COMMENT ON VIEW ops.rollout IS
    'what partly rolled-out overrides and thresholds would change on hosts that they do not reach yet: SELECT host, device, message FROM ops.rollout';
