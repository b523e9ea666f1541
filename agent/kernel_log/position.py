"""How far the log was read, and which incidents were open then: one small file, replaced whole.

It is written after the events that it covers are on disk. What was told past it is told again after a
crash, with the same event ids, and the aggregator keeps one of each.

It is for another process of the same boot, and without meaning after a power cut: so it is never synced
to the disk, and no record waits in the log because the position of the one before is being kept.
"""

from __future__ import annotations

import binascii
import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from ...fingerprints.wire.telemetry_pb2 import HealthEvent
from .incidents import ALL_OPEN_MAX, Key

FILE_NAME = "position.json"
#: A larger file is not ours.
FILE_BYTES_MAX = 16 << 20
#: 2 raised to this is no sequence number of the kernel's (u64).
_SEQUENCE_BITS = 64


@dataclass(frozen=True, slots=True)
class Position:
    """Sequences up to `sequence`, of this boot and of its *epoch*-th log, were read."""

    boot_id: str
    sequence: int
    #: Raised when the numbers began anew within one boot, as in a sandbox that was restored.
    epoch: int = 0
    incidents: tuple[tuple[Key, HealthEvent], ...] = ()


def format_position(position: Position) -> bytes:
    """Return the file's content."""
    incidents = [
        [list(key), binascii.b2a_base64(event.SerializeToString(), newline=False).decode()]
        for key, event in position.incidents
    ]
    return json.dumps(
        {
            "boot_id": position.boot_id,
            "epoch": position.epoch,
            "sequence": position.sequence,
            "incidents": incidents,
        }
    ).encode()


def parse_position(content: bytes) -> Position:
    """Return what `format_position` wrote. Raises ValueError for anything else."""
    try:
        fields = json.loads(content)
        boot_id, sequence, epoch = fields["boot_id"], fields["sequence"], fields["epoch"]
        incidents = tuple(_incident(each) for each in fields["incidents"][:ALL_OPEN_MAX])
    except (ValueError, KeyError, TypeError, RecursionError, DecodeError) as error:
        raise ValueError(f"holds no position in the kernel's log: {error}") from error
    if not isinstance(boot_id, str) or not _is_count(sequence) or not _is_count(epoch):
        raise ValueError("holds no position in the kernel's log")
    return Position(boot_id, sequence, epoch, incidents)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and 0 <= value < 1 << _SEQUENCE_BITS


def _incident(fields: Any) -> tuple[Key, HealthEvent]:
    (name, device, code, scope), text = fields
    if not isinstance(code, int) or not all(isinstance(t, str) for t in (name, device, scope)):
        raise ValueError("an incident has no key")
    return (name, device, code, scope), HealthEvent.FromString(binascii.a2b_base64(text))


class Keeper:
    """The file, or nothing where no folder is given. Never raises; `last_error` says what failed."""

    def __init__(self, folder: Path | None) -> None:
        self.last_error = ""
        self._folder = folder

    def load(self) -> Position | None:
        """Return what was kept, None if nothing was or it cannot be read: then all is read again."""
        if self._folder is None:
            return None
        path = self._folder / FILE_NAME
        try:
            with open(path, "rb") as file:
                return parse_position(file.read(FILE_BYTES_MAX))
        except FileNotFoundError:
            return None
        except OSError as error:
            self.last_error = f"{path}: {error.strerror}"
        except ValueError as error:
            self.last_error = f"{path}: {error}"
        return None

    def save(self, position: Position) -> bool:
        """Keep *position*: whoever reads finds this or the one before, whole. Say if it was kept."""
        if self._folder is None:
            return True
        new = self._folder / f"{FILE_NAME}.new"
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            new.write_bytes(format_position(position))
            new.replace(self._folder / FILE_NAME)
        except OSError as error:
            self.last_error = f"{self._folder / FILE_NAME}: {error.strerror}"
            with suppress(OSError):  # half a file would take from a full disk what events need
                new.unlink()
            return False
        self.last_error = ""
        return True
