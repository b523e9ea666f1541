"""What holds for all tests."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# A deadline is a timed assertion: on a machine that others use too it fails for no fault of ours.
settings.register_profile("house", deadline=None)
settings.load_profile("house")

# How wide the terminal is of whoever runs the tests decides no table: pytest-xdist says 80.
os.environ.pop("COLUMNS", None)


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder for Unix sockets, whose paths have room for 107 bytes: `tmp_path` names the test."""
    path = Path(tempfile.mkdtemp(prefix="gangline-"))
    yield path
    shutil.rmtree(path)
