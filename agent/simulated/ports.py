"""RDMA ports, one beside each GPU: InfiniBand NDR at 400 Gbit/s. They have no RoCE congestion counters."""

from __future__ import annotations

import numpy as np

from .tables import Floats, Tables

RATE_BYTES_PER_SECOND = 50e9
#: What a port reaches in an exchange, of its rate.
EXCHANGE_SHARE = 0.4
#: Share of a step's bytes that travel while computing (parameters fetched ahead, as in FSDP).
OVERLAPPED_SHARE = 0.35
PACKET_BYTES = 4096
MULTICAST_PACKETS = 900
#: Retransmission counter -> its part in what is sent again.
RETRANSMISSIONS = {
    "rdma.ack_timeout_errors": 0.5,
    "rdma.packet_sequence_errors": 1.0,
    "rdma.out_of_sequence_packets": 0.8,
    "rdma.adaptive_retransmissions_packets": 1.1,
    "rdma.implied_nak_errors": 0.1,
    "rdma.slow_restarts_events": 0.05,
}
#: What comes of that -> its part (assumed).
CONSEQUENCES = {
    "rdma.duplicate_requests_packets": 0.5,
    "rdma.adaptive_retransmission_timeouts_events": 0.125,
    "rdma.slow_restart_notifications_packets": 0.05,
    "rdma.slow_restart_transitions_events": 0.025,
}


def publish(tables: Tables, moved_bytes: Floats, resent: Floats) -> None:
    """Put what is told beside bytes and errors. (hosts, 8): moved in either direction, and sent again, since the boot."""
    packets = np.floor(moved_bytes / PACKET_BYTES)
    for way in ("received", "transmitted"):
        tables.put(f"rdma.{way}_packets", packets + MULTICAST_PACKETS)
        tables.put(f"rdma.unicast_{way}_packets", packets)
        tables.put(f"rdma.multicast_{way}_packets", MULTICAST_PACKETS)
    for name, part in CONSEQUENCES.items():
        tables.put(name, np.floor(resent * part))
    tables.put("rdma.unnamed_counters_count", 0)
