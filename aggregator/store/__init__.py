"""One DuckDB file and its writer: what is durable, and what operators read."""
