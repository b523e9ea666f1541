"""RDMA ports, from sysfs. Counters are given raw: one that stands at its ceiling is read as that."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...ext.counterfiles import CODE, DECIMAL, WORD
from ...ext.hostfiles import Glance
from ...fingerprints.catalogue import Pace
from ..hardware.files import device_key, inode, names_in
from ..hardware.network import LINK_LAYERS, rdma_ports
from ..hardware.roots import Roots
from .folders import Device, FolderCollector, Plan, Source
from .rdma_names import OTHER_NAMES, QUEUE_COUNTERS, is_counter

_WORD_BYTES = 4  # port_rcv_data and port_xmit_data count 32-bit words
_GIGABIT_BYTES = 125_000_000
#: A port that answers with errors (a restricted function) floods the kernel log with each read.
_WAIT_SECONDS_MAX = 300
#: To list the counters of twelve ports costs as much as five turns, and they are made with their device.
_LIST_SECONDS = 300

_PORT: Mapping[str, Source] = {
    "rdma.port_state": Source("state", CODE),
    "rdma.physical_state": Source("phys_state", CODE),
    "rdma.rate_bytes_per_second": Source("rate", DECIMAL, b"Gb/sec", _GIGABIT_BYTES),
    "rdma.link_layer_code": Source("link_layer", WORD, LINK_LAYERS),
}
_COUNTERS: Mapping[str, Source] = {
    "rdma.received_bytes": Source("counters/port_rcv_data", scale=_WORD_BYTES),
    "rdma.transmitted_bytes": Source("counters/port_xmit_data", scale=_WORD_BYTES),
    "rdma.received_packets": Source("counters/port_rcv_packets"),
    "rdma.transmitted_packets": Source("counters/port_xmit_packets"),
    "rdma.unicast_received_packets": Source("counters/unicast_rcv_packets"),
    "rdma.unicast_transmitted_packets": Source("counters/unicast_xmit_packets"),
    "rdma.multicast_received_packets": Source("counters/multicast_rcv_packets"),
    "rdma.multicast_transmitted_packets": Source("counters/multicast_xmit_packets"),
    "rdma.transmit_wait_count": Source("counters/port_xmit_wait"),
    "rdma.link_downed_events": Source("counters/link_downed"),
    "rdma.link_recovery_events": Source("counters/link_error_recovery"),
    "rdma.symbol_errors": Source("counters/symbol_error"),
    "rdma.receive_errors": Source("counters/port_rcv_errors"),
    "rdma.transmit_discards_packets": Source("counters/port_xmit_discards"),
    "rdma.receive_remote_physical_errors": Source("counters/port_rcv_remote_physical_errors"),
    "rdma.receive_switch_relay_errors": Source("counters/port_rcv_switch_relay_errors"),
    "rdma.transmit_constraint_errors": Source("counters/port_xmit_constraint_errors"),
    "rdma.receive_constraint_errors": Source("counters/port_rcv_constraint_errors"),
    "rdma.local_link_integrity_errors": Source("counters/local_link_integrity_errors"),
    "rdma.buffer_overrun_errors": Source("counters/excessive_buffer_overrun_errors"),
    "rdma.vl15_dropped_packets": Source("counters/VL15_dropped"),
}
_QUEUES = {name: Source(f"hw_counters/{file}") for file, name in QUEUE_COUNTERS.items()}
#: What mlx5 and the InfiniBand core call it.
SOURCES: Mapping[str, Source] = {**_PORT, **_COUNTERS, **_QUEUES}
#: What others call it: the same quantity, where the first file is not there.
OTHERS: Mapping[str, tuple[Source, ...]] = {
    name: tuple(Source(file) for file in files) for name, files in OTHER_NAMES.items()
}
_NAMED = {s.file for s in SOURCES.values()} | {s.file for each in OTHERS.values() for s in each}
#: Where counters stand, below a port's folder; the last is the device's own, which EFA has.
FOLDERS = ("counters", "hw_counters", "../../hw_counters")


def rdma_1s(roots: Roots) -> FolderCollector:
    """State, rate, traffic and the errors that matter most."""
    return _collector(roots, "rdma_1s", Pace.SECOND)


def rdma_10s(roots: Roots) -> FolderCollector:
    """The rest: each read of `counters/` is a query of the firmware."""
    return _collector(roots, "rdma_10s", Pace.TEN_SECONDS)


def _collector(roots: Roots, name: str, pace: Pace) -> FolderCollector:
    ports = _Ports(roots)
    return FolderCollector(
        Plan(
            name,
            pace,
            (name, f"{name}_changes"),
            ports.devices,
            "no RDMA port in /sys/class/infiniband",
            enters_driver=True,
            list_seconds=_LIST_SECONDS,
            glance=Glance(roots.sys / "class/infiniband").look,
            blind_words=blind_words,
            wait_seconds_max=_WAIT_SECONDS_MAX,
        )
    )


class _Ports:
    """Lists ports, and remembers how often one was taken away and made again under its name."""

    def __init__(self, roots: Roots) -> None:
        self._sys = roots.sys
        self._seen: dict[str, tuple[int, int]] = {}  # inode of the folder, and how many there were

    def devices(self) -> list[Device]:
        """Return the ports with the files that they have, and how many of those no signal stands for."""
        return [self._device(name, folder) for name, folder in rdma_ports(self._sys).items()]

    def _device(self, name: str, folder: Path) -> Device:
        now = inode(folder)
        before, epoch = self._seen.get(name, (now, 0))
        epoch += before != now
        self._seen[name] = now, epoch
        files = counter_files(folder)
        constants: dict[str, float | None] = {
            "rdma.counter_epoch_count": epoch,
            "rdma.unnamed_counters_count": len(unnamed(files)) if files else None,
        }
        return Device(name, f"{folder}/", sources_of(files), constants)


def counter_files(port: Path) -> frozenset[str]:
    """Return the counters that the port has, below its folder. It is listed, not read."""
    return frozenset(
        f"{folder}/{name}"
        for folder in FOLDERS
        for name in names_in(port / folder)
        if is_counter(name)
    )


def sources_of(files: frozenset[str]) -> dict[str, Source]:
    """Return where each signal stands on a port with these files.

    Without a single one they are all tried: a folder may be there that we may not list.
    """
    if not files:
        return dict(SOURCES)
    sources = dict(_PORT)
    for name, source in {**_COUNTERS, **_QUEUES}.items():
        if source.file in files:
            sources[name] = source
    for name, others in OTHERS.items():
        there = [source for source in others if source.file in files]
        if there:
            sources.setdefault(name, there[0])
    return sources


def unnamed(files: frozenset[str]) -> list[str]:
    """Return the files that no signal stands for: another vendor's, or a newer kernel's."""
    return sorted(files - _NAMED)


def blind_words(refusals: Sequence[tuple[str, int]]) -> str:
    """Return which ports refuse their counters, why, and what would open them.

    A port that has no such counters says EOPNOTSUPP or ENOSYS: nothing is hidden there.
    """
    ports: dict[int, set[str]] = {}
    for path, error in refusals:
        if error not in (errno.EOPNOTSUPP, errno.ENOSYS):
            ports.setdefault(error, set()).add(_port_of(path))
    words = [
        f"{', '.join(sorted(names))} refuse counters ({errno.errorcode.get(error, error)}): "
        f"{_what_opens(error)}"
        for error, names in ports.items()
    ]
    return "; ".join(words)


def _what_opens(error: int) -> str:
    if error == errno.EACCES:
        return "give the agent CAP_DAC_READ_SEARCH"
    return (
        "a restricted function; read them on its physical function, or on the DPU run: "
        "mlxprivhost -d PCI_ADDRESS p"
    )


def _port_of(path: str) -> str:
    parts = path.split("/")
    at = parts.index("ports") if "ports" in parts else 0
    return device_key("/".join((parts[at - 1], *parts[at + 1 : at + 2])))
