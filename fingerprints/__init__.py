"""Workload fingerprints: what a job does, its class, earlier runs of it, and whether it is slower than those."""
