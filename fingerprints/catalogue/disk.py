"""Block devices with a backing of their own (no loop, ram, zram or partitions), and mounted filesystems.

What lies above such devices (dm-multipath, LVM, md) is not counted again. NVMe with several paths shows the
namespace (`nvme0n1`) and each path (`nvme0c0n1`): one traffic, twice; kernels before 6.4 count on paths only.
Device of `disk.*`: the kernel's name (`nvme0n1`). Device of `filesystem.*`: the mount point.
"""

from .signal import Kind, Pace, Signal

SIGNALS = (
    Signal(400, "disk.reads_operations", Kind.COUNTER, Pace.SECOND, "/proc/diskstats field 1", "reads completed"),
    Signal(401, "disk.read_bytes", Kind.COUNTER, Pace.SECOND, "/proc/diskstats field 3 x 512", "bytes read"),
    Signal(402, "disk.read_milliseconds", Kind.COUNTER, Pace.SECOND, "/proc/diskstats field 4", "time reads waited, all added up", width_bits=32),
    Signal(403, "disk.writes_operations", Kind.COUNTER, Pace.SECOND, "/proc/diskstats field 5", "writes completed"),
    Signal(404, "disk.written_bytes", Kind.COUNTER, Pace.SECOND, "/proc/diskstats field 7 x 512", "bytes written"),
    Signal(405, "disk.write_milliseconds", Kind.COUNTER, Pace.SECOND, "/proc/diskstats field 8", "time writes waited, all added up", width_bits=32),
    Signal(406, "disk.inflight_count", Kind.GAUGE, Pace.SECOND, "/proc/diskstats field 9", "requests outstanding now"),
    Signal(407, "disk.busy_milliseconds", Kind.COUNTER, Pace.SECOND, "/proc/diskstats field 10", "time with at least one request outstanding", width_bits=32),
    Signal(2000, "disk.queue_milliseconds", Kind.COUNTER, Pace.SECOND, "/proc/diskstats field 11", "busy time weighted by the requests outstanding: its rate is the mean queue depth in thousandths", width_bits=32),
    Signal(2001, "disk.discards_operations", Kind.COUNTER, Pace.SECOND, "/proc/diskstats field 12", "discards (TRIM) completed; Linux 4.18 and later"),
    Signal(2002, "disk.discarded_bytes", Kind.COUNTER, Pace.SECOND, "/proc/diskstats field 14 x 512", "bytes discarded"),
    Signal(2003, "disk.discard_milliseconds", Kind.COUNTER, Pace.SECOND, "/proc/diskstats field 15", "time discards waited, all added up", width_bits=32),
    Signal(2004, "disk.flushes_operations", Kind.COUNTER, Pace.SECOND, "/proc/diskstats field 16", "cache flushes completed, as fsync asks for; Linux 5.5 and later"),
    Signal(2005, "disk.flush_milliseconds", Kind.COUNTER, Pace.SECOND, "/proc/diskstats field 17", "time flushes waited, all added up: a checkpoint's fsync", width_bits=32),
    Signal(2006, "disk.counter_epoch_count", Kind.STATE, Pace.SECOND, "/sys/block/*/diskseq", "another number is another disk by the same name: its counters began anew; Linux 5.15 and later"),
    Signal(410, "filesystem.size_bytes", Kind.GAUGE, Pace.MINUTE, "statvfs f_blocks", "size"),
    Signal(411, "filesystem.available_bytes", Kind.GAUGE, Pace.MINUTE, "statvfs f_bavail", "free for unprivileged use"),
    Signal(2010, "filesystem.inodes_count", Kind.GAUGE, Pace.MINUTE, "statvfs f_files", "inodes in all; missing where they are made as needed (btrfs)"),
    Signal(2011, "filesystem.inodes_available_count", Kind.GAUGE, Pace.MINUTE, "statvfs f_favail", "inodes free for unprivileged use: a cache of small files ends here with room left"),
    Signal(412, "filesystem.read_only_state", Kind.STATE, Pace.MINUTE, "/proc/self/mountinfo superblock options", "1 when the filesystem itself cannot be written, as after the kernel gave up on it (errors=remount-ro)"),
)
