"""`python -m tests.hosts` rewrites the golden readings. Read the difference before you commit it."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.hosts import HERE, NAMES, unpack
from tests.hosts.reading import as_text, read_host

for name in NAMES:
    with tempfile.TemporaryDirectory() as folder:
        text = as_text(read_host(unpack(name, Path(folder))))
    (HERE / f"{name}.json").write_text(text)
    print(f"wrote {HERE / name}.json")
