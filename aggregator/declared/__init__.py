"""Declarations by operators: location of hosts, expected hardware, maintenance, overrides, thresholds.

Files in, one immutable `Declared` out; `live.py` keeps the last good one in force.
"""
