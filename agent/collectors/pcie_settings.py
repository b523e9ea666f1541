"""PCIe functions, once a minute: what the two ends of each link have agreed on."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...fingerprints.block import Block
from ...fingerprints.catalogue import Pace
from ..entering import Spares, entering
from ..hardware import pci
from ..hardware.files import Files
from ..hardware.pci_config import ConfigClosed, Express, read_express
from ..hardware.roots import Roots
from ..turn import NoData
from .columns import block_of, places_of
from .pcie import ABSENT
from .remembering import Remembered

_CONFIG_CLOSED = (
    "MaxReadReq, MaxPayload and ACS of PCIe functions are shown to CAP_SYS_ADMIN only; open them with "
    "AmbientCapabilities=CAP_SYS_ADMIN in the agent's unit, or look by hand: sudo lspci -vv"
)
#: Types of an IOMMU group in the order of their codes (`drivers/iommu/iommu.c`); code 0: no group.
IOMMU_TYPES = ("", "identity", "DMA", "DMA-FQ", "unmanaged")


#: In the order of `PcieMinute._values`.
_COLUMNS = (
    "pcie.max_payload_bytes",
    "pcie.max_payload_supported_bytes",
    "pcie.max_read_request_bytes",
    "pcie.relaxed_ordering_state",
    "pcie.acs_flags",
    "pcie.aspm_flags",
    "pcie.iommu_state",
    "pcie.power_state",
)


@dataclass(frozen=True, slots=True)
class _Shown:
    """What small files of sysfs show of a function; by itself, of one that is not to be asked."""

    is_asleep: bool = True
    aspm_flags: int | None = None
    iommu: int | None = None
    power: int | None = None


_SPARED = _Shown()


class PcieMinute(Spares):
    """Sizes of requests, ordering, link power, access control, IOMMU: what decides a function's speed."""

    name = "pcie_60s"
    pace = Pace.MINUTE
    enters_driver = True

    def __init__(self, roots: Roots) -> None:
        self._sys = roots.sys
        self._shown = Remembered(self._work_out)
        self._block = Block("pcie_60s", ())
        self._places = places_of(self._block, _COLUMNS)
        self._told: dict[int, tuple[object, ...]] = {}  # what stands in each row
        self.blind_words = ""

    def spare(self, devices: frozenset[str]) -> None:
        """Read nothing of these functions."""
        super().spare(devices)
        self._shown.spare(devices)

    def collect(self) -> Sequence[Block]:
        """Return the one block. Raises NoData when there is no function to watch."""
        is_new = self._shown.look()
        if not self._shown.value:
            raise NoData(ABSENT)
        if is_new:
            self._block = block_of(self._block, [f.address for f, _ in self._shown.value])
            self._places = places_of(self._block, _COLUMNS)
            self._told.clear()
        self.blind_words = ""
        for row, (function, shown) in enumerate(self._shown.value):
            values = self._values(function, shown)
            if self._told.get(row) != values:
                self._told[row] = values
                self._places.put(row, values)
        return (self._block,)

    def _values(self, function: pci.Function, shown: _Shown) -> tuple[float | None, ...]:
        express = Express() if shown.is_asleep else self._express(function)
        return (
            express.max_payload_bytes,
            express.max_payload_supported_bytes,
            express.max_read_request_bytes,
            express.relaxed_ordering,
            express.acs_flags,
            express.aspm_flags if shown.aspm_flags is None else shown.aspm_flags,
            shown.iommu,
            shown.power,
        )

    def _work_out(self, files: Files) -> list[tuple[pci.Function, _Shown]]:
        """Return the functions: others when one came, went, or was put back under its address."""
        files.names(self._sys / "bus/pci/devices")
        return [
            (each, _SPARED if self.is_spared(each.address) else _shown(each.folder, files))
            for each in pci.watched_functions(self._sys).values()
        ]

    def _express(self, function: pci.Function) -> Express:
        try:
            with entering(function.address, "read config"):
                return read_express(function.folder / "config")
        except (ConfigClosed, PermissionError):
            self.blind_words = _CONFIG_CLOSED
        except OSError:
            pass  # it went; its row is of missing values
        return Express()


def _shown(folder: Path, files: Files) -> _Shown:
    return _Shown(
        pci.is_asleep(folder, files),
        aspm_flags(folder, files),
        iommu_code(folder, files),
        code_of(pci.power_state(folder, files), pci.POWER_STATES),
    )


def code_of(word: str | None, words: Sequence[str]) -> int | None:
    """Return the place of *word* in *words*; None for another."""
    return words.index(word) if word and word in words else None


def aspm_flags(folder: Path, files: Files) -> int | None:
    """Return the link's power states that are allowed (1 L0s, 2 L1); None where sysfs has neither."""
    l0s, l1 = (files.unsigned(f"{folder}/link/{name}_aspm") for name in ("l0s", "l1"))
    return None if l0s is None and l1 is None else (1 if l0s else 0) | (2 if l1 else 0)


def iommu_code(folder: Path, files: Files) -> int | None:
    """Return the code of how the function's addresses are translated; None when it cannot be told."""
    kind = files.text(f"{folder}/iommu_group/type")  # may come with the function's driver
    if kind is None and not os.path.lexists(f"{folder}/iommu_group"):
        return 0 if folder.exists() else None
    return code_of(kind, IOMMU_TYPES)
