"""What the kernel knows of its clock: adjtimex(2), Linux `include/uapi/linux/timex.h`."""

from __future__ import annotations

from dataclasses import dataclass

STA_UNSYNC = 0x0040
STA_NANO = 0x2000
_STATES_MAX = 5  # TIME_OK, TIME_INS, TIME_DEL, TIME_OOP, TIME_WAIT, TIME_ERROR
#: The kernel lets the largest error grow to 16 s and no further (NTP_PHASE_LIMIT); more is no reading.
_ERROR_MICROSECONDS_MAX = 16_000_000
#: It takes no offset of more than half a second (MAXPHASE) and steers by 500 ppm at most (MAXFREQ).
_OFFSET_SECONDS_MAX = 1.0
_FREQUENCY_RATIO_MAX = 1e-3

Timex = tuple[int, int, int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class Clock:
    """The clock in SI units; None for what cannot be."""

    offset_seconds: float | None
    error_estimated_seconds: float | None
    error_max_seconds: float | None
    frequency_offset_ratio: float | None
    tai_offset_seconds: float | None
    synchronised: bool
    leap_state: int | None
    status_flags: int | None


def parse_timex(answer: Timex) -> Clock:
    """Return what the answer of `ext.adjtimex.read` says. Never raises.

    Not synchronised is what the status says, or TIME_ERROR, by which the kernel also answers for a lost PPS.
    """
    state, status, offset, frequency, error_max, error_estimated, tai = answer
    offset_seconds = offset * (1e-9 if status & STA_NANO else 1e-6)
    ratio = frequency / 65536e6
    return Clock(
        offset_seconds if abs(offset_seconds) <= _OFFSET_SECONDS_MAX else None,
        _error_seconds(error_estimated),
        _error_seconds(error_max),
        ratio if abs(ratio) <= _FREQUENCY_RATIO_MAX else None,
        float(tai),
        not status & STA_UNSYNC,
        state if 0 <= state <= _STATES_MAX else None,
        status if status >= 0 else None,
    )


def _error_seconds(microseconds: int) -> float | None:
    return microseconds / 1e6 if 0 <= microseconds <= _ERROR_MICROSECONDS_MAX else None
