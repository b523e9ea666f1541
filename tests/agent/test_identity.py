"""The machine's identity: the same at every start, another for a clone."""

from __future__ import annotations

from pathlib import Path

import pytest

from gangline.agent.hardware.proc_files import boot_id
from gangline.agent.registration import machine_owner

BOARD = "class/dmi/id/product_uuid"

CARDS = {"eth0": ("aa:00:00:00:00:02", "0"), "eth1": ("aa:00:00:00:00:01", "0")}


def machine(root: Path, cards: dict[str, tuple[str, str]], board: str = "", name: str = "a") -> str:
    """Create a host with these cards (address, addr_assign_type) and return its fingerprint."""
    for card, (address, kind) in cards.items():
        folder = root / "sys/class/net" / card
        (folder / "device").mkdir(parents=True)
        (folder / "address").write_text(address + "\n")
        (folder / "addr_assign_type").write_text(kind + "\n")
    bridge = root / "sys/class/net/docker0"
    bridge.mkdir(parents=True)
    (bridge / "address").write_text("00:00:00:00:00:11\n")
    if board:
        (root / "sys" / BOARD).parent.mkdir(parents=True)
        (root / "sys" / BOARD).write_text(board + "\n")
    (root / "proc/sys/kernel").mkdir(parents=True)
    (root / "proc/sys/kernel/hostname").write_text(name + "\n")
    return machine_owner(root / "sys", root / "proc")


def test_the_same_disk_in_another_machine_is_another_owner(tmp_path: Path) -> None:
    """A cloned image: all files equal, except the network cards."""
    clone = {"eth0": ("bb:00:00:00:00:02", "0"), "eth1": ("bb:00:00:00:00:01", "0")}
    first = machine(tmp_path / "1", CARDS)
    assert first == machine(tmp_path / "2", CARDS)
    assert first != machine(tmp_path / "3", clone)
    assert first != machine(tmp_path / "4", CARDS, name="b")
    assert first == "network card aa:00:00:00:00:01, host a"


@pytest.mark.parametrize(
    "cards",
    [
        {"eth1": CARDS["eth1"]},
        {"eth0": ("00:00:00:00:00:99", "3"), "eth1": CARDS["eth1"]},
    ],
    ids=["one rail of nine died", "the bond was up"],
)
def test_the_same_machine(tmp_path: Path, cards: dict[str, tuple[str, str]]) -> None:
    """The host's pending reports must not be dropped."""
    assert machine(tmp_path / "1", CARDS) == machine(tmp_path / "2", cards)


def test_the_board_goes_before_the_cards(tmp_path: Path) -> None:
    """All cards were replaced in a repair: still the same machine."""
    board = "4C4C4544-0042-3510-8054-B4C04F4E4D32"
    first = machine(tmp_path / "1", CARDS, board)
    assert first == machine(tmp_path / "2", {}, board)
    assert board.lower() in first


@pytest.mark.parametrize("board", ["00000000-0000-0000-0000-000000000000", "", " \n"])
def test_a_board_nobody_numbered_does_not_make_strangers_alike(tmp_path: Path, board: str) -> None:
    """Two boards of a cheap series report the same UUID."""
    other = {"eth0": ("bb:00:00:00:00:02", "0")}
    assert machine(tmp_path / "1", CARDS, board) != machine(tmp_path / "2", other, board)


def test_nothing_readable_is_an_owner_too(tmp_path: Path) -> None:
    """The agent must start in a sandbox without /sys."""
    assert machine_owner(tmp_path, tmp_path) == "network card none, host unnamed"


def test_boot_id(tmp_path: Path) -> None:
    """Sixteen bytes of the kernel's; random without them, so that numbers jump."""
    assert len(boot_id()) == 16
    file = tmp_path / "sys/kernel/random/boot_id"
    file.parent.mkdir(parents=True)
    file.write_text("00112233-4455-6677-8899-aabbccddeeff\n")
    assert boot_id(tmp_path).hex() == "00112233445566778899aabbccddeeff"
    file.write_text("0011\n")
    assert len(boot_id(tmp_path)) == 16
    assert boot_id(tmp_path) != boot_id(tmp_path)
