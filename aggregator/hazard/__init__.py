"""Calibrated hazards from fault history: how often a host interrupts its job, with intervals."""
