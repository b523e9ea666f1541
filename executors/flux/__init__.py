"""Flux: its commands."""
