"""PCIe functions, once a minute: what the two ends of each link have agreed on."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ...fingerprints.block import Block
from ...fingerprints.catalogue import Pace
from ..entering import Spares, entering
from ..hardware import pci
from ..hardware.files import read_text, read_unsigned
from ..hardware.pci_config import ConfigClosed, Express, read_express
from ..hardware.roots import Roots
from ..turn import NoData
from .columns import block_of, clear_row, put
from .pcie import ABSENT

_CONFIG_CLOSED = (
    "MaxReadReq, MaxPayload and ACS of PCIe functions are shown to CAP_SYS_ADMIN only; open them with "
    "AmbientCapabilities=CAP_SYS_ADMIN in the agent's unit, or look by hand: sudo lspci -vv"
)
#: Types of an IOMMU group in the order of their codes (`drivers/iommu/iommu.c`); code 0: no group.
IOMMU_TYPES = ("", "identity", "DMA", "DMA-FQ", "unmanaged")


class PcieMinute(Spares):
    """Sizes of requests, ordering, link power, access control, IOMMU: what decides a function's speed."""

    name = "pcie_60s"
    pace = Pace.MINUTE
    enters_driver = True

    def __init__(self, roots: Roots) -> None:
        self._sys = roots.sys
        self._present: frozenset[tuple[str, int]] = frozenset()
        self._functions: list[pci.Function] = []
        self._block = Block("pcie_60s", ())
        self.blind_words = ""

    def collect(self) -> Sequence[Block]:
        """Return the one block. Raises NoData when there is no function to watch."""
        present = pci.presence(self._sys)
        if present != self._present:
            self._functions = list(pci.watched_functions(self._sys).values())
            self._block = block_of(self._block, [f.address for f in self._functions])
            self._present = present
        if not self._functions:
            raise NoData(ABSENT)
        self.blind_words = ""
        for row, function in enumerate(self._functions):
            if self.is_spared(function.address):
                clear_row(self._block, row)
            else:
                self._put(row, function)
        return (self._block,)

    def _put(self, row: int, function: pci.Function) -> None:
        folder = function.folder
        express = Express() if pci.is_asleep(folder) else self._express(function)
        aspm = aspm_flags(folder)
        values = {
            "pcie.max_payload_bytes": express.max_payload_bytes,
            "pcie.max_payload_supported_bytes": express.max_payload_supported_bytes,
            "pcie.max_read_request_bytes": express.max_read_request_bytes,
            "pcie.relaxed_ordering_state": express.relaxed_ordering,
            "pcie.aspm_flags": express.aspm_flags if aspm is None else aspm,
            "pcie.acs_flags": express.acs_flags,
            "pcie.iommu_state": iommu_code(folder),
            "pcie.power_state": code_of(pci.power_state(folder), pci.POWER_STATES),
        }
        for signal, value in values.items():
            put(self._block, signal, row, value)

    def _express(self, function: pci.Function) -> Express:
        try:
            with entering(function.address, "read config"):
                return read_express(function.folder / "config")
        except (ConfigClosed, PermissionError):
            self.blind_words = _CONFIG_CLOSED
        except OSError:
            pass  # it went; its row is of missing values
        return Express()


def code_of(word: str | None, words: Sequence[str]) -> int | None:
    """Return the place of *word* in *words*; None for another."""
    return words.index(word) if word and word in words else None


def aspm_flags(folder: Path) -> int | None:
    """Return the link's power states that are allowed (1 L0s, 2 L1); None where sysfs has neither."""
    l0s, l1 = read_unsigned(f"{folder}/link/l0s_aspm"), read_unsigned(f"{folder}/link/l1_aspm")
    return None if l0s is None and l1 is None else (1 if l0s else 0) | (2 if l1 else 0)


def iommu_code(folder: Path) -> int | None:
    """Return the code of how the function's addresses are translated; None when it cannot be told."""
    kind = read_text(f"{folder}/iommu_group/type")
    if kind is not None:
        return code_of(kind, IOMMU_TYPES)
    if os.path.lexists(f"{folder}/iommu_group"):
        return None  # one that is not shown
    return 0 if folder.exists() else None
