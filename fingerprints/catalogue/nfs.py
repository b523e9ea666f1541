"""NFS mounts. Device: the mount point.

The counters begin anew at each mount. All is read from the client's memory: no server is asked. Other network
file systems (BeeGFS, GPFS, WekaFS, CephFS, FUSE) show nothing of the kind; the inventory names their mounts.
"""

from .signal import Kind, Pace, Signal

_STATS = "/proc/self/mountstats"

SIGNALS = (
    Signal(2050, "nfs.age_seconds", Kind.GAUGE, Pace.TEN_SECONDS, f"{_STATS} age", "time since it was mounted"),
    Signal(2051, "nfs.read_bytes", Kind.COUNTER, Pace.TEN_SECONDS, f"{_STATS} bytes column 5", "bytes read from the server, not from the page cache"),
    Signal(2052, "nfs.written_bytes", Kind.COUNTER, Pace.TEN_SECONDS, f"{_STATS} bytes column 6", "bytes written to the server"),
    Signal(2053, "nfs.reads_operations", Kind.COUNTER, Pace.TEN_SECONDS, f"{_STATS} READ column 1", "READ calls completed"),
    Signal(2054, "nfs.reads_sent_count", Kind.COUNTER, Pace.TEN_SECONDS, f"{_STATS} READ column 2", "READ calls sent; what exceeds the calls completed was sent again"),
    Signal(2055, "nfs.reads_timed_out_count", Kind.COUNTER, Pace.TEN_SECONDS, f"{_STATS} READ column 3", "major timeouts: the server did not answer for the whole time of waiting and repeating"),
    Signal(2056, "nfs.read_queue_milliseconds", Kind.COUNTER, Pace.TEN_SECONDS, f"{_STATS} READ column 6", "time READ calls waited in the client before they were sent, all added up"),
    Signal(2057, "nfs.read_response_milliseconds", Kind.COUNTER, Pace.TEN_SECONDS, f"{_STATS} READ column 7", "time from sending to the answer, all added up: network and server"),
    Signal(2058, "nfs.read_milliseconds", Kind.COUNTER, Pace.TEN_SECONDS, f"{_STATS} READ column 8", "time of READ calls in all, added up"),
    Signal(2059, "nfs.read_errors", Kind.COUNTER, Pace.TEN_SECONDS, f"{_STATS} READ column 9", "READ calls that ended in an error; Linux 5.3 and later"),
    Signal(2060, "nfs.writes_operations", Kind.COUNTER, Pace.TEN_SECONDS, f"{_STATS} WRITE column 1", "WRITE calls completed"),
    Signal(2061, "nfs.writes_sent_count", Kind.COUNTER, Pace.TEN_SECONDS, f"{_STATS} WRITE column 2", "WRITE calls sent; what exceeds the calls completed was sent again"),
    Signal(2062, "nfs.writes_timed_out_count", Kind.COUNTER, Pace.TEN_SECONDS, f"{_STATS} WRITE column 3", "major timeouts of WRITE calls"),
    Signal(2063, "nfs.write_queue_milliseconds", Kind.COUNTER, Pace.TEN_SECONDS, f"{_STATS} WRITE column 6", "time WRITE calls waited in the client before they were sent, all added up"),
    Signal(2064, "nfs.write_response_milliseconds", Kind.COUNTER, Pace.TEN_SECONDS, f"{_STATS} WRITE column 7", "time from sending to the answer, all added up"),
    Signal(2065, "nfs.write_milliseconds", Kind.COUNTER, Pace.TEN_SECONDS, f"{_STATS} WRITE column 8", "time of WRITE calls in all, added up"),
    Signal(2066, "nfs.write_errors", Kind.COUNTER, Pace.TEN_SECONDS, f"{_STATS} WRITE column 9", "WRITE calls that ended in an error"),
    Signal(2067, "nfs.all_operations", Kind.COUNTER, Pace.TEN_SECONDS, f"{_STATS} all operations, column 1", "calls of all kinds completed"),
    Signal(2068, "nfs.all_sent_count", Kind.COUNTER, Pace.TEN_SECONDS, f"{_STATS} all operations, column 2", "calls of all kinds sent; what exceeds those completed was sent again"),
    Signal(2069, "nfs.all_timed_out_count", Kind.COUNTER, Pace.TEN_SECONDS, f"{_STATS} all operations, column 3", "major timeouts of all kinds of calls"),
    Signal(2070, "nfs.all_errors", Kind.COUNTER, Pace.TEN_SECONDS, f"{_STATS} all operations, column 9", "calls of all kinds that ended in an error; a file that is not there is one"),
    Signal(2071, "nfs.connects_count", Kind.COUNTER, Pace.TEN_SECONDS, f"{_STATS} xprt", "connections made to the server (TCP, RDMA); a step: it was lost"),
    Signal(2072, "nfs.messages_sent_count", Kind.COUNTER, Pace.TEN_SECONDS, f"{_STATS} xprt", "requests sent over the mount's connections"),
    Signal(2073, "nfs.messages_received_count", Kind.COUNTER, Pace.TEN_SECONDS, f"{_STATS} xprt", "answers received; standing still while requests are sent: the server is silent"),
    Signal(2074, "nfs.bad_replies_count", Kind.COUNTER, Pace.TEN_SECONDS, f"{_STATS} xprt bad XIDs", "answers to no request known here"),
    Signal(2075, "nfs.backlog_count", Kind.COUNTER, Pace.TEN_SECONDS, f"{_STATS} xprt backlog", "requests that waited for a slot, added up at each sending; over messages sent: the mean"),
    Signal(2076, "nfs.idle_seconds", Kind.GAUGE, Pace.TEN_SECONDS, f"{_STATS} xprt", "time since the connection was last used"),
)
