"""Declarations by operators: locations, expected hardware, maintenance, overrides, thresholds.

Files in, one immutable `Declared` out; `declared_reload.py` keeps the last valid one in force.
"""
