"""PCIe functions once a minute: settings that the two ends of each link agreed on."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...contract.block import Block
from ...contract.signal import Pace
from ..collector import ExcludingCollector, NoData, driver_call
from ..hardware import pci
from ..hardware.files import FileReader, Roots
from ..hardware.pci_config import ConfigHidden, ExpressRegisters, read_express
from .block_writer import block_of, row_writer
from .file_cache import FileCache
from .pcie import NO_FUNCTION

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
class _SysfsState:
    """The values of sysfs about a function; the defaults are those of an excluded function."""

    is_asleep: bool = True
    aspm_flags: int | None = None
    iommu: int | None = None
    power: int | None = None


_EXCLUDED = _SysfsState()


class PcieMinute(ExcludingCollector):
    """Settings that affect speed: request sizes, ordering, link power, access control, IOMMU."""

    name = "pcie_60s"
    pace = Pace.MINUTE
    enters_driver = True

    def __init__(self, roots: Roots) -> None:
        self._sys = roots.sys
        self._functions = FileCache(self._compute)
        self._block = Block("pcie_60s", ())
        self._writer = row_writer(self._block, _COLUMNS)
        self._written_values: dict[int, tuple[object, ...]] = {}  # the current content of each row
        self.access_error = ""

    def exclude(self, devices: frozenset[str]) -> None:
        super().exclude(devices)
        self._functions.exclude(devices)

    def collect(self) -> Sequence[Block]:
        """Return the block. Raises NoData without a function to watch."""
        is_new = self._functions.refresh()
        if not self._functions.value:
            raise NoData(NO_FUNCTION)
        if is_new:
            self._block = block_of(self._block, [f.address for f, _ in self._functions.value])
            self._writer = row_writer(self._block, _COLUMNS)
            self._written_values.clear()
        self.access_error = ""
        for row, (function, state) in enumerate(self._functions.value):
            values = self._values(function, state)
            if self._written_values.get(row) != values:
                self._written_values[row] = values
                self._writer.put(row, values)
        return (self._block,)

    def _values(self, function: pci.Function, state: _SysfsState) -> tuple[float | None, ...]:
        express = ExpressRegisters() if state.is_asleep else self._express(function)
        return (
            express.max_payload_bytes,
            express.max_payload_supported_bytes,
            express.max_read_request_bytes,
            express.relaxed_ordering,
            express.acs_flags,
            express.aspm_flags if state.aspm_flags is None else state.aspm_flags,
            state.iommu,
            state.power,
        )

    def _compute(self, files: FileReader) -> list[tuple[pci.Function, _SysfsState]]:
        """Return the functions, listed again when one came, went, or was replaced."""
        files.names(self._sys / "bus/pci/devices")
        return [
            (
                function,
                _EXCLUDED
                if self.is_excluded(function.address)
                else _read_sysfs(function.folder, files),
            )
            for function in pci.watched_functions(self._sys).values()
        ]

    def _express(self, function: pci.Function) -> ExpressRegisters:
        try:
            with driver_call(function.address, "read config"):
                return read_express(function.folder / "config")
        except (ConfigHidden, PermissionError):
            self.access_error = _CONFIG_CLOSED
        except OSError:
            pass  # removed: its values are missing
        return ExpressRegisters()


def _read_sysfs(folder: Path, files: FileReader) -> _SysfsState:
    return _SysfsState(
        pci.is_asleep(folder, files),
        aspm_flags(folder, files),
        iommu_code(folder, files),
        code_of(pci.power_state(folder, files), pci.POWER_STATES),
    )


def code_of(name: str | None, names: Sequence[str]) -> int | None:
    """Return the index of *name* in *names*; None for any other name."""
    return names.index(name) if name and name in names else None


def aspm_flags(folder: Path, files: FileReader) -> int | None:
    """Return the permitted power states of the link (1 L0s, 2 L1); None if sysfs shows neither."""
    l0s, l1 = (files.unsigned(f"{folder}/link/{name}_aspm") for name in ("l0s", "l1"))
    return None if l0s is None and l1 is None else (1 if l0s else 0) | (2 if l1 else 0)


def iommu_code(folder: Path, files: FileReader) -> int | None:
    """Return the code of the function's IOMMU group type; None if unknown."""
    kind = files.text(f"{folder}/iommu_group/type")  # may appear with the function's driver
    if kind is None and not os.path.lexists(f"{folder}/iommu_group"):
        return 0 if folder.exists() else None
    return code_of(kind, IOMMU_TYPES)
