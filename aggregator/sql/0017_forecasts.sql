-- Version 17: what each job is expected to do next, as of now: written in place of what was there.
CREATE TABLE job_forecasts (
    job VARCHAR, source VARCHAR, gpus INTEGER, time TIMESTAMP, horizon_seconds FLOAT, reason VARCHAR,
    compute_probability FLOAT, wait_probability FLOAT, host_stall_probability FLOAT, checkpoint_probability FLOAT,
    idle_probability FLOAT, next_checkpoint_seconds FLOAT, next_checkpoint_lower_50 FLOAT,
    next_checkpoint_upper_50 FLOAT, next_checkpoint_lower_90 FLOAT, next_checkpoint_upper_90 FLOAT,
    next_checkpoint_probability FLOAT, checkpoint_within_probability FLOAT, checkpoint_reason VARCHAR,
    next_host_stall_seconds FLOAT, next_host_stall_lower_50 FLOAT, next_host_stall_upper_50 FLOAT,
    next_host_stall_lower_90 FLOAT, next_host_stall_upper_90 FLOAT, next_host_stall_probability FLOAT,
    host_stall_within_probability FLOAT, host_stall_reason VARCHAR, power_watts FLOAT, power_watts_lower FLOAT,
    power_watts_upper FLOAT, pcie_bytes_per_second FLOAT, pcie_bytes_per_second_lower FLOAT,
    pcie_bytes_per_second_upper FLOAT, nic_bytes_per_second FLOAT, nic_bytes_per_second_lower FLOAT,
    nic_bytes_per_second_upper FLOAT, disk_pressure_ratio FLOAT, disk_pressure_ratio_lower FLOAT,
    disk_pressure_ratio_upper FLOAT
);
COMMENT ON TABLE job_forecasts IS
    'one row per running job and horizon, as last forecast (time): see ops.job_forecast; NULL: unknown';
