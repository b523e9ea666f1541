"""Caches values derived from files that rarely change.

Recomputes a value when a file or folder changes.
"""

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
#: The value is recomputed at the latest after this number of turns.
TURNS_MAX = 60
#: Each cache keeps at most this part (1/64) of the process's descriptors open, and reopens other
#: files.
DESCRIPTORS_SHARE = 64


class ReadRecorder(FileReader):
    """Reads and lists, and records each path, also of a missing file."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}  # path -> the device whose driver a read enters, or ""
        self.folders: dict[str, None] = {}

    def text(self, path: Path | str, device: str = "") -> str | None:
        """Return the text as `FileReader` does; a read that enters a driver is in the call slot."""
        self.files[str(path)] = device
        if not device:
            return read_text(path)
        with driver_call(device, f"read {str(path).rpartition('/')[2]}"):
            return read_text(path)

    def names(self, folder: Path) -> list[str]:
        self.folders[str(folder)] = None
        return names_in(folder)


class FileCache(Generic[T]):
    """A value and the files from which it was computed.

    A turn checks them in one pass, by kept descriptors.

    For sysfs and /proc: there a kept descriptor of a removed file fails to read.
    """

    def __init__(self, compute: Callable[[ReadRecorder], T], turns_max: int = TURNS_MAX) -> None:
        """*compute* may raise; then the next turn calls it again."""
        self._compute, self._turns_max = compute, turns_max
        self._turns_left = 0
        self._excluded: frozenset[str] = frozenset()
        self._value: list[T] = []
        self._last_contents: tuple[object, ...] = ()
        self._watch(ReadRecorder())

    def refresh(self) -> bool:
        """Recompute the value if a file changed or after `turns_max` turns.

        Return whether the value was recomputed.
        """
        before, self._last_contents = self._last_contents, self._read_contents()
        self._turns_left -= 1
        if self._turns_left > 0 and before == self._last_contents:
            return False
        self._turns_left = 0
        self._watch(self._recorded)  # reopen: the same paths may be new files
        recorder = ReadRecorder()
        value = self._compute(recorder)
        is_watched = self._is_watching(recorder)
        if not is_watched:
            self._watch(recorder)
            recorder = ReadRecorder()
            value = self._compute(recorder)  # else a change before the watch would be missed
            is_watched = self._is_watching(recorder)  # if not, the next turn recomputes
        self._value, self._turns_left = [value], self._turns_max if is_watched else 0
        return True

    @property
    def value(self) -> T:
        """The last value. IndexError before the first `refresh`."""
        return self._value[0]

    def exclude(self, devices: frozenset[str]) -> None:
        """Skip files of these devices; the next turn calls *compute*, which must skip them too."""
        self._excluded, self._turns_left = devices, 0
        self._watch(ReadRecorder())  # else that turn would read files recorded without their device

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
