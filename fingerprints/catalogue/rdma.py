"""RDMA ports. Device: `mlx5_0/1`. Each read of counters/ enters firmware, hence two paces.

Widths: Linux drivers/infiniband/core/sysfs.c; those counters stick at their ceiling.
"""

from .signal import Kind, Pace, Signal


def _error(signal_id: int, name: str, source: str, tells: str, width_bits: int = 64, *, slow: bool = False) -> Signal:
    return Signal(signal_id, name, Kind.COUNTER, Pace.TEN_SECONDS if slow else Pace.SECOND, source, tells, width_bits, sticks=width_bits < 64, on_change=True)


SIGNALS = (
    Signal(600, "rdma.port_state", Kind.STATE, Pace.SECOND, "ports/N/state", "4 is ACTIVE"),
    Signal(601, "rdma.physical_state", Kind.STATE, Pace.SECOND, "ports/N/phys_state", "5 is LinkUp"),
    Signal(602, "rdma.rate_bytes_per_second", Kind.GAUGE, Pace.SECOND, "ports/N/rate", "agreed rate"),
    Signal(603, "rdma.received_bytes", Kind.COUNTER, Pace.SECOND, "counters/port_rcv_data x 4", "bytes received"),
    Signal(604, "rdma.transmitted_bytes", Kind.COUNTER, Pace.SECOND, "counters/port_xmit_data x 4", "bytes sent"),
    Signal(605, "rdma.received_packets", Kind.COUNTER, Pace.TEN_SECONDS, "counters/port_rcv_packets", "packets received"),
    Signal(606, "rdma.transmitted_packets", Kind.COUNTER, Pace.TEN_SECONDS, "counters/port_xmit_packets", "packets sent"),
    Signal(607, "rdma.transmit_wait_count", Kind.COUNTER, Pace.SECOND, "counters/port_xmit_wait", "ticks with data to send and no credit: congestion", width_bits=32, sticks=True),
    _error(610, "rdma.link_downed_events", "counters/link_downed", "the link went down", 8),
    _error(611, "rdma.link_recovery_events", "counters/link_error_recovery", "the link retrained", 8),
    _error(612, "rdma.symbol_errors", "counters/symbol_error", "bad symbols: a cable or a module", 16),
    _error(613, "rdma.receive_errors", "counters/port_rcv_errors", "packets received broken", 16),
    _error(614, "rdma.transmit_discards_packets", "counters/port_xmit_discards", "packets thrown away at the port", 16),
    _error(615, "rdma.receive_remote_physical_errors", "counters/port_rcv_remote_physical_errors", "packets the far end marked bad", 16, slow=True),
    _error(616, "rdma.local_link_integrity_errors", "counters/local_link_integrity_errors", "link integrity threshold passed", 4, slow=True),
    _error(617, "rdma.buffer_overrun_errors", "counters/excessive_buffer_overrun_errors", "receive buffer overran", 4, slow=True),
    _error(620, "rdma.ack_timeout_errors", "hw_counters/local_ack_timeout_err", "an acknowledgement never came: retransmission"),
    _error(621, "rdma.packet_sequence_errors", "hw_counters/packet_seq_err", "the far end asked for a resend"),
    _error(622, "rdma.out_of_sequence_packets", "hw_counters/out_of_sequence", "packets out of order on arrival"),
    _error(623, "rdma.receiver_not_ready_errors", "hw_counters/rnr_nak_retry_err", "the receiver had no buffer, retries ran out"),
    _error(624, "rdma.implied_nak_errors", "hw_counters/implied_nak_seq_err", "a gap in acknowledgements: retransmission"),
    _error(625, "rdma.adaptive_retransmissions_packets", "hw_counters/roce_adp_retrans", "RoCE adaptive retransmissions"),
    _error(626, "rdma.slow_restarts_events", "hw_counters/roce_slow_restart", "RoCE slow restarts"),
    _error(627, "rdma.out_of_buffer_packets", "hw_counters/out_of_buffer", "no receive buffer posted", slow=True),
    _error(628, "rdma.request_completion_errors", "hw_counters/req_cqe_error", "requests that ended in error", slow=True),
    _error(629, "rdma.congestion_notifications_sent_packets", "hw_counters/np_cnp_sent", "told a sender to slow down"),
    _error(630, "rdma.congestion_notifications_handled_packets", "hw_counters/rp_cnp_handled", "was told to slow down"),
    _error(631, "rdma.congestion_marked_packets", "hw_counters/np_ecn_marked_roce_packets", "packets a switch marked"),
)
