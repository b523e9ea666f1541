"""The command line's agent side: one file per command."""
