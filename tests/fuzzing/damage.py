"""Damage as the field knows it, and what may never come out of a parser whatever goes in."""

from __future__ import annotations

import dataclasses
import math
import random
import struct
from collections.abc import Callable, Mapping

ACCEPTED, REFUSED = "accepted", "refused"

#: Replacements of a number, as firmware, drivers and tools print a missing or an excessive one.
ODD_WORDS: tuple[bytes, ...] = (
    b"", b"0", b"-1", b"-9223372036854775808", b"N/A", b"N/A (no PMA)", b"[Not Supported]", b"Unknown", b"none",
    b"4294967295", b"18446744073709551615", b"18446744073709551616", b"9223372036854775807", b"9" * 39,
    b"9" * 5000, b"1.5", b"1e400", b"nan", b"inf", b"-inf", b"0x1f", b"1_000", b"+7", b"12 kB", b"12kB", b"07",
    b"\xff\xfe", b"\xd9\xa3", b"\xef\xbc\x91\xef\xbc\x92", b"\0", b"1\0", b"%s%n", b"'", b"..", b"/", b"../../..", b"a" * 300,
)  # fmt: skip
LONG_LINE_BYTES = 1 << 16
U64_MAX = 2**64 - 1


def damaged(data: bytes, source: random.Random) -> bytes:
    """Return *data* with up to four damages, as text or as bytes; sometimes undamaged."""
    work = data
    for _ in range(source.choice((0, 1, 1, 1, 2, 2, 3, 4))):
        work = source.choice(_WAYS)(work, source)
    return work


def flipped(data: bytes, source: random.Random) -> bytes:
    """Return *data* with a bit flipped, a piece removed, inserted or doubled, or an absurd length."""
    work = bytearray(data)
    position = source.randrange(len(work) + 1)
    match source.randrange(5):
        case 0 if work:
            work[position % len(work)] ^= 1 << source.randrange(8)
        case 1:
            del work[position : position + source.randrange(1, 64)]
        case 2:
            work[position:position] = source.randbytes(source.randrange(1, 64))
        case 3:
            work[position : position + 4] = struct.pack(
                "<I", source.choice((0, 1, 255, 65535, 2**32 - 1))
            )
        case _:
            work[position:position] = work[: source.randrange(64)]
    return bytes(work)


def _odd_word(data: bytes, source: random.Random) -> bytes:
    lines = data.split(b"\n")
    position = source.randrange(len(lines))
    fields = lines[position].split(b" ")
    fields[source.randrange(len(fields))] = source.choice(ODD_WORDS)
    lines[position] = b" ".join(fields)
    return b"\n".join(lines)


def _lines(data: bytes, source: random.Random) -> bytes:
    lines = data.split(b"\n")
    position, other = source.randrange(len(lines)), source.randrange(len(lines))
    match source.randrange(4):
        case 0:
            del lines[position]
        case 1:
            lines[position:position] = [lines[position]] * source.randrange(1, 4)
        case 2:
            lines[position], lines[other] = lines[other], lines[position]
        case _:
            lines[position] = b""
    return b"\n".join(lines)


def _cut(data: bytes, source: random.Random) -> bytes:
    return data[: source.randrange(len(data) + 1)]


def _long(data: bytes, source: random.Random) -> bytes:
    position = source.randrange(len(data) + 1)
    piece = source.choice((b"\0", b"7", b" ", b"A", b"\xff", b"(", b"\\x", b"9,"))
    return data[:position] + piece * (LONG_LINE_BYTES // len(piece)) + data[position:]


def _whole(data: bytes, source: random.Random) -> bytes:
    return source.choice((b"", b"\n", b"\0" * 64, b"\xff" * 512, source.randbytes(200)))


_WAYS: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    _odd_word, _odd_word, _odd_word, _odd_word, _odd_word, _odd_word, _lines, _lines, _cut, flipped, flipped, _long,
    _whole,
)  # fmt: skip


def text(data: bytes) -> str:
    """Return bytes in the form in which `read_text` gives them to a parser."""
    return data.decode(errors="replace").strip()


def outcome(value: object) -> str:
    """Check *value* by `check`, and return whether it has any content."""
    check(value)
    return ACCEPTED if holds_something(value) else REFUSED


def holds_something(value: object) -> bool:
    if dataclasses.is_dataclass(value):
        return any(holds_something(getattr(value, f.name)) for f in dataclasses.fields(value))
    if isinstance(value, Mapping):
        return bool(value)
    if isinstance(value, list | tuple | set | frozenset):
        return any(holds_something(item) for item in value)
    return value is not None and value != "" and value != b""


def check(value: object, name: str = "") -> None:
    """Raise AssertionError unless every number in *value* is valid for a cell.

    Integers have 64 unsigned bits, doubles are finite and not negative; a `*_ratio` is 0 to 1,
    except wear, which may exceed 1; a text is valid UTF-8 or a kernel name.
    """
    if isinstance(value, bool) or value is None:
        return
    if isinstance(value, int):
        assert 0 <= value <= U64_MAX, (name, value)
    elif isinstance(value, float):
        assert math.isfinite(value) and value >= 0, (name, value)
        assert not name.endswith("_ratio") or value <= (2.55 if name == "used_ratio" else 1), (
            name,
            value,
        )
    elif isinstance(value, str):
        value.encode(errors="surrogateescape")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            check(item, str(key))
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            check(item, name)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            check(getattr(value, field.name), field.name)
