"""What drivers call the counters of an RDMA port.

Names as their sources list them: drivers/infiniband/hw/mlx5/counters.c, bnxt_re/hw_counters.c,
efa/efa_verbs.c, irdma/verbs.c. A signal is one quantity, whatever a driver calls it.
"""

from __future__ import annotations

from collections.abc import Mapping

#: mlx5: file in hw_counters/ -> signal.
QUEUE_COUNTERS: Mapping[str, str] = {
    "local_ack_timeout_err": "rdma.ack_timeout_errors",
    "packet_seq_err": "rdma.packet_sequence_errors",
    "out_of_sequence": "rdma.out_of_sequence_packets",
    "rnr_nak_retry_err": "rdma.receiver_not_ready_errors",
    "implied_nak_seq_err": "rdma.implied_nak_errors",
    "duplicate_request": "rdma.duplicate_requests_packets",
    "roce_adp_retrans": "rdma.adaptive_retransmissions_packets",
    "roce_adp_retrans_to": "rdma.adaptive_retransmission_timeouts_events",
    "roce_slow_restart": "rdma.slow_restarts_events",
    "roce_slow_restart_cnps": "rdma.slow_restart_notifications_packets",
    "roce_slow_restart_trans": "rdma.slow_restart_transitions_events",
    "out_of_buffer": "rdma.out_of_buffer_packets",
    "req_cqe_error": "rdma.request_completion_errors",
    "req_cqe_flush_error": "rdma.requester_flushed_errors",
    "req_remote_invalid_request": "rdma.requester_invalid_request_errors",
    "req_remote_access_errors": "rdma.requester_access_errors",
    "req_transport_retries_exceeded": "rdma.transport_retries_exceeded_events",
    "req_rnr_retries_exceeded": "rdma.receiver_not_ready_retries_exceeded_events",
    "resp_local_length_error": "rdma.responder_length_errors",
    "resp_cqe_error": "rdma.responder_completion_errors",
    "resp_cqe_flush_error": "rdma.responder_flushed_errors",
    "resp_remote_access_errors": "rdma.responder_access_errors",
    "rx_write_requests": "rdma.received_writes_operations",
    "rx_read_requests": "rdma.received_reads_operations",
    "rx_atomic_requests": "rdma.received_atomics_operations",
    "rx_dct_connect": "rdma.received_connects_operations",
    "rx_icrc_encapsulated": "rdma.receive_icrc_errors",
    "np_cnp_sent": "rdma.congestion_notifications_sent_packets",
    "rp_cnp_handled": "rdma.congestion_notifications_handled_packets",
    "rp_cnp_ignored": "rdma.congestion_notifications_ignored_packets",
    "np_ecn_marked_roce_packets": "rdma.congestion_marked_packets",
}

#: Signal -> file names of other drivers in a port's hw_counters/, the first that is there counts.
_OTHER: Mapping[str, tuple[str, ...]] = {
    "rdma.received_bytes": ("rx_bytes",),
    "rdma.transmitted_bytes": ("tx_bytes",),
    "rdma.received_packets": ("rx_pkts",),
    "rdma.transmitted_packets": ("tx_pkts",),
    "rdma.ack_timeout_errors": ("to_retransmits", "retrans_timeout_events", "RTO"),
    "rdma.packet_sequence_errors": ("seq_err_naks_rcvd", "Nak Sequence Error"),
    "rdma.out_of_sequence_packets": ("oos_drop_count", "Rcvd Out of order packets"),
    "rdma.receiver_not_ready_errors": ("rnr_naks_rcvd", "RNR received"),
    "rdma.implied_nak_errors": ("missing_resp", "Nak Sequence Error Implied"),
    "rdma.duplicate_requests_packets": ("dup_req",),
    "rdma.out_of_buffer_packets": ("rx_out_of_buffer",),
    "rdma.transport_retries_exceeded_events": ("max_retry_exceeded",),
    "rdma.requester_invalid_request_errors": ("remote_invalid_req_err",),
    "rdma.requester_access_errors": ("remote_access_err",),
    "rdma.responder_length_errors": ("res_length_mismatch",),
    "rdma.received_writes_operations": ("rx_write_req", "InRdmaWrites", "iwInRdmaWrites"),
    "rdma.received_reads_operations": ("rx_read_req", "InRdmaReads", "iwInRdmaReads"),
    "rdma.received_atomics_operations": ("rx_atomic_req",),
    "rdma.receive_icrc_errors": ("CRC errors",),
    "rdma.congestion_notifications_sent_packets": ("tx_cnp_pkts", "cnpSent"),
    "rdma.congestion_notifications_handled_packets": ("rx_cnp_pkts", "cnpHandled"),
    "rdma.congestion_notifications_ignored_packets": ("cnpIgnored",),
    "rdma.congestion_marked_packets": ("rx_ecn_marked_pkts", "RxECNMrkd"),
    "rdma.receive_dropped_packets": ("rx_roce_discards", "rx_drops"),
    "rdma.receive_roce_errors": ("rx_roce_errors",),
    "rdma.recoverable_errors": ("recoverable_errors",),
    "rdma.unrecoverable_errors": ("unrecoverable_err",),
    "rdma.bad_response_errors": ("bad_resp_err",),
    "rdma.local_operation_errors": ("local_qp_op_err",),
    "rdma.local_protection_errors": ("local_protection_err",),
    "rdma.memory_management_errors": ("mem_mgmt_op_err",),
    "rdma.remote_operation_errors": ("remote_op_err",),
    "rdma.protocol_errors": ("InProtoErrors", "tcpInProtoErrors"),
    "rdma.option_errors": ("InOptErrors", "tcpInOptErrors"),
    "rdma.receive_vlan_errors": ("rxVlanErrors",),
    "rdma.responder_exceed_max_errors": ("res_exceed_max",),
    "rdma.responder_exceeds_work_errors": ("res_exceeds_wqe",),
    "rdma.responder_opcode_errors": ("res_opcode_err",),
    "rdma.responder_receive_key_errors": ("res_rx_invalid_rkey",),
    "rdma.responder_receive_domain_errors": ("res_rx_domain_err",),
    "rdma.responder_receive_permission_errors": ("res_rx_no_perm",),
    "rdma.responder_receive_range_errors": ("res_rx_range_err",),
    "rdma.responder_transmit_key_errors": ("res_tx_invalid_rkey",),
    "rdma.responder_transmit_domain_errors": ("res_tx_domain_err",),
    "rdma.responder_transmit_permission_errors": ("res_tx_no_perm",),
    "rdma.responder_transmit_range_errors": ("res_tx_range_err",),
    "rdma.responder_inbound_queue_overflow_errors": ("res_irrq_oflow",),
    "rdma.responder_unsupported_opcode_errors": ("res_unsup_opcode",),
    "rdma.responder_unaligned_atomic_errors": ("res_unaligned_atomic",),
    "rdma.responder_invalidate_errors": ("res_rem_inv_err",),
    "rdma.responder_memory_errors": ("res_mem_err",),
    "rdma.responder_shared_queue_errors": ("res_srq_err",),
    "rdma.responder_duplicate_key_errors": ("res_invalid_dup_rkey",),
    "rdma.responder_work_format_errors": ("res_wqe_format_err",),
    "rdma.responder_completion_queue_load_errors": ("res_cq_load_err",),
    "rdma.responder_shared_queue_load_errors": ("res_srq_load_err",),
    "rdma.responder_transmit_pcie_errors": ("res_tx_pci_err",),
    "rdma.responder_receive_pcie_errors": ("res_rx_pci_err",),
    "rdma.read_work_errors": ("rdma_read_wr_err",),
    "rdma.write_work_errors": ("rdma_write_wr_err",),
    "rdma.read_bytes": ("rdma_read_bytes",),
    "rdma.written_bytes": ("rdma_write_bytes",),
    "rdma.sent_messages_bytes": ("send_bytes",),
    "rdma.received_messages_bytes": ("recv_bytes",),
    "rdma.retransmitted_packets": ("retrans_pkts", "RetransSegs", "tcpRetransSegs"),
    "rdma.retransmitted_bytes": ("retrans_bytes",),
    "rdma.unresponsive_remote_events": ("unresponsive_remote_events",),
    "rdma.impaired_connections_events": ("impaired_remote_conn_events",),
}
#: EFA counts these for the device; in older kernels they stand in the port's folder.
_OF_DEVICE: Mapping[str, str] = {
    "rdma.command_errors": "cmds_err",
    "rdma.unanswered_commands_count": "no_completion_cmds",
    "rdma.domain_allocation_errors": "alloc_pd_err",
    "rdma.queue_pair_creation_errors": "create_qp_err",
    "rdma.completion_queue_creation_errors": "create_cq_err",
    "rdma.memory_registration_errors": "reg_mr_err",
    "rdma.context_allocation_errors": "alloc_ucontext_err",
    "rdma.address_creation_errors": "create_ah_err",
    "rdma.mapping_errors": "mmap_err",
}


def _other_names() -> dict[str, tuple[str, ...]]:
    """mlx5 in switchdev mode counts per virtual port, under the same names with `vport_` before them."""
    files: dict[str, list[str]] = {}
    for signal, names in _OTHER.items():
        files.setdefault(signal, []).extend(f"hw_counters/{name}" for name in names)
    for name, signal in QUEUE_COUNTERS.items():
        files.setdefault(signal, []).append(f"hw_counters/vport_{name}")
    for signal, name in _OF_DEVICE.items():
        files.setdefault(signal, []).extend((f"../../hw_counters/{name}", f"hw_counters/{name}"))
    return {signal: tuple(names) for signal, names in files.items()}


#: Signal -> files below a port's folder, the first that is there counts.
OTHER_NAMES: Mapping[str, tuple[str, ...]] = _other_names()

#: In these folders, and no counters: how long the kernel keeps a reading, and how much there is now.
_SETTINGS = ("lifespan",)
_POPULATIONS = ("active_", "watermark_")


def is_counter(name: str) -> bool:
    """Say whether a file of counters/ or hw_counters/ is one that counts."""
    return name not in _SETTINGS and not name.startswith(_POPULATIONS)
