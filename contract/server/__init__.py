"""Shared by the aggregator and the executors: their HTTP server, and metrics by prometheus_client."""
