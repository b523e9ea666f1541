"""What people declare: where hosts stand, what they must have, maintenance, overrides, thresholds.

Files in, one immutable `Declared` out; `live.py` keeps the last good one in force.
"""
