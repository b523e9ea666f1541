"""Scores of hosts and GPUs, with evidence."""
