"""Hosts that do not exist: their readings, faults and jobs, over the agent's own transport."""
