"""The agent about itself. Device of `collector.*`: the collector's name. Device of `agent.*`: `agent`.

Sooner than after 10 s when a collector's outcome, the frames lost or what bars the host has changed."""

from .signal import Kind, Pace, Signal

SIGNALS = (
    Signal(1, "collector.turn_seconds", Kind.GAUGE, Pace.TEN_SECONDS, "agent.turn", "what a collector's pass took"),
    Signal(2, "collector.outcome_state", Kind.STATE, Pace.TEN_SECONDS, "agent.turn", "0 ok, 1 no-data, 2 blind, 3 error, 4 hung; the words are in the event collector.outcome"),
    Signal(3, "collector.skipped_events", Kind.COUNTER, Pace.TEN_SECONDS, "agent.pace", "turns left out because the one before was late"),
    Signal(4, "collector.outcome", Kind.EVENT, Pace.EVENT, "agent.turn", "a collector's outcome changed, with its words"),
    Signal(2500, "gpu.released", Kind.EVENT, Pace.EVENT, "agent.not_in_the_way", "the agent let go of a GPU so that it can be repaired (code 0), or took it back (code 1); why in its words"),
    Signal(20, "agent.spool_bytes", Kind.GAUGE, Pace.TEN_SECONDS, "agent.spool", "frames on disk that have no receipt yet"),
    Signal(21, "agent.spool_dropped_frames", Kind.COUNTER, Pace.TEN_SECONDS, "agent.spool", "frames lost: the spool was full (oldest first) or a segment was torn"),
    Signal(22, "agent.spool_write_errors", Kind.COUNTER, Pace.TEN_SECONDS, "agent.spool", "frames that could not be written to disk and lived in memory only"),
    Signal(23, "agent.refused_frames", Kind.COUNTER, Pace.TEN_SECONDS, "agent.transport", "frames the aggregator refused with words"),
    Signal(24, "agent.unacknowledged_frames", Kind.GAUGE, Pace.TEN_SECONDS, "agent.spool", "frames without a receipt"),
    Signal(25, "agent.reconnects_count", Kind.COUNTER, Pace.TEN_SECONDS, "agent.transport", "connections made to the aggregator"),
    Signal(26, "agent.cpu_seconds", Kind.GAUGE, Pace.TEN_SECONDS, "getrusage(RUSAGE_SELF)", "user and system time of all processes of the agent since its start"),
    Signal(27, "agent.memory_bytes", Kind.GAUGE, Pace.TEN_SECONDS, "/proc/self/smaps_rollup", "memory of all processes of the agent, what they share counted once (PSS)"),
    Signal(28, "agent.dropped_events", Kind.COUNTER, Pace.TEN_SECONDS, "agent.events", "events lost because too many waited"),
    Signal(29, "agent.left_out_count", Kind.COUNTER, Pace.TEN_SECONDS, "agent.framing", "tables that no frame could carry"),
    Signal(2308, "agent.sampler_abandoned_count", Kind.COUNTER, Pace.TEN_SECONDS, "agent.sampler", "samplers left behind in a call that did not return"),
    Signal(2309, "agent.sampler_takeovers_count", Kind.COUNTER, Pace.TEN_SECONDS, "agent.sampler", "times that another sampler had to take a lane over"),
    Signal(2310, "agent.processes_count", Kind.GAUGE, Pace.TEN_SECONDS, "agent.sampler", "processes of the agent that live"),
    Signal(2450, "agent.barring_findings_count", Kind.GAUGE, Pace.TEN_SECONDS, "agent.local", "findings that bar this host from jobs, or would if the fleet's permit were in force"),
)
