"""Hosts that do not exist: the same readings as real collectors, from a physical model with faults (`world`)."""
