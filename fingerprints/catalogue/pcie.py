"""PCIe functions: GPUs, NICs, NVMe, and every bridge between them and the root. Device: PCI address.

AER counters exist per function; links fall to a lower speed when idle: judge them under load only.
"""

from .signal import Kind, Pace, Signal

SIGNALS = (
    Signal(300, "pcie.link_speed_transfers_per_second", Kind.GAUGE, Pace.TEN_SECONDS, "current_link_speed", "what the link runs at now"),
    Signal(301, "pcie.link_speed_max_transfers_per_second", Kind.GAUGE, Pace.TEN_SECONDS, "max_link_speed", "what the link could run at"),
    Signal(302, "pcie.link_width_lanes", Kind.GAUGE, Pace.TEN_SECONDS, "current_link_width", "lanes in use"),
    Signal(303, "pcie.link_width_max_lanes", Kind.GAUGE, Pace.TEN_SECONDS, "max_link_width", "lanes there could be"),
    Signal(304, "pcie.numa_node_number", Kind.GAUGE, Pace.TEN_SECONDS, "numa_node (no-data when -1)", "which NUMA node it hangs from"),
    Signal(305, "pcie.class_code", Kind.STATE, Pace.TEN_SECONDS, "class", "PCI class code"),
    Signal(310, "pcie.aer_correctable_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_dev_correctable TOTAL_ERR_COR", "link errors that were repaired", on_change=True),
    Signal(311, "pcie.aer_nonfatal_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_dev_nonfatal TOTAL_ERR_NONFATAL", "lost transactions", on_change=True),
    Signal(312, "pcie.aer_fatal_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_dev_fatal TOTAL_ERR_FATAL", "the link failed", on_change=True),
    Signal(313, "pcie.aer_receiver_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_dev_correctable RxErr", "bad symbols at the receiver", on_change=True),
    Signal(314, "pcie.aer_replay_timer_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_dev_correctable Timeout", "replay timer ran out", on_change=True),
    Signal(315, "pcie.aer_replay_rollover_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_dev_correctable Rollover", "a packet was replayed four times", on_change=True),
    Signal(316, "pcie.aer_bad_tlp_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_dev_correctable BadTLP", "packets with a bad checksum", on_change=True),
    Signal(317, "pcie.aer_bad_dllp_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_dev_correctable BadDLLP", "link packets with a bad checksum", on_change=True),
)
