"""PCIe functions: links and AER counters, from sysfs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ...ext.counterfiles import DECIMAL, KEYED
from ...ext.hostfiles import Glance
from ...fingerprints.block import Block
from ...fingerprints.catalogue import Pace
from ..entering import entering
from ..hardware import pci
from ..hardware.files import read_text, read_unsigned
from ..hardware.roots import Roots
from ..listening import Teller
from .folders import Device, FolderCollector, Plan, Source

#: Wider links do not exist; 255 is `unknown`, 63 what a device that fell off the bus seems to say.
_LANES_MAX = 32
ABSENT = "no GPU, network or NVMe function in /sys/bus/pci/devices"
#: A list costs as much as four minutes' readings, so it is made again when the functions are others.
_LIST_SECONDS = 300
#: In a turn at most so many functions are named to the one who asks why the inventory is renewed.
_NAMED_MAX = 4

LINK: Mapping[str, Source] = {
    "pcie.link_speed_transfers_per_second": Source(
        "current_link_speed", DECIMAL, pci.GIGATRANSFERS.encode(), 1e9
    ),
    "pcie.link_width_lanes": Source("current_link_width", most=_LANES_MAX),
}
#: The kernel's word for a kind of correctable error, and its signal (`drivers/pci/pcie/aer.c`).
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
#: The same of uncorrectable errors, by the part of the signal's name; each may be non-fatal or fatal.
#: Older kernels know no word from DMWrReqBlocked on: there it is missing, not 0.
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


def _aer() -> dict[str, Source]:
    """Return every AER signal of a function with the file and the word where it stands."""
    sources = {
        signal: Source("aer_dev_correctable", KEYED, word) for word, signal in CORRECTABLE.items()
    }
    for severity in ("nonfatal", "fatal"):
        file = f"aer_dev_{severity}"
        total = f"TOTAL_ERR_{severity.upper()}".encode()
        sources[f"pcie.aer_{severity}_errors"] = Source(file, KEYED, total)
        for word, name in UNCORRECTABLE.items():
            sources[f"pcie.aer_{severity}_{name}_errors"] = Source(file, KEYED, word)
    return sources


AER: Mapping[str, Source] = _aer()
#: What a root port has besides: the messages that reached it from below.
AER_ROOT_PORT: Mapping[str, Source] = {
    "pcie.aer_root_port_correctable_errors": Source("aer_rootport_total_err_cor"),
    "pcie.aer_root_port_nonfatal_errors": Source("aer_rootport_total_err_nonfatal"),
    "pcie.aer_root_port_fatal_errors": Source("aer_rootport_total_err_fatal"),
}


class PcieTenSeconds(FolderCollector):
    """Links and AER. A link's speed is read from the device itself, which may be asleep or gone.

    A function that came, went, or was put back is listed in the next turn, its files opened anew; so is one
    that fell asleep or woke up: of one that sleeps the link is not read, for that would wake it.
    """

    def __init__(self, roots: Roots) -> None:
        super().__init__(
            Plan(
                "pcie_10s",
                Pace.TEN_SECONDS,
                ("pcie_10s", "pcie_10s_changes"),
                self._devices,
                ABSENT,
                enters_driver=True,
                list_seconds=_LIST_SECONDS,
                glance=lambda: [pci.is_asleep(folder) for folder in self._dozers],
            )
        )
        self._sys = roots.sys
        self._dozers: list[Path] = []
        self._present = pci.presence(roots.sys)
        self._glance = Glance(roots.sys / "bus/pci/devices")
        self._glanced = self._glance.look()
        self._teller: Teller | None = None

    def listen(self, teller: Teller) -> None:
        """Tell *teller* from now on when the functions are others."""
        self._teller = teller

    def spare(self, devices: frozenset[str]) -> None:
        """As of any folders' collector; what a link could do is asked when its device is listed, so that is done anew."""
        if devices != self._spared:
            self.close()
        super().spare(devices)

    def collect(self) -> Sequence[Block]:
        """Return the blocks, refilled. Raises NoData when there is no function to watch."""
        before, self._glanced = self._glanced, self._glance.look()
        if before != self._glanced:
            present = pci.presence(self._sys)
            if self._teller and present != self._present:
                self._teller.renew_inventory(_difference(self._present, present))
            self._present = present
            self.close()
        return super().collect()

    def _devices(self) -> list[Device]:
        functions = pci.watched_functions(self._sys).values()
        self._dozers = [f.folder for f in functions if pci.may_sleep(f.folder)]
        return [_device(function, self.is_spared(function.address)) for function in functions]


def _link_max(function: pci.Function) -> tuple[float | None, int | None]:
    with entering(function.address, "read max_link_speed, max_link_width"):
        speed = pci.parse_link_speed(read_text(function.folder / "max_link_speed"))
        return speed, read_unsigned(function.folder / "max_link_width")


def _difference(before: frozenset[tuple[str, int]], now: frozenset[tuple[str, int]]) -> str:
    """Return words for the functions that are others: `PCIe 0000:18:00.0 gone`."""
    were, are = {name for name, _ in before}, {name for name, _ in now}
    words = [f"{name} gone" for name in sorted(were - are)]
    words += [f"{name} new" for name in sorted(are - were)]
    words += [f"{name} put back" for name, _ in sorted(now - before) if name in were]
    more = f" and {len(words) - _NAMED_MAX} more" if len(words) > _NAMED_MAX else ""
    return f"PCIe {', '.join(words[:_NAMED_MAX])}{more}"


def _device(function: pci.Function, spared: bool) -> Device:
    """Return the function with the files it has: one in the root complex has no link, one asleep none to be read."""
    folder = function.folder
    speed_max, lanes_max = (None, None) if spared or pci.is_asleep(folder) else _link_max(function)
    has_link = speed_max is not None and lanes_max is not None and 0 < lanes_max <= _LANES_MAX
    has_aer = (folder / "aer_dev_correctable").exists()
    is_root_port = (folder / "aer_rootport_total_err_cor").exists()
    return Device(
        function.address,
        f"{folder}/",
        {
            **(LINK if has_link else {}),
            **(AER if has_aer else {}),
            **(AER_ROOT_PORT if is_root_port else {}),
        },
        {
            "pcie.link_speed_max_transfers_per_second": speed_max if has_link else None,
            "pcie.link_width_max_lanes": lanes_max if has_link else None,
            "pcie.numa_node_number": pci.numa_node(folder),
            "pcie.class_code": function.class_code,
        },
    )
