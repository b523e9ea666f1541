"""Network interfaces with a device of their own, and bonds. Device: the interface's name.

`net` is what the kernel keeps (sysfs), `nic` the driver's own statistics (one ioctl a turn), `link` what
ethtool netlink says of the wire, `bond` a bond and its slaves, `rtnetlink` the listener for changes.
Not here: FEC and BER of InfiniBand, which neither sysfs nor ethtool shows.
"""

from .signal import Kind, Pace, Signal


def _error(signal_id: int, name: str, source: str, tells: str, width_bits: int = 64) -> Signal:
    return Signal(signal_id, name, Kind.COUNTER, Pace.TEN_SECONDS, source, tells, width_bits, on_change=True)


def _link(signal_id: int, name: str, kind: Kind, source: str, tells: str) -> Signal:
    return Signal(signal_id, f"link.{name}", kind, Pace.TEN_SECONDS, source, tells)


def _pause(priority: int) -> tuple[Signal, ...]:
    """PFC pauses of one priority; their ids are 1760 to 1799, eight of a kind."""
    name, mlx5 = f"nic.priority_{priority}", f"prio{priority}_pause"
    return (
        _error(1760 + priority, f"{name}_received_pause_frames", f"rx_{mlx5}", "told to hold this priority back"),
        _error(1768 + priority, f"{name}_transmitted_pause_frames", f"tx_{mlx5}", "told the switch to hold this priority back: this host does not keep up"),
        _error(1776 + priority, f"{name}_received_pause_microseconds", f"rx_{mlx5}_duration", "time held back"),
        _error(1784 + priority, f"{name}_transmitted_pause_microseconds", f"tx_{mlx5}_duration", "time it held the switch back"),
        _error(1792 + priority, f"{name}_received_pause_transitions_events", f"rx_{mlx5}_transition", "times it went from running to paused"),
    )


SIGNALS = (
    Signal(500, "net.carrier_state", Kind.STATE, Pace.SECOND, "class/net/*/carrier (no-data when down)", "1 with a link"),
    Signal(501, "net.carrier_changes_count", Kind.COUNTER, Pace.SECOND, "class/net/*/carrier_changes", "times the link came or went", width_bits=32, on_change=True),
    Signal(502, "net.speed_bytes_per_second", Kind.GAUGE, Pace.TEN_SECONDS, "class/net/*/speed (Mbit/s; no-data when -1)", "agreed rate"),
    Signal(503, "net.received_bytes", Kind.COUNTER, Pace.SECOND, "statistics/rx_bytes", "bytes received"),
    Signal(504, "net.transmitted_bytes", Kind.COUNTER, Pace.SECOND, "statistics/tx_bytes", "bytes sent"),
    Signal(505, "net.received_packets", Kind.COUNTER, Pace.SECOND, "statistics/rx_packets", "packets received"),
    Signal(506, "net.transmitted_packets", Kind.COUNTER, Pace.SECOND, "statistics/tx_packets", "packets sent"),
    Signal(507, "net.receive_errors", Kind.COUNTER, Pace.SECOND, "statistics/rx_errors", "packets received broken", on_change=True),
    Signal(508, "net.transmit_errors", Kind.COUNTER, Pace.SECOND, "statistics/tx_errors", "packets that could not be sent", on_change=True),
    Signal(509, "net.receive_dropped_packets", Kind.COUNTER, Pace.SECOND, "statistics/rx_dropped", "packets thrown away on arrival", on_change=True),
    Signal(510, "net.receive_crc_errors", Kind.COUNTER, Pace.SECOND, "statistics/rx_crc_errors", "bad checksum: a cable or a module", on_change=True),
    Signal(511, "net.mtu_bytes", Kind.GAUGE, Pace.TEN_SECONDS, "class/net/*/mtu", "largest packet; one odd MTU in a fabric costs everyone"),
    Signal(1609, "net.link", Kind.EVENT, Pace.EVENT, "rtnetlink RTM_NEWLINK, RTM_DELLINK", "code 0: the link went, 1: it came, 2: the interface was removed, 3: it appeared"),
    Signal(1700, "net.counter_epoch_count", Kind.STATE, Pace.SECOND, "class/net/*/ifindex", "another number is another interface by the same name: its counters began anew"),
    Signal(1701, "net.carrier_up_events", Kind.COUNTER, Pace.SECOND, "class/net/*/carrier_up_count", "times the link came", width_bits=32, on_change=True),
    Signal(1702, "net.carrier_down_events", Kind.COUNTER, Pace.SECOND, "class/net/*/carrier_down_count", "times the link went", width_bits=32, on_change=True),
    Signal(1703, "net.operational_state", Kind.STATE, Pace.SECOND, "class/net/*/operstate (RFC 2863)", "0 unknown, 1 not present, 2 down, 3 lower layer down, 4 testing, 5 dormant, 6 up"),
    Signal(1704, "net.transmit_dropped_packets", Kind.COUNTER, Pace.SECOND, "statistics/tx_dropped", "packets thrown away before they were sent", on_change=True),
    Signal(1705, "net.receive_missed_errors", Kind.COUNTER, Pace.SECOND, "statistics/rx_missed_errors", "packets lost for want of receive buffers", on_change=True),
    Signal(1706, "net.receive_overrun_errors", Kind.COUNTER, Pace.SECOND, "statistics/rx_fifo_errors", "packets lost inside the adapter", on_change=True),
    Signal(1707, "net.transmit_carrier_errors", Kind.COUNTER, Pace.SECOND, "statistics/tx_carrier_errors", "packets lost because the link went", on_change=True),
    Signal(1710, "bond.slaves_count", Kind.GAUGE, Pace.TEN_SECONDS, "class/net/*/bonding/slaves", "interfaces in the bond"),
    Signal(1711, "bond.slaves_up_count", Kind.GAUGE, Pace.TEN_SECONDS, "class/net/*/bonding_slave/mii_status", "those of them that are up"),
    Signal(1712, "bond.link_state", Kind.STATE, Pace.TEN_SECONDS, "class/net/*/bonding/mii_status", "1 while the bond carries traffic"),
    Signal(1713, "bond.active_slave_number", Kind.STATE, Pace.TEN_SECONDS, "bonding/active_slave, its ifindex", "the slave in use; no-data where all are (802.3ad)"),
    Signal(1714, "bond.slave_failures_events", Kind.COUNTER, Pace.TEN_SECONDS, "bonding_slave/link_failure_count of all slaves", "times a slave was given up", width_bits=32),
    Signal(1720, "rtnetlink.messages_count", Kind.COUNTER, Pace.TEN_SECONDS, "AF_NETLINK, RTMGRP_LINK", "messages read"),
    Signal(1721, "rtnetlink.overruns_events", Kind.COUNTER, Pace.TEN_SECONDS, "ENOBUFS", "times messages were lost; all links were asked for again"),
    Signal(1722, "rtnetlink.transitions_events", Kind.COUNTER, Pace.TEN_SECONDS, "RTM_NEWLINK, RTM_DELLINK", "changes of link state that were seen, of all interfaces"),
    Signal(1723, "rtnetlink.withheld_events", Kind.COUNTER, Pace.TEN_SECONDS, "token bucket", "changes that were not told as events of their own but in the count of a later one"),
    Signal(1724, "rtnetlink.interfaces_count", Kind.GAUGE, Pace.TEN_SECONDS, "RTM_GETLINK", "interfaces watched"),
    Signal(1725, "rtnetlink.malformed_count", Kind.COUNTER, Pace.TEN_SECONDS, "RTM_NEWLINK", "messages that could not be read"),
    _link(1730, "detected_state", Kind.STATE, "LINKSTATE_GET LINK", "1 with a link"),
    _link(1731, "signal_quality_number", Kind.GAUGE, "LINKSTATE_GET SQI", "signal quality index"),
    _link(1732, "signal_quality_max_number", Kind.GAUGE, "LINKSTATE_GET SQI_MAX", "the best index there is"),
    _link(1733, "down_reason_code", Kind.STATE, "LINKSTATE_GET EXT_STATE (enum ethtool_link_ext_state)", "why there is no link: 3 bad signal, 4 no cable, 5 cable issue, 9 overheat, 10 module"),
    _link(1734, "down_detail_code", Kind.STATE, "LINKSTATE_GET EXT_SUBSTATE", "the same more exactly; its meaning depends on the reason"),
    _error(1735, "link.external_down_events", "LINKSTATE_GET EXT_DOWN_CNT", "times the wire lost the link, apart from what the host did", 32),
    _link(1736, "speed_bytes_per_second", Kind.GAUGE, "LINKMODES_GET SPEED", "agreed rate"),
    _link(1737, "width_lanes", Kind.GAUGE, "LINKMODES_GET LANES", "lanes in use"),
    _link(1738, "duplex_state", Kind.STATE, "LINKMODES_GET DUPLEX", "0 half, 1 full"),
    _link(1739, "autonegotiation_state", Kind.STATE, "LINKMODES_GET AUTONEG", "1 when on"),
    _link(1740, "fec_active_code", Kind.STATE, "FEC_GET ACTIVE (a link mode's bit)", "49 none, 50 Reed-Solomon, 51 Base-R, 74 low-latency Reed-Solomon"),
    _link(1741, "fec_automatic_state", Kind.STATE, "FEC_GET AUTO", "1 when the driver chooses"),
    _error(1742, "link.fec_corrected_count", "FEC_GET STATS CORRECTED", "blocks that FEC repaired: the margin of the wire"),
    _error(1743, "link.fec_uncorrectable_errors", "FEC_GET STATS UNCORR", "blocks that FEC could not repair: packets were lost"),
    _error(1744, "link.fec_corrected_bits_count", "FEC_GET STATS CORR_BITS", "bits that FEC repaired"),
    _link(1745, "pause_autonegotiation_state", Kind.STATE, "PAUSE_GET AUTONEG", "1 when agreed with the far end"),
    _link(1746, "pause_receive_state", Kind.STATE, "PAUSE_GET RX", "1 when it obeys pauses"),
    _link(1747, "pause_transmit_state", Kind.STATE, "PAUSE_GET TX", "1 when it sends pauses"),
    _error(1748, "link.received_pause_frames", "PAUSE_GET STATS RX_FRAMES", "told to stop, all priorities"),
    _error(1749, "link.transmitted_pause_frames", "PAUSE_GET STATS TX_FRAMES", "told the switch to stop, all priorities"),
    Signal(1689, "nic.statistics_count", Kind.GAUGE, Pace.TEN_SECONDS, "ETHTOOL_GSSET_INFO", "statistics that the driver has; most stand for no signal"),
    Signal(1750, "nic.counter_epoch_count", Kind.STATE, Pace.TEN_SECONDS, "class/net/*/ifindex", "another number is another interface by the same name: its counters began anew"),
    Signal(1664, "link.counter_epoch_count", Kind.STATE, Pace.TEN_SECONDS, "class/net/*/ifindex", "another number is another interface by the same name: its counters began anew"),
    _error(1665, "nic.receive_discards_packets", "rx_discards_phy", "packets the port threw away for want of buffers"),
    _error(1666, "nic.transmit_discards_packets", "tx_discards_phy", "packets it did not send: no link, or timed out"),
    _error(1667, "nic.out_of_buffer_packets", "rx_out_of_buffer", "packets lost because the host gave no buffers"),
    _error(1668, "nic.steering_missed_packets", "rx_steer_missed_packets", "packets no rule wanted"),
    _error(1669, "nic.receive_crc_errors", "rx_crc_errors_phy", "bad checksum: a cable or a module"),
    _error(1692, "nic.symbol_errors", "rx_symbol_err_phy", "bad symbols on the wire"),
    _error(1693, "nic.pcs_symbol_errors", "rx_pcs_symbol_err_phy", "blocks that FEC could not repair, or symbols without FEC"),
    _error(1694, "nic.corrected_bits_count", "rx_corrected_bits_phy", "bits that FEC repaired"),
    _error(1695, "nic.link_down_events", "link_down_events_phy", "times the link went, told by the port"),
    _error(1696, "nic.transmit_errors", "tx_errors_phy", "packets broken on their way out"),
    _error(1697, "nic.module_unplugged_events", "module_unplug", "module taken out"),
    _error(1698, "nic.module_bus_stuck_events", "module_bus_stuck", "module did not answer on its bus"),
    _error(1699, "nic.module_overheated_events", "module_high_temp", "module too hot"),
    _error(1708, "nic.module_shorted_events", "module_bad_shorted", "module or cable shorted"),
    _error(1709, "nic.congestion_marked_packets", "rx_ecn_mark", "packets a switch marked"),
    _error(1715, "nic.pause_storm_warnings_events", "tx_pause_storm_warning_events", "it held the switch back for long"),
    _error(1716, "nic.pause_storm_errors_events", "tx_pause_storm_error_events", "it held the switch back for so long that pauses were switched off"),
    _error(1717, "nic.pcie_receive_errors", "rx_pci_signal_integrity", "PCIe link retrained after errors received here"),
    _error(1718, "nic.pcie_transmit_errors", "tx_pci_signal_integrity", "PCIe link retrained by the far side"),
    _error(1719, "nic.pcie_stalled_reads_seconds", "outbound_pci_stalled_rd_events", "seconds in which reads waited for PCIe credit over 30 % of the time"),
    _error(1726, "nic.pcie_stalled_writes_seconds", "outbound_pci_stalled_wr_events", "seconds in which writes waited for PCIe credit over 30 % of the time"),
    _error(1727, "nic.pcie_overflow_packets", "outbound_pci_buffer_overflow", "packets lost because PCIe was too slow"),
    _error(1728, "nic.buffer_threshold_events", "rx_buffer_passed_thres_phy", "times its receive buffer was 85 % full"),
    _error(1729, "nic.fec_corrected_count", "rx_fec_corrected_blocks (bnxt_en)", "blocks that FEC repaired"),
    _error(1751, "nic.fec_uncorrectable_errors", "rx_fec_uncorrectable_blocks (bnxt_en)", "blocks that FEC could not repair"),
    _error(1752, "nic.continuous_pause_events", "continuous_pause_events (bnxt_en)", "times it was held back without a break"),
    _error(1753, "nic.local_faults_events", "mac_local_faults.nic (ice)", "the wire failed towards this end"),
    _error(1754, "nic.remote_faults_events", "mac_remote_faults.nic (ice)", "the far end said that the wire failed towards it"),
    _error(1755, "nic.bandwidth_in_exceeded_packets", "bw_in_allowance_exceeded (ena)", "shaped: more arrived than the instance may have"),
    _error(1756, "nic.bandwidth_out_exceeded_packets", "bw_out_allowance_exceeded (ena)", "shaped: more was sent than the instance may"),
    _error(1757, "nic.packet_rate_exceeded_packets", "pps_allowance_exceeded (ena)", "shaped: too many packets a second"),
    _error(1758, "nic.connections_exceeded_packets", "conntrack_allowance_exceeded (ena)", "dropped: too many connections"),
    _error(1759, "nic.transmit_timeouts_events", "tx_timeout (ena)", "the transmit queue stood still"),
    *(signal for priority in range(8) for signal in _pause(priority)),
)
