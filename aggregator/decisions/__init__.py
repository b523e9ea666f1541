"""Decisions: which nodes a gang gets, and at what price. Pure functions over the snapshot; nothing here acts."""
