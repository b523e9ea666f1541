"""The store: one DuckDB file and its writer, and the files that operators read."""
