"""The kernel's clock: adjtimex(2), Linux include/uapi/linux/timex.h."""

from __future__ import annotations

from dataclasses import dataclass

STA_UNSYNC = 0x0040
STA_NANO = 0x2000
_STATES_MAX = 5  # TIME_OK, TIME_INS, TIME_DEL, TIME_OOP, TIME_WAIT, TIME_ERROR
#: Maximum of the kernel's largest error, 16 s (NTP_PHASE_LIMIT); a larger value is invalid.
_ERROR_MICROSECONDS_MAX = 16_000_000
#: The kernel accepts offsets up to half a second (MAXPHASE) and steers by at most 500 ppm
#: (MAXFREQ).
_OFFSET_SECONDS_MAX = 1.0
_FREQUENCY_RATIO_MAX = 1e-3
Timex = tuple[int, int, int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class ClockStatus:
    """The clock's state in SI units; None for impossible values."""

    offset_seconds: float | None
    error_estimated_seconds: float | None
    error_max_seconds: float | None
    frequency_offset_ratio: float | None
    tai_offset_seconds: float | None
    synchronised: bool
    leap_state: int | None
    status_flags: int | None


def parse_timex(answer: Timex) -> ClockStatus:
    """Return the clock's state from the result of `ext.adjtimex.read`. Never raises.

    `synchronised` is the status bit alone: the kernel also returns TIME_ERROR for a lost PPS.
    """
    state, status, offset, frequency, error_max, error_estimated, tai = answer
    offset_seconds = offset * (1e-9 if status & STA_NANO else 1e-6)
    ratio = frequency / 65536e6
    return ClockStatus(
        offset_seconds=offset_seconds if abs(offset_seconds) <= _OFFSET_SECONDS_MAX else None,
        error_estimated_seconds=_error_seconds(error_estimated),
        error_max_seconds=_error_seconds(error_max),
        frequency_offset_ratio=ratio if abs(ratio) <= _FREQUENCY_RATIO_MAX else None,
        tai_offset_seconds=float(tai),
        synchronised=not status & STA_UNSYNC,
        leap_state=state if 0 <= state <= _STATES_MAX else None,
        status_flags=status if status >= 0 else None,
    )


def _error_seconds(microseconds: int) -> float | None:
    return microseconds / 1e6 if 0 <= microseconds <= _ERROR_MICROSECONDS_MAX else None
