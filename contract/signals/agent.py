"""Signals of the agent itself."""

from ..signal import Kind, Pace, Signal

AGENT_TEXT = """The agent about itself. Device of `collector.*`: the collector's name. Device of `agent.*`: `agent`.

Sooner than after 10 s when a collector's outcome, the frames lost or what bars the host has changed."""

AGENT_SIGNALS = (
    Signal(1, "collector.turn_seconds", Kind.GAUGE, Pace.TEN_SECONDS, "agent.collector", "what a collector's pass took"),
    Signal(2, "collector.outcome_state", Kind.STATE, Pace.TEN_SECONDS, "agent.collector", "0 ok, 1 no-data, 2 blind, 3 error, 4 hung; the words are in the event collector.outcome"),
    Signal(3, "collector.skipped_events", Kind.COUNTER, Pace.TEN_SECONDS, "agent.clock", "turns left out because the one before was late"),
    Signal(4, "collector.outcome", Kind.EVENT, Pace.EVENT, "agent.collector", "a collector's outcome changed, with its words"),
    Signal(2500, "gpu.released", Kind.EVENT, Pace.EVENT, "agent.gpu_release", "the agent let go of a GPU so that it can be repaired (code 0), or took it back (code 1); why in its words"),
    Signal(20, "agent.spool_bytes", Kind.GAUGE, Pace.TEN_SECONDS, "agent.spool", "frames on disk that have no receipt yet"),
    Signal(21, "agent.spool_dropped_frames", Kind.COUNTER, Pace.TEN_SECONDS, "agent.spool", "frames lost: the spool was full (oldest first) or a segment was torn"),
    Signal(22, "agent.spool_write_errors", Kind.COUNTER, Pace.TEN_SECONDS, "agent.spool", "frames that could not be written to disk and lived in memory only"),
    Signal(23, "agent.refused_frames", Kind.COUNTER, Pace.TEN_SECONDS, "agent.transport", "frames the aggregator refused with words"),
    Signal(24, "agent.unacknowledged_frames", Kind.GAUGE, Pace.TEN_SECONDS, "agent.spool", "frames without a receipt"),
    Signal(25, "agent.reconnects_count", Kind.COUNTER, Pace.TEN_SECONDS, "agent.transport", "connections made to the aggregator"),
    Signal(26, "agent.cpu_seconds", Kind.GAUGE, Pace.TEN_SECONDS, "getrusage(RUSAGE_SELF)", "user and system time of all processes of the agent since its start"),
    Signal(27, "agent.memory_bytes", Kind.GAUGE, Pace.TEN_SECONDS, "/proc/self/smaps_rollup", "memory of all processes of the agent, what they share counted once (PSS)"),
    Signal(28, "agent.dropped_events", Kind.COUNTER, Pace.TEN_SECONDS, "agent.events", "events lost because too many waited"),
    Signal(29, "agent.left_out_count", Kind.COUNTER, Pace.TEN_SECONDS, "agent.frame_builder", "tables that no frame could carry"),
    Signal(2308, "agent.sampler_abandoned_count", Kind.COUNTER, Pace.TEN_SECONDS, "agent.sampler", "samplers left behind in a call that did not return"),
    Signal(2309, "agent.sampler_takeovers_count", Kind.COUNTER, Pace.TEN_SECONDS, "agent.sampler", "times that another sampler had to take a lane over"),
    Signal(2310, "agent.processes_count", Kind.GAUGE, Pace.TEN_SECONDS, "agent.sampler", "processes of the agent that live"),
    Signal(2450, "agent.barring_findings_count", Kind.GAUGE, Pace.TEN_SECONDS, "agent.local", "findings that bar this host from jobs, or would if the fleet's permit were in force"),
)

PROBE_TEXT = """What does not answer: a row per device (`gpu 0000:9b:00.0`, `host mlx5_0/1`), collector or driver that is not well, or
that was released. A minute after it is well again, and as soon as it is taken back, its row is gone.
"""

PROBE_SIGNALS = (
    Signal(2300, "probe.hung_seconds", Kind.GAUGE, Pace.SECOND, "agent.sampler", "how long the call has not returned, or had not when it was given up"),
    Signal(2301, "probe.state", Kind.STATE, Pace.SECOND, "agent.sampler", "0 well again, 1 hung, 2 abandoned (a process is stuck in it), 3 left alone, 4 slow, 5 tried, 6 released: a GPU, or all, by somebody who repairs it; the words are in the event probe.hung"),
    Signal(2302, "probe.abandoned_count", Kind.COUNTER, Pace.SECOND, "agent.sampler", "processes ever left behind in it"),
    Signal(2303, "gpu.probe_hung_seconds", Kind.GAUGE, Pace.SECOND, "agent.sampler", "how long a call into the driver for this GPU has not returned; by UUID, or by PCI address while that is all that is known", separate_table="probe"),
    Signal(2304, "probe.hung", Kind.EVENT, Pace.EVENT, "agent.sampler", "a device does not answer, or answers too slowly: device, call and seconds in its attributes"),
    Signal(2305, "probe.answered", Kind.EVENT, Pace.EVENT, "agent.sampler", "a device that did not answer does again"),
    Signal(2306, "probe.driver_hung", Kind.EVENT, Pace.EVENT, "agent.sampler", "several devices of one driver stopped answering together: the driver as a whole hangs"),
    Signal(2307, "probe.driver_answered", Kind.EVENT, Pace.EVENT, "agent.sampler", "a driver that hung as a whole answers again"),
)
