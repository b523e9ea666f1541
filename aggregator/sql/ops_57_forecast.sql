-- What each running job is expected to do next (`fingerprints/forecast.py`). A forecast of a job that ended, or whose hosts
-- fell silent, is not shown.
CREATE OR REPLACE VIEW ops.job_forecast AS
WITH fresh AS (
    FROM main.job_forecasts WHERE time BETWEEN ops.taken() - INTERVAL 2 MINUTE AND ops.taken() + INTERVAL 1 MINUTE
)
SELECT
    job, source, gpus, time, horizon_seconds, compute_probability, wait_probability, host_stall_probability,
    checkpoint_probability, idle_probability,
    time + to_milliseconds((1000 * next_checkpoint_seconds)::BIGINT) AS next_checkpoint_at,
    time + to_milliseconds((1000 * next_checkpoint_lower_90)::BIGINT) AS next_checkpoint_from,
    time + to_milliseconds((1000 * next_checkpoint_upper_90)::BIGINT) AS next_checkpoint_until,
    time + to_milliseconds((1000 * next_checkpoint_lower_50)::BIGINT) AS next_checkpoint_from_50,
    time + to_milliseconds((1000 * next_checkpoint_upper_50)::BIGINT) AS next_checkpoint_until_50,
    next_checkpoint_probability, checkpoint_within_probability,
    time + to_milliseconds((1000 * next_host_stall_seconds)::BIGINT) AS next_host_stall_at,
    time + to_milliseconds((1000 * next_host_stall_lower_90)::BIGINT) AS next_host_stall_from,
    time + to_milliseconds((1000 * next_host_stall_upper_90)::BIGINT) AS next_host_stall_until,
    time + to_milliseconds((1000 * next_host_stall_lower_50)::BIGINT) AS next_host_stall_from_50,
    time + to_milliseconds((1000 * next_host_stall_upper_50)::BIGINT) AS next_host_stall_until_50,
    next_host_stall_probability, host_stall_within_probability,
    power_watts, power_watts_lower, power_watts_upper, pcie_bytes_per_second, pcie_bytes_per_second_lower,
    pcie_bytes_per_second_upper, nic_bytes_per_second, nic_bytes_per_second_lower, nic_bytes_per_second_upper,
    disk_pressure_ratio, disk_pressure_ratio_lower, disk_pressure_ratio_upper,
    reason, checkpoint_reason, host_stall_reason
FROM fresh ORDER BY job, horizon_seconds;
COMMENT ON VIEW ops.job_forecast IS
    'what each running job is expected to do 10, 30, 60 and 300 s from time, if it continues: probability of each state, next checkpoint and host stall with a window of 90 %, power and traffic of all its GPUs with an interval of 90 %; NULL and a reason if too little was seen: SELECT job, horizon_seconds, checkpoint_probability, next_checkpoint_at, power_watts FROM ops.job_forecast LIMIT 4';
COMMENT ON COLUMN ops.job_forecast.next_checkpoint_probability IS
    'probability that it begins within a tenth of its interval of next_checkpoint_at';
COMMENT ON COLUMN ops.job_forecast.checkpoint_within_probability IS
    'probability that a checkpoint begins within the horizon';
