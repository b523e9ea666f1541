"""The newest frames, in a folder of a file system in memory: on the disk they would be written for nothing.

When all is well a frame has its receipt within a second or two, and a file that lives no longer than that
still costs its disk a journal's commit every few seconds. So frames wait here first, and only those whose
receipt does not come go on to the spool's folder. What is here survives `kill -9`, as the page cache does;
a reboot takes it, as a power cut takes what is in the page cache.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from .segments import Segments

#: Frames go on to the disk when no receipt came for so long,
WAIT_SECONDS_MAX = 20.0
#: and when they are more than this together.
HEAD_BYTES_MAX = 1 << 20
SEGMENT_BYTES = 1 << 16
#: The newest segment stays when all of it went on: with it and one frame more than may wait here.
_FOLDER_BYTES_MAX = 4 * HEAD_BYTES_MAX
_RUN_NAME = "run"


class Head:
    """One spool's frames in memory. Not thread-safe; `spool` is."""

    def __init__(self, folder: Path, segments: Segments) -> None:
        self.folder = folder
        self.segments = segments
        self._inode = 0
        self._run_id = b""

    @classmethod
    def open(cls, parent: Path, spool_folder: Path) -> Head:
        """Take up what the spool left in its folder below *parent*. Raises OSError."""
        of = spool_folder.stat()
        folder = parent / f"gangline-spool-{of.st_dev:x}-{of.st_ino:x}"
        head = cls(folder, Segments(folder, _FOLDER_BYTES_MAX, SEGMENT_BYTES))
        head._make()
        head.segments.scan()
        return head

    def _make(self) -> None:
        """Make the folder if need be. Raises OSError, also for one that is not ours alone: whoever could
        write there could make us send anything."""
        with suppress(FileExistsError):
            self.folder.mkdir(mode=0o700)
        found = self.folder.lstat()
        ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
        if not ours or found.st_mode & 0o077:
            raise PermissionError(0, f"{self.folder.name} is not a folder of ours alone")
        self._inode = found.st_ino

    def is_there(self) -> bool:
        """Say whether the folder is still the one that was opened."""
        try:
            return self.folder.lstat().st_ino == self._inode
        except OSError:
            return False

    def begin_anew(self) -> None:
        """Make the folder again after somebody removed it; what was in it is lost, counted. Raises OSError."""
        self.segments.drop_all()
        lost = self.segments.dropped_frames
        try:
            self._make()
            self.keep_run(self._run_id)
        finally:
            self.segments.dropped_frames = lost

    def keep_run(self, run_id: bytes) -> None:
        """Remove what is of another run, and note this one. Raises OSError."""
        note, self._run_id = self.folder / _RUN_NAME, run_id
        with suppress(FileNotFoundError):
            if note.read_bytes() == run_id:
                return
        self.clear()
        self.segments.dropped_frames = 0  # of another spool: no loss of this one's
        note.write_bytes(run_id)

    def clear(self) -> None:
        """Remove all that is here. Never raises."""
        self.segments.drop_all()
        with suppress(OSError):
            for path in self.folder.iterdir():
                path.unlink()

    def leave_to(self, disk: Segments) -> bool:
        """Forget what is on the disk already: it was on its way there when the last process ended.

        Return whether the frame past the disk's last is here: then a torn one there was its copy.
        """
        for first, last in disk.spans():
            self.segments.forget(first, last)
        return self.segments.holds(disk.next)

    def remove(self) -> None:
        """Be gone, with all that is here. Never raises."""
        self.clear()
        with suppress(OSError):
            self.folder.rmdir()
