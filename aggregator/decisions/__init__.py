"""Decisions: the nodes for a gang, and their price. Pure functions over the snapshot."""
