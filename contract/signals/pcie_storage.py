"""Signals of PCIe devices, drives and file systems."""

from ..signal import Kind, Pace, Signal

PCIE_TEXT = """PCIe functions: GPUs, NVSwitches, NICs, NVMe, and every bridge between them and the root. Device: PCI address.

AER counters exist per function. Idle links fall to a lower speed: judge them only under load.
"""

PCIE_SIGNALS = (
    Signal(300, "pcie.link_speed_transfers_per_second", Kind.GAUGE, Pace.TEN_SECONDS, "current_link_speed", "present speed of the link; an idle link may fall to a lower speed, so it is judged only while the device works"),
    Signal(301, "pcie.link_speed_max_transfers_per_second", Kind.GAUGE, Pace.TEN_SECONDS, "max_link_speed", "highest speed of the link"),
    Signal(302, "pcie.link_width_lanes", Kind.GAUGE, Pace.TEN_SECONDS, "current_link_width", "lanes in use; judged only while the device works"),
    Signal(303, "pcie.link_width_max_lanes", Kind.GAUGE, Pace.TEN_SECONDS, "max_link_width", "highest number of lanes"),
    Signal(304, "pcie.numa_node_number", Kind.GAUGE, Pace.TEN_SECONDS, "numa_node (no-data when -1)", "NUMA node of the device"),
    Signal(305, "pcie.class_code", Kind.STATE, Pace.TEN_SECONDS, "class", "PCI class code"),
    Signal(310, "pcie.aer_correctable_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_dev_correctable TOTAL_ERR_COR", "link errors that were repaired", on_change=True),
    Signal(311, "pcie.aer_nonfatal_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_dev_nonfatal TOTAL_ERR_NONFATAL", "lost transactions", on_change=True),
    Signal(312, "pcie.aer_fatal_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_dev_fatal TOTAL_ERR_FATAL", "the link failed", on_change=True),
    Signal(313, "pcie.aer_receiver_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_dev_correctable RxErr", "bad symbols at the receiver", on_change=True),
    Signal(314, "pcie.aer_replay_timer_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_dev_correctable Timeout", "replay timer expired", on_change=True),
    Signal(315, "pcie.aer_replay_rollover_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_dev_correctable Rollover", "a packet was replayed four times", on_change=True),
    Signal(316, "pcie.aer_bad_tlp_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_dev_correctable BadTLP", "packets with a bad checksum", on_change=True),
    Signal(317, "pcie.aer_bad_dllp_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_dev_correctable BadDLLP", "link packets with a bad checksum", on_change=True),
    Signal(1800, "pcie.aer_advisory_nonfatal_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_dev_correctable NonFatalErr", "an uncorrectable error that the device treats as advisory, by its own mask", on_change=True),
    Signal(1801, "pcie.aer_corrected_internal_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_dev_correctable CorrIntErr", "an error within the device that it corrected", on_change=True),
    Signal(1802, "pcie.aer_header_log_overflow_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_dev_correctable HeaderOF", "errors arrived faster than their headers could be logged", on_change=True),
    Signal(1803, "pcie.aer_nonfatal_undefined_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_dev_nonfatal Undefined", "an error of an unknown type", on_change=True),
    Signal(1804, "pcie.aer_nonfatal_data_link_protocol_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_dev_nonfatal DLP", "a link packet acknowledged what was never sent", on_change=True),
    Signal(1805, "pcie.aer_nonfatal_surprise_down_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_dev_nonfatal SDES", "the link went down unexpectedly", on_change=True),
    Signal(1806, "pcie.aer_nonfatal_poisoned_tlp_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_dev_nonfatal TLP", "a packet came whose sender had marked its data as bad", on_change=True),
    Signal(1807, "pcie.aer_nonfatal_flow_control_protocol_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_dev_nonfatal FCP", "flow control credits were inconsistent", on_change=True),
    Signal(1808, "pcie.aer_nonfatal_completion_timeout_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_dev_nonfatal CmpltTO", "a request was never completed: the usual sign of a hung device", on_change=True),
    Signal(1809, "pcie.aer_nonfatal_completer_abort_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_dev_nonfatal CmpltAbrt", "a request was answered with an abort", on_change=True),
    Signal(1810, "pcie.aer_nonfatal_unexpected_completion_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_dev_nonfatal UnxCmplt", "a completion arrived without a request", on_change=True),
    Signal(1811, "pcie.aer_nonfatal_receiver_overflow_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_dev_nonfatal RxOF", "more was sent than the receiver had room for", on_change=True),
    Signal(1812, "pcie.aer_nonfatal_malformed_tlp_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_dev_nonfatal MalfTLP", "a packet was malformed", on_change=True),
    Signal(1813, "pcie.aer_nonfatal_end_to_end_checksum_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_dev_nonfatal ECRC", "the end-to-end checksum was wrong", on_change=True),
    Signal(1814, "pcie.aer_nonfatal_unsupported_request_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_dev_nonfatal UnsupReq", "a request that the device does not know", on_change=True),
    Signal(1815, "pcie.aer_nonfatal_acs_violation_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_dev_nonfatal ACSViol", "access control (ACS) refused a packet", on_change=True),
    Signal(1816, "pcie.aer_nonfatal_internal_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_dev_nonfatal UncorrIntErr", "an error within the device that it could not correct", on_change=True),
    Signal(1817, "pcie.aer_nonfatal_blocked_tlp_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_dev_nonfatal BlockedTLP", "a multicast packet was blocked", on_change=True),
    Signal(1818, "pcie.aer_nonfatal_atomic_blocked_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_dev_nonfatal AtomicOpBlocked", "an atomic operation was blocked on its way out", on_change=True),
    Signal(1819, "pcie.aer_nonfatal_prefix_blocked_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_dev_nonfatal TLPBlockedErr", "a packet was blocked because of its prefix", on_change=True),
    Signal(1820, "pcie.aer_nonfatal_poisoned_tlp_blocked_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_dev_nonfatal PoisonTLPBlocked", "a poisoned packet was kept from leaving", on_change=True),
    Signal(1821, "pcie.aer_nonfatal_deferrable_write_blocked_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_dev_nonfatal DMWrReqBlocked", "a deferrable memory write was blocked on its way out", on_change=True),
    Signal(1822, "pcie.aer_nonfatal_encryption_check_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_dev_nonfatal IDECheck", "link encryption (IDE): a check failed", on_change=True),
    Signal(1823, "pcie.aer_nonfatal_encryption_misrouted_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_dev_nonfatal MisIDETLP", "link encryption (IDE): a packet on the wrong stream", on_change=True),
    Signal(1824, "pcie.aer_nonfatal_encryption_checksum_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_dev_nonfatal PCRC_CHECK", "link encryption (IDE): the plaintext checksum was wrong", on_change=True),
    Signal(1825, "pcie.aer_nonfatal_translation_blocked_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_dev_nonfatal TLPXlatBlocked", "a packet was blocked for its translated address", on_change=True),
    Signal(1826, "pcie.aer_fatal_undefined_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_dev_fatal Undefined", "an error of an unknown type", on_change=True),
    Signal(1827, "pcie.aer_fatal_data_link_protocol_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_dev_fatal DLP", "a link packet acknowledged what was never sent", on_change=True),
    Signal(1828, "pcie.aer_fatal_surprise_down_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_dev_fatal SDES", "the link went down unexpectedly", on_change=True),
    Signal(1829, "pcie.aer_fatal_poisoned_tlp_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_dev_fatal TLP", "a packet came whose sender had marked its data as bad", on_change=True),
    Signal(1830, "pcie.aer_fatal_flow_control_protocol_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_dev_fatal FCP", "flow control credits were inconsistent", on_change=True),
    Signal(1831, "pcie.aer_fatal_completion_timeout_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_dev_fatal CmpltTO", "a request was never completed: the usual sign of a hung device", on_change=True),
    Signal(1832, "pcie.aer_fatal_completer_abort_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_dev_fatal CmpltAbrt", "a request was answered with an abort", on_change=True),
    Signal(1833, "pcie.aer_fatal_unexpected_completion_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_dev_fatal UnxCmplt", "a completion arrived without a request", on_change=True),
    Signal(1834, "pcie.aer_fatal_receiver_overflow_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_dev_fatal RxOF", "more was sent than the receiver had room for", on_change=True),
    Signal(1835, "pcie.aer_fatal_malformed_tlp_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_dev_fatal MalfTLP", "a packet was malformed", on_change=True),
    Signal(1836, "pcie.aer_fatal_end_to_end_checksum_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_dev_fatal ECRC", "the end-to-end checksum was wrong", on_change=True),
    Signal(1837, "pcie.aer_fatal_unsupported_request_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_dev_fatal UnsupReq", "a request that the device does not know", on_change=True),
    Signal(1838, "pcie.aer_fatal_acs_violation_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_dev_fatal ACSViol", "access control (ACS) refused a packet", on_change=True),
    Signal(1839, "pcie.aer_fatal_internal_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_dev_fatal UncorrIntErr", "an error within the device that it could not correct", on_change=True),
    Signal(1840, "pcie.aer_fatal_blocked_tlp_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_dev_fatal BlockedTLP", "a multicast packet was blocked", on_change=True),
    Signal(1841, "pcie.aer_fatal_atomic_blocked_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_dev_fatal AtomicOpBlocked", "an atomic operation was blocked on its way out", on_change=True),
    Signal(1842, "pcie.aer_fatal_prefix_blocked_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_dev_fatal TLPBlockedErr", "a packet was blocked because of its prefix", on_change=True),
    Signal(1843, "pcie.aer_fatal_poisoned_tlp_blocked_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_dev_fatal PoisonTLPBlocked", "a poisoned packet was kept from leaving", on_change=True),
    Signal(1844, "pcie.aer_fatal_deferrable_write_blocked_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_dev_fatal DMWrReqBlocked", "a deferrable memory write was blocked on its way out", on_change=True),
    Signal(1845, "pcie.aer_fatal_encryption_check_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_dev_fatal IDECheck", "link encryption (IDE): a check failed", on_change=True),
    Signal(1846, "pcie.aer_fatal_encryption_misrouted_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_dev_fatal MisIDETLP", "link encryption (IDE): a packet on the wrong stream", on_change=True),
    Signal(1847, "pcie.aer_fatal_encryption_checksum_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_dev_fatal PCRC_CHECK", "link encryption (IDE): the plaintext checksum was wrong", on_change=True),
    Signal(1848, "pcie.aer_fatal_translation_blocked_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_dev_fatal TLPXlatBlocked", "a packet was blocked for its translated address", on_change=True),
    Signal(1849, "pcie.aer_root_port_correctable_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_rootport_total_err_cor", "messages of this kind that reached this root port, from all functions below it", on_change=True),
    Signal(1850, "pcie.aer_root_port_nonfatal_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_rootport_total_err_nonfatal", "the same for lost transactions", on_change=True),
    Signal(1851, "pcie.aer_root_port_fatal_errors", Kind.COUNTER, Pace.TEN_SECONDS, "aer_rootport_total_err_fatal", "the same for failed links", on_change=True),
    Signal(1856, "pcie.max_payload_bytes", Kind.GAUGE, Pace.MINUTE, "config: Device Control, Max_Payload_Size", "largest packet it may send; the smallest value on the path to the root applies"),
    Signal(1857, "pcie.max_payload_supported_bytes", Kind.GAUGE, Pace.MINUTE, "config: Device Capabilities, Max_Payload_Size Supported", "largest packet it could send"),
    Signal(1858, "pcie.max_read_request_bytes", Kind.GAUGE, Pace.MINUTE, "config: Device Control, Max_Read_Request_Size", "largest read it may ask for; a NIC at 512 instead of 4096 reads the GPU at a fraction of its speed"),
    Signal(1859, "pcie.relaxed_ordering_state", Kind.STATE, Pace.MINUTE, "config: Device Control, Enable Relaxed Ordering", "1: may let writes overtake each other; 0 costs throughput between NIC and GPU on some platforms"),
    Signal(1860, "pcie.aspm_flags", Kind.STATE, Pace.MINUTE, "link/l0s_aspm and link/l1_aspm, else config: Link Control", "link power states allowed: 1 L0s, 2 L1; each costs latency at the first packet after idling"),
    Signal(1861, "pcie.acs_flags", Kind.STATE, Pace.MINUTE, "config: ACS Control", "access control: 1 source validation, 2 translation blocking, 4 request redirect, 8 completion redirect, 16 upstream forwarding, 32 egress control, 64 direct translated; 4 or 8 on a bridge sends traffic between GPU and NIC through the root, at a fraction of its speed"),
    Signal(1862, "pcie.iommu_state", Kind.STATE, Pace.MINUTE, "iommu_group/type", "0 no IOMMU group, 1 identity (pass-through), 2 DMA (translated, flushed at once), 3 DMA-FQ (translated, flushed later), 4 given to a guest or to user space"),
    Signal(1863, "pcie.power_state", Kind.STATE, Pace.MINUTE, "power_state", "0 D0, 1 D1, 2 D2, 3 D3hot, 4 D3cold; settings of a sleeping device are not read"),
)

DISK_TEXT = """Block devices with their own backing (no loop, ram, zram or partitions), and mounted filesystems.

Layers above such devices (dm-multipath, LVM, md) are not counted again. NVMe with several paths shows the same traffic
twice, for the namespace (`nvme0n1`) and for each path (`nvme0c0n1`). Kernels before 6.4 count only on paths.
Device of `disk.*`: the kernel's name (`nvme0n1`). Device of `filesystem.*`: the mount point.
"""

DISK_SIGNALS = (
    Signal(400, "disk.reads_operations", Kind.COUNTER, Pace.SECOND, "/proc/diskstats field 1", "reads completed"),
    Signal(401, "disk.read_bytes", Kind.COUNTER, Pace.SECOND, "/proc/diskstats field 3 x 512", "bytes read"),
    Signal(402, "disk.read_milliseconds", Kind.COUNTER, Pace.SECOND, "/proc/diskstats field 4", "sum of the times of all reads", width_bits=32),
    Signal(403, "disk.writes_operations", Kind.COUNTER, Pace.SECOND, "/proc/diskstats field 5", "writes completed"),
    Signal(404, "disk.written_bytes", Kind.COUNTER, Pace.SECOND, "/proc/diskstats field 7 x 512", "bytes written"),
    Signal(405, "disk.write_milliseconds", Kind.COUNTER, Pace.SECOND, "/proc/diskstats field 8", "sum of the times of all writes", width_bits=32),
    Signal(406, "disk.inflight_count", Kind.GAUGE, Pace.SECOND, "/proc/diskstats field 9", "requests outstanding now"),
    Signal(407, "disk.busy_milliseconds", Kind.COUNTER, Pace.SECOND, "/proc/diskstats field 10", "time with at least one request outstanding", width_bits=32),
    Signal(2000, "disk.queue_milliseconds", Kind.COUNTER, Pace.SECOND, "/proc/diskstats field 11", "busy time weighted by the requests outstanding: its rate is the mean queue depth in thousandths", width_bits=32),
    Signal(2001, "disk.discards_operations", Kind.COUNTER, Pace.SECOND, "/proc/diskstats field 12", "discards (TRIM) completed; Linux 4.18 and later"),
    Signal(2002, "disk.discarded_bytes", Kind.COUNTER, Pace.SECOND, "/proc/diskstats field 14 x 512", "bytes discarded"),
    Signal(2003, "disk.discard_milliseconds", Kind.COUNTER, Pace.SECOND, "/proc/diskstats field 15", "sum of the times of all discards", width_bits=32),
    Signal(2004, "disk.flushes_operations", Kind.COUNTER, Pace.SECOND, "/proc/diskstats field 16", "cache flushes completed, as fsync asks for; Linux 5.5 and later"),
    Signal(2005, "disk.flush_milliseconds", Kind.COUNTER, Pace.SECOND, "/proc/diskstats field 17", "sum of the times of all flushes: a checkpoint's fsync", width_bits=32),
    Signal(2006, "disk.counter_epoch_count", Kind.STATE, Pace.SECOND, "/sys/block/*/diskseq", "changes if another disk has the same name: its counters restarted; Linux 5.15 and later"),
    Signal(410, "filesystem.size_bytes", Kind.GAUGE, Pace.MINUTE, "statvfs f_blocks", "size"),
    Signal(411, "filesystem.available_bytes", Kind.GAUGE, Pace.MINUTE, "statvfs f_bavail", "free for unprivileged use"),
    Signal(2010, "filesystem.inodes_count", Kind.GAUGE, Pace.MINUTE, "statvfs f_files", "number of inodes; missing if they are created as needed (btrfs)"),
    Signal(2011, "filesystem.inodes_available_count", Kind.GAUGE, Pace.MINUTE, "statvfs f_favail", "inodes free for unprivileged use; many small files can use them up while space is left"),
    Signal(412, "filesystem.read_only_state", Kind.STATE, Pace.MINUTE, "/proc/self/mountinfo superblock options", "1 if the filesystem itself cannot be written, for example after an error (errors=remount-ro)"),
)

NVME_TEXT = """NVMe controllers. Device: the controller's kernel name (`nvme0`); its disks and PCIe function are in the inventory.

SMART is log page 02h. The drive keeps it over restarts and reinstallations of the host.
"""

NVME_SIGNALS = (
    Signal(2020, "nvme.controller_state", Kind.STATE, Pace.TEN_SECONDS, "class/nvme/nvme0/state", "0 new, 1 live, 2 resetting, 3 connecting, 4 deleting, 5 deleting without I/O, 6 dead, 7 admin only; only 1 serves its disks"),
    Signal(2021, "nvme.namespaces_count", Kind.GAUGE, Pace.TEN_SECONDS, "class/nvme/nvme0/nvme0n*", "disks of this controller; fewer than before: the kernel took one away"),
    Signal(2022, "nvme.queues_count", Kind.GAUGE, Pace.TEN_SECONDS, "class/nvme/nvme0/queue_count", "queues, including the admin queue; fewer after a partly failed reset"),
    Signal(2030, "nvme.temperature_celsius", Kind.GAUGE, Pace.MINUTE, "SMART composite temperature, else hwmon temp1_input", "temperature of the drive as a whole"),
    Signal(2031, "nvme.temperature_critical_celsius", Kind.GAUGE, Pace.MINUTE, "hwmon temp1_crit", "the drive's own critical temperature (CCTEMP)"),
    Signal(2032, "nvme.critical_warning_flags", Kind.STATE, Pace.MINUTE, "SMART byte 0", "1 spare below threshold, 2 temperature, 4 reliability degraded, 8 read-only, 16 backup of volatile memory failed, 32 persistent memory region"),
    Signal(2033, "nvme.spare_ratio", Kind.GAUGE, Pace.MINUTE, "SMART byte 3", "share of the original spare blocks that is left"),
    Signal(2034, "nvme.spare_threshold_ratio", Kind.GAUGE, Pace.MINUTE, "SMART byte 4", "the drive warns below this value"),
    Signal(2035, "nvme.used_ratio", Kind.GAUGE, Pace.MINUTE, "SMART byte 5", "share of the endurance used up; may exceed 1, ends at 2.55"),
    Signal(2036, "nvme.media_errors", Kind.COUNTER, Pace.MINUTE, "SMART bytes 160-175", "times that the drive could not correct data"),
    Signal(2037, "nvme.error_log_count", Kind.COUNTER, Pace.MINUTE, "SMART bytes 176-191", "entries of the error log over the drive's life, including unsupported commands"),
    Signal(2038, "nvme.unsafe_shutdowns_count", Kind.COUNTER, Pace.MINUTE, "SMART bytes 144-159", "power losses without notice"),
    Signal(2039, "nvme.power_cycles_count", Kind.COUNTER, Pace.MINUTE, "SMART bytes 112-127", "power cycles; a step while the host stayed up: the drive lost power alone"),
    Signal(2040, "nvme.power_on_seconds", Kind.COUNTER, Pace.MINUTE, "SMART bytes 128-143 x 3600", "time powered, in whole hours"),
    Signal(2041, "nvme.busy_seconds", Kind.COUNTER, Pace.MINUTE, "SMART bytes 96-111 x 60", "time with commands outstanding, in whole minutes"),
    Signal(2042, "nvme.read_bytes", Kind.COUNTER, Pace.MINUTE, "SMART bytes 32-47 x 512000", "read by hosts over the drive's life"),
    Signal(2043, "nvme.written_bytes", Kind.COUNTER, Pace.MINUTE, "SMART bytes 48-63 x 512000", "written by hosts over the drive's life"),
    Signal(2044, "nvme.warning_temperature_seconds", Kind.COUNTER, Pace.MINUTE, "SMART bytes 192-195 x 60", "time above the warning temperature, in whole minutes"),
    Signal(2045, "nvme.critical_temperature_seconds", Kind.COUNTER, Pace.MINUTE, "SMART bytes 196-199 x 60", "time above the critical temperature, in whole minutes"),
    Signal(2046, "nvme.light_throttles_count", Kind.COUNTER, Pace.MINUTE, "SMART bytes 216-219", "times the drive slowed itself a little for heat", width_bits=32),
    Signal(2047, "nvme.heavy_throttles_count", Kind.COUNTER, Pace.MINUTE, "SMART bytes 220-223", "times the drive slowed itself a lot for heat", width_bits=32),
    Signal(2048, "nvme.counter_epoch_count", Kind.STATE, Pace.MINUTE, "class/nvme/nvme0/serial and model, a digest of 32 bits", "changes if another drive has the same name, with its own counters"),
)

NFS_TEXT = """NFS mounts. Device: the mount point.

The counters restart at each mount. All values come from the client's memory; no server is queried. Other network file
systems (BeeGFS, GPFS, WekaFS, CephFS, FUSE) have no such counters; the inventory names their mounts.
"""

_STATS = "/proc/self/mountstats"

NFS_SIGNALS = (
    Signal(2050, "nfs.age_seconds", Kind.GAUGE, Pace.TEN_SECONDS, f"{_STATS} age", "time since it was mounted"),
    Signal(2051, "nfs.read_bytes", Kind.COUNTER, Pace.TEN_SECONDS, f"{_STATS} bytes column 5", "bytes read from the server, not from the page cache"),
    Signal(2052, "nfs.written_bytes", Kind.COUNTER, Pace.TEN_SECONDS, f"{_STATS} bytes column 6", "bytes written to the server"),
    Signal(2053, "nfs.reads_operations", Kind.COUNTER, Pace.TEN_SECONDS, f"{_STATS} READ column 1", "READ calls completed"),
    Signal(2054, "nfs.reads_sent_count", Kind.COUNTER, Pace.TEN_SECONDS, f"{_STATS} READ column 2", "READ calls sent; calls beyond the completed ones were sent again"),
    Signal(2055, "nfs.reads_timed_out_count", Kind.COUNTER, Pace.TEN_SECONDS, f"{_STATS} READ column 3", "major timeouts: the server did not answer within all retries"),
    Signal(2056, "nfs.read_queue_milliseconds", Kind.COUNTER, Pace.TEN_SECONDS, f"{_STATS} READ column 6", "sum of the times that READ calls waited in the client before they were sent"),
    Signal(2057, "nfs.read_response_milliseconds", Kind.COUNTER, Pace.TEN_SECONDS, f"{_STATS} READ column 7", "sum of the times from sending to the answer: network and server"),
    Signal(2058, "nfs.read_milliseconds", Kind.COUNTER, Pace.TEN_SECONDS, f"{_STATS} READ column 8", "sum of the times of all READ calls"),
    Signal(2059, "nfs.read_errors", Kind.COUNTER, Pace.TEN_SECONDS, f"{_STATS} READ column 9", "READ calls that ended in an error; Linux 5.3 and later"),
    Signal(2060, "nfs.writes_operations", Kind.COUNTER, Pace.TEN_SECONDS, f"{_STATS} WRITE column 1", "WRITE calls completed"),
    Signal(2061, "nfs.writes_sent_count", Kind.COUNTER, Pace.TEN_SECONDS, f"{_STATS} WRITE column 2", "WRITE calls sent; calls beyond the completed ones were sent again"),
    Signal(2062, "nfs.writes_timed_out_count", Kind.COUNTER, Pace.TEN_SECONDS, f"{_STATS} WRITE column 3", "major timeouts of WRITE calls"),
    Signal(2063, "nfs.write_queue_milliseconds", Kind.COUNTER, Pace.TEN_SECONDS, f"{_STATS} WRITE column 6", "sum of the times that WRITE calls waited in the client before they were sent"),
    Signal(2064, "nfs.write_response_milliseconds", Kind.COUNTER, Pace.TEN_SECONDS, f"{_STATS} WRITE column 7", "sum of the times from sending to the answer"),
    Signal(2065, "nfs.write_milliseconds", Kind.COUNTER, Pace.TEN_SECONDS, f"{_STATS} WRITE column 8", "sum of the times of all WRITE calls"),
    Signal(2066, "nfs.write_errors", Kind.COUNTER, Pace.TEN_SECONDS, f"{_STATS} WRITE column 9", "WRITE calls that ended in an error"),
    Signal(2067, "nfs.all_operations", Kind.COUNTER, Pace.TEN_SECONDS, f"{_STATS} all operations, column 1", "calls of all kinds completed"),
    Signal(2068, "nfs.all_sent_count", Kind.COUNTER, Pace.TEN_SECONDS, f"{_STATS} all operations, column 2", "calls of all kinds sent; calls beyond the completed ones were sent again"),
    Signal(2069, "nfs.all_timed_out_count", Kind.COUNTER, Pace.TEN_SECONDS, f"{_STATS} all operations, column 3", "major timeouts of all kinds of calls"),
    Signal(2070, "nfs.all_errors", Kind.COUNTER, Pace.TEN_SECONDS, f"{_STATS} all operations, column 9", "calls of all kinds that ended in an error; a missing file is one"),
    Signal(2071, "nfs.connects_count", Kind.COUNTER, Pace.TEN_SECONDS, f"{_STATS} xprt", "connections made to the server (TCP, RDMA); an increase means that one was lost"),
    Signal(2072, "nfs.messages_sent_count", Kind.COUNTER, Pace.TEN_SECONDS, f"{_STATS} xprt", "requests sent over the mount's connections"),
    Signal(2073, "nfs.messages_received_count", Kind.COUNTER, Pace.TEN_SECONDS, f"{_STATS} xprt", "answers received; if it stops while requests are sent, the server is silent"),
    Signal(2074, "nfs.bad_replies_count", Kind.COUNTER, Pace.TEN_SECONDS, f"{_STATS} xprt bad XIDs", "answers without a known request"),
    Signal(2075, "nfs.backlog_count", Kind.COUNTER, Pace.TEN_SECONDS, f"{_STATS} xprt backlog", "sum over all sendings of the requests that waited for a slot; divide by messages sent for the mean"),
    Signal(2076, "nfs.idle_seconds", Kind.GAUGE, Pace.TEN_SECONDS, f"{_STATS} xprt", "time since the connection was last used"),
)

LUSTRE_TEXT = """Lustre clients. Device of `lustre.*`: the mount point; of `lustre_target.*`: the target (`scratch-OST0003`).

All values come from the client's memory, below /proc/fs/lustre or, in newer releases, /sys/kernel/debug/lustre.
"""

LUSTRE_SIGNALS = (
    Signal(2080, "lustre.reads_operations", Kind.COUNTER, Pace.TEN_SECONDS, "llite stats read_bytes samples", "reads"),
    Signal(2081, "lustre.read_bytes", Kind.COUNTER, Pace.TEN_SECONDS, "llite stats read_bytes sum", "bytes read, from the cache too"),
    Signal(2082, "lustre.read_microseconds", Kind.COUNTER, Pace.TEN_SECONDS, "llite stats read sum", "sum of the times of all reads; Lustre 2.13 and later"),
    Signal(2083, "lustre.writes_operations", Kind.COUNTER, Pace.TEN_SECONDS, "llite stats write_bytes samples", "writes"),
    Signal(2084, "lustre.written_bytes", Kind.COUNTER, Pace.TEN_SECONDS, "llite stats write_bytes sum", "bytes written"),
    Signal(2085, "lustre.write_microseconds", Kind.COUNTER, Pace.TEN_SECONDS, "llite stats write sum", "sum of the times of all writes; Lustre 2.13 and later"),
    Signal(2086, "lustre.opens_operations", Kind.COUNTER, Pace.TEN_SECONDS, "llite stats open", "files opened"),
    Signal(2087, "lustre.closes_operations", Kind.COUNTER, Pace.TEN_SECONDS, "llite stats close", "files closed"),
    Signal(2088, "lustre.attributes_operations", Kind.COUNTER, Pace.TEN_SECONDS, "llite stats getattr", "requests for attributes: the main load of a loader of many small files"),
    Signal(2090, "lustre_target.connection_state", Kind.STATE, Pace.TEN_SECONDS, "osc, mdc import state", "1 closed, 2 new, 3 disconnected, 4 connecting, 5-7 replaying, 8 recovering, 9 full, 10 evicted, 11 idle; 9 and 11 are healthy"),
    Signal(2091, "lustre_target.connection_attempts_count", Kind.COUNTER, Pace.TEN_SECONDS, "osc, mdc import connection_attempts", "attempts to connect; an increase means that the connection was lost", width_bits=32),
    Signal(2092, "lustre_target.generation_count", Kind.COUNTER, Pace.TEN_SECONDS, "osc, mdc import generation", "increases if the target evicted this client, or the client dropped it; its cached data is lost", width_bits=32),
    Signal(2093, "lustre_target.timeouts_count", Kind.COUNTER, Pace.TEN_SECONDS, "osc, mdc import rpcs timeouts", "requests that timed out", width_bits=32),
    Signal(2094, "lustre_target.inflight_count", Kind.GAUGE, Pace.TEN_SECONDS, "osc, mdc import rpcs inflight", "requests sent and not yet answered"),
    Signal(2095, "lustre_target.wait_microseconds", Kind.GAUGE, Pace.TEN_SECONDS, "osc, mdc import rpcs avg_waittime", "mean wait of all requests since the connection was made"),
)
