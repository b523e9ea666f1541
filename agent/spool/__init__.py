"""Data kept on disk until the aggregator acknowledges it: frames and events."""
