"""Fixtures of the agent's tests."""

from pathlib import Path

import pytest

from tests import hosts
from tests.fake_nvml.fixtures import accounts, folder, library, play

__all__ = ["accounts", "folder", "library", "play"]


@pytest.fixture
def host(tmp_path: Path) -> hosts.HostFolder:
    """Return a copy of the host h100-ib, which a test may change."""
    return hosts.unpack("h100-ib", tmp_path)
