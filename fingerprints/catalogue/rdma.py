"""RDMA ports. Device: `mlx5_0/1`. Each read of counters/ enters firmware, hence two paces.

Widths of counters/: Linux drivers/infiniband/core/sysfs.c; those counters stick at their ceiling. Of
hw_counters/: mlx5 queue counters have 32 bits and are taken to wrap (drivers/infiniband/hw/mlx5/counters.c),
its congestion counters 64. What other drivers call the same is in `agent/collectors/rdma.py`.
Not here: mlx5's optional counters (cc_rx_ce_pkts, rdma_rx_bytes ...), which no file shows, only RDMA
netlink, and which are off until somebody switches them on; FEC and BER of InfiniBand, which are not in
sysfs at all: `no-data` until imported from the subnet manager.
"""

from .signal import Kind, Pace, Signal


def _error(signal_id: int, name: str, source: str, tells: str, width_bits: int = 64, *, slow: bool = False, sticks: bool = True) -> Signal:
    return Signal(signal_id, name, Kind.COUNTER, Pace.TEN_SECONDS if slow else Pace.SECOND, source, tells, width_bits, sticks=sticks and width_bits < 64, on_change=True)


def _queue(signal_id: int, name: str, file: str, tells: str, *, slow: bool = True) -> Signal:
    """A queue counter of mlx5."""
    return _error(signal_id, name, f"hw_counters/{file}", tells, 32, slow=slow, sticks=False)


def _slow(signal_id: int, name: str, file: str, tells: str, width_bits: int = 64) -> Signal:
    return _error(signal_id, name, file, tells, width_bits, slow=True)


def _traffic(signal_id: int, name: str, file: str, tells: str, width_bits: int = 64) -> Signal:
    """What rises whenever the port works, so that it is sent each time."""
    return Signal(signal_id, name, Kind.COUNTER, Pace.TEN_SECONDS, file, tells, width_bits)


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
    _queue(620, "rdma.ack_timeout_errors", "local_ack_timeout_err", "an acknowledgement never came: retransmission", slow=False),
    _queue(621, "rdma.packet_sequence_errors", "packet_seq_err", "the far end asked for a resend", slow=False),
    _queue(622, "rdma.out_of_sequence_packets", "out_of_sequence", "packets out of order on arrival", slow=False),
    _queue(623, "rdma.receiver_not_ready_errors", "rnr_nak_retry_err", "the receiver had no buffer, retries ran out", slow=False),
    _queue(624, "rdma.implied_nak_errors", "implied_nak_seq_err", "a gap in acknowledgements: retransmission", slow=False),
    _queue(625, "rdma.adaptive_retransmissions_packets", "roce_adp_retrans", "RoCE adaptive retransmissions", slow=False),
    _queue(626, "rdma.slow_restarts_events", "roce_slow_restart", "RoCE slow restarts", slow=False),
    _queue(627, "rdma.out_of_buffer_packets", "out_of_buffer", "no receive buffer posted"),
    _queue(628, "rdma.request_completion_errors", "req_cqe_error", "requests that ended in error"),
    _error(629, "rdma.congestion_notifications_sent_packets", "hw_counters/np_cnp_sent", "told a sender to slow down"),
    _error(630, "rdma.congestion_notifications_handled_packets", "hw_counters/rp_cnp_handled", "was told to slow down"),
    _error(631, "rdma.congestion_marked_packets", "hw_counters/np_ecn_marked_roce_packets", "packets a switch marked"),
    Signal(1600, "rdma.counter_epoch_count", Kind.STATE, Pace.SECOND, "inode of class/infiniband/*/ports/N", "rises when the port is another one by the same name: its counters began anew"),
    Signal(1629, "rdma.unnamed_counters_count", Kind.GAUGE, Pace.TEN_SECONDS, "files in counters/ and hw_counters/", "counters of this port that no signal stands for; the inventory names them"),
    _slow(1601, "rdma.vl15_dropped_packets", "counters/VL15_dropped", "management packets lost for want of buffers", 16),
    _slow(1602, "rdma.receive_switch_relay_errors", "counters/port_rcv_switch_relay_errors", "packets a switch could not pass on", 16),
    _slow(1603, "rdma.transmit_constraint_errors", "counters/port_xmit_constraint_errors", "packets not sent: partition or raw filter", 8),
    _slow(1604, "rdma.receive_constraint_errors", "counters/port_rcv_constraint_errors", "packets not taken: partition or raw filter", 8),
    _traffic(1605, "rdma.unicast_received_packets", "counters/unicast_rcv_packets", "unicast packets received"),
    _traffic(1606, "rdma.unicast_transmitted_packets", "counters/unicast_xmit_packets", "unicast packets sent"),
    _traffic(1607, "rdma.multicast_received_packets", "counters/multicast_rcv_packets", "multicast packets received"),
    _traffic(1608, "rdma.multicast_transmitted_packets", "counters/multicast_xmit_packets", "multicast packets sent"),
    _traffic(1610, "rdma.received_writes_operations", "hw_counters/rx_write_requests", "RDMA writes that arrived", 32),
    _traffic(1611, "rdma.received_reads_operations", "hw_counters/rx_read_requests", "RDMA reads that arrived", 32),
    _traffic(1612, "rdma.received_atomics_operations", "hw_counters/rx_atomic_requests", "RDMA atomics that arrived", 32),
    _traffic(1613, "rdma.received_connects_operations", "hw_counters/rx_dct_connect", "connections asked for (DCT)", 32),
    _queue(1614, "rdma.duplicate_requests_packets", "duplicate_request", "requests that came twice: the far end sent again"),
    _queue(1615, "rdma.responder_length_errors", "resp_local_length_error", "as responder: wrong length"),
    _queue(1616, "rdma.responder_completion_errors", "resp_cqe_error", "as responder: completions in error"),
    _queue(1617, "rdma.responder_access_errors", "resp_remote_access_errors", "as responder: access refused"),
    _queue(1618, "rdma.responder_flushed_errors", "resp_cqe_flush_error", "as responder: completions flushed, usually after another error"),
    _queue(1619, "rdma.requester_invalid_request_errors", "req_remote_invalid_request", "as requester: the far end found the request invalid"),
    _queue(1620, "rdma.requester_access_errors", "req_remote_access_errors", "as requester: the far end refused access"),
    _queue(1621, "rdma.requester_flushed_errors", "req_cqe_flush_error", "as requester: completions flushed, usually after another error"),
    _queue(1622, "rdma.transport_retries_exceeded_events", "req_transport_retries_exceeded", "retries ran out: the connection broke"),
    _queue(1623, "rdma.receiver_not_ready_retries_exceeded_events", "req_rnr_retries_exceeded", "retries at a receiver without buffers ran out"),
    _queue(1624, "rdma.adaptive_retransmission_timeouts_events", "roce_adp_retrans_to", "RoCE adaptive retransmission timeouts"),
    _queue(1625, "rdma.slow_restart_notifications_packets", "roce_slow_restart_cnps", "RoCE slow restart: notifications made"),
    _queue(1626, "rdma.slow_restart_transitions_events", "roce_slow_restart_trans", "RoCE slow restart: times its state changed"),
    _slow(1627, "rdma.receive_icrc_errors", "hw_counters/rx_icrc_encapsulated", "RoCE packets with a bad checksum"),
    _slow(1628, "rdma.congestion_notifications_ignored_packets", "hw_counters/rp_cnp_ignored", "told to slow down, and did not"),
    _slow(1630, "rdma.receive_dropped_packets", "hw_counters/rx_drops (efa), rx_roce_discards (bnxt_re)", "packets thrown away on arrival"),
    _slow(1631, "rdma.receive_roce_errors", "hw_counters/rx_roce_errors (bnxt_re)", "RoCE packets received broken"),
    _slow(1632, "rdma.recoverable_errors", "hw_counters/recoverable_errors (bnxt_re)", "errors the adapter recovered from"),
    _slow(1633, "rdma.unrecoverable_errors", "hw_counters/unrecoverable_err (bnxt_re)", "errors the adapter did not recover from"),
    _slow(1634, "rdma.bad_response_errors", "hw_counters/bad_resp_err (bnxt_re)", "responses that could not be right"),
    _slow(1635, "rdma.local_operation_errors", "hw_counters/local_qp_op_err (bnxt_re)", "operations that failed here"),
    _slow(1636, "rdma.local_protection_errors", "hw_counters/local_protection_err (bnxt_re)", "memory protection refused here"),
    _slow(1637, "rdma.memory_management_errors", "hw_counters/mem_mgmt_op_err (bnxt_re)", "bind and invalidate that failed"),
    _slow(1638, "rdma.remote_operation_errors", "hw_counters/remote_op_err (bnxt_re)", "operations that failed at the far end"),
    _slow(1639, "rdma.protocol_errors", "hw_counters/InProtoErrors (irdma)", "segments that broke the protocol"),
    _slow(1690, "rdma.option_errors", "hw_counters/InOptErrors (irdma)", "segments with a bad option"),
    _slow(1691, "rdma.receive_vlan_errors", "hw_counters/rxVlanErrors (irdma)", "packets of a wrong VLAN"),
    _slow(1640, "rdma.responder_exceed_max_errors", "hw_counters/res_exceed_max (bnxt_re)", "as responder: more than the maximum"),
    _slow(1641, "rdma.responder_exceeds_work_errors", "hw_counters/res_exceeds_wqe (bnxt_re)", "as responder: more than the work request holds"),
    _slow(1642, "rdma.responder_opcode_errors", "hw_counters/res_opcode_err (bnxt_re)", "as responder: unknown operation"),
    _slow(1643, "rdma.responder_receive_key_errors", "hw_counters/res_rx_invalid_rkey (bnxt_re)", "as responder: receive: invalid key"),
    _slow(1644, "rdma.responder_receive_domain_errors", "hw_counters/res_rx_domain_err (bnxt_re)", "as responder: receive: wrong protection domain"),
    _slow(1645, "rdma.responder_receive_permission_errors", "hw_counters/res_rx_no_perm (bnxt_re)", "as responder: receive: no permission"),
    _slow(1646, "rdma.responder_receive_range_errors", "hw_counters/res_rx_range_err (bnxt_re)", "as responder: receive: out of range"),
    _slow(1647, "rdma.responder_transmit_key_errors", "hw_counters/res_tx_invalid_rkey (bnxt_re)", "as responder: send: invalid key"),
    _slow(1648, "rdma.responder_transmit_domain_errors", "hw_counters/res_tx_domain_err (bnxt_re)", "as responder: send: wrong protection domain"),
    _slow(1649, "rdma.responder_transmit_permission_errors", "hw_counters/res_tx_no_perm (bnxt_re)", "as responder: send: no permission"),
    _slow(1650, "rdma.responder_transmit_range_errors", "hw_counters/res_tx_range_err (bnxt_re)", "as responder: send: out of range"),
    _slow(1651, "rdma.responder_inbound_queue_overflow_errors", "hw_counters/res_irrq_oflow (bnxt_re)", "as responder: too many reads at once"),
    _slow(1652, "rdma.responder_unsupported_opcode_errors", "hw_counters/res_unsup_opcode (bnxt_re)", "as responder: operation not supported"),
    _slow(1653, "rdma.responder_unaligned_atomic_errors", "hw_counters/res_unaligned_atomic (bnxt_re)", "as responder: atomic at an odd address"),
    _slow(1654, "rdma.responder_invalidate_errors", "hw_counters/res_rem_inv_err (bnxt_re)", "as responder: remote invalidate failed"),
    _slow(1655, "rdma.responder_memory_errors", "hw_counters/res_mem_err (bnxt_re)", "as responder: memory error"),
    _slow(1656, "rdma.responder_shared_queue_errors", "hw_counters/res_srq_err (bnxt_re)", "as responder: shared receive queue"),
    Signal(1657, "rdma.link_layer_code", Kind.STATE, Pace.TEN_SECONDS, "ports/N/link_layer", "1 InfiniBand, 2 Ethernet (RoCE, EFA)"),
    _slow(1658, "rdma.responder_duplicate_key_errors", "hw_counters/res_invalid_dup_rkey (bnxt_re)", "as responder: duplicate read with an invalid key"),
    _slow(1659, "rdma.responder_work_format_errors", "hw_counters/res_wqe_format_err (bnxt_re)", "as responder: malformed work request"),
    _slow(1660, "rdma.responder_completion_queue_load_errors", "hw_counters/res_cq_load_err (bnxt_re)", "as responder: completion queue could not be loaded"),
    _slow(1661, "rdma.responder_shared_queue_load_errors", "hw_counters/res_srq_load_err (bnxt_re)", "as responder: shared receive queue could not be loaded"),
    _slow(1662, "rdma.responder_transmit_pcie_errors", "hw_counters/res_tx_pci_err (bnxt_re)", "as responder: PCIe error while sending"),
    _slow(1663, "rdma.responder_receive_pcie_errors", "hw_counters/res_rx_pci_err (bnxt_re)", "as responder: PCIe error while receiving"),
    _slow(1670, "rdma.read_work_errors", "hw_counters/rdma_read_wr_err (efa)", "RDMA reads that failed"),
    _slow(1671, "rdma.write_work_errors", "hw_counters/rdma_write_wr_err (efa)", "RDMA writes that failed"),
    _slow(1672, "rdma.retransmitted_packets", "hw_counters/retrans_pkts (efa), RetransSegs (irdma)", "packets sent again"),
    _slow(1673, "rdma.retransmitted_bytes", "hw_counters/retrans_bytes (efa)", "bytes sent again"),
    _slow(1674, "rdma.unresponsive_remote_events", "hw_counters/unresponsive_remote_events (efa)", "a far end did not answer"),
    _slow(1675, "rdma.impaired_connections_events", "hw_counters/impaired_remote_conn_events (efa)", "a connection was slowed down as impaired"),
    _slow(1680, "rdma.command_errors", "hw_counters/cmds_err (efa)", "commands to the device that failed"),
    _slow(1681, "rdma.unanswered_commands_count", "hw_counters/no_completion_cmds (efa)", "commands to the device that it never answered"),
    _slow(1682, "rdma.domain_allocation_errors", "hw_counters/alloc_pd_err (efa)", "protection domains that could not be had"),
    _slow(1683, "rdma.queue_pair_creation_errors", "hw_counters/create_qp_err (efa)", "queue pairs that could not be made"),
    _slow(1684, "rdma.completion_queue_creation_errors", "hw_counters/create_cq_err (efa)", "completion queues that could not be made"),
    _slow(1685, "rdma.memory_registration_errors", "hw_counters/reg_mr_err (efa)", "memory that could not be registered"),
    _slow(1686, "rdma.context_allocation_errors", "hw_counters/alloc_ucontext_err (efa)", "user contexts that could not be had"),
    _slow(1687, "rdma.address_creation_errors", "hw_counters/create_ah_err (efa)", "address handles that could not be made"),
    _slow(1688, "rdma.mapping_errors", "hw_counters/mmap_err (efa)", "mappings that failed"),
    _traffic(1676, "rdma.read_bytes", "hw_counters/rdma_read_bytes (efa)", "bytes read from far ends"),
    _traffic(1677, "rdma.written_bytes", "hw_counters/rdma_write_bytes (efa)", "bytes written to far ends"),
    _traffic(1678, "rdma.sent_messages_bytes", "hw_counters/send_bytes (efa)", "bytes of messages sent"),
    _traffic(1679, "rdma.received_messages_bytes", "hw_counters/recv_bytes (efa)", "bytes of messages received"),
)
