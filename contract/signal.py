"""Type of one row of the signal catalogue, and the rules that every row follows."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

#: A name ends in its unit. The longest match wins.
UNITS = (
    "bytes_per_second",
    "transfers_per_second",
    "microseconds",
    "milliseconds",
    "nanoseconds",
    "seconds",
    "hertz",
    "celsius",
    "watts",
    "volts",
    "joules",
    "bytes",
    "ratio",
    "lanes",
    "packets",
    "errors",
    "events",
    "operations",
    "frames",
    "pages",
    "rows",
    "count",
    "state",
    "flags",
    "code",
    "number",
)
_UNIT_ENDINGS = tuple((unit, ("_" + unit, "." + unit)) for unit in sorted(UNITS, key=len)[::-1])


class Kind(StrEnum):
    """Behavior of a value over time."""

    GAUGE = "gauge"  # travels as a double
    COUNTER = "counter"  # unsigned 64 bits; read only through `contract.counters`
    STATE = "state"  # a code or a set of flags; unsigned 64 bits
    EVENT = "event"  # no column: sent at once, as a HealthEvent


class Pace(StrEnum):
    """Sampling interval of a signal."""

    SECOND = "1s"
    TEN_SECONDS = "10s"
    MINUTE = "60s"
    BOOT = "boot"
    EVENT = "event"


#: Seconds between samples; boot-pace signals are read again this often, in case they changed.
PERIOD_SECONDS = {Pace.SECOND: 1, Pace.TEN_SECONDS: 10, Pace.MINUTE: 60, Pace.BOOT: 600}


@dataclass(frozen=True, slots=True)
class Signal:
    """A row: a quantity that the agent measures.

    `signal_id` is never reused, even when a signal retires (the ids travel in frames). `width_bits` is the width of the
    hardware's counter; `sticks`: the counter stays at its ceiling. `on_change` signals travel when a signal of their
    device changes, and completely every 60 s. A signal with another reader than its device's other signals has a
    `separate_table`.
    """

    signal_id: int
    name: str
    kind: Kind
    pace: Pace
    source: str
    description: str
    width_bits: int = 64
    sticks: bool = False
    on_change: bool = False
    separate_table: str = ""

    def __post_init__(self) -> None:
        if not 0 < self.signal_id < 65536:
            raise ValueError(f"{self.name}: signal_id must fit 16 bits, got {self.signal_id}")
        if not self.unit and self.kind is not Kind.EVENT:
            raise ValueError(f"{self.name}: a name ends in its unit, one of {', '.join(UNITS)}")

    @property
    def device_kind(self) -> str:
        """Kind of the device: `gpu`, `rdma`, `host`."""
        return self.name.partition(".")[0]

    @property
    def column(self) -> str:
        """The name within its table: `sm_clock_hertz`."""
        return self.name.partition(".")[2]

    @property
    def unit(self) -> str:
        """The unit that the name ends in; empty for events."""
        return next((unit for unit, ends in _UNIT_ENDINGS if self.name.endswith(ends)), "")

    @property
    def table(self) -> str:
        """The frame and DuckDB table: (device kind, pace), separate for on-change signals."""
        separate = f"_{self.separate_table}" if self.separate_table else ""
        suffix = "_changes" if self.on_change else ""
        return f"{self.device_kind}_{self.pace}{separate}{suffix}"
