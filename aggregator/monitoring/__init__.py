"""The aggregator's own metrics, alarms and probes."""
