-- Version 25: demand of each run on resources that it could share with others, the highest rates of hosts, and neighbors.
CREATE TABLE run_demand (
    run_id VARCHAR, job VARCHAR, time TIMESTAMP, resource VARCHAR, unit VARCHAR, p50 DOUBLE, p95 DOUBLE, p99 DOUBLE,
    high DOUBLE, readings UBIGINT, counts UINTEGER[]
);
COMMENT ON TABLE run_demand IS
    'one row per run and resource, with the histogram of its readings (counts): see ops.run_demand';
CREATE TABLE measured_supply (host VARCHAR, resource VARCHAR, value DOUBLE, time TIMESTAMP);
COMMENT ON TABLE measured_supply IS 'the highest rate that each host has shown of a resource: see ops.host_supply';
CREATE TABLE colocations (
    run_id VARCHAR, job VARCHAR, neighbor_run_id VARCHAR, neighbor VARCHAR, since TIMESTAMP, until TIMESTAMP, time TIMESTAMP,
    hosts VARCHAR[], effect VARCHAR, slowdown_ratio DOUBLE, slowdown_lower_ratio DOUBLE, slowdown_upper_ratio DOUBLE,
    resource VARCHAR, windows_alone UINTEGER, windows_beside UINTEGER, message VARCHAR, simulated BOOLEAN
);
COMMENT ON TABLE colocations IS 'one row per run and run beside it on a host: see ops.colocations';
