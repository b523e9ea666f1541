"""What the host answers without an aggregator: findings, a Unix socket, metrics."""
