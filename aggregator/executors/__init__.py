"""Executors: separate processes that carry out accepted advisories in a scheduler, and undo only what they set."""
