"""What is kept for days rather than hours: of which tables, for how long, and what of them for longer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from . import hostdays
from .opscopies import ADVICE_DAYS, OUTCOMES_DAYS
from .standing import STANDING_EVENTS

_DAY_US = 86_400_000_000


class _Retained(NamedTuple):
    """A table, by which column what it has is known to be old, and for how many days that is kept."""

    table: str
    column: str
    days: int = 0  # 0: `history_days`
    days_min: int = 0  # where `history_days` is fewer


_TABLES: Iterable[_Retained] = (
    _Retained("scores", "time"),
    _Retained("evidence", "time"),
    _Retained("events", "received"),
    _Retained("findings", "cleared"),
    _Retained("past_findings", "cleared", days=400),
    _Retained("host_days", "time", days=hostdays.DAYS_KEPT),
    _Retained("own_health", "time"),
    _Retained("advice_decisions", "time", days_min=ADVICE_DAYS),
    _Retained("advisories", "time", days_min=OUTCOMES_DAYS),
    _Retained("outcomes", "time", days=OUTCOMES_DAYS),
)
#: And what of it is kept for longer, by its `rowid`: an event is what a fault that stands is known by after a restart.
_KEPT = {"events": STANDING_EVENTS}
#: What findings leave behind.
_PAST = (
    "INSERT INTO past_findings SELECT host, name, since, cleared FROM findings "
    "WHERE cleared < make_timestamp(?)"
)


def drop_old(connection: Any, now_ns: int, history_days: int) -> None:
    """Delete what is past its days, and keep what of it is learned from: times of findings, what was measured of each day."""
    now_us = now_ns // 1000
    # A kill between the two leaves a finding in both; who reads them takes what overlaps as one.
    connection.execute(_PAST, [now_us - history_days * _DAY_US])
    hostdays.fill(connection, now_us)
    for one in _TABLES:
        days = one.days or max(one.days_min, history_days)
        kept = f" AND rowid NOT IN ({_KEPT[one.table]})" if one.table in _KEPT else ""
        connection.execute(
            f"DELETE FROM {one.table} WHERE {one.column} < make_timestamp(?){kept}",
            [now_us - days * _DAY_US],
        )
