"""The aggregator's own health: figures that are pulled, kept, shown at /metrics, and alarms on them."""
