"""Signals of network interfaces and RDMA ports."""

from ..signal import Kind, Pace, Signal

NET_TEXT = """Network interfaces with their own device, and bonds. Device: the interface's name.

| prefix | source |
|---|---|
| `net` | the kernel's counters (sysfs) |
| `nic` | the driver's own statistics (one ioctl a pass) |
| `link` | the state of the cable, from ethtool netlink |
| `bond` | a bond and its slaves |
| `rtnetlink` | the listener for changes |

FEC and BER of InfiniBand are missing, because neither sysfs nor ethtool shows them.
"""

RDMA_TEXT = """RDMA ports. Device: `mlx5_0/1`. Each read of counters/ enters firmware, hence two paces.

Widths of counters/: Linux drivers/infiniband/core/sysfs.c; those counters stick at their ceiling. In
hw_counters/, mlx5 queue counters have 32 bits and are assumed to wrap (drivers/infiniband/hw/mlx5/counters.c); its
congestion counters have 64. `agent/collectors/rdma.py` has the names in other drivers.

Two things are missing. mlx5's optional counters (cc_rx_ce_pkts, rdma_rx_bytes ...) are only in RDMA netlink, and are
off by default. FEC and BER of InfiniBand are not in sysfs: `no-data` until imported from the subnet manager.
"""


def _net_error(signal_id: int, name: str, source: str, tells: str, width_bits: int = 64) -> Signal:
    return Signal(signal_id, name, Kind.COUNTER, Pace.TEN_SECONDS, source, tells, width_bits, on_change=True)


def _link(signal_id: int, name: str, kind: Kind, source: str, tells: str) -> Signal:
    return Signal(signal_id, f"link.{name}", kind, Pace.TEN_SECONDS, source, tells)


def _pause(priority: int) -> tuple[Signal, ...]:
    """PFC pauses of one priority; their ids are 1760 to 1799, eight of a kind."""
    name, mlx5 = f"nic.priority_{priority}", f"prio{priority}_pause"
    return (
        _net_error(1760 + priority, f"{name}_received_pause_frames", f"rx_{mlx5}", "pauses received for this priority"),
        _net_error(1768 + priority, f"{name}_transmitted_pause_frames", f"tx_{mlx5}", "pauses sent to the switch for this priority: this host does not keep up"),
        _net_error(1776 + priority, f"{name}_received_pause_microseconds", f"rx_{mlx5}_duration", "time paused"),
        _net_error(1784 + priority, f"{name}_transmitted_pause_microseconds", f"tx_{mlx5}_duration", "time that the port paused the switch"),
        _net_error(1792 + priority, f"{name}_received_pause_transitions_events", f"rx_{mlx5}_transition", "times the priority went from running to paused"),
    )


NET_SIGNALS = (
    Signal(500, "net.carrier_state", Kind.STATE, Pace.SECOND, "class/net/*/carrier (no-data when down)", "1 if there is a link"),
    Signal(501, "net.carrier_changes_count", Kind.COUNTER, Pace.SECOND, "class/net/*/carrier_changes", "times the link went up or down", width_bits=32, on_change=True),
    Signal(502, "net.speed_bytes_per_second", Kind.GAUGE, Pace.TEN_SECONDS, "class/net/*/speed (Mbit/s; no-data when -1)", "agreed rate"),
    Signal(503, "net.received_bytes", Kind.COUNTER, Pace.SECOND, "statistics/rx_bytes", "bytes received"),
    Signal(504, "net.transmitted_bytes", Kind.COUNTER, Pace.SECOND, "statistics/tx_bytes", "bytes sent"),
    Signal(505, "net.received_packets", Kind.COUNTER, Pace.SECOND, "statistics/rx_packets", "packets received"),
    Signal(506, "net.transmitted_packets", Kind.COUNTER, Pace.SECOND, "statistics/tx_packets", "packets sent"),
    Signal(507, "net.receive_errors", Kind.COUNTER, Pace.SECOND, "statistics/rx_errors", "packets received broken", on_change=True),
    Signal(508, "net.transmit_errors", Kind.COUNTER, Pace.SECOND, "statistics/tx_errors", "packets that could not be sent", on_change=True),
    Signal(509, "net.receive_dropped_packets", Kind.COUNTER, Pace.SECOND, "statistics/rx_dropped", "packets dropped on arrival", on_change=True),
    Signal(510, "net.receive_crc_errors", Kind.COUNTER, Pace.SECOND, "statistics/rx_crc_errors", "bad checksums: a cable or a module", on_change=True),
    Signal(511, "net.mtu_bytes", Kind.GAUGE, Pace.TEN_SECONDS, "class/net/*/mtu", "largest packet; one different MTU in a fabric slows down all hosts"),
    Signal(1609, "net.link", Kind.EVENT, Pace.EVENT, "rtnetlink RTM_NEWLINK, RTM_DELLINK", "code 0: link down, 1: link up, 2: interface removed, 3: interface added"),
    Signal(1700, "net.counter_epoch_count", Kind.STATE, Pace.SECOND, "class/net/*/ifindex", "changes if another interface has the same name: its counters restarted"),
    Signal(1701, "net.carrier_up_events", Kind.COUNTER, Pace.SECOND, "class/net/*/carrier_up_count", "times the link went up", width_bits=32, on_change=True),
    Signal(1702, "net.carrier_down_events", Kind.COUNTER, Pace.SECOND, "class/net/*/carrier_down_count", "times the link went down", width_bits=32, on_change=True),
    Signal(1703, "net.operational_state", Kind.STATE, Pace.SECOND, "class/net/*/operstate (RFC 2863)", "0 unknown, 1 not present, 2 down, 3 lower layer down, 4 testing, 5 dormant, 6 up"),
    Signal(1704, "net.transmit_dropped_packets", Kind.COUNTER, Pace.SECOND, "statistics/tx_dropped", "packets dropped before they were sent", on_change=True),
    Signal(1705, "net.receive_missed_errors", Kind.COUNTER, Pace.SECOND, "statistics/rx_missed_errors", "packets lost because there was no receive buffer", on_change=True),
    Signal(1706, "net.receive_overrun_errors", Kind.COUNTER, Pace.SECOND, "statistics/rx_fifo_errors", "packets lost inside the adapter", on_change=True),
    Signal(1707, "net.transmit_carrier_errors", Kind.COUNTER, Pace.SECOND, "statistics/tx_carrier_errors", "packets lost because the link went down", on_change=True),
    Signal(1710, "bond.slaves_count", Kind.GAUGE, Pace.TEN_SECONDS, "class/net/*/bonding/slaves", "interfaces in the bond"),
    Signal(1711, "bond.slaves_up_count", Kind.GAUGE, Pace.TEN_SECONDS, "class/net/*/bonding_slave/mii_status", "slaves that are up"),
    Signal(1712, "bond.link_state", Kind.STATE, Pace.TEN_SECONDS, "class/net/*/bonding/mii_status", "1 while the bond carries traffic"),
    Signal(1713, "bond.active_slave_number", Kind.STATE, Pace.TEN_SECONDS, "bonding/active_slave, its ifindex", "the active slave; no-data if all are in use (802.3ad)"),
    Signal(1714, "bond.slave_failures_events", Kind.COUNTER, Pace.TEN_SECONDS, "bonding_slave/link_failure_count of all slaves", "failures of slaves", width_bits=32),
    Signal(1720, "rtnetlink.messages_count", Kind.COUNTER, Pace.TEN_SECONDS, "AF_NETLINK, RTMGRP_LINK", "messages read"),
    Signal(1721, "rtnetlink.overruns_events", Kind.COUNTER, Pace.TEN_SECONDS, "ENOBUFS", "times messages were lost; all links were then read again"),
    Signal(1722, "rtnetlink.transitions_events", Kind.COUNTER, Pace.TEN_SECONDS, "RTM_NEWLINK, RTM_DELLINK", "observed changes of link state of all interfaces"),
    Signal(1723, "rtnetlink.withheld_events", Kind.COUNTER, Pace.TEN_SECONDS, "token bucket", "changes reported only in the count of a later event"),
    Signal(1724, "rtnetlink.interfaces_count", Kind.GAUGE, Pace.TEN_SECONDS, "RTM_GETLINK", "interfaces watched"),
    Signal(1725, "rtnetlink.malformed_count", Kind.COUNTER, Pace.TEN_SECONDS, "RTM_NEWLINK", "malformed messages"),
    _link(1730, "detected_state", Kind.STATE, "LINKSTATE_GET LINK", "1 if there is a link"),
    _link(1731, "signal_quality_number", Kind.GAUGE, "LINKSTATE_GET SQI", "signal quality index"),
    _link(1732, "signal_quality_max_number", Kind.GAUGE, "LINKSTATE_GET SQI_MAX", "highest possible index"),
    _link(1733, "down_reason_code", Kind.STATE, "LINKSTATE_GET EXT_STATE (enum ethtool_link_ext_state)", "why there is no link: 3 bad signal, 4 no cable, 5 cable issue, 9 overheat, 10 module"),
    _link(1734, "down_detail_code", Kind.STATE, "LINKSTATE_GET EXT_SUBSTATE", "detail of the reason; its meaning depends on the reason"),
    _net_error(1735, "link.external_down_events", "LINKSTATE_GET EXT_DOWN_CNT", "times the link was lost on the wire, without an action of the host", 32),
    _link(1736, "speed_bytes_per_second", Kind.GAUGE, "LINKMODES_GET SPEED", "agreed rate"),
    _link(1737, "width_lanes", Kind.GAUGE, "LINKMODES_GET LANES", "lanes in use"),
    _link(1738, "duplex_state", Kind.STATE, "LINKMODES_GET DUPLEX", "0 half, 1 full"),
    _link(1739, "autonegotiation_state", Kind.STATE, "LINKMODES_GET AUTONEG", "1 when on"),
    _link(1740, "fec_active_code", Kind.STATE, "FEC_GET ACTIVE (a link mode's bit)", "49 none, 50 Reed-Solomon, 51 Base-R, 74 low-latency Reed-Solomon"),
    _link(1741, "fec_automatic_state", Kind.STATE, "FEC_GET AUTO", "1 when the driver chooses"),
    _net_error(1742, "link.fec_corrected_count", "FEC_GET STATS CORRECTED", "blocks that FEC repaired; shows the margin of the cable"),
    _net_error(1743, "link.fec_uncorrectable_errors", "FEC_GET STATS UNCORR", "blocks that FEC could not repair: packets were lost"),
    _net_error(1744, "link.fec_corrected_bits_count", "FEC_GET STATS CORR_BITS", "bits that FEC repaired"),
    _link(1745, "pause_autonegotiation_state", Kind.STATE, "PAUSE_GET AUTONEG", "1 if agreed with the far end"),
    _link(1746, "pause_receive_state", Kind.STATE, "PAUSE_GET RX", "1 if the port obeys pauses"),
    _link(1747, "pause_transmit_state", Kind.STATE, "PAUSE_GET TX", "1 if the port sends pauses"),
    _net_error(1748, "link.received_pause_frames", "PAUSE_GET STATS RX_FRAMES", "pauses received, all priorities"),
    _net_error(1749, "link.transmitted_pause_frames", "PAUSE_GET STATS TX_FRAMES", "pauses sent to the switch, all priorities"),
    Signal(1689, "nic.statistics_count", Kind.GAUGE, Pace.TEN_SECONDS, "ETHTOOL_GSSET_INFO", "statistics of the driver; most have no signal"),
    Signal(1750, "nic.counter_epoch_count", Kind.STATE, Pace.TEN_SECONDS, "class/net/*/ifindex", "changes if another interface has the same name: its counters restarted"),
    Signal(1664, "link.counter_epoch_count", Kind.STATE, Pace.TEN_SECONDS, "class/net/*/ifindex", "changes if another interface has the same name: its counters restarted"),
    _net_error(1665, "nic.receive_discards_packets", "rx_discards_phy", "packets dropped by the port because there was no buffer"),
    _net_error(1666, "nic.transmit_discards_packets", "tx_discards_phy", "packets not sent: no link, or timed out"),
    _net_error(1667, "nic.out_of_buffer_packets", "rx_out_of_buffer", "packets lost because the host supplied no buffers"),
    _net_error(1668, "nic.steering_missed_packets", "rx_steer_missed_packets", "packets that matched no rule"),
    _net_error(1669, "nic.receive_crc_errors", "rx_crc_errors_phy", "bad checksums: a cable or a module"),
    _net_error(1692, "nic.symbol_errors", "rx_symbol_err_phy", "bad symbols on the wire"),
    _net_error(1693, "nic.pcs_symbol_errors", "rx_pcs_symbol_err_phy", "blocks that FEC could not repair, or symbols without FEC"),
    _net_error(1694, "nic.corrected_bits_count", "rx_corrected_bits_phy", "bits that FEC repaired"),
    _net_error(1695, "nic.link_down_events", "link_down_events_phy", "times the link went down, as reported by the port"),
    _net_error(1696, "nic.transmit_errors", "tx_errors_phy", "packets damaged while sending"),
    _net_error(1697, "nic.module_unplugged_events", "module_unplug", "module taken out"),
    _net_error(1698, "nic.module_bus_stuck_events", "module_bus_stuck", "module did not respond on its bus"),
    _net_error(1699, "nic.module_overheated_events", "module_high_temp", "module too hot"),
    _net_error(1708, "nic.module_shorted_events", "module_bad_shorted", "module or cable shorted"),
    _net_error(1709, "nic.congestion_marked_packets", "rx_ecn_mark", "packets a switch marked"),
    _net_error(1715, "nic.pause_storm_warnings_events", "tx_pause_storm_warning_events", "the port paused the switch for a long time"),
    _net_error(1716, "nic.pause_storm_errors_events", "tx_pause_storm_error_events", "the port paused the switch for so long that pauses were disabled"),
    _net_error(1717, "nic.pcie_receive_errors", "rx_pci_signal_integrity", "PCIe link retrained after errors received here"),
    _net_error(1718, "nic.pcie_transmit_errors", "tx_pci_signal_integrity", "PCIe link retrained by the far side"),
    _net_error(1719, "nic.pcie_stalled_reads_seconds", "outbound_pci_stalled_rd_events", "seconds in which reads waited for PCIe credit over 30 % of the time"),
    _net_error(1726, "nic.pcie_stalled_writes_seconds", "outbound_pci_stalled_wr_events", "seconds in which writes waited for PCIe credit over 30 % of the time"),
    _net_error(1727, "nic.pcie_overflow_packets", "outbound_pci_buffer_overflow", "packets lost because PCIe was too slow"),
    _net_error(1728, "nic.buffer_threshold_events", "rx_buffer_passed_thres_phy", "times the receive buffer was 85 % full"),
    _net_error(1729, "nic.fec_corrected_count", "rx_fec_corrected_blocks (bnxt_en)", "blocks that FEC repaired"),
    _net_error(1751, "nic.fec_uncorrectable_errors", "rx_fec_uncorrectable_blocks (bnxt_en)", "blocks that FEC could not repair"),
    _net_error(1752, "nic.continuous_pause_events", "continuous_pause_events (bnxt_en)", "times the port was paused continuously"),
    _net_error(1753, "nic.local_faults_events", "mac_local_faults.nic (ice)", "faults of the link in this direction"),
    _net_error(1754, "nic.remote_faults_events", "mac_remote_faults.nic (ice)", "faults of the link that the far end reported"),
    _net_error(1755, "nic.bandwidth_in_exceeded_packets", "bw_in_allowance_exceeded (ena)", "shaped: more arrived than the instance's limit"),
    _net_error(1756, "nic.bandwidth_out_exceeded_packets", "bw_out_allowance_exceeded (ena)", "shaped: more was sent than the instance's limit"),
    _net_error(1757, "nic.packet_rate_exceeded_packets", "pps_allowance_exceeded (ena)", "shaped: too many packets a second"),
    _net_error(1758, "nic.connections_exceeded_packets", "conntrack_allowance_exceeded (ena)", "dropped: too many connections"),
    _net_error(1759, "nic.transmit_timeouts_events", "tx_timeout (ena)", "the transmit queue stalled"),
    *(signal for priority in range(8) for signal in _pause(priority)),
)


def _error(signal_id: int, name: str, source: str, tells: str, width_bits: int = 64, *, slow: bool = False, sticks: bool = True) -> Signal:
    return Signal(signal_id, name, Kind.COUNTER, Pace.TEN_SECONDS if slow else Pace.SECOND, source, tells, width_bits, sticks=sticks and width_bits < 64, on_change=True)


def _queue(signal_id: int, name: str, file: str, tells: str, *, slow: bool = True) -> Signal:
    return _error(signal_id, name, f"hw_counters/{file}", tells, 32, slow=slow, sticks=False)


def _slow(signal_id: int, name: str, file: str, tells: str, width_bits: int = 64) -> Signal:
    return _error(signal_id, name, file, tells, width_bits, slow=True)


def _traffic(signal_id: int, name: str, file: str, tells: str, width_bits: int = 64) -> Signal:
    """Return a counter that rises whenever the port works, so that it is sent each time."""
    return Signal(signal_id, name, Kind.COUNTER, Pace.TEN_SECONDS, file, tells, width_bits)


RDMA_SIGNALS = (
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
    _error(612, "rdma.symbol_errors", "counters/symbol_error", "bad symbols: points to a cable or a module", 16),
    _error(613, "rdma.receive_errors", "counters/port_rcv_errors", "packets received broken", 16),
    _error(614, "rdma.transmit_discards_packets", "counters/port_xmit_discards", "packets dropped at the port", 16),
    _error(615, "rdma.receive_remote_physical_errors", "counters/port_rcv_remote_physical_errors", "packets that the far end marked as bad", 16, slow=True),
    _error(616, "rdma.local_link_integrity_errors", "counters/local_link_integrity_errors", "the link integrity threshold was exceeded", 4, slow=True),
    _error(617, "rdma.buffer_overrun_errors", "counters/excessive_buffer_overrun_errors", "overruns of the receive buffer", 4, slow=True),
    _queue(620, "rdma.ack_timeout_errors", "local_ack_timeout_err", "missing acknowledgements, followed by a retransmission", slow=False),
    _queue(621, "rdma.packet_sequence_errors", "packet_seq_err", "the far end asked for a resend", slow=False),
    _queue(622, "rdma.out_of_sequence_packets", "out_of_sequence", "packets out of order on arrival", slow=False),
    _queue(623, "rdma.receiver_not_ready_errors", "rnr_nak_retry_err", "the receiver had no buffer", slow=False),
    _queue(624, "rdma.implied_nak_errors", "implied_nak_seq_err", "gaps in acknowledgements, followed by a retransmission", slow=False),
    _queue(625, "rdma.adaptive_retransmissions_packets", "roce_adp_retrans", "RoCE adaptive retransmissions", slow=False),
    _queue(626, "rdma.slow_restarts_events", "roce_slow_restart", "RoCE slow restarts", slow=False),
    _queue(627, "rdma.out_of_buffer_packets", "out_of_buffer", "packets without a posted receive buffer"),
    _queue(628, "rdma.request_completion_errors", "req_cqe_error", "requests that ended in error"),
    _error(629, "rdma.congestion_notifications_sent_packets", "hw_counters/np_cnp_sent", "notifications sent that ask a sender to slow down"),
    _error(630, "rdma.congestion_notifications_handled_packets", "hw_counters/rp_cnp_handled", "notifications received that ask this port to slow down"),
    _error(631, "rdma.congestion_marked_packets", "hw_counters/np_ecn_marked_roce_packets", "packets a switch marked"),
    Signal(1600, "rdma.counter_epoch_count", Kind.STATE, Pace.SECOND, "inode of class/infiniband/*/ports/N", "increases if another port has the same name: its counters restarted"),
    Signal(1629, "rdma.unnamed_counters_count", Kind.GAUGE, Pace.TEN_SECONDS, "files in counters/ and hw_counters/", "counters of this port without a signal; the inventory names them"),
    _slow(1601, "rdma.vl15_dropped_packets", "counters/VL15_dropped", "management packets lost because there was no buffer", 16),
    _slow(1602, "rdma.receive_switch_relay_errors", "counters/port_rcv_switch_relay_errors", "packets that a switch could not forward", 16),
    _slow(1603, "rdma.transmit_constraint_errors", "counters/port_xmit_constraint_errors", "packets not sent: partition or raw filter", 8),
    _slow(1604, "rdma.receive_constraint_errors", "counters/port_rcv_constraint_errors", "packets not accepted: partition or raw filter", 8),
    _traffic(1605, "rdma.unicast_received_packets", "counters/unicast_rcv_packets", "unicast packets received"),
    _traffic(1606, "rdma.unicast_transmitted_packets", "counters/unicast_xmit_packets", "unicast packets sent"),
    _traffic(1607, "rdma.multicast_received_packets", "counters/multicast_rcv_packets", "multicast packets received"),
    _traffic(1608, "rdma.multicast_transmitted_packets", "counters/multicast_xmit_packets", "multicast packets sent"),
    _traffic(1610, "rdma.received_writes_operations", "hw_counters/rx_write_requests", "RDMA writes that arrived", 32),
    _traffic(1611, "rdma.received_reads_operations", "hw_counters/rx_read_requests", "RDMA reads that arrived", 32),
    _traffic(1612, "rdma.received_atomics_operations", "hw_counters/rx_atomic_requests", "RDMA atomics that arrived", 32),
    _traffic(1613, "rdma.received_connects_operations", "hw_counters/rx_dct_connect", "requested connections (DCT)", 32),
    _queue(1614, "rdma.duplicate_requests_packets", "duplicate_request", "duplicate requests: the far end sent them again"),
    _queue(1615, "rdma.responder_length_errors", "resp_local_length_error", "as responder: wrong length"),
    _queue(1616, "rdma.responder_completion_errors", "resp_cqe_error", "as responder: completions in error"),
    _queue(1617, "rdma.responder_access_errors", "resp_remote_access_errors", "as responder: access refused"),
    _queue(1618, "rdma.responder_flushed_errors", "resp_cqe_flush_error", "as responder: completions flushed, usually after another error"),
    _queue(1619, "rdma.requester_invalid_request_errors", "req_remote_invalid_request", "as requester: the far end found the request invalid"),
    _queue(1620, "rdma.requester_access_errors", "req_remote_access_errors", "as requester: the far end refused access"),
    _queue(1621, "rdma.requester_flushed_errors", "req_cqe_flush_error", "as requester: completions flushed, usually after another error"),
    _queue(1622, "rdma.transport_retries_exceeded_events", "req_transport_retries_exceeded", "retries were exhausted, and the connection was lost"),
    _queue(1623, "rdma.receiver_not_ready_retries_exceeded_events", "req_rnr_retries_exceeded", "retries at a receiver without buffers were exhausted"),
    _queue(1624, "rdma.adaptive_retransmission_timeouts_events", "roce_adp_retrans_to", "RoCE adaptive retransmission timeouts"),
    _queue(1625, "rdma.slow_restart_notifications_packets", "roce_slow_restart_cnps", "RoCE slow restart: notifications made"),
    _queue(1626, "rdma.slow_restart_transitions_events", "roce_slow_restart_trans", "RoCE slow restart: times its state changed"),
    _slow(1627, "rdma.receive_icrc_errors", "hw_counters/rx_icrc_encapsulated", "RoCE packets with a bad checksum"),
    _slow(1628, "rdma.congestion_notifications_ignored_packets", "hw_counters/rp_cnp_ignored", "notifications that ask to slow down, and were ignored"),
    _slow(1630, "rdma.receive_dropped_packets", "hw_counters/rx_drops (efa), rx_roce_discards (bnxt_re)", "packets dropped on arrival"),
    _slow(1631, "rdma.receive_roce_errors", "hw_counters/rx_roce_errors (bnxt_re)", "RoCE packets received broken"),
    _slow(1632, "rdma.recoverable_errors", "hw_counters/recoverable_errors (bnxt_re)", "errors the adapter recovered from"),
    _slow(1633, "rdma.unrecoverable_errors", "hw_counters/unrecoverable_err (bnxt_re)", "errors the adapter did not recover from"),
    _slow(1634, "rdma.bad_response_errors", "hw_counters/bad_resp_err (bnxt_re)", "invalid responses"),
    _slow(1635, "rdma.local_operation_errors", "hw_counters/local_qp_op_err (bnxt_re)", "operations that failed here"),
    _slow(1636, "rdma.local_protection_errors", "hw_counters/local_protection_err (bnxt_re)", "local memory protection errors"),
    _slow(1637, "rdma.memory_management_errors", "hw_counters/mem_mgmt_op_err (bnxt_re)", "failed bind and invalidate operations"),
    _slow(1638, "rdma.remote_operation_errors", "hw_counters/remote_op_err (bnxt_re)", "operations that failed at the far end"),
    _slow(1639, "rdma.protocol_errors", "hw_counters/InProtoErrors (irdma)", "segments that violate the protocol"),
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
    _slow(1674, "rdma.unresponsive_remote_events", "hw_counters/unresponsive_remote_events (efa)", "a far end did not respond"),
    _slow(1675, "rdma.impaired_connections_events", "hw_counters/impaired_remote_conn_events (efa)", "a connection was slowed down as impaired"),
    _slow(1680, "rdma.command_errors", "hw_counters/cmds_err (efa)", "commands to the device that failed"),
    _slow(1681, "rdma.unanswered_commands_count", "hw_counters/no_completion_cmds (efa)", "commands to the device that it never answered"),
    _slow(1682, "rdma.domain_allocation_errors", "hw_counters/alloc_pd_err (efa)", "protection domains that could not be allocated"),
    _slow(1683, "rdma.queue_pair_creation_errors", "hw_counters/create_qp_err (efa)", "queue pairs that could not be created"),
    _slow(1684, "rdma.completion_queue_creation_errors", "hw_counters/create_cq_err (efa)", "completion queues that could not be created"),
    _slow(1685, "rdma.memory_registration_errors", "hw_counters/reg_mr_err (efa)", "memory that could not be registered"),
    _slow(1686, "rdma.context_allocation_errors", "hw_counters/alloc_ucontext_err (efa)", "user contexts that could not be allocated"),
    _slow(1687, "rdma.address_creation_errors", "hw_counters/create_ah_err (efa)", "address handles that could not be created"),
    _slow(1688, "rdma.mapping_errors", "hw_counters/mmap_err (efa)", "mappings that failed"),
    _traffic(1676, "rdma.read_bytes", "hw_counters/rdma_read_bytes (efa)", "bytes read from far ends"),
    _traffic(1677, "rdma.written_bytes", "hw_counters/rdma_write_bytes (efa)", "bytes written to far ends"),
    _traffic(1678, "rdma.sent_messages_bytes", "hw_counters/send_bytes (efa)", "bytes of messages sent"),
    _traffic(1679, "rdma.received_messages_bytes", "hw_counters/recv_bytes (efa)", "bytes of messages received"),
    _slow(2340, "rdma.link_crc_errors", "hw_counters/DcTotCrc (hfi1)", "link packets with a bad checksum; a replay repairs them"),
    _slow(2341, "rdma.link_transmit_replays_count", "hw_counters/DcTxReplay (hfi1)", "times the link sent packets again"),
    _slow(2342, "rdma.link_receive_replays_count", "hw_counters/DcRxReplay (hfi1)", "times the link asked for packets again"),
)
