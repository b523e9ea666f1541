"""The process that answers schedulers beside the aggregator: it has the last snapshot, and nothing that could hold it up."""
