"""Recordings on this host's disk: bounded in number and size; the oldest is removed first."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from ...contract.recording import (
    HEADER_BYTES_MAX,
    RECORDING_BYTES_MAX,
    STORED_MAX,
    GpuRecording,
    RecordingError,
    decode_header,
)
from ...contract.wire.telemetry_pb2 import StoredRecording
from ..spool.lockdir import open_regular, replace

SUFFIX = ".glrec"
#: Limit of names read in the folder.
NAMES_MAX = 4096
_NAME = re.compile(r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{8}", re.ASCII)
_PREFIX_BYTES = 64


class NoRecordingError(LookupError):
    """There is no such recording; the message lists those stored."""


class RecordingStorage:
    """A folder of recordings. Any call may hang with the disk: not for the daemon's thread."""

    def __init__(self, folder: Path, bytes_max: int, files_max: int = STORED_MAX) -> None:
        """*bytes_max* 0: nothing is stored."""
        self._folder = folder
        self._bytes_max, self._files_max = bytes_max, files_max

    @property
    def is_enabled(self) -> bool:
        return self._bytes_max > 0

    def store(self, recording: GpuRecording, data: bytes) -> str:
        """Store *recording* (encoded *data*), dropping old ones; return its name. Raises OSError."""
        if len(data) > self._bytes_max:
            raise OSError(
                0, f"a recording of {len(data)} bytes, recordings_bytes_max is {self._bytes_max}"
            )
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for partial in self._folder.glob(f"*{SUFFIX}.new"):  # left by a killed process
            partial.unlink(missing_ok=True)
        self._remove_oldest(self._files_max - 1, self._bytes_max - len(data))
        moment = datetime.fromtimestamp(recording.wall_time_ns / 1e9, UTC)
        name = f"{moment:%Y%m%dT%H%M%SZ}-{recording.boottime_ns // 1_000_000 & 0xFFFFFFFF:08x}"
        path = self._folder / (name + SUFFIX)
        try:
            replace(path, data)
        except OSError:
            with suppress(OSError):
                path.with_name(path.name + ".new").unlink(missing_ok=True)
            raise
        return name

    def read(self, name: str) -> bytes:
        """Return a recording's file. Raises NoRecordingError, OSError."""
        if not _NAME.fullmatch(name):
            raise NoRecordingError(f"no recording {name[:40]!r} on this host")
        try:
            with open(self._folder / (name + SUFFIX), "rb", opener=open_regular) as file:
                data = file.read(RECORDING_BYTES_MAX + 1)
        except FileNotFoundError:
            names = [path.stem for path in self._paths()]
            known = f"stored are {', '.join(names[-4:])}" if names else "none is stored"
            raise NoRecordingError(f"no recording {name!r} on this host: {known}") from None
        if len(data) > RECORDING_BYTES_MAX:
            raise NoRecordingError(
                f"{name!r} is not a recording: more than {RECORDING_BYTES_MAX} bytes"
            )
        return data

    def recordings(self) -> list[StoredRecording]:
        """Return the stored recordings, oldest first, without unreadable files. Raises OSError."""
        return [
            recording for path in self._paths()[-self._files_max :] for recording in _describe(path)
        ]

    def _paths(self) -> list[Path]:
        if not self._folder.exists():
            return []
        names = (path for _, path in zip(range(NAMES_MAX), self._folder.iterdir(), strict=False))
        return sorted(
            path for path in names if path.suffix == SUFFIX and _NAME.fullmatch(path.stem)
        )

    def _remove_oldest(self, files: int, size: int) -> None:
        """Delete the oldest until at most *files* files with *size* bytes in total remain."""
        paths = self._paths()
        sizes = [path.stat().st_size for path in paths]
        for path, file_bytes in zip(paths, list(sizes), strict=True):
            if len(sizes) <= files and sum(sizes) <= size:
                return
            path.unlink(missing_ok=True)
            sizes.remove(file_bytes)


def _describe(path: Path) -> Iterator[StoredRecording]:
    with suppress(OSError, RecordingError), open(path, "rb", opener=open_regular) as file:
        header = decode_header(file.read(_PREFIX_BYTES + HEADER_BYTES_MAX))
        yield StoredRecording(
            name=path.stem,
            wall_time_ns=header.wall_time_ns,
            seconds=header.header_seconds,
            devices=len(header.devices),
            bytes=path.stat().st_size,
            reason=header.reason,
        )
