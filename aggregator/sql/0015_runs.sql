-- Version 15: what each job did, as a fingerprint, so that a later run is compared with the earlier ones of its workload.
CREATE TABLE runs (
    run_id VARCHAR, job VARCHAR, source VARCHAR, user_id VARCHAR, begun TIMESTAMP, time TIMESTAMP, ended TIMESTAMP,
    observed_gpu_seconds DOUBLE, fingerprint_version INTEGER, hosts INTEGER, gpus INTEGER, gpu_model VARCHAR,
    step_seconds DOUBLE, step_confidence DOUBLE, compute_ratio DOUBLE, wait_ratio DOUBLE, host_stall_ratio DOUBLE,
    checkpoint_ratio DOUBLE, idle_ratio DOUBLE, compute_power_ratio DOUBLE, wait_power_ratio DOUBLE,
    power_ratio DOUBLE, utilization_ratio DOUBLE, sm_ratio DOUBLE, tensor_ratio DOUBLE, memory_bandwidth_ratio DOUBLE,
    pcie_bytes_per_second DOUBLE, nvlink_bytes_per_second DOUBLE, nic_bytes_per_second DOUBLE, host_cpu_ratio DOUBLE,
    disk_pressure_ratio DOUBLE, checkpoint_interval_seconds DOUBLE, workload_id VARCHAR, similarity DOUBLE,
    earlier_runs INTEGER, workload_class VARCHAR, class_confidence DOUBLE, pace_ratio DOUBLE,
    pace_ratio_lower DOUBLE, pace_ratio_upper DOUBLE, host_names VARCHAR[], simulated BOOLEAN
);
COMMENT ON TABLE runs IS
    'one row per run of a job of a minute or longer, as last written (time): what its GPUs did, and which earlier runs are similar; kept 400 days; NULL: unknown';
