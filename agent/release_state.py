"""Released GPUs in a small file: a restarted agent does not open them again."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from .spool.lockdir import open_regular, write_regular
from .xid_quarantine import is_address

# An agent that starts, also in place of a killed agent, reads the releases of this boot from a
# file, so that it does not resume a GPU during its repair.
FILE_NAME = "released.json"
#: A larger file was not written by Gangline: a GPU takes 200 bytes.
FILE_BYTES_MAX = 1 << 16
RELEASED_GPUS_MAX = 65
REASON_CHARACTERS_MAX = 120
#: Upper limit of a release: a day.
RELEASE_SECONDS_MAX = 86_400.0
log = logging.getLogger(__name__)


class ReleasedGpu(NamedTuple):
    """A released GPU. `address` None: all GPUs together."""

    address: str | None
    until_ns: int
    reason: str


def format_released(boot_id: bytes, released: Iterable[ReleasedGpu]) -> bytes:
    gpus = [{"gpu": gpu.address, "until_ns": gpu.until_ns, "why": gpu.reason} for gpu in released]
    return json.dumps({"boot_id": boot_id.hex(), "released": gpus}).encode()


def parse_released(content: bytes, boot_id: bytes, now_ns: int) -> list[ReleasedGpu]:
    """Return the releases of this boot in force at *now_ns*. Raises ValueError."""
    try:
        document = json.loads(content)
        if document["boot_id"] != boot_id.hex():
            return []
        gpus = [_parse_entry(entry) for entry in document["released"][:RELEASED_GPUS_MAX]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"is not a list of released GPUs: {str(error)[:200]}") from error
    latest_ns = now_ns + int(RELEASE_SECONDS_MAX * 1e9)
    return [entry for entry in gpus if now_ns < entry.until_ns <= latest_ns]


def _parse_entry(entry: dict[str, object]) -> ReleasedGpu:
    address, until_ns, reason = entry["gpu"], entry["until_ns"], entry["why"]
    if address is not None and not (isinstance(address, str) and is_address(address)):
        raise ValueError(f"{str(address)[:40]!r}  is not a PCI address")
    if not isinstance(until_ns, int) or not isinstance(reason, str):
        raise TypeError("a time or a reason is invalid")
    return ReleasedGpu(
        address, until_ns, "".join(filter(str.isprintable, reason))[:REASON_CHARACTERS_MAX]
    )


class ReleaseStateFile:
    """The file in *folder*. Never raises: without a file a release ends with the agent."""

    def __init__(self, folder: Path, boot_id: bytes) -> None:
        self._path, self._boot_id = folder / FILE_NAME, boot_id

    def read(self, now_ns: int) -> list[ReleasedGpu]:
        """Return the releases in the file that are in force at this boot time."""
        try:
            with open(self._path, "rb", opener=open_regular) as file:
                return parse_released(file.read(FILE_BYTES_MAX), self._boot_id, now_ns)
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:
            log.warning("%s: %s", self._path, error, extra={"cause": "released.file"})
            return []

    def until_ns(self, now_ns: int) -> dict[str | None, int]:
        """Return address -> end of the release."""
        return {gpu.address: gpu.until_ns for gpu in self.read(now_ns)}

    def write(self, released: Iterable[ReleasedGpu]) -> None:
        """Replace the file. It is not synced: no other boot uses it."""
        new = self._path.with_name(f".{FILE_NAME}")
        try:
            write_regular(new, format_released(self._boot_id, released))
            new.replace(self._path)
        except OSError as error:
            message = (
                f"{self._path}: {error.strerror}; after a restart the agent would reopen the GPUs"
            )
            log.warning("%s", message, extra={"cause": "released.file"})
