"""Material for a secured aggregator."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.aggregator.auth.secured import Secured


@pytest.fixture
def secured(tmp_path: Path) -> Secured:
    """For the aggregator of `lab`, whose data folder is `data`."""
    (tmp_path / "data").mkdir()
    return Secured(tmp_path / "ca", tmp_path / "data")
