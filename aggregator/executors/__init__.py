"""Executors: processes of their own that carry out accepted advisories in a scheduler, and take back only what they set."""
