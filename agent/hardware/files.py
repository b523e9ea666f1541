"""Reads small kernel files and folders with size limits; a missing file gives None, not an error."""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...contract.counters import BLANK_32, BLANK_64
from ...ext import hostfiles
from ...ext.counterfiles import CounterFiles

OpenFile = hostfiles.KeptFile
read_bytes = hostfiles.read_file

#: Names of a folder beyond this number are ignored.
FOLDER_NAMES_MAX = 65536
#: Maximum of a device key in UTF-8, the limit of a frame's row.
KEY_BYTES_MAX = 96

#: Flags for the host's files: opening a FIFO in the place of a file must not block.
READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK

#: Descriptors kept; further files are reopened at each read. A large host has hundreds of cores.
OPEN_FILES_MAX = 128


def read_text(path: Path | str) -> str | None:
    """Return the file's text without surrounding white space; None if it cannot be read."""
    data = read_bytes(path)
    return None if data is None else data.decode(errors="replace").strip()


class FileReader:
    """Reads small files and lists folders; a subclass may record which."""

    def text(self, path: Path | str, device: str = "") -> str | None:
        """Return the file's text without surrounding white space; None if it cannot be read.

        *device*: the device whose driver the read enters; empty: none.
        """
        del device
        return read_text(path)

    def unsigned(self, path: Path | str) -> int | None:
        """Return the whole number in the file; None without one."""
        return parse_unsigned(self.text(path))

    def names(self, folder: Path) -> list[str]:
        """Return the sorted names in a folder; empty if it does not exist."""
        return names_in(folder)


FILE_READER = FileReader()


def names_in(folder: Path | str) -> list[str]:
    """Return the sorted names in a folder; empty if it does not exist."""
    try:
        return sorted(os.listdir(folder)[:FOLDER_NAMES_MAX])
    except OSError:
        return []


def inode(path: Path) -> int:
    """Return the inode of *path*; 0 if it does not exist."""
    try:
        return path.stat().st_ino
    except OSError:
        return 0


def parse_unsigned(text: str | bytes | None, base: int = 10) -> int | None:
    """Return a whole number of 64 bits; None for anything else (`-1`, `N/A (no PMA)`, empty).

    All ones of 32 or 64 bits are None too: they mean "no value" (-1), and no count gets so high.
    """
    if not text or len(text) > 40:
        return None
    try:
        value = int(text, base)
    except ValueError:
        return None
    # int() also takes 1_000 and digits of other scripts; the kernel writes neither
    odd = (b"_" in text) if isinstance(text, bytes) else ("_" in text or not text.isascii())
    return value if 0 <= value < BLANK_64 and value != BLANK_32 and not odd else None


def read_unsigned(path: Path | str, base: int = 10) -> int | None:
    """Return the whole number in the file; None without one."""
    return parse_unsigned(read_text(path), base)


def device_key(name: str, bytes_max: int = KEY_BYTES_MAX) -> str:
    """Return a kernel's name as a stable key: valid UTF-8 of at most *bytes_max*.

    Kernel names are bytes. Invalid UTF-8 is replaced and long names (mount points) are truncated; either gets a
    digest at its end, so that two such names stay distinct.
    """
    raw = os.fsencode(name)
    key = raw.decode(errors="replace")
    if len(raw) <= bytes_max and key.encode() == raw:
        return key
    digest = f"{zlib.crc32(raw):08x}"  # hashlib would load OpenSSL: 3 MB of every host
    cut = key.encode()[: bytes_max - len(digest) - 1].decode(errors="ignore")
    return f"{cut}~{digest}"


class NumberFiles:
    """Files with an unsigned number each, read through kept descriptors."""

    def __init__(self, paths: Sequence[Path], devices: Sequence[str] = ()) -> None:
        """*devices*: per path the device whose driver a read enters (`ext.counterfiles`).

        Without *devices* no read enters a driver.
        """
        self._valid = bytearray(len(paths))
        self._cells = bytearray(8 * len(paths))
        self._numbers = memoryview(self._cells).cast("Q")
        self._files = CounterFiles([(self._cells, self._valid)], kept_max=OPEN_FILES_MAX)
        for index, path in enumerate(paths):
            self._files.add_file(path, device=devices[index] if devices else "")
            self._files.add_cell(index)

    def read(self) -> list[int | None]:
        """Return the numbers in the order of the paths.

        None for a file without a number, or with a number of all ones.
        """
        self._files.read()
        return [
            number if valid and number not in (BLANK_32, BLANK_64) else None
            for number, valid in zip(self._numbers, self._valid, strict=True)
        ]

    def exclude(self, devices: frozenset[str]) -> None:
        """Skip the files of these devices: they have no number."""
        self._files.spare(devices)

    def close(self) -> None:
        """Close the descriptors. Do not read afterwards."""
        self._files.close()


@dataclass(frozen=True)
class Roots:
    """Roots of the kernel's trees, and the driver's library. A host may be a folder (in tests)."""

    sys: Path = Path("/sys")
    proc: Path = Path("/proc")
    #: Path or name of the NVML library; None: the driver's `libnvidia-ml.so.1`.
    nvml_library: str | None = None
    dev: Path = Path("/dev")
    run: Path = Path("/run")
    #: The agent's own folder for state that survives a restart; None: no state is kept.
    state: Path | None = None
    #: Whether a helper may read ranks in the environments of processes on GPUs (setting `read_ranks`).
    reads_ranks: bool = False
    #: `off`, `listen` or `watch`; address of DCGM's host engine; client library, "" for the newest
    #: installed.
    dcgm: str = "listen"
    dcgm_address: str = "localhost:5555"
    dcgm_library: str = ""

    @property
    def is_this_machine(self) -> bool:
        """Return whether /sys and /proc, and so the libraries, are this machine's."""
        return self.sys == Path("/sys") and self.proc == Path("/proc")
