"""What was let go of, as one small file in the run folder: an agent that begins anew, or that takes the place of one
that was killed, does not take back a GPU in the middle of its repair. Of another boot it is without meaning.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

FILE_NAME = "released.json"
#: A larger file is not ours: a GPU has 200 bytes in it.
FILE_BYTES_MAX = 1 << 16
GPUS_MAX = 65
WHY_CHARACTERS_MAX = 120
#: A day is the most that may be asked for.
SECONDS_MAX = 86_400.0
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")

log = logging.getLogger(__name__)


class Released(NamedTuple):
    """A GPU that was let go of. `address` None: all of them."""

    address: str | None
    until_ns: int
    why: str


def format_released(boot_id: bytes, released: Iterable[Released]) -> bytes:
    """Return the file's content."""
    gpus = [{"gpu": each.address, "until_ns": each.until_ns, "why": each.why} for each in released]
    return json.dumps({"boot_id": boot_id.hex(), "released": gpus}).encode()


def parse_released(content: bytes, boot_id: bytes, now_ns: int) -> list[Released]:
    """Return what is let go of at *now_ns*; nothing of another boot. Raises ValueError for what is no such file."""
    try:
        said = json.loads(content)
        if said["boot_id"] != boot_id.hex():
            return []
        found = [_released(each) for each in said["released"][:GPUS_MAX]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"is no list of released GPUs: {str(error)[:200]}") from error
    latest_ns = now_ns + int(SECONDS_MAX * 1e9)
    return [each for each in found if now_ns < each.until_ns <= latest_ns]


def _released(said: dict[str, object]) -> Released:
    address, until_ns, why = said["gpu"], said["until_ns"], said["why"]
    if address is not None and not (isinstance(address, str) and _ADDRESS.fullmatch(address)):
        raise ValueError(f"{str(address)[:40]!r} is no PCI address")
    if not isinstance(until_ns, int) or not isinstance(why, str):
        raise TypeError("a time or a reason is none")
    return Released(address, until_ns, "".join(filter(str.isprintable, why))[:WHY_CHARACTERS_MAX])


class ReleasedFile:
    """The file in *folder*. Neither method raises: without the file a release holds as long as the agent lives."""

    def __init__(self, folder: Path, boot_id: bytes) -> None:
        self._path, self._boot_id = folder / FILE_NAME, boot_id

    def read(self, now_ns: int) -> list[Released]:
        """Return what is let go of at this boot time, as an agent before this one noted it."""
        try:
            with open(self._path, "rb") as file:
                return parse_released(file.read(FILE_BYTES_MAX), self._boot_id, now_ns)
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:
            log.warning("%s: %s", self._path, error, extra={"cause": "released.file"})
            return []

    def until_ns(self, now_ns: int) -> dict[str | None, int]:
        """Return the same as address -> until when."""
        return {each.address: each.until_ns for each in self.read(now_ns)}

    def write(self, released: Iterable[Released]) -> None:
        """Replace the file; it is not synced, as no boot but this one reads it."""
        new = self._path.with_name(f".{FILE_NAME}")
        try:
            new.write_bytes(format_released(self._boot_id, released))
            new.replace(self._path)
        except OSError as error:
            words = f"{self._path}: {error.strerror}; after a restart the GPUs would be taken back"
            log.warning("%s", words, extra={"cause": "released.file"})
