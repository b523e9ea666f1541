"""Which machine this is, and which boot of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from .hardware.files import read_text

BOOT_ID_BYTES = 16
#: What boards report whose maker never set a UUID; it would make strangers look alike.
_PLACEHOLDERS = frozenset(
    (
        "00000000-0000-0000-0000-000000000000",
        "ffffffff-ffff-ffff-ffff-ffffffffffff",
        "03000200-0400-0500-0006-000700080009",
    )
)
#: /sys/class/net/*/addr_assign_type: 0 is the address the card was made with (if_link.h).
_NET_ADDR_PERM = "0"


def machine_owner(sys_root: Path = Path("/sys"), proc_root: Path = Path("/proc")) -> str:
    """Return a fingerprint of this machine, the same at every start. Never raises.

    It is the board's UUID (DMI product_uuid, readable by root) or, where that is not to be had, the
    lowest address of the physical network cards; and the host's name. The same disk in another
    machine therefore gives another fingerprint. Only one address counts, so that a card that dies,
    which is what we are here to report, does not make the machine a stranger to its own spool; an
    address that somebody set counts only if there is none a card was made with (the slaves of a
    bond bear the bond's).
    """
    board = _text(sys_root / "class/dmi/id/product_uuid").lower()
    if board and board not in _PLACEHOLDERS:
        machine = f"board {board}"
    else:
        permanent, other = _addresses(sys_root)
        machine = "network card " + min(permanent or other or ["none"])
    name = _text(proc_root / "sys/kernel/hostname") or "unnamed"
    return f"{machine}, host {name}"


def _addresses(sys_root: Path) -> tuple[list[str], list[str]]:
    permanent: list[str] = []
    other: list[str] = []
    for card in _physical_cards(sys_root):
        address = _text(card / "address").lower()
        if not address.strip("0:"):
            continue
        made_with = _text(card / "addr_assign_type") in (_NET_ADDR_PERM, "")
        (permanent if made_with else other).append(address)
    return permanent, other


def _physical_cards(sys_root: Path) -> Iterator[Path]:
    """Yield /sys/class/net/* that have a device behind them: no bridges, bonds, tunnels, veths."""
    try:
        cards = list((sys_root / "class/net").iterdir())
    except OSError:
        return
    for card in cards:
        if (card / "device").exists():
            yield card


def boot_id(proc_root: Path = Path("/proc")) -> bytes:
    """Return the 16 bytes that the kernel drew at this boot. Never raises.

    Where it shows none (some sandboxes), 16 random bytes: each start then counts as a boot of its
    own, which wastes a few sequence numbers and is otherwise harmless.
    """
    try:
        boot = bytes.fromhex(_text(proc_root / "sys/kernel/random/boot_id").replace("-", ""))
    except ValueError:
        boot = b""
    return boot if len(boot) == BOOT_ID_BYTES else os.urandom(BOOT_ID_BYTES)


def _text(path: Path) -> str:
    return read_text(path) or ""
