"""The history: Parquet files by hour, their manifest, retention and views."""
