"""Errors of host memory, as the EDAC drivers count them. Device: `mc0/dimm3` (`mc0/csrow2` and `mc0/csrow2/ch0` with
kernels that know no DIMMs), and the controller `mc0` with the sum of its own.

The counters are of the kernel's driver: they begin anew when it is loaded, and can be set back by hand.
"""

from .signal import Kind, Pace, Signal

SIGNALS = (
    Signal(1930, "edac.corrected_errors", Kind.COUNTER, Pace.TEN_SECONDS, "edac/mc/mcN/dimmN/dimm_ce_count; mcN/ce_count; csrowN/chN_ce_count", "memory errors that ECC corrected", width_bits=32, on_change=True),
    Signal(1931, "edac.uncorrected_errors", Kind.COUNTER, Pace.TEN_SECONDS, "edac/mc/mcN/dimmN/dimm_ue_count; mcN/ue_count; csrowN/ue_count", "memory errors that ECC could not correct", width_bits=32, on_change=True),
    Signal(1932, "edac.corrected_unlocated_errors", Kind.COUNTER, Pace.TEN_SECONDS, "edac/mc/mcN/ce_noinfo_count", "corrected errors that the controller could lay to no DIMM", width_bits=32, on_change=True),
    Signal(1933, "edac.uncorrected_unlocated_errors", Kind.COUNTER, Pace.TEN_SECONDS, "edac/mc/mcN/ue_noinfo_count", "uncorrected errors that the controller could lay to no DIMM", width_bits=32, on_change=True),
)
