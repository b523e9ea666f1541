"""Meaning of the kernel log: classified lines, incidents, and the position read so far. No thread, no device."""
