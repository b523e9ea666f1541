"""The agent's connection to the aggregator: gRPC over sans-IO h2, on one socket and one thread."""
