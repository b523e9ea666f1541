"""The command line's aggregator side: one file per command."""
