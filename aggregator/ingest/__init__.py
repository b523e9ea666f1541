"""Ingest: from a message to the fleet and the store, with session checks, validation and timing."""
