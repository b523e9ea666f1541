"""PCIe functions: links and AER counters, from sysfs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ...contract.block import Block
from ...ext.counterfiles import DECIMAL, KEYED
from ...ext.hostfiles import Glance
from ..collector import driver_call
from ..events import EventPublisher
from ..hardware import pci
from ..hardware.files import Roots, read_text, read_unsigned
from .counter_files import CollectorSpec, CounterDevice, CounterFileCollector, FileField

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

#: Further fields of a root port: the messages that reached it from below.
AER_ROOT_PORT_FIELDS: Mapping[str, FileField] = {
    "pcie.aer_root_port_correctable_errors": FileField("aer_rootport_total_err_cor"),
    "pcie.aer_root_port_nonfatal_errors": FileField("aer_rootport_total_err_nonfatal"),
    "pcie.aer_root_port_fatal_errors": FileField("aer_rootport_total_err_fatal"),
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
                self._devices,
                NO_FUNCTION,
                tables=("pcie_10s", "pcie_10s_changes"),
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
        """Skip these devices. All functions are listed again: a listing reads the link's maximum."""
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
