"""Use of the host by a control group with all groups below it: cores, disks, page cache."""

from __future__ import annotations

import os
from collections.abc import Container, Mapping
from pathlib import Path
from typing import NamedTuple

from .files import parse_unsigned, read_text
from .storage import disks_with_backing


class GroupUse(NamedTuple):
    """Totals of a control group, and its page cache in use; None if unknown."""

    cpu_nanoseconds: int | None = None
    read_bytes: int | None = None
    written_bytes: int | None = None
    file_cache_active_bytes: int | None = None


class JobGroupReader:
    """Reads control groups. Never raises: an unreadable number is None."""

    def __init__(self, sys: Path) -> None:
        self._root = f"{sys}/fs/cgroup"
        self._is_unified = os.path.exists(sys / "fs/cgroup/cgroup.controllers")
        folder, disks = sys / "block", disks_with_backing(sys)
        numbers = (read_text(folder / disk.replace("/", "!") / "dev") for disk in disks)
        known = frozenset(number for number in numbers if number)
        #: Device numbers of the host's disks; None: unknown.
        self._disks = known if known or not disks else None

    def read(self, paths: Mapping[str, str]) -> GroupUse:
        """Return the use of a group. *paths*: its path by controller, "" for version 2."""
        if self._is_unified:
            folder = f"{self._root}{paths.get('', '/')}"
            cpu = parse_fields(read_text(f"{folder}/cpu.stat")).get("usage_usec")
            read, written = parse_io_stat(read_text(f"{folder}/io.stat"), self._disks)
            cache = parse_fields(read_text(f"{folder}/memory.stat")).get("active_file")
            return GroupUse(None if cpu is None else 1000 * cpu, read, written, cache)
        cpu = parse_unsigned(
            read_text(f"{self._root}/cpuacct{paths.get('cpuacct', '')}/cpuacct.usage")
        )
        name = "blkio.throttle.io_service_bytes_recursive"
        text = read_text(f"{self._root}/blkio{paths.get('blkio', '')}/{name}")
        read, written = parse_service_bytes(text, self._disks)
        memory = read_text(f"{self._root}/memory{paths.get('memory', '')}/memory.stat")
        return GroupUse(cpu, read, written, parse_fields(memory).get("total_active_file"))


def parse_fields(text: str | None) -> dict[str, int]:
    """Return the numbers of lines `name number`."""
    pairs = (line.partition(" ") for line in (text or "").splitlines())
    numbers = ((name, parse_unsigned(number)) for name, _, number in pairs)
    return {name: number for name, number in numbers if number is not None}


def parse_io_stat(text: str | None, disks: Container[str] | None) -> tuple[int | None, int | None]:
    """Return the bytes read and written on *disks* in `io.stat`; None without the file or the disks.

    Mapped devices are left out: their bytes count again on the disks below them.
    """
    if text is None or disks is None:
        return None, None
    totals = {"rbytes": 0, "wbytes": 0}
    for line in text.splitlines():
        disk, *words = line.split() or [""]
        for name, _, number in (word.partition("=") for word in words if disk in disks):
            if name in totals:
                totals[name] += parse_unsigned(number) or 0
    return totals["rbytes"], totals["wbytes"]


def parse_service_bytes(
    text: str | None, disks: Container[str] | None
) -> tuple[int | None, int | None]:
    """Return the bytes read and written on *disks* in `io_service_bytes`; None without the file or the disks."""
    if text is None or disks is None:
        return None, None
    totals = {"Read": 0, "Write": 0}
    for words in map(str.split, text.splitlines()):
        if len(words) == 3 and words[0] in disks and words[1] in totals:
            totals[words[1]] += parse_unsigned(words[2]) or 0
    return totals["Read"], totals["Write"]
