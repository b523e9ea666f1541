"""Calibrated hazards from fault history: how often a host interrupts its job, and how certain that is."""
