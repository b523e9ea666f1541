"""What agent and aggregator agree on: signals, frames, counters, policy, settings, TLS, the wire."""
