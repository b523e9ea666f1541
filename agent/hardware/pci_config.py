"""PCI configuration space: what the link partners have agreed on (PCI Express Base Specification, chapter 7;
Linux `include/uapi/linux/pci_regs.h`).

Only the registers that are wanted are read, never the whole space: some devices do not stand that. Beyond
its first 64 bytes the kernel shows it only to CAP_SYS_ADMIN.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .files import READ

#: Returns as many bytes as it can, at most as asked, from an offset on.
Read = Callable[[int, int], bytes]

OPEN_BYTES = 64  # what everybody may read
_STATUS, _HAS_CAPABILITIES, _CAPABILITIES = 0x06, 0x10, 0x34
_EXPRESS = 0x10
_EXTENDED_AT = 0x100
_ACS = 0x000D
#: As many as fit; a chain that is longer goes in a circle.
_CAPABILITIES_MAX = (256 - OPEN_BYTES) // 4
_EXTENDED_MAX = (4096 - _EXTENDED_AT) // 8


class ConfigClosed(Exception):
    """The kernel shows this process the first 64 bytes only."""


@dataclass(frozen=True, slots=True)
class Express:
    """What a function's registers say; None where it has no such register."""

    max_payload_bytes: int | None = None
    max_payload_supported_bytes: int | None = None
    max_read_request_bytes: int | None = None
    relaxed_ordering: bool | None = None
    aspm_flags: int | None = None  # 1 L0s, 2 L1
    acs_flags: int | None = None


def read_express(config: Path) -> Express:
    """Return what the file `config` of a function says. OSError as of reading, or ConfigClosed."""
    descriptor = os.open(config, READ)
    try:
        return parse_express(lambda offset, count: os.pread(descriptor, count, offset))
    finally:
        os.close(descriptor)


def parse_express(read: Read) -> Express:
    """Return what a configuration space says. ConfigClosed if its capabilities are not shown.

    A device that fell off the bus answers all ones: nothing is known of it.
    """
    head = read(0, OPEN_BYTES)
    if len(head) < OPEN_BYTES or head[:4] == b"\xff" * 4 or not head[_STATUS] & _HAS_CAPABILITIES:
        return Express()
    at = _find_express(read, head[_CAPABILITIES])
    if at is None:
        return Express()
    registers = read(at, 0x12)
    if len(registers) < 0x12:
        return Express()
    supported, control, link = (_word(registers, offset) for offset in (0x04, 0x08, 0x10))
    return Express(
        _size(control >> 5),
        _size(supported),
        _size(control >> 12),
        bool(control & 0x10),
        link & 3,
        _acs_flags(read),
    )


def _word(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 2], "little")


def _size(code: int) -> int | None:
    """Return the bytes of a size field of 3 bits: 128 to 4096; its two last codes are reserved."""
    return 128 << (code & 7) if code & 7 < 6 else None


def _find_express(read: Read, first: int) -> int | None:
    at = first & 0xFC
    for _ in range(_CAPABILITIES_MAX):
        if at < OPEN_BYTES:
            return None
        head = read(at, 2)
        if len(head) < 2:
            raise ConfigClosed
        if head[0] == _EXPRESS:
            return at
        at = head[1] & 0xFC
    return None


def _acs_flags(read: Read) -> int | None:
    for at, number in _extended(read):
        if number == _ACS:
            register = read(at + 6, 2)
            return _word(register, 0) if len(register) == 2 else None
    return None


def _extended(read: Read) -> Iterator[tuple[int, int]]:
    """Yield offset and number of each extended capability."""
    at = _EXTENDED_AT
    for _ in range(_EXTENDED_MAX):
        head = read(at, 4) if at >= _EXTENDED_AT else b""
        value = int.from_bytes(head, "little")
        if len(head) < 4 or value in (0, 0xFFFFFFFF):
            return
        yield at, value & 0xFFFF
        at = value >> 20 & 0xFFC
