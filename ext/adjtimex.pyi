"""adjtimex(2), which the standard library lacks: the kernel's state of its clock."""

def read() -> tuple[int, int, int, int, int, int, int]:
    """Return (state, status, offset, frequency, maxerror, esterror, TAI offset) of `struct timex`.

    State is the call's answer (TIME_OK to TIME_ERROR). Offset is in ns if status has STA_NANO, else in us; errors are
    in us, frequency in ppm times 2^16, the TAI offset in s. Sets nothing and needs no privilege. Raises OSError
    (EPERM under a seccomp filter such as systemd's ProtectClock).
    """
