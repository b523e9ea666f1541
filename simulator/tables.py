"""Columns of all hosts at once, and the blocks cut from them."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase

import numpy as np
import numpy.typing as npt

from ..contract.block import Block
from ..contract.signal import PERIOD_SECONDS, Kind, Signal
from ..contract.signals import TABLES
from .amd import as_amd
from .machine import KINDS, SimulatedMachine

#: Marks in a signal's source for another maker's driver, or another generation of links.
_OTHER_HARDWARE = re.compile(r"^[^,]*\((?:bnxt_re|bnxt_en|efa|ena|ice|irdma|NVLink 5|links 0-11)\)")
#: Further counters that an eight-GPU H100 machine with InfiniBand does not have.
_UNAVAILABLE = (
    "rdma.congestion_*",  # RoCE only
    "rdma.receive_icrc_errors",  # RoCE only
    "pcie.aer_root_port_*",  # GPUs and NICs are not root ports
    "gpu.retired_*",  # before Ampere
    "gpu.violation_socket_*",  # AMD only, as the next two
    "gpu.violation_regulator_*",
    "gpu.violation_memory_*",
    # Since Hopper the driver divides errors into DRAM and SRAM errors (nvidia-smi -q of an H100).
    "gpu.ecc_*_l1_errors",
    "gpu.ecc_*_l2_errors",
    "gpu.ecc_*_register_errors",
    "gpu.ecc_*_texture_errors",
    "gpu.ecc_*_cbu_errors",
)

_ALL = slice(None)
PORT_BYTES_PER_SECOND = 50e9
#: Share of its rate that a port reaches in an exchange.
EXCHANGE_SHARE = 0.4
#: Share of a step's bytes that travel while computing (parameters fetched ahead, as in FSDP).
OVERLAPPED_SHARE = 0.35
PACKET_BYTES = 4096
MULTICAST_PACKETS = 900
#: Retransmission counter -> its share of the retransmissions.
RETRANSMISSIONS = {
    "rdma.ack_timeout_errors": 0.5,
    "rdma.packet_sequence_errors": 1.0,
    "rdma.out_of_sequence_packets": 0.8,
    "rdma.adaptive_retransmissions_packets": 1.1,
    "rdma.implied_nak_errors": 0.1,
    "rdma.slow_restarts_events": 0.05,
}
#: Counter of a consequence -> its share of the retransmissions (assumed).
RETRANSMISSION_EFFECTS = {
    "rdma.duplicate_requests_packets": 0.5,
    "rdma.adaptive_retransmission_timeouts_events": 0.125,
    "rdma.slow_restart_notifications_packets": 0.05,
    "rdma.slow_restart_transitions_events": 0.025,
}


def is_zero_when_healthy(signal: Signal) -> bool:
    """Return whether *signal* is a fault counter that a simulated host has."""
    if signal.kind is not Kind.COUNTER or not (signal.on_change or signal.unit == "errors"):
        return False
    is_unavailable = any(fnmatchcase(signal.name, pattern) for pattern in _UNAVAILABLE)
    return not is_unavailable and not _OTHER_HARDWARE.match(signal.source)


Floats = npt.NDArray[np.float64]


class _HostTable:
    """One catalogue table of every host: cells as (hosts, columns, rows), and a block per host."""

    def __init__(self, name: str, machines: Sequence[SimulatedMachine]) -> None:
        kind = TABLES[name][0].device_kind
        self.blocks = [Block(name, machine.devices_of(kind)) for machine in machines]
        shape = (len(TABLES[name]), self.blocks[0].rows)
        self.ints = np.zeros((len(machines), *shape), np.uint64)
        self.floats = self.ints.view(np.float64)
        self.valid = np.zeros_like(self.ints, np.uint8)
        self.revision = self.valid_revision = 0  # revisions of the cells, and of their validity
        self.written: set[tuple[int, int | None, int | None]] = set()  # (column, start, stop)
        # Views of the blocks' own memory: returning a block copies only changes, and allocates nothing.
        self._cells = [np.frombuffer(b.cells, np.uint64).reshape(shape) for b in self.blocks]
        self._valid = [np.frombuffer(b.valid, np.uint8).reshape(shape) for b in self.blocks]
        self._ints_of, self._valid_of = list(self.ints), list(self.valid)
        self._block_revisions = [(0, 0)] * len(machines)  # revisions of each host's block
        self._is_amd = [machine.is_amd for machine in machines]

    def block(self, host: int) -> Block:
        revision, valid_revision = self._block_revisions[host]
        if revision != self.revision:
            np.copyto(self._cells[host], self._ints_of[host])
            if valid_revision != self.valid_revision:
                np.copyto(self._valid[host], self._valid_of[host])
            self._block_revisions[host] = self.revision, self.valid_revision
            if self._is_amd[host]:
                as_amd(self.blocks[host])
        return self.blocks[host]


class Tables:
    """Every table of a simulated host.

    A signal without a value is missing, as on a real host; fault counters that the hardware has are 0 until something
    changes them.
    """

    def __init__(
        self, machines: Sequence[SimulatedMachine], only: Collection[str] = TABLES
    ) -> None:
        """*only*: tables to include."""
        known = [name for name, row in TABLES.items() if row[0].device_kind in KINDS]
        names = [name for name in known if name in only]
        self._tables = {name: _HostTable(name, machines) for name in names}
        self._columns = {
            signal.name: (self._tables[name], column, signal.kind is Kind.GAUGE)
            for name in names
            for column, signal in enumerate(TABLES[name])
        }
        self._by_period: dict[int, list[_HostTable]] = {}
        for name in names:
            period = PERIOD_SECONDS[TABLES[name][0].pace]
            self._by_period.setdefault(period, []).append(self._tables[name])
            for signal in filter(is_zero_when_healthy, TABLES[name]):
                self.put(signal.name, 0)

    def put(self, signal: str, values: npt.ArrayLike, rows: slice = _ALL) -> None:
        """Set a signal of all hosts: a scalar, (hosts,) for equal rows, or (hosts, rows).

        Counters and states are cut to whole numbers. KeyError for an unknown signal.
        """
        table, column, is_float = self._columns[signal]
        array = np.asarray(values)
        if array.ndim == 1:
            array = array[:, None]
        (table.floats if is_float else table.ints)[:, column, rows] = array
        table.revision += 1
        region = column, rows.start, rows.stop
        if region not in table.written:
            table.written.add(region)
            table.valid[:, column, rows] = 1
            table.valid_revision += 1

    def put_known(self, signal: str, values: Floats) -> None:
        """Set a gauge of all hosts, (hosts, rows); NaN is missing. KeyError for an unknown signal."""
        self.put(signal, np.nan_to_num(values))
        table, column, _ = self._columns[signal]
        known = ~np.isnan(values)
        if (table.valid[:, column] != known).any():
            table.valid[:, column] = known
            table.valid_revision += 1

    def has(self, signal: str) -> bool:
        return signal in self._columns

    def read(self, signal: str) -> Floats:
        """Return a copy of the signal's values, (hosts, rows). KeyError for an unknown signal."""
        table, column, is_float = self._columns[signal]
        return np.array((table.floats if is_float else table.ints)[:, column], np.float64)

    def due(self, host: int, before_seconds: float, now_seconds: float) -> list[Block]:
        """Return the blocks of *host* that became due in (before, now]; all, if before is negative.

        Slow tables of different hosts are due at different seconds, as in a real fleet.
        """
        return [
            table.block(host)
            for period_seconds, tables in self._by_period.items()
            if _is_due(period_seconds, host, before_seconds, now_seconds)
            for table in tables
        ]


def _is_due(period_seconds: int, host: int, before_seconds: float, now_seconds: float) -> bool:
    if before_seconds < 0 or period_seconds == 1:
        return True
    return (now_seconds + host) // period_seconds > (before_seconds + host) // period_seconds


def publish_ports(tables: Tables, moved_bytes: Floats, resent: Floats) -> None:
    """Put the other port signals. (hosts, 8), since the boot: *moved_bytes* in either direction, *resent* packets."""
    packets = np.floor(moved_bytes / PACKET_BYTES)
    for direction in ("received", "transmitted"):
        tables.put(f"rdma.{direction}_packets", packets + MULTICAST_PACKETS)
        tables.put(f"rdma.unicast_{direction}_packets", packets)
        tables.put(f"rdma.multicast_{direction}_packets", MULTICAST_PACKETS)
    for name, part in RETRANSMISSION_EFFECTS.items():
        tables.put(name, np.floor(resent * part))
    tables.put("rdma.unnamed_counters_count", 0)
