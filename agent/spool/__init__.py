"""What waits on disk until the aggregator has a receipt for it: frames and events."""
