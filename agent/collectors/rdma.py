"""RDMA ports, from sysfs. Counters are sent raw; a saturated counter is sent as its maximum."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...ext.counterfiles import CODE, DECIMAL, WORD
from ...ext.hostfiles import Glance
from ..hardware.files import Roots, device_key, inode, names_in
from ..hardware.network import LINK_LAYERS, rdma_ports
from .counter_files import CollectorSpec, CounterDevice, CounterFileCollector, FileField

# Names of counters, from their sources: drivers/infiniband/hw/mlx5/counters.c,
# bnxt_re/hw_counters.c, efa/efa_verbs.c, irdma/verbs.c, hfi1/chip.c (Omni-Path: dev_cntrs,
# port_cntrs), mana/counters.c, hns/hns_roce_main.c, erdma/erdma_verbs.c; ionic's come from its
# firmware (AMD's device-metrics-exporter lists them). A signal is one quantity, whatever its names
# in drivers.

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

#: Signal -> names of other drivers' files in a port's hw_counters/, separated by commas; the first
#: that exists is read.
_ALTERNATIVE_NAMES: Mapping[str, str] = {
    "rdma.received_bytes": "rx_bytes, rx_rdma_ucast_bytes, rx_bytes_cnt",
    "rdma.transmitted_bytes": "tx_bytes, tx_rdma_ucast_bytes, tx_bytes_cnt",
    "rdma.received_packets": "rx_pkts, rx_pkt, rx_packets_cnt",
    "rdma.transmitted_packets": "tx_pkts, tx_pkt, tx_packets_cnt",
    "rdma.ack_timeout_errors": "to_retransmits, retrans_timeout_events, RTO, RcTimeOut, "
    "tx_rdma_ack_timeout, requester_timeout",
    "rdma.packet_sequence_errors": "seq_err_naks_rcvd, Nak Sequence Error, SeqNak, "
    "req_rx_pkt_seq_err, requester_oos_nak",
    "rdma.out_of_sequence_packets": "oos_drop_count, Rcvd Out of order packets, RcSeqNak, "
    "resp_rx_outouf_seq, responder_oos",
    "rdma.receiver_not_ready_errors": "rnr_naks_rcvd, RNR received, RnrNak, "
    "req_rx_rnr_retry_err, requester_rnr_nak",
    "rdma.implied_nak_errors": "missing_resp, Nak Sequence Error Implied, RdmaSeq, "
    "req_rx_impl_nak_seq_err, requester_implicit_nak",
    "rdma.duplicate_requests_packets": "dup_req, RcDupRew, resp_rx_dup_request, "
    "responder_dup_request",
    "rdma.out_of_buffer_packets": "rx_out_of_buffer, resp_rx_outof_buf",
    "rdma.transport_retries_exceeded_events": "max_retry_exceeded, req_tx_retry_excd_err, "
    "requester_retries_exceeded",
    "rdma.requester_invalid_request_errors": "remote_invalid_req_err, req_rx_rmt_req_err, "
    "nak_inv_req",
    "rdma.requester_access_errors": "remote_access_err, req_rx_rmt_acc_err, nak_access_error",
    "rdma.responder_length_errors": "res_length_mismatch, resp_rx_loc_len_err, "
    "responder_local_len_error",
    "rdma.received_writes_operations": "rx_write_req, InRdmaWrites, iwInRdmaWrites",
    "rdma.received_reads_operations": "rx_read_req, InRdmaReads, iwInRdmaReads",
    "rdma.received_atomics_operations": "rx_atomic_req",
    "rdma.receive_icrc_errors": "CRC errors",
    "rdma.congestion_notifications_sent_packets": "tx_cnp_pkts, cnpSent, tx_rdma_cnp_pkts, "
    "tx_cnp_pkt",
    "rdma.congestion_notifications_handled_packets": "rx_cnp_pkts, cnpHandled, rx_rdma_cnp_pkts, "
    "rx_cnp_pkt, received_cnps",
    "rdma.congestion_notifications_ignored_packets": "cnpIgnored",
    "rdma.congestion_marked_packets": "rx_ecn_marked_pkts, RxECNMrkd, rx_rdma_ecn_pkts",
    "rdma.receive_dropped_packets": "rx_roce_discards, rx_drops, PktDrop, "
    "rx_rdma_mtu_discard_pkts, rx_bps_limit_drop_cnt",
    "rdma.receive_roce_errors": "rx_roce_errors, rx_err_pkt",
    "rdma.recoverable_errors": "recoverable_errors",
    "rdma.unrecoverable_errors": "unrecoverable_err, total_fatal_error",
    "rdma.bad_response_errors": "bad_resp_err, req_rx_inval_pkts",
    "rdma.local_operation_errors": "local_qp_op_err, req_tx_loc_oper_err",
    "rdma.local_protection_errors": "local_protection_err, req_tx_loc_acc_err, "
    "requestor_local_prot_error",
    "rdma.memory_management_errors": "mem_mgmt_op_err, req_tx_mem_mgmt_err",
    "rdma.remote_operation_errors": "remote_op_err, req_rx_oper_err, nak_opp_error",
    "rdma.protocol_errors": "InProtoErrors, tcpInProtoErrors",
    "rdma.option_errors": "InOptErrors, tcpInOptErrors",
    "rdma.receive_vlan_errors": "rxVlanErrors",
    "rdma.responder_exceed_max_errors": "res_exceed_max",
    "rdma.responder_exceeds_work_errors": "res_exceeds_wqe",
    "rdma.responder_opcode_errors": "res_opcode_err",
    "rdma.responder_receive_key_errors": "res_rx_invalid_rkey",
    "rdma.responder_receive_domain_errors": "res_rx_domain_err",
    "rdma.responder_receive_permission_errors": "res_rx_no_perm",
    "rdma.responder_receive_range_errors": "res_rx_range_err",
    "rdma.responder_transmit_key_errors": "res_tx_invalid_rkey",
    "rdma.responder_transmit_domain_errors": "res_tx_domain_err",
    "rdma.responder_transmit_permission_errors": "res_tx_no_perm",
    "rdma.responder_transmit_range_errors": "res_tx_range_err",
    "rdma.responder_inbound_queue_overflow_errors": "res_irrq_oflow",
    "rdma.responder_unsupported_opcode_errors": "res_unsup_opcode",
    "rdma.responder_unaligned_atomic_errors": "res_unaligned_atomic",
    "rdma.responder_invalidate_errors": "res_rem_inv_err",
    "rdma.responder_memory_errors": "res_mem_err",
    "rdma.responder_shared_queue_errors": "res_srq_err",
    "rdma.responder_duplicate_key_errors": "res_invalid_dup_rkey",
    "rdma.responder_work_format_errors": "res_wqe_format_err, responder_malformed_wqe",
    "rdma.responder_completion_queue_load_errors": "res_cq_load_err",
    "rdma.responder_shared_queue_load_errors": "res_srq_load_err",
    "rdma.responder_transmit_pcie_errors": "res_tx_pci_err",
    "rdma.responder_receive_pcie_errors": "res_rx_pci_err",
    "rdma.read_work_errors": "rdma_read_wr_err",
    "rdma.write_work_errors": "rdma_write_wr_err",
    "rdma.read_bytes": "rdma_read_bytes",
    "rdma.written_bytes": "rdma_write_bytes",
    "rdma.sent_messages_bytes": "send_bytes",
    "rdma.received_messages_bytes": "recv_bytes",
    "rdma.retransmitted_packets": "retrans_pkts, RetransSegs, tcpRetransSegs, RcResend, "
    "tx_rdma_retx_pkts",
    "rdma.retransmitted_bytes": "retrans_bytes, tx_rdma_retx_bytes",
    "rdma.unresponsive_remote_events": "unresponsive_remote_events",
    "rdma.impaired_connections_events": "impaired_remote_conn_events",
    "rdma.unicast_received_packets": "rx_rdma_ucast_pkts",
    "rdma.unicast_transmitted_packets": "tx_rdma_ucast_pkts",
    "rdma.multicast_received_packets": "rx_rdma_mcast_pkts",
    "rdma.multicast_transmitted_packets": "tx_rdma_mcast_pkts",
    "rdma.transmit_discards_packets": "tx_bps_limit_drop_cnt",
    "rdma.receiver_not_ready_retries_exceeded_events": "requester_rnr_nak_retries_exceeded",
    "rdma.request_completion_errors": "req_rx_cqe_err",
    "rdma.requester_flushed_errors": "req_rx_cqe_flush",
    "rdma.responder_completion_errors": "resp_rx_cqe_err",
    "rdma.responder_flushed_errors": "resp_rx_cqe_flush",
    "rdma.responder_access_errors": "resp_tx_rmt_acc_err, responder_rem_access_error",
}
#: Counts of EFA and Omni-Path for the whole device; older kernels have EFA's in the port's folder.
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
    "rdma.out_of_buffer_packets": "RcvOverflow",
    "rdma.receive_icrc_errors": "RxICrcErr",
    "rdma.unrecoverable_errors": "DcUnctblErr",
    "rdma.congestion_marked_packets": "DcRcvFcn",
    "rdma.congestion_notifications_handled_packets": "DcRcvBcn",
    "rdma.link_crc_errors": "DcTotCrc",
    "rdma.link_transmit_replays_count": "DcTxReplay",
    "rdma.link_receive_replays_count": "DcRxReplay",
}

#: Files in these folders that are not counters: how long the kernel keeps a reading, and current
#: amounts.
_SETTINGS = ("lifespan",)
_POPULATIONS = ("active_", "watermark_", "current_")
_WORD_BYTES = 4  # port_rcv_data and port_xmit_data count 32-bit words
_GIGABIT_BYTES = 125_000_000
#: Longest wait for a port that answers with errors (a restricted function): each read logs to the
#: kernel log.
_WAIT_SECONDS_MAX = 300
#: Listing the counters of twelve ports costs as much as five turns; the files only change with
#: their device.
_LIST_SECONDS = 300
_PORT: Mapping[str, FileField] = {
    "rdma.port_state": FileField("state", CODE),
    "rdma.physical_state": FileField("phys_state", CODE),
    "rdma.rate_bytes_per_second": FileField("rate", DECIMAL, b"Gb/sec", _GIGABIT_BYTES),
    "rdma.link_layer_code": FileField("link_layer", WORD, LINK_LAYERS),
}
_COUNTERS: Mapping[str, FileField] = {
    "rdma.received_bytes": FileField("counters/port_rcv_data", scale=_WORD_BYTES),
    "rdma.transmitted_bytes": FileField("counters/port_xmit_data", scale=_WORD_BYTES),
    "rdma.received_packets": FileField("counters/port_rcv_packets"),
    "rdma.transmitted_packets": FileField("counters/port_xmit_packets"),
    "rdma.unicast_received_packets": FileField("counters/unicast_rcv_packets"),
    "rdma.unicast_transmitted_packets": FileField("counters/unicast_xmit_packets"),
    "rdma.multicast_received_packets": FileField("counters/multicast_rcv_packets"),
    "rdma.multicast_transmitted_packets": FileField("counters/multicast_xmit_packets"),
    "rdma.transmit_wait_count": FileField("counters/port_xmit_wait"),
    "rdma.link_downed_events": FileField("counters/link_downed"),
    "rdma.link_recovery_events": FileField("counters/link_error_recovery"),
    "rdma.symbol_errors": FileField("counters/symbol_error"),
    "rdma.receive_errors": FileField("counters/port_rcv_errors"),
    "rdma.transmit_discards_packets": FileField("counters/port_xmit_discards"),
    "rdma.receive_remote_physical_errors": FileField("counters/port_rcv_remote_physical_errors"),
    "rdma.receive_switch_relay_errors": FileField("counters/port_rcv_switch_relay_errors"),
    "rdma.transmit_constraint_errors": FileField("counters/port_xmit_constraint_errors"),
    "rdma.receive_constraint_errors": FileField("counters/port_rcv_constraint_errors"),
    "rdma.local_link_integrity_errors": FileField("counters/local_link_integrity_errors"),
    "rdma.buffer_overrun_errors": FileField("counters/excessive_buffer_overrun_errors"),
    "rdma.vl15_dropped_packets": FileField("counters/VL15_dropped"),
}
_QUEUES = {name: FileField(f"hw_counters/{file}") for file, name in QUEUE_COUNTERS.items()}
#: Files of mlx5 and the InfiniBand core.
FIELDS: Mapping[str, FileField] = {**_PORT, **_COUNTERS, **_QUEUES}
#: Folders of counters, below a port's folder; the last is the device's own (EFA).
FOLDERS = ("counters", "hw_counters", "../../hw_counters")


def _alternative_files() -> dict[str, tuple[str, ...]]:
    """Return each signal's files. mlx5 in switchdev mode has the prefix `vport_` (virtual port)."""
    files: dict[str, list[str]] = {}
    for signal, names in _ALTERNATIVE_NAMES.items():
        files.setdefault(signal, []).extend(f"hw_counters/{name}" for name in names.split(", "))
    for name, signal in QUEUE_COUNTERS.items():
        files.setdefault(signal, []).append(f"hw_counters/vport_{name}")
    for signal, name in _OF_DEVICE.items():
        files.setdefault(signal, []).extend((f"../../hw_counters/{name}", f"hw_counters/{name}"))
    return {signal: tuple(names) for signal, names in files.items()}


#: Signal -> files below a port's folder; the first that exists is read.
ALTERNATIVE_FILES: Mapping[str, tuple[str, ...]] = _alternative_files()


def is_counter(name: str) -> bool:
    """Return whether a file of counters/ or hw_counters/ is a counter."""
    return name not in _SETTINGS and not name.startswith(_POPULATIONS)


#: Other drivers' files of the same quantities, if the first file does not exist.
ALTERNATIVE_FIELDS: Mapping[str, tuple[FileField, ...]] = {
    name: tuple(FileField(file) for file in files) for name, files in ALTERNATIVE_FILES.items()
}
_KNOWN_FILES = {s.file for s in FIELDS.values()} | {
    s.file for alternatives in ALTERNATIVE_FIELDS.values() for s in alternatives
}


def rdma_1s(roots: Roots) -> CounterFileCollector:
    """Return the collector of state, rate, traffic and the most important errors."""
    return _collector(roots, "rdma_1s")


def rdma_10s(roots: Roots) -> CounterFileCollector:
    """Return the collector of all other signals: each read of `counters/` queries the firmware."""
    return _collector(roots, "rdma_10s")


def _collector(roots: Roots, name: str) -> CounterFileCollector:
    ports = _PortListing(roots)
    return CounterFileCollector(
        CollectorSpec(
            name,
            ports.devices,
            "no RDMA port in /sys/class/infiniband",
            tables=(name, f"{name}_changes"),
            enters_driver=True,
            list_seconds=_LIST_SECONDS,
            change_key=Glance(roots.sys / "class/infiniband").look,
            access_error=access_error,
            wait_seconds_max=_WAIT_SECONDS_MAX,
        )
    )


class _PortListing:
    """Lists ports, and counts how often a port was removed and recreated under its name."""

    def __init__(self, roots: Roots) -> None:
        self._sys = roots.sys
        self._epochs: dict[str, tuple[int, int]] = {}  # inode of the folder, and the epoch

    def devices(self) -> list[CounterDevice]:
        """Return the ports with their files, and the number of files without a signal."""
        return [self._device(name, folder) for name, folder in rdma_ports(self._sys).items()]

    def _device(self, name: str, folder: Path) -> CounterDevice:
        now = inode(folder)
        before, epoch = self._epochs.get(name, (now, 0))
        epoch += before != now
        self._epochs[name] = now, epoch
        files = counter_files(folder)
        constants: dict[str, float | None] = {
            "rdma.counter_epoch_count": epoch,
            "rdma.unnamed_counters_count": len(unnamed(files)) if files else None,
        }
        return CounterDevice(name, f"{folder}/", fields_of(files), constants)


def counter_files(port: Path) -> frozenset[str]:
    """Return the names of a port's counters, below its folder, without reading them."""
    return frozenset(
        f"{folder}/{name}"
        for folder in FOLDERS
        for name in names_in(port / folder)
        if is_counter(name)
    )


def fields_of(files: frozenset[str]) -> dict[str, FileField]:
    """Return the file of each signal on a port with these files.

    Without any file return all: the folder may exist without permission to list it.
    """
    if not files:
        return dict(FIELDS)
    fields = dict(_PORT)
    for name, file_field in {**_COUNTERS, **_QUEUES}.items():
        if file_field.file in files:
            fields[name] = file_field
    for name, alternatives in ALTERNATIVE_FIELDS.items():
        present = [file_field for file_field in alternatives if file_field.file in files]
        if present:
            fields.setdefault(name, present[0])
    return fields


def unnamed(files: frozenset[str]) -> list[str]:
    """Return the files without a signal, of another vendor or a newer kernel."""
    return sorted(files - _KNOWN_FILES)


def access_error(refusals: Sequence[tuple[str, int]]) -> str:
    """Return a message about ports that refuse their counters, with the reason and the remedy.

    EOPNOTSUPP or ENOSYS means that a port does not have the counters: nothing is hidden.
    """
    ports: dict[int, set[str]] = {}
    for path, error in refusals:
        if error not in (errno.EOPNOTSUPP, errno.ENOSYS):
            ports.setdefault(error, set()).add(_port_of(path))
    messages = [
        f"{', '.join(sorted(names))} refuse counters ({errno.errorcode.get(error, error)}): "
        f"{_remedy(error)}"
        for error, names in ports.items()
    ]
    return "; ".join(messages)


def _remedy(error: int) -> str:
    if error == errno.EACCES:
        return "give the agent CAP_DAC_READ_SEARCH"
    return (
        "a restricted function; read them on its physical function, or on the DPU run: "
        "mlxprivhost -d PCI_ADDRESS p"
    )


def _port_of(path: str) -> str:
    parts = path.split("/")
    index = parts.index("ports") if "ports" in parts else 0
    return device_key("/".join((parts[index - 1], *parts[index + 1 : index + 2])))
