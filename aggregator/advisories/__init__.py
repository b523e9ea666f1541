"""Advisories: proposals, prices, limits and the state machine."""
