"""Typed raw readers of the kernel and the driver; they know no metric names."""
