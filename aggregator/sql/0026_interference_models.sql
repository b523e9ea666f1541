-- Version 26: facts of each co-location at its time, from which models of interference learn, and the models trained here.
CREATE TABLE colocation_inputs (
    run_id VARCHAR, neighbor_run_id VARCHAR, time TIMESTAMP, sharing VARCHAR, gpu_model VARCHAR, workload_id VARCHAR,
    neighbor_workload_id VARCHAR, demand DOUBLE[], neighbor_demand DOUBLE[], supply DOUBLE[]
);
COMMENT ON TABLE colocation_inputs IS
    'one row per row of colocations: demand of both workloads (resources x p50, p95, p99) and supply of the host (resources) at the time, NaN: unknown';
CREATE TABLE interference_models (
    time TIMESTAMP, sharing VARCHAR, accepted BOOLEAN, message VARCHAR, pairs UINTEGER, workloads UINTEGER,
    error_ratio DOUBLE, physics_error_ratio DOUBLE, model VARCHAR
);
COMMENT ON TABLE interference_models IS
    'models of interference of `gangline admin train --interference`; the newest is in use if it was accepted, else physics alone';
