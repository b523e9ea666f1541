"""The table of faults: each declared once, with its findings on a host and its rules in the fleet.

The rows are in the TOML files of this folder; `README.md` explains their keys.
"""
