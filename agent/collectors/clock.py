"""How well the host's clock is kept. Times of hosts whose clocks differ tell a wrong order of events."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...ext import adjtimex
from ...fingerprints.block import Block
from ...fingerprints.catalogue import Pace
from ..hardware.clock import Timex, parse_timex
from ..hardware.roots import Roots
from ..turn import Blind, NoData
from .columns import put

_CLOSED = "adjtimex(2) is refused by a system call filter; open it with ProtectClock=no in the agent's unit"


class ClockTenSeconds:
    """Offset, errors and state of the system clock."""

    name = "clock_10s"
    pace = Pace.TEN_SECONDS
    enters_driver = False

    def __init__(self, roots: Roots, read: Callable[[], Timex] | None = None) -> None:
        """*read* is adjtimex(2), which asks this machine: without another, a host in a folder has no clock."""
        self._read = adjtimex.read if read is None and roots.is_this_machine else read
        self._block = Block("clock_10s", ("host",))

    def collect(self) -> Sequence[Block]:
        """Return the one block. Raises Blind where the call is refused, NoData where the kernel has none."""
        if self._read is None:
            raise NoData("only this machine's own clock can be asked")
        try:
            found = parse_timex(self._read())
        except PermissionError:
            raise Blind(_CLOSED) from None
        except OSError as error:
            raise NoData(f"this kernel has no adjtimex(2): {error}") from None
        self._put("offset_seconds", found.offset_seconds)
        self._put("error_estimated_seconds", found.error_estimated_seconds)
        self._put("error_max_seconds", found.error_max_seconds)
        self._put("frequency_offset_ratio", found.frequency_offset_ratio)
        self._put("tai_offset_seconds", found.tai_offset_seconds)
        self._put("synchronised_state", found.synchronised)
        self._put("leap_state", found.leap_state)
        self._put("status_flags", found.status_flags)
        return (self._block,)

    def _put(self, column: str, value: float | None) -> None:
        put(self._block, f"clock.{column}", 0, value)
