"""PCI configuration space: settings that the two ends of a link agreed on (PCI Express Base Specification).

Configuration space: PCI Express Base Specification, chapter 7; Linux
`include/uapi/linux/pci_regs.h`. Only the needed registers are read: some devices fail when the
whole space is read. Beyond the first 64 bytes the kernel shows it only to CAP_SYS_ADMIN.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .files import READ

#: Takes offset and length, and returns at most that number of bytes.
Read = Callable[[int, int], bytes]
OPEN_BYTES = 64  # readable by everybody
_STATUS, _HAS_CAPABILITIES, _CAPABILITIES = 0x06, 0x10, 0x34
_EXPRESS = 0x10
_EXTENDED_AT = 0x100
_ACS = 0x000D
#: Maximum that fits; a longer chain is circular.
_CAPABILITIES_MAX = (256 - OPEN_BYTES) // 4
_EXTENDED_MAX = (4096 - _EXTENDED_AT) // 8


class ConfigHidden(Exception):
    """The kernel shows this process only the first 64 bytes."""


@dataclass(frozen=True, slots=True)
class ExpressRegisters:
    """Values of a function's registers; None without the register."""

    max_payload_bytes: int | None = None
    max_payload_supported_bytes: int | None = None
    max_read_request_bytes: int | None = None
    relaxed_ordering: bool | None = None
    aspm_flags: int | None = None  # 1 L0s, 2 L1
    acs_flags: int | None = None


def read_express(config: Path) -> ExpressRegisters:
    """Return the registers in a function's file `config`. Raises OSError or ConfigHidden."""
    descriptor = os.open(config, READ)
    try:
        return parse_express(lambda offset, count: os.pread(descriptor, count, offset))
    finally:
        os.close(descriptor)


def parse_express(read: Read) -> ExpressRegisters:
    """Return the registers of a configuration space.

    Raises ConfigHidden if capabilities are hidden. A device that fell off the bus reads as all
    ones: all values are None.
    """
    head = read(0, OPEN_BYTES)
    if len(head) < OPEN_BYTES or head[:4] == b"\xff" * 4 or not head[_STATUS] & _HAS_CAPABILITIES:
        return ExpressRegisters()
    express = _find_express(read, head[_CAPABILITIES])
    if express is None:
        return ExpressRegisters()
    registers = read(express, 0x12)
    if len(registers) < 0x12:
        return ExpressRegisters()
    supported, control, link = (_word(registers, offset) for offset in (0x04, 0x08, 0x10))
    return ExpressRegisters(
        _size(control >> 5),
        _size(supported),
        _size(control >> 12),
        bool(control & 0x10),
        link & 3,
        _acs_flags(read),
    )


def _word(data: bytes, offset: int) -> int:
    return int.from_bytes(data[offset : offset + 2], "little")


def _size(code: int) -> int | None:
    """Return the bytes of a 3-bit size field, 128 to 4096; its last two codes are reserved."""
    return 128 << (code & 7) if code & 7 < 6 else None


def _find_express(read: Read, first: int) -> int | None:
    offset = first & 0xFC
    for _ in range(_CAPABILITIES_MAX):
        if offset < OPEN_BYTES:
            return None
        head = read(offset, 2)
        if len(head) < 2:
            raise ConfigHidden
        if head[0] == _EXPRESS:
            return offset
        offset = head[1] & 0xFC
    return None


def _acs_flags(read: Read) -> int | None:
    for offset, number in _extended(read):
        if number == _ACS:
            register = read(offset + 6, 2)
            return _word(register, 0) if len(register) == 2 else None
    return None


def _extended(read: Read) -> Iterator[tuple[int, int]]:
    """Yield offset and number of each extended capability."""
    offset = _EXTENDED_AT
    for _ in range(_EXTENDED_MAX):
        head = read(offset, 4) if offset >= _EXTENDED_AT else b""
        value = int.from_bytes(head, "little")
        if len(head) < 4 or value in (0, 0xFFFFFFFF):
            return
        yield offset, value & 0xFFFF
        offset = value >> 20 & 0xFFC
