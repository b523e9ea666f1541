"""What this host answers by itself, without an aggregator: findings, a Unix socket, metrics."""
