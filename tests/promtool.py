"""Prometheus' own `promtool`, if it is installed."""

from __future__ import annotations

import shutil

import pytest

PROMTOOL = shutil.which("promtool") or ""
needs_promtool = pytest.mark.skipif(
    not PROMTOOL,
    reason="promtool is not installed: apt-get install prometheus, or tests/rigs/promtool.sh FOLDER; export PATH=FOLDER:$PATH",
)
