"""Typed readers of the kernel and the drivers. They know no signal names."""
