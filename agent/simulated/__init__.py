"""Hosts that do not exist: the readings of real collectors from a physical model."""
