"""Workload fingerprints: the class of a job, earlier runs of the same workload, and whether the job is slower than they
were."""
