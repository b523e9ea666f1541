"""Damage to the files of a host: one of many kinds, a removal, and the repair."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.fuzzing.damage import ODD_WORDS

MEGABYTE = 1 << 20

#: Replacements of a file, or of its contents.
WAYS = (
    "word", "word", "word", "word", "unit", "binary", "megabyte", "nothing", "folder", "dangling", "loop", "closed",
    "vanished", "twice", "blank",
)  # fmt: skip
#: Replacements that are not regular files.
_OTHER_THINGS: dict[str, Callable[[Path], object]] = {
    "vanished": lambda path: None,
    "folder": lambda path: path.mkdir(),
    "dangling": lambda path: path.symlink_to("/nowhere/at/all"),
    "loop": lambda path: path.symlink_to(path.name),
    "fifo": os.mkfifo,
}


@contextmanager
def damaged_files(paths: Sequence[Path], seed: str, ways: Sequence[str] = ()) -> Iterator[None]:
    """Damage files, each in one of *ways*, and mend them at the end. The same seed does the same again."""
    source = random.Random(seed)
    undone: list[tuple[Path, bytes, int]] = []
    try:
        for path in paths:
            undone.append(_strike(path, source.choice(ways or WAYS), source))
        yield
    finally:
        for path, data, mode in undone:
            _mend(path, data, mode)


@contextmanager
def taken_out(folder: Path, aside: Path) -> Iterator[None]:
    folder.rename(aside)
    try:
        yield
    finally:
        aside.rename(folder)


def _strike(path: Path, way: str, source: random.Random) -> tuple[Path, bytes, int]:
    """Damage *path*; return the input of `_mend`. Contents are changed in place, as a driver does."""
    mode, data = path.stat().st_mode & 0o777, path.read_bytes()
    if way == "closed":
        path.chmod(0)
    elif way not in _OTHER_THINGS:
        path.write_bytes(_content(way, data, source))
    else:
        path.unlink()
        _OTHER_THINGS[way](path)
    return path, data, mode


def _content(way: str, data: bytes, source: random.Random) -> bytes:
    match way:
        case "word":
            return source.choice(ODD_WORDS) + source.choice((b"\n", b""))
        case "unit":
            return data.rstrip(b"\n") + source.choice((b" kB\n", b" %\n", b"C\n", b" (no PMA)\n"))
        case "binary":
            return source.randbytes(source.randrange(1, 300))
        case "megabyte":
            return source.choice((b"7", b"x", b"\n", b"\0", b"cpu0 1\n", b"9 ")) * MEGABYTE
        case "nothing":
            return b""
        case "twice":
            return data + data
        case _:  # blank
            return re.sub(rb"\d+", source.choice((b"4294967295", b"18446744073709551615")), data)


def _mend(path: Path, data: bytes, mode: int) -> None:
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    elif not path.is_file() or path.is_symlink():
        path.unlink(missing_ok=True)
    if not path.exists() or path.read_bytes() != data:
        path.write_bytes(data)
    path.chmod(mode)
