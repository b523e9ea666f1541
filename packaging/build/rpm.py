"""Repacks an rpm, as deb.py repacks a deb: nFPM's built-in xz makes files a quarter larger than liblzma's.

In the header only the digest of the payload changes; the signature header gets the sizes and digests of the new bytes (rpm's
docs/manual/format_v4.md: lead, signature header, header, payload).
"""

from __future__ import annotations

import hashlib
import lzma
import struct
from pathlib import Path

from sources import BuildError

_LEAD_BYTES = 96
_LEAD_MAGIC = b"\xed\xab\xee\xdb"
_HEADER_MAGIC = b"\x8e\xad\xe8\x01"
_INTRODUCTION = struct.Struct(">4s4xII")
_ENTRY = struct.Struct(">IIII")
#: Tags of the signature header. _SIZE and _MD5 cover header and payload; _SHA1 and _SHA256 cover the header alone.
_SIZE, _MD5 = 1000, 1004
_SHA1, _SHA256 = 269, 273
#: Tags of the header: digest of the compressed payload, the digest's algorithm (8: SHA-256), and the compressor.
_PAYLOAD_DIGEST, _PAYLOAD_DIGEST_ALGORITHM, _PAYLOAD_COMPRESSOR = 5092, 5093, 1125
_ALGORITHM_SHA256 = 8


class Header:
    """A header of an rpm. A value can be replaced by a value of the same length."""

    def __init__(self, data: bytes, at: int, file: Path) -> None:
        """Read the header at byte *at*. Raises BuildError if there is no header."""
        if len(data) < at + _INTRODUCTION.size:
            raise BuildError(f"{file}: damaged: it ends at byte {len(data)}, inside a header")
        magic, entries, size = _INTRODUCTION.unpack_from(data, at)
        start = at + _INTRODUCTION.size
        end = start + entries * _ENTRY.size + size
        if magic != _HEADER_MAGIC or end > len(data):
            raise BuildError(f"{file}: damaged: no header of an rpm at byte {at}")
        self.file, self.end = file, end
        self.content = bytearray(data[at:end])
        self._store = _INTRODUCTION.size + entries * _ENTRY.size
        rows = _ENTRY.iter_unpack(data[start : start + entries * _ENTRY.size])
        self._offsets = {tag: offset for tag, _, offset, _ in rows}

    def value(self, tag: int, length: int) -> bytes:
        """Return *length* bytes of a tag's value. Raises BuildError if the tag is missing."""
        if tag not in self._offsets:
            raise BuildError(f"{self.file}: tag {tag} is not in its header")
        at = self._store + self._offsets[tag]
        return bytes(self.content[at : at + length])

    def replace(self, tag: int, value: bytes) -> None:
        """Replace the value of *tag* by *value*, of the same length; do nothing if the tag is missing."""
        if tag in self._offsets:
            at = self._store + self._offsets[tag]
            self.content[at : at + len(value)] = value


def _read(rpm: Path) -> tuple[bytes, Header, Header, bytes]:
    """Return lead, signature header, header and payload. Raises BuildError."""
    data = rpm.read_bytes()
    if data[: len(_LEAD_MAGIC)] != _LEAD_MAGIC:
        raise BuildError(f"{rpm}: not an rpm: its first bytes are {data[:4]!r}")
    signature = Header(data, _LEAD_BYTES, rpm)
    header = Header(data, signature.end + -signature.end % 8, rpm)
    return data[:_LEAD_BYTES], signature, header, data[header.end :]


def pack(rpm: Path) -> None:
    """Compress the payload of *rpm* again with liblzma, reproducibly. Raises BuildError."""
    lead, signature, header, payload = _read(rpm)
    compressor = header.value(_PAYLOAD_COMPRESSOR, 3)
    algorithm = int.from_bytes(header.value(_PAYLOAD_DIGEST_ALGORITHM, 4))
    if compressor != b"xz\0" or algorithm != _ALGORITHM_SHA256:
        raise BuildError(
            f"{rpm}: expected a payload of xz with a SHA-256, found {compressor!r} and algorithm {algorithm}"
        )
    try:
        packed = lzma.compress(lzma.decompress(payload))
    except lzma.LZMAError as error:
        raise BuildError(f"{rpm}: damaged payload: {error}") from None
    header.replace(_PAYLOAD_DIGEST, hashlib.sha256(packed).hexdigest().encode())
    content = bytes(header.content)
    signature.replace(_SIZE, struct.pack(">I", len(content) + len(packed)))
    signature.replace(_MD5, hashlib.md5(content + packed, usedforsecurity=False).digest())
    signature.replace(_SHA1, hashlib.sha1(content, usedforsecurity=False).hexdigest().encode())
    signature.replace(_SHA256, hashlib.sha256(content).hexdigest().encode())
    padding = bytes(-len(signature.content) % 8)
    rpm.write_bytes(lead + signature.content + padding + content + packed)
