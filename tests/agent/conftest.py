"""Fixtures of the agent's tests."""

from tests.fake_nvml.fixtures import accounts, folder, library, play

__all__ = ["accounts", "folder", "library", "play"]
