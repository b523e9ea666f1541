-- Runs of jobs with their fingerprints, as `aggregator/runs/` writes them: those that run are written every ten minutes.
CREATE OR REPLACE VIEW ops.runs AS
SELECT
    job, source, user_id, begun, time, ended, ended IS NULL AS runs_now, hosts, gpus, gpu_model, workload_class, class_confidence,
    earlier_runs, workload_id, similarity, 1 / step_seconds AS steps_per_second, pace_ratio, pace_ratio_lower, pace_ratio_upper,
    coalesce(verdict LIKE 'slower%', pace_ratio <= 0.97 AND pace_ratio_upper < 1, false) AS slower_than_before, verdict, slow_hosts,
    run_id, observed_gpu_seconds, fingerprint_version, step_seconds, step_confidence, compute_ratio, wait_ratio, host_stall_ratio,
    checkpoint_ratio, idle_ratio, compute_power_ratio, wait_power_ratio, power_ratio, utilization_ratio, sm_ratio, tensor_ratio,
    memory_bandwidth_ratio, pcie_bytes_per_second, nvlink_bytes_per_second, nic_bytes_per_second, host_cpu_ratio,
    disk_pressure_ratio, checkpoint_interval_seconds, host_names, simulated
FROM main.runs ORDER BY begun DESC, job;
COMMENT ON VIEW ops.runs IS
    'each run of a job of a minute or longer: what its GPUs did, its class, the number of earlier runs of its workload and its pace against theirs; newest first: SELECT job, hosts, gpus, workload_class, earlier_runs, steps_per_second, pace_ratio, verdict FROM ops.runs';
COMMENT ON COLUMN ops.runs.earlier_runs IS 'earlier runs of the same workload, the nearest 32 at most; 0: never seen';
COMMENT ON COLUMN ops.runs.pace_ratio IS
    'its pace over the median of earlier runs on as many GPUs of the same model, with a 90 % interval; NULL: its step is unknown, or there is no such run';
COMMENT ON COLUMN ops.runs.slower_than_before IS
    'slower by 3 % and more, and by more than runs of a workload differ; one in a hundred unchanged runs is wrongly called slower';
