"""What does not answer: a row per device (`gpu 0000:9b:00.0`, `host mlx5_0/1`), collector or driver that is not well, or
that was released. A minute after it is well again, and as soon as it is taken back, its row is gone.
"""

from .signal import Kind, Pace, Signal

SIGNALS = (
    Signal(2300, "probe.hung_seconds", Kind.GAUGE, Pace.SECOND, "agent.sampler", "how long the call has not returned, or had not when it was given up"),
    Signal(2301, "probe.state", Kind.STATE, Pace.SECOND, "agent.sampler", "0 well again, 1 hung, 2 abandoned (a process is stuck in it), 3 left alone, 4 slow, 5 tried, 6 released: a GPU, or all, by somebody who repairs it; the words are in the event probe.hung"),
    Signal(2302, "probe.abandoned_count", Kind.COUNTER, Pace.SECOND, "agent.sampler", "processes ever left behind in it"),
    Signal(2303, "gpu.probe_hung_seconds", Kind.GAUGE, Pace.SECOND, "agent.sampler", "how long a call into the driver for this GPU has not returned; by UUID, or by PCI address while that is all that is known", apart="probe"),
    Signal(2304, "probe.hung", Kind.EVENT, Pace.EVENT, "agent.sampler", "a device does not answer, or answers too slowly: device, call and seconds in its attributes"),
    Signal(2305, "probe.answered", Kind.EVENT, Pace.EVENT, "agent.sampler", "a device that did not answer does again"),
    Signal(2306, "probe.driver_hung", Kind.EVENT, Pace.EVENT, "agent.sampler", "several devices of one driver stopped answering together: the driver as a whole hangs"),
    Signal(2307, "probe.driver_answered", Kind.EVENT, Pace.EVENT, "agent.sampler", "a driver that hung as a whole answers again"),
)
