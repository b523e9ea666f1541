"""Signals of the agent itself."""

from ..signal import Kind, Pace, Signal

AGENT_TEXT = """The agent about itself. Device of `collector.*`: the collector's name. Device of `agent.*`: `agent`.

These rows are sent sooner than after 10 s if a collector's outcome, the lost frames or the findings that bar the host
change."""

AGENT_SIGNALS = (
    Signal(1, "collector.turn_seconds", Kind.GAUGE, Pace.TEN_SECONDS, "agent.collector", "time that a collector's pass took"),
    Signal(2, "collector.outcome_state", Kind.STATE, Pace.TEN_SECONDS, "agent.collector", "0 ok, 1 no-data, 2 blind, 3 error, 4 hung; the words are in the event collector.outcome"),
    Signal(3, "collector.skipped_events", Kind.COUNTER, Pace.TEN_SECONDS, "agent.clock", "passes skipped because the one before was late"),
    Signal(4, "collector.outcome", Kind.EVENT, Pace.EVENT, "agent.collector", "a collector's outcome changed; with its message"),
    Signal(2500, "gpu.released", Kind.EVENT, Pace.EVENT, "agent.gpu_release", "the agent closed a GPU for a repair (code 0), or reopened it (code 1); with the reason"),
    Signal(20, "agent.spool_bytes", Kind.GAUGE, Pace.TEN_SECONDS, "agent.spool", "frames on disk that have no receipt yet"),
    Signal(21, "agent.spool_dropped_frames", Kind.COUNTER, Pace.TEN_SECONDS, "agent.spool", "frames lost: the spool was full (oldest first) or a segment was torn"),
    Signal(22, "agent.spool_write_errors", Kind.COUNTER, Pace.TEN_SECONDS, "agent.spool", "frames that could not be written to disk and were only in memory"),
    Signal(23, "agent.refused_frames", Kind.COUNTER, Pace.TEN_SECONDS, "agent.transport", "frames that the aggregator rejected, with a reason"),
    Signal(24, "agent.unacknowledged_frames", Kind.GAUGE, Pace.TEN_SECONDS, "agent.spool", "frames without a receipt"),
    Signal(25, "agent.reconnects_count", Kind.COUNTER, Pace.TEN_SECONDS, "agent.transport", "connections made to the aggregator"),
    Signal(26, "agent.cpu_seconds", Kind.GAUGE, Pace.TEN_SECONDS, "getrusage(RUSAGE_SELF)", "user and system time of all processes of the agent since its start"),
    Signal(27, "agent.memory_bytes", Kind.GAUGE, Pace.TEN_SECONDS, "/proc/self/smaps_rollup", "memory of all processes of the agent; shared memory counts once (PSS)"),
    Signal(28, "agent.dropped_events", Kind.COUNTER, Pace.TEN_SECONDS, "agent.events", "events lost because too many waited, or because the file of waiting events was damaged"),
    Signal(29, "agent.left_out_count", Kind.COUNTER, Pace.TEN_SECONDS, "agent.frame_builder", "tables too large for a frame"),
    Signal(2308, "agent.sampler_abandoned_count", Kind.COUNTER, Pace.TEN_SECONDS, "agent.sampler", "samplers left behind in a call that did not return"),
    Signal(2309, "agent.sampler_takeovers_count", Kind.COUNTER, Pace.TEN_SECONDS, "agent.sampler", "times that another sampler took over a group of collectors"),
    Signal(2310, "agent.processes_count", Kind.GAUGE, Pace.TEN_SECONDS, "agent.sampler", "processes of the agent that run"),
    Signal(2450, "agent.barring_findings_count", Kind.GAUGE, Pace.TEN_SECONDS, "agent.local", "findings that bar this host from jobs, or would if the fleet's permit were in force"),
)

PROBE_TEXT = """Devices that do not answer: a row for each device (`gpu 0000:9b:00.0`, `host mlx5_0/1`), collector or driver that is
unhealthy or was released. The row disappears a minute after a recovery, or at once when a release ends.
"""

PROBE_SIGNALS = (
    Signal(2300, "probe.hung_seconds", Kind.GAUGE, Pace.SECOND, "agent.sampler", "how long the call has been stuck, or was stuck when the agent abandoned it"),
    Signal(2301, "probe.state", Kind.STATE, Pace.SECOND, "agent.sampler", "0 recovered, 1 hung, 2 abandoned (a process is stuck in it), 3 skipped, 4 slow, 5 retried, 6 released for a repair (one GPU or all); the message is in the event probe.hung"),
    Signal(2302, "probe.abandoned_count", Kind.COUNTER, Pace.SECOND, "agent.sampler", "processes abandoned in it so far"),
    Signal(2303, "gpu.probe_hung_seconds", Kind.GAUGE, Pace.SECOND, "agent.sampler", "how long a driver call for this GPU has been stuck; by UUID, or by PCI address while the UUID is unknown", separate_table="probe"),
    Signal(2304, "probe.hung", Kind.EVENT, Pace.EVENT, "agent.sampler", "a device does not answer, or answers too slowly: device, call and seconds in its attributes"),
    Signal(2305, "probe.answered", Kind.EVENT, Pace.EVENT, "agent.sampler", "a device answers again"),
    Signal(2306, "probe.driver_hung", Kind.EVENT, Pace.EVENT, "agent.sampler", "several devices of one driver stopped answering together: the driver as a whole hangs"),
    Signal(2307, "probe.driver_answered", Kind.EVENT, Pace.EVENT, "agent.sampler", "a driver that hung as a whole answers again"),
)
