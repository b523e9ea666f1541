"""Executors: separate processes that carry out accepted advisories in a scheduler, and remove only their own marks."""
