"""Lustre clients. Device of `lustre.*`: the mount point; of `lustre_target.*`: the target (`scratch-OST0003`).

All is read from the client's memory, below /proc/fs/lustre or, in newer releases, /sys/kernel/debug/lustre.
"""

from .signal import Kind, Pace, Signal

SIGNALS = (
    Signal(2080, "lustre.reads_operations", Kind.COUNTER, Pace.TEN_SECONDS, "llite stats read_bytes samples", "reads"),
    Signal(2081, "lustre.read_bytes", Kind.COUNTER, Pace.TEN_SECONDS, "llite stats read_bytes sum", "bytes read, from the cache too"),
    Signal(2082, "lustre.read_microseconds", Kind.COUNTER, Pace.TEN_SECONDS, "llite stats read sum", "time of reads, all added up; Lustre 2.13 and later"),
    Signal(2083, "lustre.writes_operations", Kind.COUNTER, Pace.TEN_SECONDS, "llite stats write_bytes samples", "writes"),
    Signal(2084, "lustre.written_bytes", Kind.COUNTER, Pace.TEN_SECONDS, "llite stats write_bytes sum", "bytes written"),
    Signal(2085, "lustre.write_microseconds", Kind.COUNTER, Pace.TEN_SECONDS, "llite stats write sum", "time of writes, all added up; Lustre 2.13 and later"),
    Signal(2086, "lustre.opens_operations", Kind.COUNTER, Pace.TEN_SECONDS, "llite stats open", "files opened"),
    Signal(2087, "lustre.closes_operations", Kind.COUNTER, Pace.TEN_SECONDS, "llite stats close", "files closed"),
    Signal(2088, "lustre.attributes_operations", Kind.COUNTER, Pace.TEN_SECONDS, "llite stats getattr", "attributes asked for: what a loader of many small files does most"),
    Signal(2090, "lustre_target.connection_state", Kind.STATE, Pace.TEN_SECONDS, "osc, mdc import state", "1 closed, 2 new, 3 disconnected, 4 connecting, 5-7 replaying, 8 recovering, 9 full, 10 evicted, 11 idle; 9 and 11 are well"),
    Signal(2091, "lustre_target.connection_attempts_count", Kind.COUNTER, Pace.TEN_SECONDS, "osc, mdc import connection_attempts", "attempts to connect; a step: the connection was lost", width_bits=32),
    Signal(2092, "lustre_target.generation_count", Kind.COUNTER, Pace.TEN_SECONDS, "osc, mdc import generation", "a step: the target evicted this client, or the client gave it up; what was cached for it is lost", width_bits=32),
    Signal(2093, "lustre_target.timeouts_count", Kind.COUNTER, Pace.TEN_SECONDS, "osc, mdc import rpcs timeouts", "requests that timed out", width_bits=32),
    Signal(2094, "lustre_target.inflight_count", Kind.GAUGE, Pace.TEN_SECONDS, "osc, mdc import rpcs inflight", "requests sent and not answered"),
    Signal(2095, "lustre_target.wait_microseconds", Kind.GAUGE, Pace.TEN_SECONDS, "osc, mdc import rpcs avg_waittime", "mean wait of all requests since the connection was made"),
)
