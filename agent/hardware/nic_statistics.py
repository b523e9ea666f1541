"""Signals of the statistics that network drivers count by themselves: mlx5, bnxt, ice, ena.

Statistics of NIC drivers and their signals. Names:
drivers/net/ethernet/mellanox/mlx5/core/en_stats.c (and
Documentation/networking/device_drivers/ethernet/mellanox/mlx5/counters.rst),
broadcom/bnxt/bnxt_ethtool.c, intel/ice/ice_ethtool.c, amazon/ena/ena_ethtool.c.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

_PRIORITIES = range(8)

_ENA: dict[bytes, str] = {
    b"bw_in_allowance_exceeded": "nic.bandwidth_in_exceeded_packets",
    b"bw_out_allowance_exceeded": "nic.bandwidth_out_exceeded_packets",
    b"pps_allowance_exceeded": "nic.packet_rate_exceeded_packets",
    b"conntrack_allowance_exceeded": "nic.connections_exceeded_packets",
    b"tx_timeout": "nic.transmit_timeouts_events",
}


def _by_priority(forms: Mapping[str, str]) -> dict[bytes, str]:
    """Return name -> signal per priority, from forms with `{}` in both."""
    return {
        name.format(p).encode(): f"nic.priority_{signal.format(p)}"
        for name, signal in forms.items()
        for p in _PRIORITIES
    }


_MLX5: dict[bytes, str] = {
    b"rx_discards_phy": "nic.receive_discards_packets",
    b"tx_discards_phy": "nic.transmit_discards_packets",
    b"rx_out_of_buffer": "nic.out_of_buffer_packets",
    b"rx_steer_missed_packets": "nic.steering_missed_packets",
    b"rx_crc_errors_phy": "nic.receive_crc_errors",
    b"rx_symbol_err_phy": "nic.symbol_errors",
    b"rx_pcs_symbol_err_phy": "nic.pcs_symbol_errors",
    b"rx_corrected_bits_phy": "nic.corrected_bits_count",
    b"link_down_events_phy": "nic.link_down_events",
    b"tx_errors_phy": "nic.transmit_errors",
    b"module_unplug": "nic.module_unplugged_events",
    b"module_bus_stuck": "nic.module_bus_stuck_events",
    b"module_high_temp": "nic.module_overheated_events",
    b"module_bad_shorted": "nic.module_shorted_events",
    b"rx_ecn_mark": "nic.congestion_marked_packets",
    b"tx_pause_storm_warning_events": "nic.pause_storm_warnings_events",
    b"tx_pause_storm_error_events": "nic.pause_storm_errors_events",
    b"rx_pci_signal_integrity": "nic.pcie_receive_errors",
    b"tx_pci_signal_integrity": "nic.pcie_transmit_errors",
    b"outbound_pci_stalled_rd_events": "nic.pcie_stalled_reads_seconds",
    b"outbound_pci_stalled_wr_events": "nic.pcie_stalled_writes_seconds",
    b"outbound_pci_buffer_overflow": "nic.pcie_overflow_packets",
    b"rx_buffer_passed_thres_phy": "nic.buffer_threshold_events",
    **_by_priority(
        {
            "rx_prio{}_pause": "{}_received_pause_frames",
            "tx_prio{}_pause": "{}_transmitted_pause_frames",
            "rx_prio{}_pause_duration": "{}_received_pause_microseconds",
            "tx_prio{}_pause_duration": "{}_transmitted_pause_microseconds",
            "rx_prio{}_pause_transition": "{}_received_pause_transitions_events",
        }
    ),
}
_BNXT: dict[bytes, str] = {
    b"rx_fcs_err_frames": "nic.receive_crc_errors",
    b"rx_pcs_symbol_err": "nic.pcs_symbol_errors",
    b"rx_total_discard_pkts": "nic.receive_discards_packets",
    b"tx_total_discard_pkts": "nic.transmit_discards_packets",
    b"rx_fec_corrected_blocks": "nic.fec_corrected_count",
    b"rx_fec_uncorrectable_blocks": "nic.fec_uncorrectable_errors",
    b"rx_corrected_bits": "nic.corrected_bits_count",
    b"rx_buffer_passed_threshold": "nic.buffer_threshold_events",
    b"link_down_events": "nic.link_down_events",
    b"continuous_pause_events": "nic.continuous_pause_events",
    **_by_priority(
        {
            "rx_pfc_ena_frames_pri{}": "{}_received_pause_frames",
            "tx_pfc_ena_frames_pri{}": "{}_transmitted_pause_frames",
            "pfc_pri{}_rx_duration_us": "{}_received_pause_microseconds",
            "pfc_pri{}_tx_duration_us": "{}_transmitted_pause_microseconds",
            "pfc_pri{}_rx_transitions": "{}_received_pause_transitions_events",
        }
    ),
}
_ICE: dict[bytes, str] = {
    b"rx_dropped.nic": "nic.receive_discards_packets",
    b"tx_dropped_link_down.nic": "nic.transmit_discards_packets",
    b"tx_errors.nic": "nic.transmit_errors",
    b"rx_crc_errors.nic": "nic.receive_crc_errors",
    b"mac_local_faults.nic": "nic.local_faults_events",
    b"mac_remote_faults.nic": "nic.remote_faults_events",
    **_by_priority(
        {
            "rx_priority_{}_xoff.nic": "{}_received_pause_frames",
            "tx_priority_{}_xoff.nic": "{}_transmitted_pause_frames",
        }
    ),
}
#: Driver's name of ETHTOOL_GDRVINFO -> name of a statistic -> signal.
SIGNALS_OF: Mapping[bytes, Mapping[bytes, str]] = {
    b"mlx5_core": _MLX5,
    b"mlx5e_rep": _MLX5,
    b"bnxt_en": _BNXT,
    b"ice": _ICE,
    b"ena": _ENA,
}


def select_statistics(driver: bytes, names: Sequence[bytes]) -> dict[str, int]:
    """Return signal -> index of its statistic in *names*; empty for an unknown driver.

    A name that occurs twice is ambiguous and left out.
    """
    known = SIGNALS_OF.get(driver.partition(b" ")[0], {})
    occurrences = Counter(name for name in names if name in known)
    return {
        known[name]: position
        for position, name in enumerate(names)
        if name in known and occurrences[name] == 1
    }
