"""Operators' SQL in a separate process that can be killed: sandbox, processes, query log."""
