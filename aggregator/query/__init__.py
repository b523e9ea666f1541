"""Operators' SQL in a process of its own that can be killed: fences, processes, the log of who asked what."""
