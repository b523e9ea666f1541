"""PCIe functions: links and AER counters, from sysfs."""

from __future__ import annotations

from collections.abc import Mapping

from ...ext.counterfiles import DECIMAL, KEYED
from ...fingerprints.catalogue import Pace
from ..hardware import pci
from ..hardware.files import read_text, read_unsigned
from ..hardware.roots import Roots
from .folders import Device, FolderCollector, Plan, Source

#: Wider links do not exist; 255 is `unknown`, 63 what a device that fell off the bus seems to say.
_LANES_MAX = 32

LINK: Mapping[str, Source] = {
    "pcie.link_speed_transfers_per_second": Source(
        "current_link_speed", DECIMAL, pci.GIGATRANSFERS.encode(), 1e9
    ),
    "pcie.link_width_lanes": Source("current_link_width", most=_LANES_MAX),
}
AER: Mapping[str, Source] = {
    "pcie.aer_correctable_errors": Source("aer_dev_correctable", KEYED, b"TOTAL_ERR_COR"),
    "pcie.aer_nonfatal_errors": Source("aer_dev_nonfatal", KEYED, b"TOTAL_ERR_NONFATAL"),
    "pcie.aer_fatal_errors": Source("aer_dev_fatal", KEYED, b"TOTAL_ERR_FATAL"),
    "pcie.aer_receiver_errors": Source("aer_dev_correctable", KEYED, b"RxErr"),
    "pcie.aer_replay_timer_errors": Source("aer_dev_correctable", KEYED, b"Timeout"),
    "pcie.aer_replay_rollover_errors": Source("aer_dev_correctable", KEYED, b"Rollover"),
    "pcie.aer_bad_tlp_errors": Source("aer_dev_correctable", KEYED, b"BadTLP"),
    "pcie.aer_bad_dllp_errors": Source("aer_dev_correctable", KEYED, b"BadDLLP"),
}


def pcie_10s(roots: Roots) -> FolderCollector:
    """Links and AER. A link's speed is read from the device itself, which may be asleep or gone."""
    return FolderCollector(
        Plan(
            "pcie_10s",
            Pace.TEN_SECONDS,
            ("pcie_10s", "pcie_10s_changes"),
            lambda: [_device(f) for f in pci.watched_functions(roots.sys).values()],
            "no GPU, network or NVMe function in /sys/bus/pci/devices",
            enters_driver=True,
            list_seconds=300,  # a list costs as much as four minutes' readings
        )
    )


def _device(function: pci.Function) -> Device:
    """Return the function with the files it has: a function in the root complex has no link."""
    folder = function.folder
    speed_max = pci.parse_link_speed(read_text(folder / "max_link_speed"))
    lanes_max = read_unsigned(folder / "max_link_width")
    has_link = speed_max is not None and lanes_max is not None and 0 < lanes_max <= _LANES_MAX
    has_aer = (folder / "aer_dev_correctable").exists()
    return Device(
        function.address,
        f"{folder}/",
        {**(LINK if has_link else {}), **(AER if has_aer else {})},
        {
            "pcie.link_speed_max_transfers_per_second": speed_max if has_link else None,
            "pcie.link_width_max_lanes": lanes_max if has_link else None,
            "pcie.numa_node_number": pci.numa_node(folder),
            "pcie.class_code": function.class_code,
        },
    )
