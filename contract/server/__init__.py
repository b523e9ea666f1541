"""The HTTP server of the aggregator and the executors, and their metrics by prometheus_client."""
