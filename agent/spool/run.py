"""Whose frames a spool holds: the run id and what it was made on, in one small file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from .folder import replace

META_NAME = "meta.json"
META_BYTES_MAX = 4096
FORMAT = 1
RUN_ID_BYTES = 16
_NAMES = ("run_id", "boot_id", "owner")


@dataclass(frozen=True, slots=True)
class Run:
    """A frame is known by (host, run id, sequence); the run id ends when the machine is another."""

    run_id: bytes
    boot_id: bytes
    owner: str

    def write(self, folder: Path) -> None:
        """Note it durably: afterwards it is there whole. Raises OSError, and the old one stands."""
        content = {
            "format": FORMAT,
            "run_id": self.run_id.hex(),
            "boot_id": self.boot_id.hex(),
            "owner": self.owner,
        }
        replace(folder / META_NAME, json.dumps(content).encode())


def read(folder: Path) -> Run | None:
    """Return what is noted in the folder; None if there is nothing that can be read."""
    try:
        with open(folder / META_NAME, "rb") as file:
            return parse(file.read(META_BYTES_MAX))
    except (OSError, ValueError, RecursionError):
        return None


def parse(content: bytes) -> Run:
    """Return the run. Raises ValueError if this is not what `Run.write` wrote."""
    fields = json.loads(content)
    if not isinstance(fields, dict) or fields.get("format") != FORMAT:
        raise ValueError(f"expected a JSON object with format {FORMAT}")
    texts = [fields[name] for name in _NAMES if isinstance(fields.get(name), str)]
    if len(texts) != len(_NAMES):
        raise ValueError(f"{', '.join(_NAMES)} must be strings")
    run = Run(bytes.fromhex(texts[0]), bytes.fromhex(texts[1]), texts[2])
    if len(run.run_id) != RUN_ID_BYTES:
        raise ValueError(f"run_id must have {RUN_ID_BYTES} bytes, got {len(run.run_id)}")
    return run
