"""From a history of faults to a calibrated hazard: how often a host interrupts its job, and how well that is known."""
