"""Block devices with a backing of their own (no loop, ram, zram or partitions), and mounted filesystems.

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
    Signal(410, "filesystem.size_bytes", Kind.GAUGE, Pace.MINUTE, "statvfs f_blocks", "size"),
    Signal(411, "filesystem.available_bytes", Kind.GAUGE, Pace.MINUTE, "statvfs f_bavail", "free for unprivileged use"),
    Signal(412, "filesystem.read_only_state", Kind.STATE, Pace.MINUTE, "/proc/self/mountinfo superblock options", "1 when the filesystem itself cannot be written, as after the kernel gave up on it (errors=remount-ro)"),
)
