"""Which counters are followed from reading to reading, in memory: those that a rule reads, and no others.

To follow one costs three times the memory of its latest value, and most of the time of a judgement; all
of them are in the store. A test holds this list and the rules equal.
"""

from __future__ import annotations

COUNTED = frozenset(
    {
        "agent.spool_dropped_frames",
        "c2c.replay_errors",
        "edac.corrected_errors",
        "edac.uncorrected_errors",
        "gpu.ecc_corrected_volatile_errors",
        "gpu.ecc_uncorrected_volatile_errors",
        "gpu.pcie_fatal_errors",
        "gpu.pcie_naks_received_count",
        "gpu.pcie_replay_rollovers_count",
        "gpu.pcie_replays_count",
        "gpu.violation_power_nanoseconds",
        "gpu.violation_thermal_nanoseconds",
        "link.fec_uncorrectable_errors",
        "net.carrier_changes_count",
        "nic.module_overheated_events",
        "nic.pause_storm_errors_events",
        *(f"nic.priority_{priority}_transmitted_pause_frames" for priority in range(8)),
        "nvlink.crc_errors",
        "nvlink.link_recovery_events",
        "nvlink.link_recovery_failed_events",
        "nvlink.recovery_errors",
        "nvlink.replay_errors",
        "nvme.media_errors",
        "pcie.aer_correctable_errors",
        "pcie.aer_fatal_errors",
        "pcie.aer_nonfatal_errors",
        "rdma.ack_timeout_errors",
        "rdma.adaptive_retransmissions_packets",
        "rdma.congestion_notifications_handled_packets",
        "rdma.implied_nak_errors",
        "rdma.link_downed_events",
        "rdma.out_of_sequence_packets",
        "rdma.packet_sequence_errors",
        "rdma.received_bytes",
        "rdma.symbol_errors",
        "rdma.transmit_wait_count",
        "rdma.transmitted_bytes",
    }
)
