"""The SQL of evidence: each query returns the rows that its number was computed from, and no others.

Names in it are quoted, times are written out: it returns the same rows for as long as these are kept. What peers are
alike in (power limits, modes, drivers and what else hosts register) is of now: another driver since then, and a peer is
shown beside others.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache

from ...fingerprints.catalogue import PERIOD_SECONDS, TABLES
from ..fleet.counting import nature_of
from ..sql import quoted

#: Peers that are shown of those that a number is held against: the nearest to their median.
PEERS_SHOWN_MAX = 32
#: A leaky sum holds 5 % of what it counted three of its time constants ago.
CONSTANTS_BACK = 3
SECOND_NS = 1_000_000_000
#: A reading's time is the host's word: of what is shown and not added up, so much more is, either way.
LATER_SECONDS = 5
#: An on-change table comes whole every 60 s.
KEYFRAME_SECONDS_MAX = 150.0
#: And so far back it is looked for the reading before where it is of the whole fleet.
WHOLE_SECONDS = 65.0


def moment(at_ns: int) -> str:
    """Return a time as SQL, with its microseconds if it has any."""
    microseconds = at_ns // 1000 % 1_000_000
    at = datetime.fromtimestamp(at_ns // SECOND_NS, UTC)
    return f"TIMESTAMP '{at:%Y-%m-%d %H:%M:%S}{f'.{microseconds:06d}' if microseconds else ''}'"


def within(at_ns: int, seconds: float, later_seconds: int = 0) -> str:
    """Return the condition that a reading is of the last *seconds* before *at_ns*, or a little later."""
    whole_ns = at_ns // SECOND_NS * SECOND_NS
    until_ns = whole_ns + later_seconds * SECOND_NS if later_seconds else at_ns
    return f"time BETWEEN {moment(whole_ns - round(seconds) * SECOND_NS)} AND {moment(until_ns)}"


def of_table(table: str, at_ns: int, seconds: float, later_seconds: int = 0) -> str:
    """Return the same of *table*: of one that comes on change as far back as it comes whole."""
    if TABLES[table][0].on_change:
        seconds = max(seconds, KEYFRAME_SECONDS_MAX)
    return within(at_ns, seconds + LATER_SECONDS, later_seconds)


def steps(table: str, column: str, where: str) -> str:
    """Return the query for what a counter counted since each reading's one before, as `new`."""
    return (
        f"SELECT host, device, time, {column}, ops.counted({column}, boottime_ns, (host, device), time, "
        f"{_kind(table, column)}) AS new FROM readings.{table} WHERE {where}"
    )


@cache
def _kind(table: str, column: str) -> str:
    nature = nature_of(next(one for one in TABLES[table] if one.column == column))
    return f"{nature.width_bits}, {str(nature.sticks).lower()}"


def faded(table: str, at_ns: int, constant_seconds: float) -> str:
    """Return the expression of what is left of `new` in a leaky sum (`fleet/tables.py`) at *at_ns*, but for gaps.

    What counted while readings were missing judging spreads over the gap; here it is of the reading after it.
    """
    period = PERIOD_SECONDS[TABLES[table][0].pace]
    return f"ops.faded(new, time, {moment(at_ns)}, {period:g}, {constant_seconds:g})"


def in_unit(unit: str) -> str:
    """Return the name of a column of *unit*."""
    return unit.replace("/s", "_per_second").replace(" ", "_")


def counted(
    table: str, column: str, device: tuple[str, str], unit: str, at_ns: int, seconds: int
) -> str:
    """Return the query for a counter of *device* (host, device) with what it counted until *at_ns*, fading over *seconds*.

    The first row is of *at_ns*: a number within *seconds*, or where *unit* ends in `/s` the mean over them.
    """
    share = f" / {seconds}" if unit.endswith("/s") else ""
    where = _is(device) + " AND " + of_table(table, at_ns, CONSTANTS_BACK * seconds)
    return (
        f"SELECT time, {column}, new, sum({faded(table, at_ns, seconds)}) OVER (ORDER BY time){share} AS "
        f"{in_unit(unit)} FROM ({steps(table, column, where)}) ORDER BY time DESC"
    )


def beside_peers(
    table: str,
    column: str,
    device: tuple[str, str],
    unit: str,
    at_ns: int,
    *,
    simulated: bool,
    among: str = "",
) -> str:
    """Return the query for how fast a counter rises, of *device*, of its peers and in their median.

    Fading over ten seconds. First comes the device, then the peers that are nearest to the median. *among*: the query
    for those that it is held against, by host and device.
    """
    seconds, rate = 10, in_unit(unit)
    back_seconds = CONSTANTS_BACK * seconds + WHOLE_SECONDS
    awake = f"host IN (FROM ops.awake({moment(at_ns)}))"
    peers = f"SEMI JOIN ({among}) AS peers USING (host, device) " if among else ""
    where, own = f"{within(at_ns, back_seconds)} AND {awake}", _is(device)
    return (
        f"SELECT *, median({rate}) OVER () AS median FROM (SELECT host, device, arg_min({column}, time) AS first, "
        f"arg_max({column}, time) AS last, sum({faded(table, at_ns, seconds)}) / {seconds} AS {rate} "
        f"FROM ({steps(table, column, where)}) JOIN hosts USING (host) {peers}"
        f"WHERE simulated = {str(simulated).lower()} GROUP BY host, device) "
        f"ORDER BY ({own}) DESC, abs({rate} - median), host, device LIMIT {PEERS_SHOWN_MAX + 1}"
    )


def last_of_each(table: str, columns: str, host: str, at_ns: int, seconds: float) -> str:
    """Return the query for the last reading of each device of *host* within *seconds* before *at_ns*."""
    return (
        f"SELECT device, time, {columns} FROM readings.{table} WHERE host = {quoted(host)} "
        f"AND {of_table(table, at_ns, seconds)} "
        "QUALIFY row_number() OVER (PARTITION BY device ORDER BY time DESC) = 1"
    )


def peers(host: str, at_ns: int, gpu: str = "", gang: Sequence[str] = ()) -> str:
    """Return the query for the clock of a GPU, by default the slowest of *host*, and of its peers: of *gang*, if any."""
    which = f", gpu := {quoted(gpu)}" if gpu else ""
    which += f", gang := [{', '.join(map(quoted, gang))}]" if gang else ""
    return f"FROM ops.peers({quoted(host)}, {moment(at_ns)}{which}) LIMIT {PEERS_SHOWN_MAX + 1}"


def _is(device: tuple[str, str]) -> str:
    return f"host = {quoted(device[0])} AND device = {quoted(device[1])}"
