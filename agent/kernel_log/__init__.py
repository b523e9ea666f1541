"""What the kernel's log means: classified lines, incidents, and how far it was read. No thread, no device."""
