"""The system clock, as the kernel knows it. Device: `host`.

The kernel repeats what the daemon that steers its clock has told it. chrony steers without an offset of the kernel's and
says its errors; a daemon that steers by frequency alone (phc2sys) may leave the state unsynchronised.
"""

from .signal import Kind, Pace, Signal

SIGNALS = (
    Signal(1940, "clock.offset_seconds", Kind.GAUGE, Pace.TEN_SECONDS, "adjtimex(2) offset, ns with STA_NANO, else us", "how far the clock still has to be moved; negative: it is ahead"),
    Signal(1941, "clock.error_estimated_seconds", Kind.GAUGE, Pace.TEN_SECONDS, "adjtimex(2) esterror", "how wrong the daemon thinks the clock is"),
    Signal(1942, "clock.error_max_seconds", Kind.GAUGE, Pace.TEN_SECONDS, "adjtimex(2) maxerror", "how wrong the clock may be; the kernel lets it grow by 0.5 ms a second until the daemon speaks, and ends at 16 s"),
    Signal(1943, "clock.frequency_offset_ratio", Kind.GAUGE, Pace.TEN_SECONDS, "adjtimex(2) freq, ppm / 2^16", "by how much the oscillator is corrected: 1e-6 is a microsecond a second"),
    Signal(1944, "clock.synchronised_state", Kind.STATE, Pace.TEN_SECONDS, "adjtimex(2) status without STA_UNSYNC", "1: some daemon keeps the clock; 0: nobody does"),
    Signal(1945, "clock.leap_state", Kind.STATE, Pace.TEN_SECONDS, "adjtimex(2) result", "0 none, 1 a second will be inserted today, 2 one will be left out, 3 it is being inserted, 4 it has been, 5 not synchronised"),
    Signal(1946, "clock.status_flags", Kind.STATE, Pace.TEN_SECONDS, "adjtimex(2) status", "STA_* of sys/timex.h: 1 PLL, 2 PPS frequency, 4 PPS time, 16 insert, 32 delete, 64 unsynchronised, 8192 nanoseconds, ..."),
    Signal(1947, "clock.tai_offset_seconds", Kind.GAUGE, Pace.TEN_SECONDS, "adjtimex(2) tai", "TAI - UTC; 0 where nobody has said it"),
)
