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

#: Of a folder, no more names than these are looked at.
FOLDER_NAMES_MAX = 65536
#: A device's key is at most this long in UTF-8 (what a frame's row may hold).
KEY_BYTES_MAX = 96

#: How files of the host are opened: what is no file (a FIFO in its place) must not hold us.
READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


def read_text(path: Path | str) -> str | None:
    """Return the file's text without white space around it; None when it cannot be read."""
    data = read_bytes(path)
    return None if data is None else data.decode(errors="replace").strip()


class FileReader:
    """How small files are read and folders listed, by those who let somebody else note which."""

    def text(self, path: Path | str, device: str = "") -> str | None:
        """Return the file's text without white space around it; None when it cannot be read.

        *device*: whose driver is entered by reading it; empty: none's.
        """
        del device
        return read_text(path)

    def unsigned(self, path: Path | str) -> int | None:
        """Return the whole number that the file holds; None when it holds none."""
        return parse_unsigned(self.text(path))

    def names(self, folder: Path) -> list[str]:
        """Return the names in a folder, in order; none when there is no such folder."""
        return names_in(folder)


FILE_READER = FileReader()


def names_in(folder: Path | str) -> list[str]:
    """Return the names in a folder, in order; none when there is no such folder."""
    try:
        return sorted(os.listdir(folder)[:FOLDER_NAMES_MAX])
    except OSError:
        return []


def inode(path: Path) -> int:
    """Return the inode behind *path*, 0 when there is none."""
    try:
        return path.stat().st_ino
    except OSError:
        return 0


def parse_unsigned(text: str | bytes | None, base: int = 10) -> int | None:
    """Return a whole number of 64 bits; None for anything else (`-1`, `N/A (no PMA)`, empty).

    None too for all ones of 32 or 64 bits: that is -1 of one who has no value, and no count comes there.
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
    """Return the whole number that the file holds; None when it holds none."""
    return parse_unsigned(read_text(path), base)


def device_key(name: str, bytes_max: int = KEY_BYTES_MAX) -> str:
    """Return a kernel's name as a key: valid UTF-8 of at most *bytes_max*, the same each time.

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


# ----------------------------------------------------------------------
# A few files of one number each, through kept descriptors.

#: Beyond these, a file is opened each time: a large host has hundreds of cores, each with its frequency.
OPEN_FILES_MAX = 128


class NumberFiles:
    """Files that each hold one unsigned number."""

    def __init__(self, paths: Sequence[Path], devices: Sequence[str] = ()) -> None:
        """*devices*: for each path whose driver it enters (`ext.counterfiles`); none: no file enters any."""
        self._valid = bytearray(len(paths))
        self._cells = bytearray(8 * len(paths))
        self._numbers = memoryview(self._cells).cast("Q")
        self._files = CounterFiles([(self._cells, self._valid)], kept_max=OPEN_FILES_MAX)
        for index, path in enumerate(paths):
            self._files.add_file(path, device=devices[index] if devices else "")
            self._files.add_cell(index)

    def read(self) -> list[int | None]:
        """Return the numbers in the order of the paths; None for a file that holds none, or all ones."""
        self._files.read()
        return [
            number if valid and number not in (BLANK_32, BLANK_64) else None
            for number, valid in zip(self._numbers, self._valid, strict=True)
        ]

    def exclude(self, devices: frozenset[str]) -> None:
        """Make no call for these devices: their files hold no number."""
        self._files.spare(devices)

    def close(self) -> None:
        """Close the descriptors. No reading after this."""
        self._files.close()


# ----------------------------------------------------------------------
# Where the kernel's trees and the driver's library are; a host may be a folder.


@dataclass(frozen=True)
class Roots:
    """The roots that all readers start from. A test hands in folders, the daemon nothing."""

    sys: Path = Path("/sys")
    proc: Path = Path("/proc")
    #: Path or name of the NVML library; None is the driver's own `libnvidia-ml.so.1`.
    nvml_library: str | None = None
    dev: Path = Path("/dev")
    run: Path = Path("/run")
    #: A folder of the agent's own, for what a collector must remember over a restart; None: nothing is.
    state: Path | None = None
    #: Whether a helper may read ranks in the environments of processes on GPUs (setting `read_ranks`).
    reads_ranks: bool = False
    #: `off`, `listen` or `watch`, where DCGM's host engine listens, and the client library; empty: the newest installed.
    dcgm: str = "listen"
    dcgm_address: str = "localhost:5555"
    dcgm_library: str = ""

    @property
    def is_this_machine(self) -> bool:
        """Return whether /sys and /proc are this machine's own, so that its libraries may be asked too."""
        return self.sys == Path("/sys") and self.proc == Path("/proc")
