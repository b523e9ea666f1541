"""Commands of the agent: one file per command."""
