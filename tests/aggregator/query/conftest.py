"""A shared snapshot for all queries; a test checks that no query changes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.aggregator.auth.conftest import secured
from tests.aggregator.query.asking import make_snapshot

__all__ = ["secured"]


@pytest.fixture(scope="package")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A data folder whose operators' file is the same at the end."""
    folder = make_snapshot(tmp_path_factory.mktemp("query") / "data")
    file = folder / "operators.duckdb"
    before, names = file.read_bytes(), set(folder.iterdir())
    yield folder
    assert file.read_bytes() == before
    assert set(folder.iterdir()) == names
