"""Executors: separate processes that carry out accepted advisories in a scheduler.

An executor removes only its own marks.
"""
