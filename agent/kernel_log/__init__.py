"""Kernel log: classified lines, incidents, and the read position. No thread, no device."""
