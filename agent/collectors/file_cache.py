"""Caches values derived from files that rarely change; recomputes one when its file or folder changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from ...ext.counterfiles import DIGEST, CounterFiles
from ...ext.hostfiles import Glance
from ..collector import call_slot_name, driver_call
from ..hardware.files import FileReader, names_in, read_text
from .counter_files import descriptors_max

T = TypeVar("T")
#: After this many turns it is worked out anyway.
TURNS_MAX = 60
#: There are five, and each keeps such a part of the descriptors that a process may have; other files are opened again.
DESCRIPTORS_SHARE = 64


class ReadRecorder(FileReader):
    """Reads and lists, and notes what, that too which is not there."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}  # path -> the device whose driver it enters, or nothing
        self.folders: dict[str, None] = {}

    def text(self, path: Path | str, device: str = "") -> str | None:
        """As of `FileReader`; a call into a driver is recorded in the call slot."""
        self.files[str(path)] = device
        if not device:
            return read_text(path)
        with driver_call(device, f"read {str(path).rpartition('/')[2]}"):
            return read_text(path)

    def names(self, folder: Path) -> list[str]:
        """As of `FileReader`."""
        self.folders[str(folder)] = None
        return names_in(folder)


class FileCache(Generic[T]):
    """A value and the files it was read from. In a turn they are looked at by one pass through kept descriptors.

    For files of sysfs and /proc: one that went refuses to be read through a descriptor that was kept.
    """

    def __init__(self, compute: Callable[[ReadRecorder], T], turns_max: int = TURNS_MAX) -> None:
        """*compute* may raise; then it is called again in the next turn."""
        self._compute, self._turns_max = compute, turns_max
        self._turns_left = 0
        self._excluded: frozenset[str] = frozenset()
        self._value: list[T] = []
        self._last_contents: tuple[object, ...] = ()
        self._watch(ReadRecorder())

    def refresh(self) -> bool:
        """Return whether the value was worked out again in this turn."""
        before, self._last_contents = self._last_contents, self._read_contents()
        self._turns_left -= 1
        if self._turns_left > 0 and before == self._last_contents:
            return False
        self._turns_left = 0
        self._watch(self._recorded)  # by now there may be others under the same names
        recorder = ReadRecorder()
        value = self._compute(recorder)
        is_watched = self._is_watching(recorder)
        if not is_watched:
            self._watch(recorder)
            recorder = ReadRecorder()
            value = self._compute(recorder)  # what changed before this look would never be seen
            is_watched = self._is_watching(
                recorder
            )  # else others again: once more in the next turn
        self._value, self._turns_left = [value], self._turns_max if is_watched else 0
        return True

    @property
    def value(self) -> T:
        """What was worked out last. IndexError before the first `refresh`."""
        return self._value[0]

    def exclude(self, devices: frozenset[str]) -> None:
        """Read no file of these devices; *compute* is called in the next turn, and asks for none either."""
        self._excluded, self._turns_left = devices, 0
        self._watch(
            ReadRecorder()
        )  # else that turn's look would read what is not told to be theirs

    def _is_watching(self, recorder: ReadRecorder) -> bool:
        return (recorder.files, recorder.folders) == (self._recorded.files, self._recorded.folders)

    def _watch(self, recorder: ReadRecorder) -> None:
        count = len(recorder.files)
        self._cells, self._valid = bytearray(8 * count), bytearray(count)
        open_files_max = descriptors_max(DESCRIPTORS_SHARE)
        self._files = CounterFiles(
            [(self._cells, self._valid)], kept_max=open_files_max, only_files=True
        )
        for index, (path, device) in enumerate(recorder.files.items()):
            self._files.add_file(path, device=call_slot_name(device) if device else "")
            self._files.add_cell(index, shape=DIGEST)
        self._files.spare(self._excluded)
        self._folders = [Glance(folder) for folder in recorder.folders]
        self._recorded = recorder
        self._last_contents = self._read_contents()

    def _read_contents(self) -> tuple[object, ...]:
        self._files.read()
        folders = [folder.look() for folder in self._folders]
        return bytes(self._cells), bytes(self._valid), folders
