"""Simulated hosts: their readings, faults and jobs, sent over the agent's own transport."""
