"""Services that decide whether a GPU host can work. Device: the unit (`nvidia-fabricmanager`).

A service that is neither installed nor running has no row. Fabric Manager decides only where there are
NVSwitches (PCI class 0x0680 of vendor 0x10de): without it such a GPU starts no job.
"""

from .signal import Kind, Pace, Signal

SIGNALS = (
    Signal(2140, "service.running_state", Kind.STATE, Pace.MINUTE, "unit files, cgroup of the unit, /proc/PID/stat, /run/systemd/units", "1 running (for one that runs once: active), 2 installed and not running; in a container it is known by its process"),
    Signal(2141, "service.enabled_state", Kind.STATE, Pace.MINUTE, "*.wants, *.requires of systemd", "1: wanted at boot; 2 in running_state and 1 here is a failure, 2 and 0 is a choice"),
    Signal(2142, "service.running_seconds", Kind.GAUGE, Pace.MINUTE, "/proc/PID/stat starttime of its oldest process", "since it runs; less than before: it was restarted"),
)
