"""Contract between agent and aggregator: signals, frames, counters, policy, settings, TLS, the wire."""
