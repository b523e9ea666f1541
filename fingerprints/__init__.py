"""Workload fingerprints: phases, features and stragglers. Nothing is here yet: see README.md."""
