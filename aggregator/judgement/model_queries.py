"""The SQL of what a model of hazard looks at: the faults that it counts, and the readings that it measures by."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..fleet.tables import SLOW_SECONDS
from ..hazard import classes
from ..hazard.features import BY_CLASS
from ..sql import quoted
from .queries import (
    CONSTANTS_BACK,
    KEYFRAME_SECONDS_MAX,
    faded,
    last_of_each,
    moment,
    of_table,
    peers,
    steps,
)

#: Counters that a feature takes the worst of: table, column.
CORRECTED = (("gpu_1s_changes", "ecc_corrected_volatile_errors"),)
LINK_ERRORS = (("rdma_1s_changes", "symbol_errors"), ("nvlink_10s_changes", "crc_errors"))
LINK_DOWNS = (("rdma_1s_changes", "link_downed_events"),)
#: States that say that a GPU waits for a row remap, or has no rows left for one.
REMAPS = ("remap_pending_state", "remap_failed_state", "remap_banks_none_count")
#: A reading of each second is of now for so long.
FRESH_SECONDS = 15.0
#: When a host was heard: what every agent tells each second, and what it tells though that is switched off.
HEARD = (
    "SELECT host, time, 'host' AS source FROM readings.host_1s "
    "UNION ALL SELECT host, time, device FROM readings.collector_10s"
)
#: Faults of others count as of one cause for so long.
NEAR_SECONDS = 600

Query = Callable[[str, int], str]  # of a host's name and the time


def query_of(feature: str, host: str, at_ns: int) -> str:
    """Return the query for the rows that *feature* of *host* was computed from at *at_ns*."""
    return _QUERIES[feature](host, at_ns)


def last_heard(host: str, at_ns: int) -> str:
    """Return the query for when *host* was last heard before *at_ns*."""
    at = moment(at_ns)
    return (
        f"SELECT time, epoch({at} - time) AS seconds_ago, source FROM ({HEARD}) "
        f"WHERE host = {quoted(host)} AND time <= {at} ORDER BY time DESC LIMIT 20"
    )


def _faults(host: str, at_ns: int, days: int = 0) -> str:
    at = moment(at_ns)
    since = f" AND began >= {at} - INTERVAL {days} DAY" if days else ""
    return (
        f"SELECT began, ended, names, epoch({at} - began) / 86400 AS days_ago FROM ops.incidents_at({at}) "
        f"WHERE host = {quoted(host)} AND began < {at}{since} ORDER BY began DESC"
    )


def _of_class(name: str) -> Query:
    """Return the query for the faults that have a finding of the class *name*."""
    found = f"len(list_filter(names, lambda name: {classes.sql(name)})) > 0"
    return lambda host, at_ns: f"FROM ({_faults(host, at_ns)}) WHERE {found} ORDER BY began DESC"


def _last_week(host: str, at_ns: int) -> str:
    return _faults(host, at_ns, 7)


def _returned(host: str, at_ns: int) -> str:
    at = moment(at_ns)
    return (
        f"SELECT began, ended, names, epoch({at} - ended) / 86400 AS days_ago FROM ops.incidents_at({at}) "
        f"WHERE host = {quoted(host)} AND ended <= {at} ORDER BY ended DESC LIMIT 1"
    )


def _of_others(host: str, at_ns: int) -> str:
    at = moment(at_ns)
    return (
        f"SELECT host, began, names FROM ops.incidents_at({at}) WHERE host <> {quoted(host)} "
        f"AND began BETWEEN {at} - INTERVAL {NEAR_SECONDS} SECOND AND {at} ORDER BY began DESC, host"
    )


def _counted(counters: tuple[tuple[str, str], ...]) -> Query:
    """Return the query for all that *counters* counted, and what is left of it by device, the most first."""

    def query(host: str, at_ns: int) -> str:
        each = " UNION ALL ".join(_steps(*one, host, at_ns) for one in counters)
        return (
            "SELECT time, device, counter, new, sum(fading) OVER (PARTITION BY device, counter) AS in_10_min "
            f"FROM ({each}) WHERE new > 0 ORDER BY in_10_min DESC, device, time"
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
    second = last_of_each(
        "gpu_1s", "temperature_celsius, temperature_margin_celsius", host, at_ns, FRESH_SECONDS
    )
    ten = last_of_each("gpu_10s", "temperature_slowdown_celsius", host, at_ns, 25.0)
    return (
        "SELECT device, time, temperature_celsius, temperature_slowdown_celsius, temperature_margin_celsius, "
        "coalesce(temperature_margin_celsius, temperature_slowdown_celsius - temperature_celsius) AS headroom_celsius "
        f"FROM ({second}) LEFT JOIN (SELECT * EXCLUDE (time) FROM ({ten})) USING (device) ORDER BY headroom_celsius, device"
    )


def _unread(host: str, at_ns: int) -> str:
    at, name = moment(at_ns), quoted(host)
    last = f"SELECT device, max(time) AS last_read FROM readings.gpu_1s WHERE host = {name} AND time <= {at} GROUP BY device"
    return (
        f"SELECT device, last_read, epoch({at} - last_read) AS seconds_ago, "
        f"coalesce(seconds_ago > {FRESH_SECONDS:g}, true) AS unread FROM devices LEFT JOIN ({last}) USING (device) "
        f"WHERE host = {name} AND kind = 'gpu' ORDER BY unread DESC, device"
    )


_QUERIES: Mapping[str, Query] = {
    **dict.fromkeys(("returned_1d", "returned_10d", "failed_before", "returned"), _returned),
    **dict.fromkeys(("faults_7d", "faults_30d", "faults_90d", "faults_ever"), _faults),
    "faults_last_7d": _last_week,
    **{one.name: _of_class(name) for one, name in zip(BY_CLASS, classes.NAMES, strict=True)},
    "corrected_errors": _counted(CORRECTED),
    "remaps_waiting": _remaps,
    "link_errors": _counted(LINK_ERRORS),
    "link_downs": _counted(LINK_DOWNS),
    "speed": peers,
    "headroom_celsius": _headroom,
    "silent_seconds": last_heard,
    "gpus_unread": _unread,
    "faults_of_others": _of_others,
}
