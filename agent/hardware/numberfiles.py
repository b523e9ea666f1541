"""A few files of one number each, through kept descriptors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...ext.counterfiles import CounterFiles
from ...fingerprints.counters import BLANK_32, BLANK_64

#: Beyond these, a file is opened each time: a large host has hundreds of cores, each with its frequency.
KEPT_MAX = 128


class NumberFiles:
    """Files that each hold one unsigned number."""

    def __init__(self, paths: Sequence[Path], devices: Sequence[str] = ()) -> None:
        """*devices*: for each path whose driver it enters (`ext.counterfiles`); none: no file enters any."""
        self._valid = bytearray(len(paths))
        self._cells = bytearray(8 * len(paths))
        self._numbers = memoryview(self._cells).cast("Q")
        self._files = CounterFiles([(self._cells, self._valid)], kept_max=KEPT_MAX)
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

    def spare(self, devices: frozenset[str]) -> None:
        """Make no call for these devices: their files hold no number."""
        self._files.spare(devices)

    def close(self) -> None:
        """Close the descriptors. No reading after this."""
        self._files.close()
