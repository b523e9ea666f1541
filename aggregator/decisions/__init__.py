"""Decisions: which nodes, at what price. Pure functions over the snapshot; nothing here acts."""
