"""Workload fingerprints: the class of a job, and its comparison with earlier runs of the same workload."""
