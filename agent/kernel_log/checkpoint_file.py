"""The read position in the kernel log and the open incidents, in a small file that is replaced atomically."""

from __future__ import annotations

import binascii
import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from ...contract.wire.telemetry_pb2 import HealthEvent
from ..spool.lockdir import open_regular, write_regular
from .incidents import ALL_OPEN_MAX, Key

FILE_NAME = "position.json"
#: A larger file was not written by the agent.
FILE_BYTES_MAX = 16 << 20
#: Bits of a sequence number of the kernel (u64).
_SEQUENCE_BITS = 64


@dataclass(frozen=True, slots=True)
class LogPosition:
    """The read position and the open incidents, in a boot and its *epoch*-th log."""

    boot_id: str
    sequence: int
    #: Rises when the numbers restart within a boot, as in a restored sandbox.
    epoch: int = 0
    incidents: tuple[tuple[Key, HealthEvent], ...] = ()


def format_position(position: LogPosition) -> bytes:
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


def parse_position(content: bytes) -> LogPosition:
    """Return the position from `format_position`. Raises ValueError for any other content."""
    try:
        fields = json.loads(content)
        boot_id, sequence, epoch = fields["boot_id"], fields["sequence"], fields["epoch"]
        incidents = tuple(_incident(item) for item in fields["incidents"][:ALL_OPEN_MAX])
    except (ValueError, KeyError, TypeError, RecursionError, DecodeError) as error:
        raise ValueError(f"does not contain a position in the kernel log: {error}") from error
    if not isinstance(boot_id, str) or not _is_count(sequence) or not _is_count(epoch):
        raise ValueError("does not contain a position in the kernel log")
    return LogPosition(boot_id, sequence, epoch, incidents)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and 0 <= value < 1 << _SEQUENCE_BITS


def _incident(fields: Any) -> tuple[Key, HealthEvent]:
    (name, device, code, scope), text = fields
    if not isinstance(code, int) or not all(isinstance(t, str) for t in (name, device, scope)):
        raise ValueError("an incident has no key")
    return (name, device, code, scope), HealthEvent.FromString(binascii.a2b_base64(text))


class CheckpointFile:
    """The file with the position, replaced as a whole; no file without a folder. Never raises.

    It is written after the events before it are on disk. After a crash the events after it are
    reported again with the same ids, and the aggregator keeps one of each. It serves another
    process of the same boot, so it is not synced to the disk. `last_error` has the message of a
    failure.
    """

    def __init__(self, folder: Path | None) -> None:
        self.last_error = ""
        self._folder = folder

    def load(self) -> LogPosition | None:
        """Return the position.

        None if no position can be read: then the whole log is read again.
        """
        if self._folder is None:
            return None
        path = self._folder / FILE_NAME
        try:
            with open(path, "rb", opener=open_regular) as file:
                return parse_position(file.read(FILE_BYTES_MAX))
        except FileNotFoundError:
            return None
        except OSError as error:
            self.last_error = f"{path}: {error.strerror}"
        except ValueError as error:
            self.last_error = f"{path}: {error}"
        return None

    def save(self, position: LogPosition) -> bool:
        """Replace the position atomically; return whether it was saved."""
        if self._folder is None:
            return True
        new = self._folder / f"{FILE_NAME}.new"
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_regular(new, format_position(position))
            new.replace(self._folder / FILE_NAME)
        except OSError as error:
            self.last_error = f"{self._folder / FILE_NAME}: {error.strerror}"
            with suppress(OSError):  # half a file would take space that events need
                new.unlink()
            return False
        self.last_error = ""
        return True
