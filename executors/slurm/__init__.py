"""Slurm: its commands, nodes' weights, why a job waits, and the plugins and units on its hosts."""
