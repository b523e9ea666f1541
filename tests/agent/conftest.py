"""Fixtures of the agent's tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gangline.agent.hardware.files import Roots
from tests import hosts
from tests.agent.fakes import Lane
from tests.fake_nvml.fixtures import accounts, folder, library, play

__all__ = ["accounts", "folder", "library", "play"]


@pytest.fixture
def host(tmp_path: Path) -> hosts.HostFolder:
    """Return a copy of the host h100-ib, which a test may change."""
    return hosts.unpack("h100-ib", tmp_path)


@pytest.fixture
def roots(tmp_path: Path, library: str) -> Roots:
    (tmp_path / "proc").mkdir()
    return Roots(
        sys=tmp_path / "sys", proc=tmp_path / "proc", nvml_library=library, dev=tmp_path / "dev"
    )


@pytest.fixture
def lane(roots: Roots) -> Iterator[Lane]:
    """Yield a function that creates a collector, which releases its GPUs at the end of the test."""
    lane = Lane(roots)
    yield lane
    for collector in lane.created:
        collector._session.close()
