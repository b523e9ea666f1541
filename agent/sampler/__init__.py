"""Samplers: child processes that call the drivers, with a standby, so that a hung driver never hangs the daemon."""
