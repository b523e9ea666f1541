"""What leaves the live file: segments and rollups in Parquet, and what is kept for how long."""
