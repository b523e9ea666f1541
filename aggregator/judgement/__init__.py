"""From the fleet to hazard, relative speed, score, state and evidence. Pure: no I/O."""
