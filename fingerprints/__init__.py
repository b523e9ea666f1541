"""Workload fingerprints: what a job does, its class, its earlier runs, and whether it is slower than these."""
