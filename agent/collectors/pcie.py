"""PCIe functions: links, AER counters and settings, from sysfs and configuration space."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...contract.block import Block
from ...contract.signal import Pace
from ...ext.counterfiles import DECIMAL, KEYED
from ...ext.hostfiles import Glance
from ..collector import ExcludingCollector, NoData, driver_call
from ..events import EventPublisher
from ..hardware import pci
from ..hardware.files import FileReader, Roots, read_text, read_unsigned
from ..hardware.pci import ConfigHidden, ExpressRegisters, read_express
from .block_writer import block_of, row_writer
from .counter_files import CollectorSpec, CounterDevice, CounterFileCollector, FileField
from .file_cache import FileCache

#: Maximum width; 255 means unknown, and a device that fell off the bus seems to report 63.
_LANES_MAX = 32
NO_FUNCTION = "no GPU, network or NVMe function in /sys/bus/pci/devices"
#: A listing costs as much as the readings of four minutes; a changed set of functions is listed at
#: once.
_LIST_SECONDS = 300
#: Functions named in a request for a new inventory.
_CHANGES_LISTED_MAX = 4

LINK_FIELDS: Mapping[str, FileField] = {
    "pcie.link_speed_transfers_per_second": FileField(
        "current_link_speed", DECIMAL, pci.GIGATRANSFERS.encode(), 1e9
    ),
    "pcie.link_width_lanes": FileField("current_link_width", raw_max=_LANES_MAX),
}
#: The kernel's name of a correctable error (`drivers/pci/pcie/aer.c`) -> its signal.
CORRECTABLE: Mapping[bytes, str] = {
    b"TOTAL_ERR_COR": "pcie.aer_correctable_errors",
    b"RxErr": "pcie.aer_receiver_errors",
    b"Timeout": "pcie.aer_replay_timer_errors",
    b"Rollover": "pcie.aer_replay_rollover_errors",
    b"BadTLP": "pcie.aer_bad_tlp_errors",
    b"BadDLLP": "pcie.aer_bad_dllp_errors",
    b"NonFatalErr": "pcie.aer_advisory_nonfatal_errors",
    b"CorrIntErr": "pcie.aer_corrected_internal_errors",
    b"HeaderOF": "pcie.aer_header_log_overflow_errors",
}
#: The kernel's name of an uncorrectable error -> a part of the signal's name; it may be non-fatal
#: or fatal. Older kernels lack the names from DMWrReqBlocked on: those signals are missing, not 0.
UNCORRECTABLE: Mapping[bytes, str] = {
    b"Undefined": "undefined",
    b"DLP": "data_link_protocol",
    b"SDES": "surprise_down",
    b"TLP": "poisoned_tlp",
    b"FCP": "flow_control_protocol",
    b"CmpltTO": "completion_timeout",
    b"CmpltAbrt": "completer_abort",
    b"UnxCmplt": "unexpected_completion",
    b"RxOF": "receiver_overflow",
    b"MalfTLP": "malformed_tlp",
    b"ECRC": "end_to_end_checksum",
    b"UnsupReq": "unsupported_request",
    b"ACSViol": "acs_violation",
    b"UncorrIntErr": "internal",
    b"BlockedTLP": "blocked_tlp",
    b"AtomicOpBlocked": "atomic_blocked",
    b"TLPBlockedErr": "prefix_blocked",
    b"PoisonTLPBlocked": "poisoned_tlp_blocked",
    b"DMWrReqBlocked": "deferrable_write_blocked",
    b"IDECheck": "encryption_check",
    b"MisIDETLP": "encryption_misrouted",
    b"PCRC_CHECK": "encryption_checksum",
    b"TLPXlatBlocked": "translation_blocked",
}


def _aer() -> dict[str, FileField]:
    """Return every AER signal of a function with its file and key."""
    fields = {
        signal: FileField("aer_dev_correctable", KEYED, word)
        for word, signal in CORRECTABLE.items()
    }
    for severity in ("nonfatal", "fatal"):
        file = f"aer_dev_{severity}"
        total = f"TOTAL_ERR_{severity.upper()}".encode()
        fields[f"pcie.aer_{severity}_errors"] = FileField(file, KEYED, total)
        for word, name in UNCORRECTABLE.items():
            fields[f"pcie.aer_{severity}_{name}_errors"] = FileField(file, KEYED, word)
    return fields


AER_FIELDS: Mapping[str, FileField] = _aer()
#: Further fields of a root port: the messages that reached it from below.
AER_ROOT_PORT_FIELDS: Mapping[str, FileField] = {
    "pcie.aer_root_port_correctable_errors": FileField("aer_rootport_total_err_cor"),
    "pcie.aer_root_port_nonfatal_errors": FileField("aer_rootport_total_err_nonfatal"),
    "pcie.aer_root_port_fatal_errors": FileField("aer_rootport_total_err_fatal"),
}


class PcieTenSeconds(CounterFileCollector):
    """Links and AER. A link's speed is read from the device itself, which may be asleep or gone.

    The functions are listed again, and their files reopened, in the turn after a function came,
    went, was replaced, fell asleep or woke up. The link of a sleeping function is not read, because
    that would wake it.
    """

    def __init__(self, roots: Roots) -> None:
        super().__init__(
            CollectorSpec(
                "pcie_10s",
                Pace.TEN_SECONDS,
                ("pcie_10s", "pcie_10s_changes"),
                self._devices,
                NO_FUNCTION,
                enters_driver=True,
                list_seconds=_LIST_SECONDS,
                change_key=lambda: [pci.is_asleep(folder) for folder in self._sleepable],
            )
        )
        self._sys = roots.sys
        self._sleepable: list[Path] = []
        self._present = pci.presence(roots.sys)
        self._device_folder = Glance(roots.sys / "bus/pci/devices")
        self._last_change_key = self._device_folder.look()
        self._publisher: EventPublisher | None = None

    def start(self, publisher: EventPublisher) -> None:
        """Take the publisher, which requests a new inventory when the functions change."""
        self._publisher = publisher

    def exclude(self, devices: frozenset[str]) -> None:
        """Skip these devices. All are listed again, because a listing reads the link's maximum."""
        if devices != self._excluded:
            self.close()
        super().exclude(devices)

    def collect(self) -> Sequence[Block]:
        """Return the refilled blocks. Raises NoData without a function to watch."""
        before, self._last_change_key = self._last_change_key, self._device_folder.look()
        if before != self._last_change_key:
            present = pci.presence(self._sys)
            if self._publisher and present != self._present:
                self._publisher.request_inventory(_difference(self._present, present))
            self._present = present
            self.close()
        return super().collect()

    def _devices(self) -> list[CounterDevice]:
        functions = pci.watched_functions(self._sys).values()
        self._sleepable = [f.folder for f in functions if pci.may_sleep(f.folder)]
        return [_device(function, self.is_excluded(function.address)) for function in functions]


def _link_max(function: pci.Function) -> tuple[float | None, int | None]:
    with driver_call(function.address, "read max_link_speed, max_link_width"):
        speed = pci.parse_link_speed(read_text(function.folder / "max_link_speed"))
        return speed, read_unsigned(function.folder / "max_link_width")


def _difference(before: frozenset[tuple[str, int]], now: frozenset[tuple[str, int]]) -> str:
    """Return a message about the changed functions: `PCIe 0000:18:00.0 gone`."""
    before_names, now_names = {name for name, _ in before}, {name for name, _ in now}
    changes = [f"{name} gone" for name in sorted(before_names - now_names)]
    changes += [f"{name} new" for name in sorted(now_names - before_names)]
    changes += [f"{name} put back" for name, _ in sorted(now - before) if name in before_names]
    more = (
        f" and {len(changes) - _CHANGES_LISTED_MAX} more"
        if len(changes) > _CHANGES_LISTED_MAX
        else ""
    )
    return f"PCIe {', '.join(changes[:_CHANGES_LISTED_MAX])}{more}"


def _device(function: pci.Function, excluded: bool) -> CounterDevice:
    """Return the function with its files. The link of a sleeping function is not read."""
    folder = function.folder
    speed_max, lanes_max = (
        (None, None) if excluded or pci.is_asleep(folder) else _link_max(function)
    )
    has_link = speed_max is not None and lanes_max is not None and 0 < lanes_max <= _LANES_MAX
    has_aer = (folder / "aer_dev_correctable").exists()
    is_root_port = (folder / "aer_rootport_total_err_cor").exists()
    return CounterDevice(
        function.address,
        f"{folder}/",
        {
            **(LINK_FIELDS if has_link else {}),
            **(AER_FIELDS if has_aer else {}),
            **(AER_ROOT_PORT_FIELDS if is_root_port else {}),
        },
        {
            "pcie.link_speed_max_transfers_per_second": speed_max if has_link else None,
            "pcie.link_width_max_lanes": lanes_max if has_link else None,
            "pcie.numa_node_number": pci.numa_node(folder),
            "pcie.class_code": function.class_code,
        },
    )


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
        """Skip these functions."""
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
