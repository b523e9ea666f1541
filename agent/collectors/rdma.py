"""RDMA ports, from sysfs. Counters are given raw: one that stands at its ceiling is read as that."""

from __future__ import annotations

from collections.abc import Mapping

from ...ext.counterfiles import CODE, DECIMAL
from ...fingerprints.catalogue import Pace
from ..hardware.network import rdma_ports
from ..hardware.roots import Roots
from .folders import Device, FolderCollector, Plan, Source

_WORD_BYTES = 4  # port_rcv_data and port_xmit_data count 32-bit words
_GIGABIT_BYTES = 125_000_000
#: A port that answers with errors (a restricted function) floods the kernel log with each read.
_WAIT_SECONDS_MAX = 300

SOURCES: Mapping[str, Source] = {
    "rdma.port_state": Source("state", CODE),
    "rdma.physical_state": Source("phys_state", CODE),
    "rdma.rate_bytes_per_second": Source("rate", DECIMAL, b"Gb/sec", _GIGABIT_BYTES),
    "rdma.received_bytes": Source("counters/port_rcv_data", scale=_WORD_BYTES),
    "rdma.transmitted_bytes": Source("counters/port_xmit_data", scale=_WORD_BYTES),
    "rdma.received_packets": Source("counters/port_rcv_packets"),
    "rdma.transmitted_packets": Source("counters/port_xmit_packets"),
    "rdma.transmit_wait_count": Source("counters/port_xmit_wait"),
    "rdma.link_downed_events": Source("counters/link_downed"),
    "rdma.link_recovery_events": Source("counters/link_error_recovery"),
    "rdma.symbol_errors": Source("counters/symbol_error"),
    "rdma.receive_errors": Source("counters/port_rcv_errors"),
    "rdma.transmit_discards_packets": Source("counters/port_xmit_discards"),
    "rdma.receive_remote_physical_errors": Source("counters/port_rcv_remote_physical_errors"),
    "rdma.local_link_integrity_errors": Source("counters/local_link_integrity_errors"),
    "rdma.buffer_overrun_errors": Source("counters/excessive_buffer_overrun_errors"),
    "rdma.ack_timeout_errors": Source("hw_counters/local_ack_timeout_err"),
    "rdma.packet_sequence_errors": Source("hw_counters/packet_seq_err"),
    "rdma.out_of_sequence_packets": Source("hw_counters/out_of_sequence"),
    "rdma.receiver_not_ready_errors": Source("hw_counters/rnr_nak_retry_err"),
    "rdma.implied_nak_errors": Source("hw_counters/implied_nak_seq_err"),
    "rdma.adaptive_retransmissions_packets": Source("hw_counters/roce_adp_retrans"),
    "rdma.slow_restarts_events": Source("hw_counters/roce_slow_restart"),
    "rdma.out_of_buffer_packets": Source("hw_counters/out_of_buffer"),
    "rdma.request_completion_errors": Source("hw_counters/req_cqe_error"),
    "rdma.congestion_notifications_sent_packets": Source("hw_counters/np_cnp_sent"),
    "rdma.congestion_notifications_handled_packets": Source("hw_counters/rp_cnp_handled"),
    "rdma.congestion_marked_packets": Source("hw_counters/np_ecn_marked_roce_packets"),
}


def rdma_1s(roots: Roots) -> FolderCollector:
    """State, rate, traffic and the errors that matter most."""
    return _collector(roots, "rdma_1s", Pace.SECOND)


def rdma_10s(roots: Roots) -> FolderCollector:
    """The rest: each read of `counters/` is a query of the firmware."""
    return _collector(roots, "rdma_10s", Pace.TEN_SECONDS)


def _collector(roots: Roots, name: str, pace: Pace) -> FolderCollector:
    return FolderCollector(
        Plan(
            name,
            pace,
            (name, f"{name}_changes"),
            lambda: _devices(roots),
            "no RDMA port in /sys/class/infiniband",
            enters_driver=True,
            wait_seconds_max=_WAIT_SECONDS_MAX,
        )
    )


def _devices(roots: Roots) -> list[Device]:
    ports = rdma_ports(roots.sys)
    return [Device(name, f"{folder}/", SOURCES) for name, folder in ports.items()]
