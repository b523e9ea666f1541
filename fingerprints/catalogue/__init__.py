"""Every signal, by id, by name and by table. Adding a signal is one row here plus its reader."""

from __future__ import annotations

from collections.abc import Iterable

from . import agent, disk, gpu, host, net, numa, pcie, power, rdma
from .signal import PERIOD_SECONDS, Kind, Pace, Signal

__all__ = [
    "BY_ID",
    "BY_NAME",
    "PERIOD_SECONDS",
    "SIGNALS",
    "TABLES",
    "Kind",
    "Pace",
    "Signal",
    "index_of",
]

SIGNALS: tuple[Signal, ...] = tuple(
    signal
    for part in (agent, host, numa, pcie, disk, net, rdma, power, gpu)
    for signal in part.SIGNALS
)


def _tables(signals: Iterable[Signal]) -> dict[str, tuple[Signal, ...]]:
    tables: dict[str, list[Signal]] = {}
    for signal in signals:
        if signal.kind is not Kind.EVENT:
            tables.setdefault(signal.table, []).append(signal)
    return {name: tuple(rows) for name, rows in tables.items()}


BY_ID: dict[int, Signal] = {s.signal_id: s for s in SIGNALS}
BY_NAME: dict[str, Signal] = {s.name: s for s in SIGNALS}

#: Table name -> its signals, in catalogue order: the columns of a block, a frame and a DuckDB table.
TABLES: dict[str, tuple[Signal, ...]] = _tables(SIGNALS)


def index_of(name: str) -> int:
    """Return the column of signal *name* within its table. KeyError for an unknown name."""
    signal = BY_NAME[name]
    return TABLES[signal.table].index(signal)
