"""Repacks a deb: nFPM's built-in xz makes files a quarter larger than liblzma's."""

from __future__ import annotations

import lzma
from collections.abc import Iterator
from pathlib import Path

from sources import BuildError

_MAGIC = b"!<arch>\n"
_HEADER_BYTES = 60
_PLAIN = "data.tar"


def members(deb: Path) -> Iterator[tuple[str, bytes]]:
    """Yield (name, content) of each file in an ar archive (ar(5)). Raises BuildError."""
    data = memoryview(deb.read_bytes())
    if data[: len(_MAGIC)] != _MAGIC:
        raise BuildError(f"{deb}: not an ar archive, as every deb is")
    at = len(_MAGIC)
    while at < len(data):
        header = bytes(data[at : at + _HEADER_BYTES]).decode("ascii", "replace")
        size = header[48:58].strip()
        at += _HEADER_BYTES
        if not header.endswith("`\n") or not size.isdecimal() or at + int(size) > len(data):
            raise BuildError(f"{deb}: damaged at byte {at - _HEADER_BYTES}")
        yield header[:16].rstrip(" /"), bytes(data[at : at + int(size)])
        at += int(size) + int(size) % 2


def pack(deb: Path, epoch: int) -> None:
    """Replace `data.tar` in *deb* by `data.tar.xz`, reproducibly. Raises BuildError."""
    found = dict(members(deb))
    if _PLAIN not in found:
        raise BuildError(f"{deb}: expected {_PLAIN} in it, found {', '.join(found)}")
    made = bytearray(_MAGIC)
    for name, content in found.items():
        is_data = name == _PLAIN
        packed = lzma.compress(content) if is_data else content
        full = f"{name}.xz" if is_data else name
        header = f"{full:<16}{epoch:<12}{0:<6}{0:<6}{'100644':<8}{len(packed):<10}`\n"
        made += header.encode() + packed + b"\n" * (len(packed) % 2)
    deb.write_bytes(made)
