"""Runs of jobs: fingerprints computed while they run, stored, and compared with earlier runs."""
