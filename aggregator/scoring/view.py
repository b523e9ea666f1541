"""The fleet at one moment, as the rules read it: stale readings are missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..arrays import Codes, Flags, Floats, Indexes, Times
from ..counter_deltas import Uint64s
from ..fleet.devices import DEVICES_PER_HOST_MAX
from ..fleet.fleet import Fleet
from ..fleet.power_limits import capped_below_limit, power_limited
from ..fleet.relative_speeds import Speeds, relative_speeds
from ..fleet.tables import FAST_SECONDS, SLOW_SECONDS
from ..model import SIMULATED_SILENT_SECONDS_MAX
from ..sql import quoted
from . import evidence_sql
from .evidence_sql import KEYFRAME_SECONDS_MAX

#: A host that is silent for longer is STALE.
SILENT_SECONDS_MAX = 15.0
#: A reading is current for this many periods of its table.
PERIODS_MAX = 2.5
#: Tables that show whether a GPU is read: they arrive even without changes, so a stop shows soon.
GPU_FAST = ("gpu_1s", "gpu_10s")


class FleetView:
    """Views of *fleet* at *now_ns* of our clock. Arrays have a value per device row."""

    def __init__(self, fleet: Fleet, now_ns: int) -> None:
        self.fleet, self.now_ns = fleet, now_ns
        self.host_now_ns: Times = fleet.host_now_ns(now_ns)
        ever = fleet.last_received_ns > 0
        silent = np.maximum(now_ns - fleet.last_received_ns, 0) / 1e9
        #: Seconds since each host's last live frame; infinite if it had none.
        self.silent_seconds: Floats = np.where(ever, silent, np.inf)
        self.awake: Flags = self.silent_seconds <= SILENT_SECONDS_MAX
        #: Simulated hosts that have ended (`Snapshot.is_listed`).
        has_reported = np.isfinite(self.silent_seconds) & fleet.simulated
        self.simulation_ended = not (
            self.silent_seconds[has_reported] <= SIMULATED_SILENT_SECONDS_MAX
        ).any()
        self.ended: Flags = has_reported & self.simulation_ended
        self._age_seconds: dict[str, Floats] = {}
        self._fresh: dict[str, Flags] = {}
        self._clock: Floats | None = None
        self._speeds: Speeds | None = None
        self._gpu_is_read: Flags | None = None
        self._unread_hosts: Flags | None = None
        #: The thresholds that were read.
        self.requested_thresholds: set[str] = set()
        self._uses_previous = False

    @property
    def clock(self) -> Floats:
        """Every GPU's SM clock (Hz) while it computes and its host reports; else NaN."""
        if self._clock is None:
            clock = self.fleet.activity.clock(self.fleet.boot, self.host_now_ns)
            awake = self.awake[self.fleet.devices["gpu"].host]
            self._clock = np.where(awake, clock, np.nan)
        return self._clock

    @property
    def speeds(self) -> Speeds:
        """Every GPU's clock relative to its peers."""
        if self._speeds is None:
            fleet = self.fleet
            watts, hosts = fleet.tables["gpu_10s"].gauge("power_limit_watts"), fleet.devices["gpu"]
            at_limit = fleet.activity.at_limit
            limits = power_limited(at_limit, watts, hosts.host, fleet.gangs.comparison)
            power = self.gauge("gpu_1s", "power_watts")
            below = capped_below_limit(limits, power, self.clock, hosts.host)
            limits = limits._replace(rows=at_limit & ~below)
            self._speeds = relative_speeds(fleet, self.clock, limits)
        return self._speeds

    @property
    def clock_over_baseline(self) -> Floats:
        """Every GPU's clock over its baseline in the same job while unlimited."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(self.clock / self.fleet.activity.baseline_clock)

    def threshold(self, name: str) -> float:
        """Return a threshold of the rules (`declared/thresholds.py`), as it was declared."""
        self.requested_thresholds.add(name)
        return self.fleet.declared.threshold(name, before=self._uses_previous)

    @contextmanager
    def with_previous_thresholds(self) -> Iterator[None]:
        """Within the context, use the thresholds of hosts that a roll-out has not reached."""
        self._uses_previous = True
        try:
            yield
        finally:
            self._uses_previous = False

    @property
    def gpu_is_read(self) -> Flags:
        """GPUs with current readings in fast tables, or in any if these have none this boot."""
        if self._gpu_is_read is None:
            gpus = self.fleet.devices["gpu"]
            fast, slow = np.zeros(gpus.count, dtype=bool), np.zeros(gpus.count, dtype=bool)
            has_fast = np.zeros(gpus.count, dtype=bool)
            for name, table in self.fleet.tables.items():
                if table.devices is not gpus or name == "gpu_1s_probe":
                    continue
                if name in GPU_FAST:
                    fast |= self.fresh(name)
                    has_fast |= np.isfinite(self.age_seconds(name))
                else:
                    slow |= self.fresh(name)
            self._gpu_is_read = fast | (slow & ~has_fast)
        return self._gpu_is_read

    @property
    def gpus_read(self) -> Codes:
        """The number of GPUs of each host with current readings."""
        host_of_gpu = self.fleet.devices["gpu"].host[self.gpu_is_read]
        return np.bincount(host_of_gpu, minlength=len(self.fleet)).astype(np.int32)

    @property
    def gpus_declared(self) -> Floats:
        """The declared number of GPUs of each host; NaN if not declared."""
        fleet = self.fleet
        fleet.expectations.update(fleet.declared, fleet.reported_inventory, fleet.names)
        return fleet.expectations.expected_values("gpus")

    @property
    def unread_hosts(self) -> Flags:
        """Reporting hosts that have GPUs, as far as is known, but no current reading of any."""
        known = self._unread_hosts
        if known is None:
            known = np.asarray(
                self.awake & (self.fleet.gpus > 0) & (self.gpus_read == 0), dtype=bool
            )
            self._unread_hosts = known
        return known

    def age_seconds(self, table: str) -> Floats:
        """Return the seconds since the last reading of each row of *table*; infinite for never."""
        known = self._age_seconds.get(table)
        if known is None:
            rows = self.fleet.tables[table]
            known = self._age_seconds[table] = rows.age_seconds(self.fleet.boot, self.host_now_ns)
        return known

    def _quiet_seconds(self, table: str, at: Indexes) -> Floats:
        """Return for how long the rows *at* are known not to have counted.

        These are whole periods of the table, up to the host's last frame: only the next reading
        shows what a counter did since the last.
        """
        rows = self.fleet.tables[table]
        age_seconds = rows.age_seconds_at(at, self.fleet.boot, self.host_now_ns)
        silent = self.silent_seconds[rows.devices.host[at]]
        known = np.isfinite(age_seconds) & np.isfinite(silent)
        seconds = np.where(known, age_seconds, 0.0) - np.where(known, silent, 0.0)
        whole_seconds = np.floor(seconds / rows.period_seconds + 1e-6) * rows.period_seconds
        return np.where(known, whole_seconds, np.inf)

    def fresh(self, table: str) -> Flags:
        """Return which rows of *table* are current."""
        known = self._fresh.get(table)
        if known is None:
            known = self._fresh[table] = self._is_fresh(table)
        return known

    def _is_fresh(self, table: str) -> Flags:
        rows = self.fleet.tables[table]
        awake = self.awake[rows.devices.host]
        return (self.age_seconds(table) <= self._limit(table)) & awake

    def _limit(self, table: str) -> float:
        rows = self.fleet.tables[table]
        if rows.on_change:
            return KEYFRAME_SECONDS_MAX
        return max(SILENT_SECONDS_MAX, PERIODS_MAX * rows.period_seconds)

    def fresh_at(self, table: str, at: Indexes) -> Flags:
        """Return which rows *at* are current: in large tables rules check suspicious rows only."""
        # Most calls have no rows, and numpy's work on empty arrays costs the same.
        if not at.size:
            return np.zeros(0, dtype=bool)
        known = self._fresh.get(table)
        if known is not None:
            return known[at]
        rows = self.fleet.tables[table]
        age_seconds = rows.age_seconds_at(at, self.fleet.boot, self.host_now_ns)
        awake = self.awake[rows.devices.host[at]]
        return (age_seconds <= self._limit(table)) & awake

    def where(self, table: str, column: str, condition: Callable[[Any], Flags]) -> Indexes:
        """Return the rows whose current reading fulfils *condition*, never missing ones."""
        rows = self.fleet.tables[table].cells_where(column, condition)
        return rows[self.fresh_at(table, rows)] if rows.size else rows

    def counting(
        self, table: str, column: str, least: float = 0.0, *, slow: bool = False
    ) -> tuple[Indexes, Floats]:
        """Return (rows, events of about the last 10 s, or 600 s) with at least *least* events."""
        rows = self.fleet.tables[table].counting(column, least, slow=slow)
        rows = rows[self.fresh_at(table, rows)] if rows.size else rows
        if not rows.size:
            return rows, np.zeros(0)
        quiet_seconds = self._quiet_seconds(table, rows)
        events = self.fleet.tables[table].recent(column, quiet_seconds, slow=slow, rows=rows)
        enough = events >= least
        return rows[enough], events[enough]

    def gauge_at(self, table: str, column: str, at: Indexes) -> Floats:
        """Return a gauge at the rows *at*, NaN if it is not current."""
        values = self.fleet.tables[table].gauge_at(column, at)
        return np.where(self.fresh_at(table, at), values, np.nan)

    def gauge(self, table: str, column: str) -> Floats:
        """Return a gauge, NaN where it is not current."""
        return np.where(self.fresh(table), self.fleet.tables[table].gauge(column), np.nan)

    def state(self, table: str, column: str) -> Uint64s:
        """Return a state, 0 where it is not current."""
        values = self.fleet.tables[table].state(column)
        return np.where(self.fresh(table), values, np.uint64(0))

    def known(self, table: str, column: str) -> Flags:
        """Return where a signal has a current value."""
        return self.fleet.tables[table].known(column) & self.fresh(table)

    def rates(self, table: str, column: str, *, slow: bool = False) -> Floats:
        """Return a counter's events per second over the last 10 s (or 600 s)."""
        constant = SLOW_SECONDS if slow else FAST_SECONDS
        return self.recent(table, column, slow=slow) / constant

    def recent(self, table: str, column: str, *, slow: bool = False) -> Floats:
        """Return a counter's events of about the last 10 s (or 600 s)."""
        rows, events = self.counting(table, column, slow=slow)
        result = np.zeros(self.fleet.tables[table].devices.count)
        result[rows] = events
        return result

    def name(self, table: str, row: int) -> tuple[int, str]:
        """Return (node index, device) of a row."""
        devices = self.fleet.tables[table].devices
        return int(devices.host[row]), devices.names[row]

    def sql(self, table: str, row: int, columns: str, seconds: float) -> str:
        """Return the query for a device's readings of the last *seconds*, newest first."""
        return f"SELECT time, {columns} {self._readings(table, row, seconds)} ORDER BY time DESC"

    def sql_counter(self, table: str, row: int, column: str, unit: str, seconds: int) -> str:
        """Return the query for a device's counter and its events (`evidence_sql.counter_query`)."""
        host, device = self.name(table, row)
        key = self.fleet.names[host], device
        return evidence_sql.counter_query(table, column, key, unit, self.now_ns, seconds)

    def sql_with_peers(self, table: str, row: int, column: str, unit: str, among: str = "") -> str:
        """Return the query for the rate of a device's counter and of its peers.

        *among*: the query for the peers, if not all.
        """
        host, device = self.name(table, row)
        key, simulated = (self.fleet.names[host], device), bool(self.fleet.simulated[host])
        return evidence_sql.peers_comparison(
            table, column, key, unit, self.now_ns, simulated=simulated, among=among
        )

    def sql_last_of_each(self, table: str, host: int, columns: str, seconds: float) -> str:
        """Return the query for the last reading of each device of a host."""
        return evidence_sql.last_of_each(
            table, columns, self.fleet.names[host], self.now_ns, seconds
        )

    def sql_devices(self, table: str, host: int, seconds: float) -> str:
        """Return the query for a host's devices in *table*, and their excess over the limit."""
        return (
            f"SELECT count(DISTINCT device) AS devices, devices - {DEVICES_PER_HOST_MAX} AS without_room FROM readings.{table} "
            f"WHERE host = {quoted(self.fleet.names[host])} "
            f"AND {evidence_sql.of_table(table, self.now_ns, seconds, evidence_sql.LATER_SECONDS)}"
        )

    def _readings(self, table: str, row: int, seconds: float) -> str:
        host, device = self.name(table, row)
        return (
            f"FROM readings.{table} "
            f"WHERE host = {quoted(self.fleet.names[host])} AND device = {quoted(device)} "
            f"AND {evidence_sql.of_table(table, self.now_ns, seconds, evidence_sql.LATER_SECONDS)}"
        )

    def age(self) -> str:
        """Return the column with the age of a reading in seconds."""
        return f"date_diff('second', time, {self.timestamp_sql(0)}) AS seconds_ago"

    def timestamp_sql(self, seconds: float) -> str:
        """Return the time *seconds* from now as SQL."""
        return evidence_sql.timestamp_sql(
            (self.now_ns // 1_000_000_000 + round(seconds)) * 1_000_000_000
        )
