"""What hardly ever changes: worked out once, and again when a file or folder that it follows from is another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from ...ext.counterfiles import DIGEST, CounterFiles
from ...ext.hostfiles import Glance
from ..collector import entering, place_name
from ..hardware.files import Files, names_in, read_text
from .counter_files import descriptors_max

T = TypeVar("T")
#: After so many turns it is worked out anyway.
TURNS_MAX = 60
#: There are five, and each keeps such a part of the descriptors that a process may have; other files are opened again.
KEPT_SHARE = 64


class Noted(Files):
    """Reads and lists, and notes what, that too which is not there."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}  # path -> the device whose driver it enters, or nothing
        self.folders: dict[str, None] = {}

    def text(self, path: Path | str, device: str = "") -> str | None:
        """As of `Files`; a call into a driver is told to the place."""
        self.files[str(path)] = device
        if not device:
            return read_text(path)
        with entering(device, f"read {str(path).rpartition('/')[2]}"):
            return read_text(path)

    def names(self, folder: Path) -> list[str]:
        """As of `Files`."""
        self.folders[str(folder)] = None
        return names_in(folder)


class Remembered(Generic[T]):
    """A value and the files it was read from. In a turn they are looked at by one pass through kept descriptors.

    For files of sysfs and /proc: one that went refuses to be read through a descriptor that was kept.
    """

    def __init__(self, work_out: Callable[[Noted], T], turns_max: int = TURNS_MAX) -> None:
        """*work_out* may raise; then it is called again in the next turn."""
        self._work_out, self._turns_max = work_out, turns_max
        self._turns_left = 0
        self._spared: frozenset[str] = frozenset()
        self._value: list[T] = []
        self._seen: tuple[object, ...] = ()
        self._watch(Noted())

    def look(self) -> bool:
        """Return whether the value was worked out anew in this turn."""
        before, self._seen = self._seen, self._look()
        self._turns_left -= 1
        if self._turns_left > 0 and before == self._seen:
            return False
        self._turns_left = 0
        self._watch(self._noted)  # by now there may be others under the same names
        noted = Noted()
        value = self._work_out(noted)
        watched = self._watches(noted)
        if not watched:
            self._watch(noted)
            noted = Noted()
            value = self._work_out(noted)  # what changed before this look would never be seen
            watched = self._watches(noted)  # else others again: once more in the next turn
        self._value, self._turns_left = [value], self._turns_max if watched else 0
        return True

    @property
    def value(self) -> T:
        """What was worked out last. IndexError before the first `look`."""
        return self._value[0]

    def spare(self, devices: frozenset[str]) -> None:
        """Read no file of these devices; *work_out* is called in the next turn, and asks for none either."""
        self._spared, self._turns_left = devices, 0
        self._watch(Noted())  # else that turn's look would read what is not told to be theirs

    def _watches(self, noted: Noted) -> bool:
        return (noted.files, noted.folders) == (self._noted.files, self._noted.folders)

    def _watch(self, noted: Noted) -> None:
        count = len(noted.files)
        self._cells, self._valid = bytearray(8 * count), bytearray(count)
        kept_max = descriptors_max(KEPT_SHARE)
        self._files = CounterFiles([(self._cells, self._valid)], kept_max=kept_max, only_files=True)
        for index, (path, device) in enumerate(noted.files.items()):
            self._files.add_file(path, device=place_name(device) if device else "")
            self._files.add_cell(index, shape=DIGEST)
        self._files.spare(self._spared)
        self._folders = [Glance(folder) for folder in noted.folders]
        self._noted = noted
        self._seen = self._look()

    def _look(self) -> tuple[object, ...]:
        self._files.read()
        folders = [folder.look() for folder in self._folders]
        return bytes(self._cells), bytes(self._valid), folders
