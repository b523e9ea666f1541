"""The host's services without an aggregator: findings, a Unix socket, metrics."""
