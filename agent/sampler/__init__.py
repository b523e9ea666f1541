"""Samplers: child processes that call the drivers, so that a hung driver never hangs the daemon."""
