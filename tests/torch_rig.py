"""The real torch of Debian 13, where `tests/rigs/torch.sh` has put it; else tests skip with that line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

VARIABLE = "GANGLINE_TORCH"
MISSING = f"no torch: tests/rigs/torch.sh FOLDER; export {VARIABLE}=FOLDER/python"


def torch_python() -> Path:
    path = Path(os.environ.get(VARIABLE, ""))
    if not os.environ.get(VARIABLE) or not path.is_file():
        pytest.skip(MISSING)
    return path
