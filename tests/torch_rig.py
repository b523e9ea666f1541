"""The real torch of Debian 13, where `tests/rigs/torch.sh` has put it; else tests skip with that line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

VARIABLE = "GANGLINE_TORCH"
TORCH_PYTHON = Path(os.environ.get(VARIABLE) or "/nowhere")

needs_torch = pytest.mark.skipif(
    not TORCH_PYTHON.is_file(),
    reason=f"no torch: tests/rigs/torch.sh FOLDER; export {VARIABLE}=FOLDER/python",
)
