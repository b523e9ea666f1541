"""Runs of jobs: their fingerprints, accumulated while they run, stored, and compared with earlier ones."""
