"""NVIDIA GPUs as /proc and sysfs show them, read without calling the GPU."""

from __future__ import annotations

import errno
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ...ext import place
from .files import Roots, names_in, read_text

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_UUID = re.compile(r"^GPU UUID:\s*(GPU-[0-9a-fA-F-]+)\s*$", re.MULTILINE)
_KERNEL_VERSION = re.compile(r"^NVRM version:.*?\s(\d{1,4}\.\d{1,4}(?:\.\d{1,4})?)\s", re.MULTILINE)


def driver_gpus(proc: Path) -> list[str]:
    """Return the sorted PCI addresses in /proc/driver/nvidia/gpus, including lost GPUs."""
    return [n for n in names_in(proc / "driver/nvidia/gpus") if _ADDRESS.fullmatch(n)]


def driver_gpu_uuid(proc: Path, address: str) -> str:
    """Return the driver's UUID of a GPU; empty if it never read one. Enters the driver."""
    place.enter(address.encode(), b"read /proc/driver/nvidia/gpus information")
    text = read_text(proc / "driver/nvidia/gpus" / address / "information")
    place.leave()
    return parse_uuid(text or "")


def pci_gpus(sys: Path) -> list[str]:
    """Return the sorted PCI addresses bound to the NVIDIA driver, without calling it."""
    return [n for n in names_in(sys / "bus/pci/drivers/nvidia") if _ADDRESS.fullmatch(n)]


def device_rules_deny(dev: Path) -> bool:
    """Return whether a cgroup denies this process the driver's control device.

    That gives EPERM; the mode of a file gives EACCES. The kernel refuses before it calls the driver
    (security/device_cgroup.c; for cgroup v2 a BPF program).
    """
    place.enter(b"", b"open /dev/nvidiactl")
    try:
        os.close(os.open(dev / "nvidiactl", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK))
    except OSError as error:
        return error.errno == errno.EPERM
    finally:
        place.leave()
    return False


def is_bound(sys: Path, address: str) -> bool | None:
    """Return whether a GPU is bound to the NVIDIA driver; None if unknown.

    Does not call the driver.
    """
    folder = sys / "bus/pci/drivers/nvidia"
    return (folder / address).exists() if folder.is_dir() else None


def parse_uuid(information: str) -> str:
    """Return the UUID of an `information` file; empty for `GPU-????????-...` (never attached)."""
    match = _UUID.search(information)
    return match.group(1) if match else ""


def kernel_driver_version(proc: Path) -> str:
    """Return the version of the loaded kernel driver from /proc/driver/nvidia/version.

    Return "" without a driver.
    """
    return parse_kernel_driver_version(read_text(proc / "driver/nvidia/version") or "")


def parse_kernel_driver_version(text: str) -> str:
    """Return `590.48.01` from `NVRM version: NVIDIA UNIX ... x86_64  590.48.01  Release ...`."""
    match = _KERNEL_VERSION.search(text)
    return match.group(1) if match else ""


# Statistics of NIC drivers and their signals. Names:
# drivers/net/ethernet/mellanox/mlx5/core/en_stats.c (and
# Documentation/networking/device_drivers/ethernet/mellanox/mlx5/counters.rst),
# broadcom/bnxt/bnxt_ethtool.c, intel/ice/ice_ethtool.c, amazon/ena/ena_ethtool.c.

_PRIORITIES = range(8)


def _by_priority(forms: Mapping[str, str]) -> dict[bytes, str]:
    """Return name -> signal per priority, from forms with `{}` in both."""
    return {
        name.format(p).encode(): f"nic.priority_{signal.format(p)}"
        for name, signal in forms.items()
        for p in _PRIORITIES
    }


_MLX5: dict[bytes, str] = {
    b"rx_discards_phy": "nic.receive_discards_packets",
    b"tx_discards_phy": "nic.transmit_discards_packets",
    b"rx_out_of_buffer": "nic.out_of_buffer_packets",
    b"rx_steer_missed_packets": "nic.steering_missed_packets",
    b"rx_crc_errors_phy": "nic.receive_crc_errors",
    b"rx_symbol_err_phy": "nic.symbol_errors",
    b"rx_pcs_symbol_err_phy": "nic.pcs_symbol_errors",
    b"rx_corrected_bits_phy": "nic.corrected_bits_count",
    b"link_down_events_phy": "nic.link_down_events",
    b"tx_errors_phy": "nic.transmit_errors",
    b"module_unplug": "nic.module_unplugged_events",
    b"module_bus_stuck": "nic.module_bus_stuck_events",
    b"module_high_temp": "nic.module_overheated_events",
    b"module_bad_shorted": "nic.module_shorted_events",
    b"rx_ecn_mark": "nic.congestion_marked_packets",
    b"tx_pause_storm_warning_events": "nic.pause_storm_warnings_events",
    b"tx_pause_storm_error_events": "nic.pause_storm_errors_events",
    b"rx_pci_signal_integrity": "nic.pcie_receive_errors",
    b"tx_pci_signal_integrity": "nic.pcie_transmit_errors",
    b"outbound_pci_stalled_rd_events": "nic.pcie_stalled_reads_seconds",
    b"outbound_pci_stalled_wr_events": "nic.pcie_stalled_writes_seconds",
    b"outbound_pci_buffer_overflow": "nic.pcie_overflow_packets",
    b"rx_buffer_passed_thres_phy": "nic.buffer_threshold_events",
    **_by_priority(
        {
            "rx_prio{}_pause": "{}_received_pause_frames",
            "tx_prio{}_pause": "{}_transmitted_pause_frames",
            "rx_prio{}_pause_duration": "{}_received_pause_microseconds",
            "tx_prio{}_pause_duration": "{}_transmitted_pause_microseconds",
            "rx_prio{}_pause_transition": "{}_received_pause_transitions_events",
        }
    ),
}
_BNXT: dict[bytes, str] = {
    b"rx_fcs_err_frames": "nic.receive_crc_errors",
    b"rx_pcs_symbol_err": "nic.pcs_symbol_errors",
    b"rx_total_discard_pkts": "nic.receive_discards_packets",
    b"tx_total_discard_pkts": "nic.transmit_discards_packets",
    b"rx_fec_corrected_blocks": "nic.fec_corrected_count",
    b"rx_fec_uncorrectable_blocks": "nic.fec_uncorrectable_errors",
    b"rx_corrected_bits": "nic.corrected_bits_count",
    b"rx_buffer_passed_threshold": "nic.buffer_threshold_events",
    b"link_down_events": "nic.link_down_events",
    b"continuous_pause_events": "nic.continuous_pause_events",
    **_by_priority(
        {
            "rx_pfc_ena_frames_pri{}": "{}_received_pause_frames",
            "tx_pfc_ena_frames_pri{}": "{}_transmitted_pause_frames",
            "pfc_pri{}_rx_duration_us": "{}_received_pause_microseconds",
            "pfc_pri{}_tx_duration_us": "{}_transmitted_pause_microseconds",
            "pfc_pri{}_rx_transitions": "{}_received_pause_transitions_events",
        }
    ),
}
_ICE: dict[bytes, str] = {
    b"rx_dropped.nic": "nic.receive_discards_packets",
    b"tx_dropped_link_down.nic": "nic.transmit_discards_packets",
    b"tx_errors.nic": "nic.transmit_errors",
    b"rx_crc_errors.nic": "nic.receive_crc_errors",
    b"mac_local_faults.nic": "nic.local_faults_events",
    b"mac_remote_faults.nic": "nic.remote_faults_events",
    **_by_priority(
        {
            "rx_priority_{}_xoff.nic": "{}_received_pause_frames",
            "tx_priority_{}_xoff.nic": "{}_transmitted_pause_frames",
        }
    ),
}
_ENA: dict[bytes, str] = {
    b"bw_in_allowance_exceeded": "nic.bandwidth_in_exceeded_packets",
    b"bw_out_allowance_exceeded": "nic.bandwidth_out_exceeded_packets",
    b"pps_allowance_exceeded": "nic.packet_rate_exceeded_packets",
    b"conntrack_allowance_exceeded": "nic.connections_exceeded_packets",
    b"tx_timeout": "nic.transmit_timeouts_events",
}

#: Driver's name of ETHTOOL_GDRVINFO -> name of a statistic -> signal.
SIGNALS_OF: Mapping[bytes, Mapping[bytes, str]] = {
    b"mlx5_core": _MLX5,
    b"mlx5e_rep": _MLX5,
    b"bnxt_en": _BNXT,
    b"ice": _ICE,
    b"ena": _ENA,
}


def select_statistics(driver: bytes, names: Sequence[bytes]) -> dict[str, int]:
    """Return signal -> index of its statistic in *names*; empty for an unknown driver.

    A name that occurs twice is ambiguous and left out.
    """
    known = SIGNALS_OF.get(driver.partition(b" ")[0], {})
    occurrences = Counter(name for name in names if name in known)
    return {
        known[name]: position
        for position, name in enumerate(names)
        if name in known and occurrences[name] == 1
    }


# A process that can open this capability file (MIG user guide, "Device nodes and capabilities"), or
# has CAP_SYS_ADMIN, sees all MIG instances. Any other process gets `no permission`, or fewer NVML
# events.
_FILE = "driver/nvidia/capabilities/mig/monitor"
_CAPABILITY_MINOR = re.compile(r"^DeviceFileMinor:\s*(\d{1,7})\s*$", re.MULTILINE)
_CAPABILITIES = re.compile(r"^CapEff:\s*([0-9a-fA-F]{1,32})\s*$", re.MULTILINE)
_CAP_SYS_ADMIN = 21  # include/uapi/linux/capability.h


def parse_capability_minor(text: str) -> int | None:
    """Return the minor number of the capability's device node; None without one."""
    match = _CAPABILITY_MINOR.search(text)
    return int(match.group(1)) if match else None


def parse_is_administrator(status: str) -> bool:
    """Return whether a /proc/PID/status has CAP_SYS_ADMIN in effect."""
    match = _CAPABILITIES.search(status)
    return bool(match and int(match.group(1), 16) >> _CAP_SYS_ADMIN & 1)


def mig_monitor_node(roots: Roots) -> Path | None:
    """Return the device node of `mig/monitor`; None if the driver has no such capability."""
    minor = parse_capability_minor(read_text(roots.proc / _FILE) or "")
    return None if minor is None else roots.dev / f"nvidia-caps/nvidia-cap{minor}"


def sees_all_mig_instances(roots: Roots) -> bool:
    """Return whether this process may see instances of other owners."""
    if parse_is_administrator(read_text(roots.proc / "self/status") or ""):
        return True
    node = mig_monitor_node(roots)
    return node is not None and os.access(node, os.R_OK)


def mig_monitor_line(roots: Roots) -> str:
    """Return the command that lets this process see all MIG instances."""
    file, node = (
        roots.proc / _FILE,
        mig_monitor_node(roots) or roots.dev / "nvidia-caps/nvidia-cap2",
    )
    return f"grant {file}: nvidia-modprobe -f {file} && setfacl -m u:{os.geteuid()}:r {node}"


PROCESSES_MAX = 200_000
NAME_CHARACTERS_MAX = 64
_GPU_MINOR = re.compile(r"^Device Minor:\s*(\d{1,4})\s*$", re.MULTILINE)
_NODE = re.compile(r"nvidia(?:\d{1,4}|ctl|-uvm|-uvm-tools|-modeset|-caps/.{1,40})")


class OpenHandle(NamedTuple):
    """A process, and the device node that it has open: `nvidia3`, `nvidiactl`."""

    process_id: int
    process_name: str
    node: str


class OpenHandles(NamedTuple):
    """Open handles. `hidden_count`: processes whose descriptors are hidden from this process."""

    found: tuple[OpenHandle, ...]
    hidden_count: int


def parse_gpu_minor(information: str) -> int | None:
    """Return N of `Device Minor: N` in a GPU's `information` file: its node is /dev/nvidiaN.

    Return None if unknown.
    """
    match = _GPU_MINOR.search(information)
    return int(match.group(1)) if match else None


def nodes_of(proc: Path) -> dict[str, str]:
    """Return node -> PCI address (`nvidia3` -> `0000:9b:00.0`) from the driver's list."""
    nodes = {}
    for address in driver_gpus(proc):
        text = read_text(proc / "driver/nvidia/gpus" / address / "information") or ""
        if (minor := parse_gpu_minor(text)) is not None:
            nodes[f"nvidia{minor}"] = address
    return nodes


def node_of(target: str, dev: Path) -> str:
    """Return the driver's node in a descriptor's link, such as `nvidia3`.

    Return "" for any other link.
    """
    for root in (f"{dev}/", "/dev/"):
        name = target.removesuffix(" (deleted)").removeprefix(root)
        if name != target and _NODE.fullmatch(name):
            return name
    return ""


def open_nodes(proc: Path, process_id: int, dev: Path) -> set[str] | None:
    """Return the driver's nodes that a process has open; None if hidden, empty if it has ended."""
    nodes = set()
    folder = proc / str(process_id) / "fd"
    try:
        for name in os.listdir(folder):
            try:
                node = node_of(os.readlink(folder / name), dev)
            except FileNotFoundError:
                continue  # closed just now
            if node:
                nodes.add(node)
    except PermissionError:
        return None
    except OSError:
        return set()
    return nodes


def open_handles(proc: Path, dev: Path, process_ids: Iterator[int]) -> OpenHandles:
    """Return which of these processes have which of the driver's nodes open.

    An open node prevents a GPU's reset, a change of MIG, and unloading the driver. `/proc/PID/fd`
    shows other users' processes only to root and with CAP_SYS_PTRACE.
    """
    handles: list[OpenHandle] = []
    hidden_count = 0
    for process_id in process_ids:
        nodes = open_nodes(proc, process_id, dev)
        if nodes is None:
            hidden_count += 1
        elif nodes:
            name = (read_text(proc / str(process_id) / "comm") or "").strip()[:NAME_CHARACTERS_MAX]
            handles += [OpenHandle(process_id, name, node) for node in sorted(nodes)]
    return OpenHandles(tuple(handles), hidden_count)


def every_process(proc: Path) -> Iterator[int]:
    """Yield the ids of all processes that this /proc shows."""
    names = (name for name in os.listdir(proc) if name.isdecimal() and name.isascii())
    for _, name in zip(range(PROCESSES_MAX), names, strict=False):
        yield int(name)


def agent_processes(proc: Path) -> Iterator[int]:
    """Yield the PIDs of this process and its descendants in *proc*'s numbering."""
    try:
        pending = [int(os.readlink(proc / "self"))]
    except (OSError, ValueError):
        return
    while pending:
        process_id = pending.pop()
        yield process_id
        pending += children(proc, process_id)


def children(proc: Path, process_id: int) -> list[int]:
    """Return the children of all threads of a process (CONFIG_PROC_CHILDREN)."""
    child_ids: list[int] = []
    folder = proc / str(process_id) / "task"
    try:
        for task in os.listdir(folder):
            text = read_text(folder / task / "children") or ""
            child_ids += [int(word) for word in text.split() if word.isdecimal()]
    except OSError:
        pass  # it has ended
    return child_ids


def blocking(
    found: tuple[OpenHandle, ...], nodes: Mapping[str, str], devices: frozenset[str] | None
) -> list[tuple[OpenHandle, str]]:
    """Return the handles that block *devices* (None: the whole driver), with PCI addresses.

    A process that has only the driver's common nodes open blocks no single GPU.
    """
    return [
        (handle, nodes.get(handle.node, ""))
        for handle in found
        if devices is None or nodes.get(handle.node, "") in devices
    ]
