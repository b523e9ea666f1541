"""SQL of evidence: each query returns exactly the rows from which its number was computed.

Names are quoted and times are absolute: the query returns the same rows while these are kept. Peer
properties (power limits, modes, drivers and other registered values) are current ones: after a
driver change, a peer appears in another group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache

from ...contract.signal import PERIOD_SECONDS
from ...contract.signals import TABLES
from ..counter_deltas import nature_of
from ..fleet.tables import SLOW_SECONDS
from ..hazard import fault_classes
from ..hazard.features import CLASS_FEATURES
from ..hazard.history import RANK_DECAY_DAYS
from ..sql import quoted

#: Peers shown, those nearest to the median.
PEERS_SHOWN_MAX = 32
#: A leaky sum holds 5 % of an event three time constants after it.
CONSTANTS_BACK = 3
SECOND_NS = 1_000_000_000
#: Queries that only show rows extend by this much: readings have the host's clock.
LATER_SECONDS = 5
#: An on-change table is complete every 60 s.
KEYFRAME_SECONDS_MAX = 150.0
#: Queries over the whole fleet search this far back for the previous reading.
WHOLE_SECONDS = 65.0

#: Counters of features that take the maximum: table, column.
CORRECTED = (("gpu_1s_changes", "ecc_corrected_volatile_errors"),)
LINK_ERRORS = (("rdma_1s_changes", "symbol_errors"), ("nvlink_10s_changes", "crc_errors"))
LINK_DOWNS = (("rdma_1s_changes", "link_downed_events"),)
#: States of a GPU that waits for a row remap, or has no rows left for one.
REMAPS = ("remap_pending_state", "remap_failed_state", "remap_banks_none_count")
#: A reading of a 1 s table is current for this long.
FRESH_SECONDS = 15.0
#: Times of a host's frames: two tables that every agent always sends.
RECEIVED_SOURCES = (
    "SELECT host, time, 'host' AS source FROM readings.host_1s "
    "UNION ALL SELECT host, time, device FROM readings.collector_10s"
)
#: Faults of other hosts count as one cause within this time.
NEAR_SECONDS = 600


def timestamp_sql(at_ns: int) -> str:
    """Return a time as SQL, with its microseconds if it has any."""
    microseconds = at_ns // 1000 % 1_000_000
    moment = datetime.fromtimestamp(at_ns // SECOND_NS, UTC)
    return f"TIMESTAMP '{moment:%Y-%m-%d %H:%M:%S}{f'.{microseconds:06d}' if microseconds else ''}'"


def within(at_ns: int, seconds: float, later_seconds: int = 0) -> str:
    """Return the condition for readings from *seconds* before *at_ns* to *later_seconds* after."""
    whole_ns = at_ns // SECOND_NS * SECOND_NS
    until_ns = whole_ns + later_seconds * SECOND_NS if later_seconds else at_ns
    return f"time BETWEEN {timestamp_sql(whole_ns - round(seconds) * SECOND_NS)} AND {timestamp_sql(until_ns)}"


def of_table(table: str, at_ns: int, seconds: float, later_seconds: int = 0) -> str:
    """Return `within` for *table*, back to the last complete reading if it is on-change."""
    if TABLES[table][0].on_change:
        seconds = max(seconds, KEYFRAME_SECONDS_MAX)
    return within(at_ns, seconds + LATER_SECONDS, later_seconds)


def steps(table: str, column: str, where: str) -> str:
    """Return the query for a counter's increase since the previous reading, as `new`."""
    return (
        f"SELECT host, device, time, {column}, ops.counted({column}, boottime_ns, (host, device), time, "
        f"{_kind(table, column)}) AS new FROM readings.{table} WHERE {where}"
    )


@cache
def _kind(table: str, column: str) -> str:
    nature = nature_of(next(signal for signal in TABLES[table] if signal.column == column))
    return f"{nature.width_bits}, {str(nature.sticks).lower()}"


def faded(table: str, at_ns: int, constant_seconds: float) -> str:
    """Return the expression for the rest of `new` in a leaky sum (`fleet/tables.py`), without gaps.

    Judging spreads an increase over missing readings evenly; this expression puts it at the reading
    after the gap.
    """
    period = PERIOD_SECONDS[TABLES[table][0].pace]
    return f"ops.faded(new, time, {timestamp_sql(at_ns)}, {period:g}, {constant_seconds:g})"


def in_unit(unit: str) -> str:
    """Return the column name for *unit*."""
    return unit.replace("/s", "_per_second").replace(" ", "_")


def counter_query(
    table: str, column: str, device: tuple[str, str], unit: str, at_ns: int, seconds: int
) -> str:
    """Return the query for a counter of *device* and its events, fading over *seconds*.

    The first row is of *at_ns*: the number within *seconds*, or their mean rate if *unit* ends in
    `/s`.
    """
    share = f" / {seconds}" if unit.endswith("/s") else ""
    where = _is(device) + " AND " + of_table(table, at_ns, CONSTANTS_BACK * seconds)
    return (
        f"SELECT time, {column}, new, sum({faded(table, at_ns, seconds)}) OVER (ORDER BY time){share} AS "
        f"{in_unit(unit)} FROM ({steps(table, column, where)}) ORDER BY time DESC"
    )


def peers_comparison(
    table: str,
    column: str,
    device: tuple[str, str],
    unit: str,
    at_ns: int,
    *,
    simulated: bool,
    among: str = "",
) -> str:
    """Return the query for a counter's rate over ten seconds: *device*, peers, and their median.

    First comes the device, then the peers nearest to the median. *among*: the query for the peers,
    by host and device.
    """
    seconds, rate = 10, in_unit(unit)
    back_seconds = CONSTANTS_BACK * seconds + WHOLE_SECONDS
    awake = f"host IN (FROM ops.awake({timestamp_sql(at_ns)}))"
    peers = f"SEMI JOIN ({among}) AS peers USING (host, device) " if among else ""
    where, is_device = f"{within(at_ns, back_seconds)} AND {awake}", _is(device)
    return (
        f"SELECT *, median({rate}) OVER () AS median FROM (SELECT host, device, arg_min({column}, time) AS first, "
        f"arg_max({column}, time) AS last, sum({faded(table, at_ns, seconds)}) / {seconds} AS {rate} "
        f"FROM ({steps(table, column, where)}) JOIN hosts USING (host) {peers}"
        f"WHERE simulated = {str(simulated).lower()} GROUP BY host, device) "
        f"ORDER BY ({is_device}) DESC, abs({rate} - median), host, device LIMIT {PEERS_SHOWN_MAX + 1}"
    )


def last_of_each(table: str, columns: str, host: str, at_ns: int, seconds: float) -> str:
    """Return the query for the last reading of each device of *host* within *seconds*."""
    return (
        f"SELECT device, time, {columns} FROM readings.{table} WHERE host = {quoted(host)} "
        f"AND {of_table(table, at_ns, seconds)} "
        "QUALIFY row_number() OVER (PARTITION BY device ORDER BY time DESC) = 1"
    )


def peers(host: str, at_ns: int, gpu: str = "", gang: Sequence[str] = ()) -> str:
    """Return the query for the clock of *gpu* (default: the slowest of *host*) and its peers."""
    which = f", gpu := {quoted(gpu)}" if gpu else ""
    which += f", gang := [{', '.join(map(quoted, gang))}]" if gang else ""
    return (
        f"FROM ops.peers({quoted(host)}, {timestamp_sql(at_ns)}{which}) LIMIT {PEERS_SHOWN_MAX + 1}"
    )


def _is(device: tuple[str, str]) -> str:
    return f"host = {quoted(device[0])} AND device = {quoted(device[1])}"


Query = Callable[[str, int], str]  # host name, time


def query_of(feature: str, host: str, at_ns: int) -> str:
    """Return the query for the rows from which *feature* of *host* was computed at *at_ns*."""
    return _QUERIES[feature](host, at_ns)


def last_received(host: str, at_ns: int) -> str:
    """Return the query for the last frame of *host* before *at_ns*."""
    moment = timestamp_sql(at_ns)
    return (
        f"SELECT time, epoch({moment} - time) AS seconds_ago, source FROM ({RECEIVED_SOURCES}) "
        f"WHERE host = {quoted(host)} AND time <= {moment} ORDER BY time DESC LIMIT 20"
    )


def _faults(host: str, at_ns: int, days: int = 0) -> str:
    moment = timestamp_sql(at_ns)
    since = f" AND began >= {moment} - INTERVAL {days} DAY" if days else ""
    return (
        f"SELECT began, ended, names, epoch({moment} - began) / 86400 AS days_ago FROM ops.incidents_at({moment}) "
        f"WHERE host = {quoted(host)} AND began < {moment}{since} ORDER BY began DESC"
    )


def _of_class(name: str) -> Query:
    """Return the query for the faults with a finding of the class *name*."""
    has_class = f"len(list_filter(names, lambda name: {fault_classes.class_condition(name)})) > 0"
    return lambda host, at_ns: (
        f"FROM ({_faults(host, at_ns)}) WHERE {has_class} ORDER BY began DESC"
    )


def _returned(host: str, at_ns: int) -> str:
    moment = timestamp_sql(at_ns)
    return (
        f"SELECT began, ended, names, epoch({moment} - ended) / 86400 AS days_ago FROM ops.incidents_at({moment}) "
        f"WHERE host = {quoted(host)} AND ended <= {moment} ORDER BY ended DESC LIMIT 1"
    )


def _ranked(host: str, at_ns: int) -> str:
    """Return the query for the ranking: *host*, and all ranked hosts that ever failed."""
    moment = timestamp_sql(at_ns)
    return (
        f"SELECT host, bool_and(coalesce(ended <= {moment}, false)) AS up, epoch({moment} - max(ended)) / 86400 AS returned_days_ago, "
        f"sum(exp(-epoch({moment} - began) / 86400 / {RANK_DECAY_DAYS:g})) AS faults_30d, count(*) AS faults "
        f"FROM ops.incidents_at({moment}) WHERE began < {moment} GROUP BY host "
        f"ORDER BY host <> {quoted(host)}, returned_days_ago, host"
    )


def _of_others(host: str, at_ns: int) -> str:
    moment = timestamp_sql(at_ns)
    return (
        f"SELECT host, began, names FROM ops.incidents_at({moment}) WHERE host <> {quoted(host)} "
        f"AND began BETWEEN {moment} - INTERVAL {NEAR_SECONDS} SECOND AND {moment} ORDER BY began DESC, host"
    )


def _counters_query(counters: tuple[tuple[str, str], ...]) -> Query:
    """Return the query for the increases of *counters*, and the rest by device, largest first."""

    def query(host: str, at_ns: int) -> str:
        all_steps = " UNION ALL ".join(_steps(*counter, host, at_ns) for counter in counters)
        return (
            "SELECT time, device, counter, new, sum(fading) OVER (PARTITION BY device, counter) AS in_10_min "
            f"FROM ({all_steps}) WHERE new > 0 ORDER BY in_10_min DESC, device, time"
        )

    return query


def _steps(table: str, column: str, host: str, at_ns: int) -> str:
    where = f"host = {quoted(host)} AND {of_table(table, at_ns, CONSTANTS_BACK * SLOW_SECONDS)}"
    return (
        f"SELECT time, device, '{column}' AS counter, new, {faded(table, at_ns, SLOW_SECONDS)} AS fading "
        f"FROM ({steps(table, column, where)})"
    )


def _remaps(host: str, at_ns: int) -> str:
    waits = f"coalesce(greatest({', '.join(REMAPS)}), 0) > 0"
    last = last_of_each("gpu_10s_changes", ", ".join(REMAPS), host, at_ns, KEYFRAME_SECONDS_MAX)
    return f"SELECT *, {waits} AS waits FROM ({last}) ORDER BY waits DESC, device"


def _headroom(host: str, at_ns: int) -> str:
    fast = last_of_each(
        "gpu_1s", "temperature_celsius, temperature_margin_celsius", host, at_ns, FRESH_SECONDS
    )
    slow = last_of_each("gpu_10s", "temperature_slowdown_celsius", host, at_ns, 25.0)
    return (
        "SELECT device, time, temperature_celsius, temperature_slowdown_celsius, temperature_margin_celsius, "
        "coalesce(temperature_margin_celsius, temperature_slowdown_celsius - temperature_celsius) AS headroom_celsius "
        f"FROM ({fast}) LEFT JOIN (SELECT * EXCLUDE (time) FROM ({slow})) USING (device) ORDER BY headroom_celsius, device"
    )


def _unread(host: str, at_ns: int) -> str:
    moment, name = timestamp_sql(at_ns), quoted(host)
    last = f"SELECT device, max(time) AS last_read FROM readings.gpu_1s WHERE host = {name} AND time <= {moment} GROUP BY device"
    return (
        f"SELECT device, last_read, epoch({moment} - last_read) AS seconds_ago, "
        f"coalesce(seconds_ago > {FRESH_SECONDS:g}, true) AS unread FROM devices LEFT JOIN ({last}) USING (device) "
        f"WHERE host = {name} AND kind = 'gpu' ORDER BY unread DESC, device"
    )


_QUERIES: Mapping[str, Query] = {
    **dict.fromkeys(("returned_1d", "returned_10d", "failed_before", "returned"), _returned),
    **dict.fromkeys(("faults_7d", "faults_30d", "faults_90d", "faults_ever"), _faults),
    "faults_last_7d": lambda host, at_ns: _faults(host, at_ns, 7),
    "fault_rank": _ranked,
    **{
        feature.name: _of_class(name)
        for feature, name in zip(CLASS_FEATURES, fault_classes.CLASS_NAMES, strict=True)
    },
    "corrected_errors": _counters_query(CORRECTED),
    "remaps_waiting": _remaps,
    "link_errors": _counters_query(LINK_ERRORS),
    "link_downs": _counters_query(LINK_DOWNS),
    "speed": peers,
    "headroom_celsius": _headroom,
    "silent_seconds": last_received,
    "gpus_unread": _unread,
    "faults_of_others": _of_others,
}
