"""Quality of the host's clock: an order of events across hosts depends on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...contract.block import Block
from ...contract.signal import Pace
from ...ext import adjtimex
from ..collector import AccessDenied, Collector, NoData
from ..hardware.files import Roots
from ..hardware.kernel_clock import Timex, parse_timex
from .block_writer import put

_ADJTIMEX_REFUSED = "adjtimex(2) is blocked by a system call filter; allow it with ProtectClock=no in the agent's unit"


class ClockTenSeconds(Collector):
    """Offset, errors and state of the system clock.

    Wrong clocks show events of several hosts in a wrong order.
    """

    name = "clock_10s"
    pace = Pace.TEN_SECONDS
    enters_driver = False

    def __init__(self, roots: Roots, read: Callable[[], Timex] | None = None) -> None:
        """*read*: None means adjtimex(2) of this machine; a host in a folder has no clock."""
        self._read = adjtimex.read if read is None and roots.is_this_machine else read
        self._block = Block("clock_10s", ("host",))

    def collect(self) -> Sequence[Block]:
        """Return the block. Raises AccessDenied, or NoData if the kernel lacks the call."""
        if self._read is None:
            raise NoData("only this machine's own clock can be read")
        try:
            timex = parse_timex(self._read())
        except PermissionError:
            raise AccessDenied(_ADJTIMEX_REFUSED) from None
        except OSError as error:
            raise NoData(f"this kernel has no adjtimex(2): {error}") from None
        self._put("offset_seconds", timex.offset_seconds)
        self._put("error_estimated_seconds", timex.error_estimated_seconds)
        self._put("error_max_seconds", timex.error_max_seconds)
        self._put("frequency_offset_ratio", timex.frequency_offset_ratio)
        self._put("tai_offset_seconds", timex.tai_offset_seconds)
        self._put("synchronised_state", timex.synchronised)
        self._put("leap_state", timex.leap_state)
        self._put("status_flags", timex.status_flags)
        return (self._block,)

    def _put(self, column: str, value: float | None) -> None:
        put(self._block, f"clock.{column}", 0, value)
